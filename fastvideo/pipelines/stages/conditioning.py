"""Brings embeddings into the shape and type that the transformer takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastvideo.pipelines.stages.stage import PipelineStage

if TYPE_CHECKING:
    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs


class ConditioningStage(PipelineStage):
    """Repeats the embeddings for every video, in the transformer's data type.

    Args:
        transformer: The module that will be conditioned.
    """

    def __init__(self, transformer: Any) -> None:  # noqa: ANN401 - diffusers is untyped
        self._transformer = transformer

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Conditions all videos of the request on its one prompt."""
        dtype = self._transformer.dtype
        for name in ("prompt_embeds", "negative_prompt_embeds"):
            embeds = getattr(batch, name)
            if embeds is not None:
                embeds = embeds.to(device=args.device, dtype=dtype)
                setattr(batch, name, embeds.expand(len(batch.seeds), -1, -1))
        return batch
