"""Letting all ranks stop after the same step when some of them are told to end.

Signals reach the ranks at different moments, so each tells the others at the start of a step
whether it was told. One number travels while the step computes, between CPUs and through a process
group of its own; at the end of the step it is there. A signal during a step ends the run after the
next one.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastvideo.train.entrypoint.termination import Termination

logger = init_logger(__name__)


class StopRequest:
    """Whether the run is to stop after this step.

    Args:
        termination: What this process was told.
        timeout_s: Seconds that stopping may take.
    """

    def __init__(self, termination: Termination, *, timeout_s: float) -> None:
        self._termination = termination
        self._timeout_s = timeout_s
        self._group: dist.ProcessGroup | None = None
        self._asked = torch.zeros((), dtype=torch.int32)
        self._work: dist.Work | None = None
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Puts SIGTERM off while the body trains and saves."""
        with self._termination.deferred(self._timeout_s):
            yield

    def begin_step(self) -> None:
        """Tells the other ranks, and does not wait."""
        self._asked.fill_(int(self._termination.requested))
        if self._group is not None:
            self._work = dist.all_reduce(
                self._asked, op=dist.ReduceOp.MAX, group=self._group, async_op=True
            )

    def agreed(self) -> bool:
        """Tells whether any rank was told to end before this step; the same on all ranks."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return bool(self._asked)

    def leave(self, step: int) -> None:
        """Ends the run.

        Args:
            step: The step that was finished last.

        Raises:
            Terminated: Always.
        """
        logger.warning("stopping after step %d, as SIGTERM asked", step)
        self._termination.finish()
