"""Named hooks on modules."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from fastvideo.hooks import ForwardHook, ModuleHookManager


class Noting(ForwardHook):
    """Writes down when it is called; adds to inputs and outputs."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name = name
        self._calls = calls

    def name(self) -> str:
        return self._name

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self._calls.append(f"before {self._name}")
        return (args[0] + 1,), kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self._calls.append(f"after {self._name}")
        return None if output is None else output * 10


class Only(ForwardHook):
    """Does nothing at any moment."""

    def name(self) -> str:
        return "only"


def test_hooks_run_in_order_before_and_in_reverse_after() -> None:
    """And what they return is what the forward gets, and the caller."""
    calls: list[str] = []
    module = nn.Identity()
    manager = ModuleHookManager.get_from_or_default(module)
    manager.append_forward_hook(Noting("a", calls))
    manager.append_forward_hook(Noting("b", calls))
    assert module(torch.tensor(1)).item() == 300
    assert calls == ["before a", "before b", "after b", "after a"]


def test_a_manager_is_there_as_long_as_there_are_hooks() -> None:
    """get_from finds it on modules with hooks only."""
    module = nn.Identity()
    assert ModuleHookManager.get_from(module) is None
    manager = ModuleHookManager.get_from_or_default(module)
    assert ModuleHookManager.get_from(module) is None
    hook = Only()
    manager.append_forward_hook(hook)
    assert ModuleHookManager.get_from(module) is manager
    assert ModuleHookManager.get_from_or_default(module) is manager
    assert manager.get_forward_hook("only") is hook
    manager.remove_forward_hook("only")
    assert manager.get_forward_hook("only") is None
    assert ModuleHookManager.get_from(module) is None


def test_removing_the_last_hook_leaves_nothing() -> None:
    """PyTorch's own hooks are gone as well, and forward was never replaced."""
    module = nn.Linear(2, 2)
    before = set(module.__dict__)
    manager = ModuleHookManager.get_from_or_default(module)
    manager.append_forward_hook(Noting("a", []))
    assert "forward" not in module.__dict__
    manager.append_forward_hook(Only())
    manager.remove_from_manager()
    assert (len(module._forward_hooks), len(module._forward_pre_hooks)) == (0, 0)
    assert set(module.__dict__) == before


def test_a_hook_that_overrides_nothing_costs_nothing() -> None:
    """Nothing is registered with PyTorch for it."""
    module = nn.Identity()
    ModuleHookManager.get_from_or_default(module).append_forward_hook(Only())
    assert (len(module._forward_hooks), len(module._forward_pre_hooks)) == (0, 0)


def test_names_are_unique_and_known() -> None:
    """The messages say which hook is meant."""
    manager = ModuleHookManager.get_from_or_default(nn.Identity())
    manager.append_forward_hook(Only())
    with pytest.raises(ValueError, match="Identity has a hook 'only' already"):
        manager.append_forward_hook(Only())
    with pytest.raises(KeyError, match=r"no hook 'onyl'\. Did you mean 'only'"):
        manager.remove_forward_hook("onyl")


def test_hooks_hear_of_a_forward_that_raises() -> None:
    """They get None, and the exception reaches the caller unchanged."""
    calls: list[str] = []
    module = nn.Linear(2, 2)
    ModuleHookManager.get_from_or_default(module).append_forward_hook(Noting("a", calls))
    with pytest.raises(RuntimeError, match="shapes"):
        module(torch.ones(3))
    assert calls == ["before a", "after a"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_have_no_hooks(copied: Any) -> None:
    """Copying and pickling a module work, and the copy can have hooks of its own."""
    calls: list[str] = []
    module = nn.Linear(2, 2)
    ModuleHookManager.get_from_or_default(module).append_forward_hook(Noting("a", calls))
    twin = copied(module)
    assert ModuleHookManager.get_from(twin) is None
    assert torch.equal(twin(torch.ones(2)), module.forward(torch.ones(2)))
    assert calls == []
    ModuleHookManager.get_from_or_default(twin).append_forward_hook(Noting("a", calls))
    twin(torch.ones(2))
    assert calls == ["before a", "after a"]
