"""What a stage is: one part of making a video, with a region of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar, final

import torch

from fastvideo import envs
from fastvideo.logger import init_logger
from fastvideo.profiler import profiler_region

if TYPE_CHECKING:
    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs

logger = init_logger(__name__)


class PipelineStage(ABC):
    """One part of making a video.

    Subclasses implement :meth:`forward`; calling the stage runs it inside of its region, so a
    subclass of a subclass cannot lose the region.

    Attributes:
        profiler_region: Short name of the region around the stage, or None.
    """

    profiler_region: ClassVar[str | None] = None

    @final
    def __call__(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Runs the stage in its region.

        Args:
            batch: The request, as earlier stages left it.
            args: Where and how to run.

        Returns:
            The request with this stage's results; usually the same object.
        """
        if not envs.FASTVIDEO_STAGE_LOGGING:
            return self._in_region(batch, args)
        start = _settled_time(args.device)
        result = self._in_region(batch, args)
        seconds = _settled_time(args.device) - start
        logger.info("%s took %.1f ms", type(self).__name__, seconds * 1e3)
        return result

    def _in_region(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        if self.profiler_region is None:
            return self.forward(batch, args)
        with profiler_region(self.profiler_region):
            return self.forward(batch, args)

    @abstractmethod
    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Does the stage's work; see :meth:`__call__`."""


def _settled_time(device: torch.device) -> float:
    """Returns the time in seconds when everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
