"""Target files, by which Prometheus finds the endpoints of a run (``file_sd_configs``)."""

from __future__ import annotations

import json
import os
import re
import socket
from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger
from fastvideo.profiler.atomic_file import write_whole

if TYPE_CHECKING:
    from pathlib import Path

logger = init_logger(__name__)

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARACTERS: Final = 100
_ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to


class TargetFile:
    """The target file of one rank: there while the rank serves.

    ``rank`` and ``run`` are on every series, so they are no target labels: Prometheus would rename
    the series' own.

    Args:
        directory: Directory that Prometheus watches as ``<directory>/*.json``.
        run: Name of the run, for the name of the file.
        rank: Global rank of this process.
    """

    def __init__(self, directory: Path, *, run: str, rank: int) -> None:
        name = _UNSAFE.sub("_", run)[:_NAME_CHARACTERS].lstrip(".") or "run"
        self.path = directory / f"fastvideo_{name}_rank{rank}.json"
        self._written: bytes | None = None
        self._owner = os.getpid()

    def write(self, address: tuple[str, int], *, scheme: str = "http") -> bool:
        """Writes the file, whole or not at all; what cannot be written is one warning.

        Args:
            address: Address and port that the endpoint listens on.
            scheme: ``http`` or ``https``.

        Returns:
            Whether it was written.
        """
        labels = {"__scheme__": scheme}
        groups = [{"targets": [target_of(address)], "labels": labels}]
        data = (json.dumps(groups, indent=1) + "\n").encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, data, replace=True)
        except OSError as error:
            logger.warning(
                "Prometheus is not told of this endpoint: %s cannot be written (%s)",
                self.path,
                error.strerror or error,
            )
            return False
        self._written = data
        return True

    def remove(self) -> None:
        """Removes the file if it is still the one this process wrote."""
        written, self._written = self._written, None
        if written is None or os.getpid() != self._owner:
            return
        try:
            if self.path.read_bytes() == written:
                self.path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("target file %s stays: %s", self.path, error.strerror or error)


def target_of(address: tuple[str, int]) -> str:
    """Returns what Prometheus connects to.

    Args:
        address: Address and port that the endpoint listens on. For every address of the machine
            it is the machine's name; one that only this machine can reach stays as it is.
    """
    host, port = address
    if host in _ANY_ADDRESS:
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
