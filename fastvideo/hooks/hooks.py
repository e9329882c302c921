"""Named hooks around the forward of a module, which can be looked up and taken off again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Self, final

from torch import nn

from fastvideo.errors import did_you_mean

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_ATTRIBUTE: Final = "_fastvideo_hook_manager"


class ForwardHook(ABC):
    """Something that happens before and after every forward of a module.

    Subclasses name themselves, and override the moments they need.
    """

    @abstractmethod
    def name(self) -> str:
        """Returns the name that the hook is looked up by; unique on a module."""

    def pre_forward(
        self,
        module: nn.Module,  # noqa: ARG002 - for overriding
        *args: Any,  # noqa: ANN401 - whatever the module takes
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments that the forward gets.

        Args:
            module: The module.
            *args: The arguments of the call.
            **kwargs: The same.
        """
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:  # noqa: ANN401, ARG002
        """Returns what the call returns; called with None where the forward raised.

        Args:
            module: The module.
            output: What the forward returned.
        """
        return output


@final
class ModuleHookManager:
    """The hooks of one module.

    The module's ``forward`` stays its own: the hooks are called by those of PyTorch, one for all
    of them, so that ``torch.compile``, FSDP and pickling see an ordinary module. A module without
    hooks has no manager, and a copy of a module has no hooks.

    Hooks are called in the order in which they were appended before the forward, and in the
    reverse order after it.

    Attributes:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._hooks: dict[str, ForwardHook] = {}
        self._before: tuple[ForwardHook, ...] = ()
        self._after: tuple[ForwardHook, ...] = ()
        self._pre_handle: RemovableHandle | None = None
        self._post_handle: RemovableHandle | None = None

    @classmethod
    def get_from(cls, module: nn.Module) -> Self | None:
        """Returns the manager of a module; None if it has no hooks.

        Args:
            module: The module.
        """
        manager: Self | None = module.__dict__.get(_ATTRIBUTE)
        return manager if manager is not None and manager._hooks else None  # noqa: SLF001 - own

    @classmethod
    def get_from_or_default(cls, module: nn.Module) -> Self:
        """Returns the manager of a module, a new one if it has none.

        A new one is the module's from its first hook on.

        Args:
            module: The module.
        """
        return cls.get_from(module) or cls(module)

    def append_forward_hook(self, hook: ForwardHook) -> None:
        """Adds a hook: the last one before the forward, and the first one after it.

        Args:
            hook: The hook.

        Raises:
            ValueError: The module has a hook of that name.
        """
        name = hook.name()
        if name in self._hooks:
            message = f"{type(self.module).__name__} has a hook {name!r} already; remove it first"
            raise ValueError(message)
        self._hooks[name] = hook
        self._register()

    def get_forward_hook(self, name: str) -> ForwardHook | None:
        """Returns the hook of a name; None if there is none.

        Args:
            name: Its name.
        """
        return self._hooks.get(name)

    def remove_forward_hook(self, name: str) -> None:
        """Takes a hook off; the module is as it was before when it was the last one.

        Args:
            name: Its name.

        Raises:
            KeyError: The module has no hook of that name.
        """
        if name not in self._hooks:
            given = type(self.module).__name__
            message = f"{given} has no hook {name!r}.{did_you_mean(name, self._hooks)}"
            raise KeyError(message)
        del self._hooks[name]
        self._register()

    def remove_from_manager(self) -> None:
        """Takes all hooks off."""
        self._hooks.clear()
        self._register()

    def __reduce__(self) -> tuple[Any, ...]:
        return _without_hooks, ()

    def _register(self) -> None:
        """Lets PyTorch call what there is to call, and nothing else."""
        hooks = tuple(self._hooks.values())
        self._before = tuple(h for h in hooks if _overrides(h, "pre_forward"))
        self._after = tuple(h for h in reversed(hooks) if _overrides(h, "post_forward"))
        if self._before and self._pre_handle is None:
            self._pre_handle = self.module.register_forward_pre_hook(
                self._run_before, with_kwargs=True
            )
        elif not self._before and self._pre_handle is not None:
            self._pre_handle.remove()
            self._pre_handle = None
        if self._after and self._post_handle is None:
            self._post_handle = self.module.register_forward_hook(self._run_after, always_call=True)
        elif not self._after and self._post_handle is not None:
            self._post_handle.remove()
            self._post_handle = None
        if hooks:
            self.module.__dict__[_ATTRIBUTE] = self
        else:
            self.module.__dict__.pop(_ATTRIBUTE, None)

    def _run_before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for hook in self._before:
            args, kwargs = hook.pre_forward(module, *args, **kwargs)
        return args, kwargs

    def _run_after(self, module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ANN401
        del args
        result = output
        for hook in self._after:
            result = hook.post_forward(module, result)
        return None if result is output else result


def _without_hooks() -> ModuleHookManager:
    """Returns what a copied or unpickled module has in place of its manager."""
    return ModuleHookManager(nn.Identity())


def _overrides(hook: ForwardHook, moment: str) -> bool:
    """Tells whether a hook does anything at a moment, so that nothing is called for nothing."""
    return getattr(type(hook), moment) is not getattr(ForwardHook, moment)
