"""Which tensors hold NaN or infinite values, found where the tensors are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from fastvideo.errors import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SHOWN: Final = 3


def nonfinite_names(tensors: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of tensors that are NaN or infinite somewhere, in their order.

    Each tensor is read once where it is, without a copy; one flag of each goes to the host, all of
    a device together. Of sharded tensors this rank's part is looked at.

    Args:
        tensors: By name. Others than floating-point numbers of 16 bits and more are left out.
    """
    flags: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if local.dtype in _DTYPES and local.numel():
            least, most = torch.aminmax(local.detach())  # both are NaN if one value is
            finite = torch.isfinite(least) & torch.isfinite(most)
            flags.setdefault(local.device, []).append((name, finite))
    bad: set[str] = set()
    for found in flags.values():
        states = torch.stack([flag for _, flag in found]).tolist()
        bad |= {name for (name, _), finite in zip(found, states, strict=True) if not finite}
    return [name for name in tensors if name in bad]


def describe_nonfinite(names: Sequence[str]) -> str:
    """Returns ``"5 tensors hold NaN or infinite values (a, b, c, ...)"``.

    Args:
        names: What :func:`nonfinite_names` returned; not empty.
    """
    verb = "holds" if len(names) == 1 else "hold"
    more = ", ..." if len(names) > _SHOWN else ""
    shown = ", ".join(names[:_SHOWN])
    return f"{counted(len(names), 'tensor')} {verb} NaN or infinite values ({shown}{more})"
