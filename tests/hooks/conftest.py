"""What the tests of activation tracing share: a way to trace, and the records of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.analysis import ActivationFile, Tolerances, diff_activations
from fastvideo.hooks import attach_activation_trace, detach_activation_trace
from fastvideo.profiler.strict_json import loads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

    from fastvideo.analysis import ActivationDiff


class Tracer:
    """Traces into files of a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._traces: list[Any] = []
        self.set(ACTIVATIONS="1", STATS="abs_mean,sum")

    def set(self, **variables: str) -> None:
        """Sets FASTVIDEO_TRACE_ variables."""
        for name, value in variables.items():
            self._monkeypatch.setenv(f"FASTVIDEO_TRACE_{name}", value)

    def attach(self, name: str, model: nn.Module, role: str = "") -> Any:
        """Traces a model into a file."""
        self.set(OUTPUT=str(self.folder / name))
        trace = attach_activation_trace(model, role=role)
        self._traces.append(trace)
        return trace

    def detach(self) -> None:
        """Ends all traces."""
        for trace in self._traces:
            detach_activation_trace(trace)
        self._traces.clear()

    def trace(self, name: str, model: nn.Module, run: Callable[[], Any]) -> None:
        """Traces what is run."""
        self.attach(name, model)
        try:
            run()
        finally:
            self.detach()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """All lines of a file, which must be strict JSON."""
        return [loads(line) for line in (self.folder / name).read_text().splitlines()]

    def records(self, name: str) -> list[dict[str, Any]]:
        """The lines that are about tensors."""
        return [line for line in self.lines(name) if "kind" not in line]

    def diff(self, a: str, b: str, **options: Any) -> ActivationDiff:
        """Compares two files."""
        files = ActivationFile(self.folder / a), ActivationFile(self.folder / b)
        return diff_activations(*files, Tolerances.parse(), **options)


@pytest.fixture
def tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tracer, whose traces end with the test."""
    tracer = Tracer(tmp_path, monkeypatch)
    yield tracer
    tracer.detach()
