"""Building objects by `_target_`."""

from __future__ import annotations

import sys
import types
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from fastvideo.errors import MissingExtraError
from fastvideo.train.instantiate import accepts_argument, instantiate, resolve_target


@dataclass
class Named:
    """Takes two arguments and nothing else."""

    size: int
    flow_shift: float = 3.0


class Open:
    """Takes whatever it is given."""

    def __init__(self, **options: Any) -> None:
        self.options = options


@pytest.fixture(autouse=True)
def targets(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module that run files can name."""
    module = types.ModuleType("fake_targets")
    module.Named = Named  # type: ignore[attr-defined]
    module.Open = Open  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_targets", module)
    return module


def test_target_resolves_to_the_attribute() -> None:
    """A dotted path is a module and an attribute of it."""
    assert resolve_target("fake_targets.Named") is Named


@pytest.mark.parametrize("target", ["", "NoDots", ".a", "a.", "a..b", None, 3])
def test_target_that_is_no_path(target: object) -> None:
    """Anything but text with a dot is a ValueError."""
    with pytest.raises(ValueError, match="dotted path"):
        resolve_target(target)


def test_missing_attribute_names_both_and_the_nearest() -> None:
    """A misspelt class is answered with module, name and suggestion."""
    with pytest.raises(ImportError) as caught:
        resolve_target("fake_targets.Namd")
    assert str(caught.value) == (
        "_target_ 'fake_targets.Namd': module 'fake_targets' has no attribute 'Namd'. "
        "Did you mean 'Named'?"
    )


def test_missing_module_names_both_and_the_nearest() -> None:
    """A misspelt module is answered with the module beside it."""
    with pytest.raises(ImportError, match=r"cannot import module 'fastvideo.train.optoins'") as e:
        resolve_target("fastvideo.train.optoins.as_int")
    assert "'as_int'" in str(e.value)
    assert str(e.value).endswith("Did you mean 'fastvideo.train.options'?")
    with pytest.raises(ImportError, match="no_such_package"):
        resolve_target("no_such_package.module.Class")


def test_missing_extra_passes_unchanged(targets: types.ModuleType) -> None:
    """An error that says what to install is not wrapped."""

    def load(name: str) -> object:
        message = "install fastvideo[train]"
        raise MissingExtraError(message)

    targets.__getattr__ = load  # type: ignore[method-assign]
    with pytest.raises(MissingExtraError, match="install"):
        resolve_target("fake_targets.Other")


def test_arguments_and_extras_are_passed() -> None:
    """Keys of the mapping and extras reach the constructor; extras win."""
    made = instantiate({"_target_": "fake_targets.Named", "size": 1, "flow_shift": 2}, size=5)
    assert made == Named(size=5, flow_shift=2)


def test_unknown_keys_are_dropped_with_one_warning() -> None:
    """Keys of another version are listed with the nearest argument, and the object is made."""
    cfg = {"_target_": "fake_targets.Named", "flow_shfit": 8.0, "zzz": 1}
    with pytest.warns(UserWarning, match="does not take") as caught:
        made = instantiate(cfg, size=1)
    assert made == Named(size=1)
    assert [str(w.message) for w in caught] == [
        "fake_targets.Named does not take 'flow_shfit' (did you mean 'flow_shift'?), 'zzz'; ignored"
    ]
    assert cfg == {"_target_": "fake_targets.Named", "flow_shfit": 8.0, "zzz": 1}


def test_open_constructors_get_everything() -> None:
    """With `**options` nothing is unknown."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = instantiate({"_target_": "fake_targets.Open", "a": 1}, b=2)
    assert made.options == {"a": 1, "b": 2}


def test_missing_arguments_are_named() -> None:
    """A required argument that nobody gave is named with the target."""
    with pytest.raises(TypeError, match=r"fake_targets\.Named needs 'size'"):
        instantiate({"_target_": "fake_targets.Named", "flow_shift": 1.0})


def test_mappings_that_cannot_be_built() -> None:
    """No mapping is a TypeError, no target a KeyError, no callable a ValueError."""
    with pytest.raises(TypeError, match="expected a mapping"):
        instantiate(["_target_"])
    with pytest.raises(KeyError, match="_target_"):
        instantiate({"size": 1})
    with pytest.raises(ValueError, match="cannot be called"):
        instantiate({"_target_": "fake_targets.number"})


def test_functions_and_builtins_are_targets_too() -> None:
    """Anything callable can be named, also where its signature cannot be read."""
    assert instantiate({"_target_": "builtins.dict", "a": 1}) == {"a": 1}


def test_accepts_argument() -> None:
    """Named arguments and open constructors accept, others do not."""
    assert accepts_argument(Named, "flow_shift")
    assert accepts_argument(Open, "flow_shift")
    assert not accepts_argument(Named, "flow")
