"""Activation tracing: a line of statistics for every tensor that a model's modules return.

``FASTVIDEO_TRACE_ACTIVATIONS=1`` turns it on; without it nothing is attached to any module.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, final

import torch

from fastvideo.hooks.hooks import ForwardHook, ModuleHookManager
from fastvideo.hooks.named_tensors import named_tensors
from fastvideo.hooks.trace_session import (
    TraceSession,
    TraceSource,
    forsake_session,
    leave_session,
    open_session,
)
from fastvideo.hooks.trace_settings import TraceSettings
from fastvideo.hooks.trace_steps import current_step_idx, trace_step
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "ActivationTrace",
    "activation_trace_of",
    "attach_activation_trace",
    "current_step_idx",
    "detach_activation_trace",
    "trace_step",
]

logger = init_logger(__name__)

HOOK_NAME: Final = "activation_trace"
_COMPILED: Final = "_orig_mod."
_WRAPPED: Final = "_checkpoint_wrapped_module."


@final
class ActivationTrace:
    """The hooks of one model; :func:`attach_activation_trace` makes them.

    Attributes:
        role: What the model is for.
        modules: Names of the modules that are traced, in the model's order.
    """

    def __init__(self, model: nn.Module, role: str, settings: TraceSettings) -> None:
        found = {
            _plain_name(name): module
            for name, module in model.named_modules()
            if settings.selects_module(_plain_name(name))
        }
        self.role = role
        self.modules = tuple(found)
        self._model = weakref.ref(model)
        self._hooked = tuple(weakref.ref(module) for module in found.values())
        self._session: TraceSession | None = None
        if not found:
            _warn_of_no_module(model, role, settings)
            return
        self._session = open_session(settings.path)
        self._forsake = weakref.finalize(model, forsake_session, self._session)
        self._forsake.atexit = False  # the session ends by itself then
        sources = [TraceSource(name, role, settings) for name in found]
        self._session.describe(model, role, sources)
        for source, module in zip(sources, found.values(), strict=True):
            hook = _TraceHook(self._session, source)
            ModuleHookManager.get_from_or_default(module).append_forward_hook(hook)

    def detach(self) -> None:
        """Takes the hooks off and writes what was recorded; a second time does nothing."""
        session, self._session = self._session, None
        for reference in self._hooked:
            module = reference()
            manager = None if module is None else ModuleHookManager.get_from(module)
            if session is not None and manager is not None:
                manager.remove_forward_hook(HOOK_NAME)
        model = self._model()
        if model is not None:
            _attached.pop(model, None)
        if session is not None and self._forsake.detach() is not None:
            leave_session(session)


class _TraceHook(ForwardHook):
    """Records what a module returns."""

    def __init__(self, session: TraceSession, source: TraceSource) -> None:
        self._session = session
        self._source = source
        # Compiled graphs are broken here, and whatever is between two modules stays compiled.
        self._record_from_graph = torch.compiler.disable(self._record)  # type: ignore[no-untyped-call]

    def name(self) -> str:
        """Returns the name of the hook."""
        return HOOK_NAME

    def post_forward(self, module: nn.Module, output: Any) -> Any:  # noqa: ANN401 - any output
        """Records the tensors in ``output`` and returns it."""
        del module
        if torch.compiler.is_compiling():
            self._record_from_graph(output)
        else:
            self._record(output)
        return output

    def _record(self, output: Any) -> None:  # noqa: ANN401 - any output
        try:
            self._session.record(self._source, named_tensors(output))
        except Exception:
            if self._source.module not in _complained:
                _complained.add(self._source.module)
                logger.exception("the output of %s cannot be traced", self._source.module)


_attached: weakref.WeakKeyDictionary[nn.Module, ActivationTrace] = weakref.WeakKeyDictionary()
_complained: set[str] = set()


def attach_activation_trace(model: nn.Module, *, role: str = "") -> ActivationTrace | None:
    """Records what the modules of a model return, from now on, if the environment asks for it.

    All models of a process that are attached write into one file, which is begun anew by the
    first of them. A model that is attached already stays as it is, under the role it has.

    Args:
        model: The model; it is not itself among the modules.
        role: What the model is for, such as ``student`` or ``transformer``.

    Returns:
        What :func:`detach_activation_trace` takes; None where activations are not traced, and
        the model is untouched.

    Raises:
        ConfigError: One of the ``FASTVIDEO_TRACE_*`` variables cannot be used.
    """
    model = getattr(model, "_orig_mod", model)
    present = activation_trace_of(model)
    if present is not None:
        return present
    settings = TraceSettings.from_env()
    if settings is None:
        return None
    trace = ActivationTrace(model, role, settings)
    _attached[model] = trace
    return trace


def activation_trace_of(model: nn.Module) -> ActivationTrace | None:
    """Returns the trace that is attached to a model; None if none is.

    Args:
        model: The model, compiled or not.
    """
    return _attached.get(getattr(model, "_orig_mod", model)) if _attached else None


def detach_activation_trace(manager: ActivationTrace | None) -> None:
    """Takes the hooks off a model again, and writes what was recorded.

    Args:
        manager: What :func:`attach_activation_trace` returned; None does nothing.
    """
    if manager is not None:
        manager.detach()


def _warn_of_no_module(model: nn.Module, role: str, settings: TraceSettings) -> None:
    names = [_plain_name(name) for name, _ in model.named_modules() if name]
    what = role or type(model).__name__
    if settings.layers is None or not names:
        logger.warning("no module of %s is traced: it has none", what)
        return
    logger.warning(
        "no module of %s is traced: FASTVIDEO_TRACE_LAYERS=%s matches none of its %d names, such "
        "as %s and %s",
        what,
        settings.layers.pattern,
        len(names),
        names[0],
        names[-1],
    )


def _plain_name(name: str) -> str:
    """Returns the name that a module has without wrappers, so that all runs name it alike."""
    return name.replace(_COMPILED, "").replace(_WRAPPED, "")
