"""Time that this rank spends in the collectives of a training step.

A collective ends for all ranks together, so a rank that comes late waits least: a step's time minus
this one is the rank's own work. FSDP2 lets a program replace its communication; what is put in
its place here is the same communication with a clock around it. On a CPU the clock is the host's,
since gloo returns when the collective is done. On a CUDA device events bracket it in the stream it
runs in, and are read later without waiting.

What FSDP2 offers no hook for is not seen: unshards that a program starts asynchronously. How the
exchange between replicas of a hybrid mesh is seen, :mod:`fastvideo.distributed.replica_wait` tells.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from torch.distributed.fsdp import FSDPModule

from fastvideo.distributed.replica_wait import ReplicaClock
from fastvideo.logger import init_logger
from fastvideo.observability.metrics.device_time import DeviceTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch import Tensor, nn

    from fastvideo.observability.metrics.device_time import DeviceToken

logger = init_logger(__name__)

Collective = Literal[
    "all_gather", "reduce_scatter", "all_reduce", "grad_norm", "rollout", "rewards"
]

_HOOKS: Final[tuple[Collective, ...]] = ("all_gather", "reduce_scatter")
_POOL_SIZE: Final = 2048


class CollectiveWait:
    """Clocks around collectives; one serves all models of a process.

    Args:
        add: Receives the name of a collective and its seconds: at once on a CPU, in :meth:`drain`
            for a CUDA device. It may be called on autograd's threads. One that raises is not
            called again.
        timer: Measures on CUDA devices; None: one of its own. Its callback is replaced.
        clock: Seconds of the host.
    """

    def __init__(
        self,
        add: Callable[[str, float], None],
        *,
        timer: DeviceTimer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._add: Callable[[str, float], None] | None = add
        self._timer = timer or DeviceTimer(_POOL_SIZE)
        self._timer.callback = self._read
        self._clock = clock

    def observe(self, model: nn.Module) -> int:
        """Puts clocks around the collectives of all sharded units of ``model``.

        Communication that a program has set itself is kept and timed; set it before, as FSDP2
        takes any replacement afterwards for the only one. Observing again replaces the clocks.

        Args:
            model: A model; one that is not sharded has nothing to observe.

        Returns:
            The number of units that are observed.
        """
        count = 0
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                count += all(self._observe(unit, collective) for collective in _HOOKS)
        return count

    @contextlib.contextmanager
    def timed(self, collective: Collective, device: torch.device) -> Iterator[None]:
        """Times the collective that is in the body of a ``with`` statement.

        Args:
            collective: Its name.
            device: Where its tensors are.
        """
        if device.type == "cuda":
            token = self._timer.begin(collective)
            try:
                yield
            finally:
                self._timer.end(token)
            return
        began = self._clock()
        try:
            yield
        finally:
            self._say(collective, self._clock() - began)

    def drain(self) -> None:
        """Hands over what CUDA devices have finished with, without waiting; for each step's end."""
        self._timer.drain()

    def stop(self, model: nn.Module) -> None:
        """Gives the units of ``model`` back the communication that was found there."""
        units = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
        for unit, collective in itertools.product(units, _HOOKS):
            present = _communication(unit, collective)
            if isinstance(present, _TimedCollective) and present.wait is self:
                _replace(unit, collective, present.inner)
                if present.replicas is not None:
                    present.replicas.stop(unit)

    def _observe(self, unit: FSDPModule, collective: Collective) -> bool:
        present = _communication(unit, collective)
        if present is None:
            logger.debug("%s of %s is not timed", collective, type(unit).__name__)
            return False
        inner = present.inner if isinstance(present, _TimedCollective) else present
        replicas = None
        if collective == "reduce_scatter" and ReplicaClock.applies_to(unit):
            replicas = ReplicaClock(unit, say=self._say, timer=self._timer, clock=self._clock)
        _replace(unit, collective, _TimedCollective(self, collective, inner, replicas))
        return True

    def _read(self, token: DeviceToken, milliseconds: float) -> None:
        self._say(token.region, milliseconds / 1e3)

    def _say(self, collective: str, seconds: float) -> None:
        if self._add is None:
            return
        try:
            self._add(collective, seconds)
        except Exception:
            self._add = None
            logger.exception("the receiver of collective times raised and is not called again")


class _TimedCollective:
    """A communication of FSDP2 with a clock around its calls.

    Attributes:
        inner: What communicates.
        replicas: The clock of what follows a reduction over shards, if there are replicas.
        wait: Whose clock it is.
    """

    __slots__ = ("_collective", "inner", "replicas", "wait")

    def __init__(
        self,
        wait: CollectiveWait,
        collective: Collective,
        inner: Any,  # noqa: ANN401 - FSDP2's own classes are private
        replicas: ReplicaClock | None = None,
    ) -> None:
        self.wait = wait
        self._collective = collective
        self.inner = inner
        self.replicas = replicas

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocates as the inner one does."""
        tensor: Tensor = self.inner.allocate(size, dtype=dtype, device=device)
        if self.replicas is not None and self.replicas.whole_copies:
            self.replicas.ready(device)
        return tensor

    def __call__(self, output_tensor: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        if kwargs.get("async_op"):  # ends when its Work is waited for, which nobody tells us
            return self.inner(output_tensor, *args, **kwargs)
        with self.wait.timed(self._collective, output_tensor.device):
            result = self.inner(output_tensor, *args, **kwargs)
        if self.replicas is not None:
            self.replicas.ready(output_tensor.device)
        return result


def observe_collectives(model: nn.Module, add: Callable[[str, float], None]) -> CollectiveWait:
    """Times the collectives of one model.

    Args:
        model: A model that :func:`fastvideo.distributed.shard_model` has sharded.
        add: Receives names and seconds, see :class:`CollectiveWait`.

    Returns:
        The clocks, for :meth:`CollectiveWait.drain` at the end of each step.
    """
    wait = CollectiveWait(add)
    wait.observe(model)
    return wait


def _communication(unit: FSDPModule, collective: Collective) -> Any:  # noqa: ANN401 - as above
    """Returns what communicates for ``unit``; None if that is not one thing.

    There is no public way to read what the public hooks replace, and replacing it by an imitation
    would undo what a program has set.
    """
    state: Any = unit._get_fsdp_state()  # noqa: SLF001 - see above
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # older versions of torch
        groups = [getattr(state, "_fsdp_param_group", None)]
    if len(groups) != 1 or not hasattr(unit, f"set_custom_{collective}"):
        return None
    return getattr(groups[0], f"_{collective}_comm", None)


def _replace(unit: FSDPModule, collective: Collective, communication: Any) -> None:  # noqa: ANN401
    getattr(unit, f"set_custom_{collective}")(communication)


_current: CollectiveWait | None = None


def set_collective_wait(wait: CollectiveWait | None) -> None:
    """Makes ``wait`` the clocks of this process; None: there are none any more."""
    global _current  # noqa: PLW0603 - one training loop in a process
    _current = wait


def timed_collective(
    collective: Collective, device: torch.device
) -> contextlib.AbstractContextManager[None]:
    """Times the collective in the body of a ``with`` statement, where this process does that.

    Args:
        collective: Its name.
        device: Where its tensors are.
    """
    return contextlib.nullcontext() if _current is None else _current.timed(collective, device)


def drain_collectives() -> None:
    """Hands over what CUDA devices have finished with; for the end of each step."""
    if _current is not None:
        _current.drain()
