"""Toy models, and the tiny Wan model with a data set, for the tests of methods."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def _load(name: str) -> ModuleType:
    """Imports a file beside this one; test folders are no packages."""
    full_name = f"fastvideo_tests_methods_{name}"
    if full_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            full_name, Path(__file__).parent / f"{name}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full_name] = module
        spec.loader.exec_module(module)
    return sys.modules[full_name]


@pytest.fixture(scope="session")
def toys() -> ModuleType:
    """Models small enough to work out by hand."""
    return _load("toys")


@pytest.fixture(scope="session")
def tiny_runs() -> ModuleType:
    """Runs of the methods on the tiny Wan model."""
    return _load("tiny_runs")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the tiny model and text embeddings out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTVIDEO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
