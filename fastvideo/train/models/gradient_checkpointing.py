"""Trading recomputation for activation memory in a diffusers transformer.

diffusers calls one function for each block of the forward pass; these are the functions. Nothing is
wrapped, so parameter names stay as they are in the checkpoint on disk.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

CHECKPOINTING_KINDS = ("full", "ops", "block_skip")

_MATRIX_PRODUCTS = frozenset(
    {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}
)
_ATTENTION = frozenset(
    {
        torch.ops.aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001 - op names
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
        torch.ops.aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
    }
)


def apply_gradient_checkpointing(transformer: Any, kind: str | None) -> None:  # noqa: ANN401
    """Makes the backward pass of ``transformer`` recompute activations.

    Args:
        transformer: A diffusers transformer with ``blocks``.
        kind: ``full`` recomputes every block; ``ops`` keeps attention outputs and every second
            matrix product and recomputes the rest; ``block_skip`` recomputes every second block;
            None recomputes nothing.

    Raises:
        ConfigError: ``kind`` is none of these.
    """
    if kind is None:
        return
    if kind not in CHECKPOINTING_KINDS:
        message = (
            f"enable_gradient_checkpointing_type is {kind!r}; expected one of "
            f"{', '.join(CHECKPOINTING_KINDS)}, or null.{did_you_mean(kind, CHECKPOINTING_KINDS)}"
        )
        raise ConfigError(message)
    transformer.enable_gradient_checkpointing(_checkpoint_function(transformer, kind))


def _checkpoint_function(transformer: Any, kind: str) -> Callable[..., Any]:  # noqa: ANN401
    if kind == "full":
        return partial(checkpoint, use_reentrant=False)
    if kind == "ops":
        return partial(checkpoint, use_reentrant=False, context_fn=_selective_contexts)
    return partial(_run_block, frozenset(map(id, list(transformer.blocks)[::2])))


def _run_block(recomputed: frozenset[int], block: nn.Module, *args: Any) -> Any:  # noqa: ANN401
    if id(block) in recomputed:
        return checkpoint(block, *args, use_reentrant=False)
    return block(*args)


def _selective_contexts() -> Any:  # noqa: ANN401 - a pair of context managers
    return create_selective_checkpoint_contexts(_SelectivePolicy())  # type: ignore[no-untyped-call]


class _SelectivePolicy:
    """Decides per operator; counts separately in the forward and in the recomputation."""

    def __init__(self) -> None:
        self._products = {False: 0, True: 0}

    def __call__(self, ctx: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:  # noqa: ANN401
        if op in _ATTENTION:
            return CheckpointPolicy.MUST_SAVE
        if op in _MATRIX_PRODUCTS:
            self._products[ctx.is_recompute] += 1
            if self._products[ctx.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE
