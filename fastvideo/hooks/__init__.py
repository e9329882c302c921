"""Hooks on modules: tracing of activations, and what it is built on."""

from fastvideo.hooks.activation_trace import (
    ActivationTrace,
    activation_trace_of,
    attach_activation_trace,
    current_step_idx,
    detach_activation_trace,
    trace_step,
)
from fastvideo.hooks.hooks import ForwardHook, ModuleHookManager

__all__ = [
    "ActivationTrace",
    "ForwardHook",
    "ModuleHookManager",
    "activation_trace_of",
    "attach_activation_trace",
    "current_step_idx",
    "detach_activation_trace",
    "trace_step",
]
