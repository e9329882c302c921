"""Time that this rank spends exchanging gradients between the replicas of a hybrid mesh.

FSDP2 lets a program replace the communication between shards, and for the one between replicas has
a hook behind it only. So the time begins where the last thing before it ends that can be seen: the
reduction over shards; or, where each rank has a whole copy, the moment when FSDP2 takes memory for
the gradients, so that copying them there counts as well. On a CUDA device both ends are events of
the stream that the exchange runs in, which has waited for what comes before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.distributed.fsdp import FSDPModule

    from fastvideo.observability.metrics.device_time import DeviceTimer, DeviceToken

ALL_REDUCE: Final = "all_reduce"


class ReplicaClock:
    """A clock around the exchange of one sharded unit; FSDP2 calls it behind it.

    Args:
        unit: The unit.
        say: Receives the name of the collective and its seconds, on a CPU.
        timer: Measures on CUDA devices.
        clock: Seconds of the host.

    Attributes:
        inner: The hook that a program has set itself, which is called first.
        whole_copies: Whether each rank has all of the unit, so that nothing is reduced over shards.
    """

    def __init__(
        self,
        unit: FSDPModule,
        *,
        say: Callable[[str, float], None],
        timer: DeviceTimer,
        clock: Callable[[], float],
    ) -> None:
        self._group = _group_of(unit)
        self._say = say
        self._timer = timer
        self._clock = clock
        self._began: float | None = None
        self._token: DeviceToken | None = None
        hook = self._group._all_reduce_hook  # noqa: SLF001 - there is no public way to read it
        self.inner: Any = hook.inner if isinstance(hook, ReplicaClock) else hook
        self.whole_copies = self._group.mesh_info.shard_mesh_size == 1
        unit.set_all_reduce_hook(self)

    @staticmethod
    def applies_to(unit: FSDPModule) -> bool:
        """Tells whether the unit has replicas, in a way that this version of torch lets one see."""
        group = _group_of(unit)
        mesh = getattr(group, "mesh_info", None)
        return (
            getattr(mesh, "replicate_mesh_size", 1) > 1
            and hasattr(mesh, "shard_mesh_size")
            and hasattr(group, "_all_reduce_hook")
            and hasattr(unit, "set_all_reduce_hook")
        )

    def ready(self, device: torch.device) -> None:
        """Is called when what comes before the exchange is done, or queued on the device.

        Args:
            device: Where the gradients are.
        """
        if not self._group.all_reduce_grads:
            return
        if device.type != "cuda":
            self._began = self._clock()
            return
        context = self._group.comm_ctx
        before = torch.cuda.current_stream()
        if before == context.reduce_scatter_stream and self._token is None:
            context.all_reduce_stream.wait_stream(before)
            with torch.cuda.stream(context.all_reduce_stream):
                self._token = self._timer.begin(ALL_REDUCE)

    def __call__(self, output: Tensor) -> None:
        """Is called by FSDP2 with the gradients that were exchanged."""
        began, self._began = self._began, None
        token, self._token = self._token, None
        if began is not None:
            self._say(ALL_REDUCE, self._clock() - began)
        self._timer.end(token)
        if self.inner is not None:
            self.inner(output)

    def stop(self, unit: FSDPModule) -> None:
        """Puts back what was found, unless another clock has taken this one's place."""
        if self._group._all_reduce_hook is self:  # noqa: SLF001 - as above
            unit.set_all_reduce_hook(self.inner)


def _group_of(unit: FSDPModule) -> Any:  # noqa: ANN401 - FSDP2's own classes are private
    """Returns the parameters of a unit; None if they are not one group."""
    state: Any = unit._get_fsdp_state()  # noqa: SLF001 - see the module
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # older versions of torch
        groups = [getattr(state, "_fsdp_param_group", None)]
    return groups[0] if len(groups) == 1 else None
