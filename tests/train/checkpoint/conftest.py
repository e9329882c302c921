"""What the tests of checkpoints share: runs on the tiny Wan model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def runs() -> ModuleType:
    """The functions of `checkpoint_runs.py`, which several ranks run as a script."""
    return _load("checkpoint_runs", Path(__file__).parent / "checkpoint_runs.py")


@pytest.fixture(scope="session")
def data(runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of eight rows, so that six steps of two ranks go into a second epoch."""
    written: Path = runs.tiny_runs.write_dataset(tmp_path_factory.mktemp("data"), rows=8)
    return written


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the tiny model out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTVIDEO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
