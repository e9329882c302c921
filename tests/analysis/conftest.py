"""Small traces for the tests of their comparison."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.analysis import ActivationFile, Tolerances, diff_activations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fastvideo.analysis import ActivationDiff

HEADER = {"kind": "header", "version": 1, "run_id": "r", "rank": 0, "world_size": 1}


class Traces:
    """Makes traces, and compares them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def record(self, step: int | None, module: str, value: Any = 1.0, **more: Any) -> Any:
        """A record of eight elements of mean magnitude ``value``."""
        return {
            "module": module,
            "tensor": "out",
            "step": step,
            "call": 0,
            "role": "student",
            "rank": 0,
            "shape": [2, 4],
            "dtype": "torch.float32",
            "numel": 8,
            "abs_mean": value,
            **more,
        }

    def write(
        self,
        name: str,
        records: Iterable[Mapping[str, Any]],
        modules: str = "abc",
        roles: Iterable[str] = ("student",),
    ) -> ActivationFile:
        """Writes a trace and opens it."""
        models = [{"kind": "model", "role": role, "modules": list(modules)} for role in roles]
        lines = [json.dumps(line) for line in (HEADER, *models, *records)]
        path = self.folder / name
        path.write_text("\n".join([*lines, ""]))
        return ActivationFile(path)

    def diff(
        self, a: Iterable[Mapping[str, Any]], b: Iterable[Mapping[str, Any]], **options: Any
    ) -> ActivationDiff:
        """Compares records with the usual tolerances, or those of ``rtol`` and ``atol``."""
        tolerances = Tolerances.parse(options.pop("rtol", ()), options.pop("atol", ()))
        files = self.write("a.jsonl", a), self.write("b.jsonl", b)
        return diff_activations(*files, tolerances, **options)


@pytest.fixture
def traces(tmp_path: Path) -> Traces:
    """A maker of traces."""
    return Traces(tmp_path)
