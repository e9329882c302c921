"""Metrics as lines of JSON in a file: no service, no dependency, readable while the run goes on."""

from __future__ import annotations

import json
import math
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fastvideo.train.trackers.tracker import Scalar

logger = init_logger(__name__)

FILE_NAME: Final = "metrics.jsonl"


class JsonlTracker:
    """Writes one object per logged step, ``{"step": 3, "total_loss": 0.5, …}``, to a file.

    The lines are strict JSON: a number that is not finite becomes the text ``"NaN"``,
    ``"Infinity"`` or ``"-Infinity"``, so that it is neither lost nor invalid. Each line is handed
    to the operating system at once and as a whole: killing the process loses nothing that was
    logged.

    A run that starts before the first step found in the file moves the old file aside, to
    ``metrics.<n>.jsonl``; a run that continues appends. Steps done twice because a run went on
    from an earlier checkpoint are then there twice, and the later line counts.

    Args:
        log_dir: Directory of ``metrics.jsonl``; made if missing.
    """

    name = "jsonl"

    def __init__(self, log_dir: Path) -> None:
        self._directory = log_dir
        log_dir.mkdir(parents=True, exist_ok=True)
        self.path = log_dir / FILE_NAME
        self._descriptor: int | None = None

    def log(self, metrics: Mapping[str, Scalar], step: int) -> None:
        """Appends one line."""
        if self._descriptor is None:
            self._descriptor = _open_for_run(self.path, step)
        record: dict[str, Scalar] = {"step": step}
        for name, value in metrics.items():
            record[name] = _strict(value)
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        _append_whole(self._descriptor, line.encode())

    def log_artifacts(self, artifacts: Mapping[str, Any], step: int) -> None:
        """Ignores artifacts: they are no scalars."""

    def log_file(self, path: Path, name: str) -> None:
        """Copies the file beside the metrics."""
        target = self._directory / name
        if not (target.exists() and target.samefile(path)):
            shutil.copyfile(path, target)

    def video(self, data: Any, *, caption: str | None, fps: int, format: str) -> None:  # noqa: A002, ANN401 - the protocol
        """Supports no videos."""

    def finish(self, exit_code: int) -> None:
        """Closes the file."""
        del exit_code
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _strict(value: Scalar) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _append_whole(descriptor: int, line: bytes) -> None:
    """Writes a line, or leaves the file as it was: half a line would spoil the next one too."""
    length = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, line)
    except OSError:
        os.ftruncate(descriptor, length)
        raise
    if written != len(line):
        os.ftruncate(descriptor, length)
        message = f"only {written} of {len(line)} bytes fit; the disk may be full"
        raise OSError(message)


def _open_for_run(path: Path, step: int) -> int:
    """Opens the file for appending, after moving a former run's file aside."""
    if step <= _first_step(path):
        number = 1
        while path.with_name(f"metrics.{number}.jsonl").exists():
            number += 1
        path.rename(path.with_name(f"metrics.{number}.jsonl"))
        logger.info("kept the metrics of a former run as metrics.%d.jsonl", number)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    length = os.fstat(descriptor).st_size
    if length and os.pread(descriptor, 1, length - 1) != b"\n":  # torn by a crash of the machine
        os.write(descriptor, b"\n")
    return descriptor


def _first_step(path: Path) -> float:
    """Returns the first step in the file; minus infinity if it has no readable one."""
    try:
        with path.open(encoding="utf-8") as lines:
            return float(json.loads(next(lines))["step"])
    except (OSError, StopIteration, ValueError, KeyError, TypeError):
        return -math.inf
