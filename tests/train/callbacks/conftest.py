"""What the tests of callbacks share: runs of the tiny Wan model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="session")
def tiny_runs() -> ModuleType:
    """The module that writes data sets and makes methods."""
    path = Path(__file__).parents[1] / "methods" / "tiny_runs.py"
    spec = importlib.util.spec_from_file_location("tiny_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
