"""Turns prompts into text embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fastvideo.pipelines.stages.stage import PipelineStage

if TYPE_CHECKING:
    import torch

    from fastvideo.dataset.encoders import TextEncoder
    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs


class PromptEncodingStage(PipelineStage):
    """Encodes the prompt and, where there is guidance, the negative prompt.

    The last negative prompt's embedding is kept, since it hardly ever changes.

    Args:
        encoder: Tokenizer and text encoder.
    """

    profiler_region: ClassVar[str | None] = "inference_text_encoding"

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._negative: tuple[str, torch.Tensor] | None = None

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Encodes what the request does not bring along."""
        wanted = batch.prompt_embeds is None
        negative_wanted = batch.is_guided and batch.negative_prompt_embeds is None
        if negative_wanted and self._negative and self._negative[0] == batch.negative_prompt:
            batch.negative_prompt_embeds = self._negative[1]
            negative_wanted = False
        if not (wanted or negative_wanted):
            return batch
        with args.in_use("text_encoder", self._encoder) as encoder:
            if wanted:
                batch.prompt_embeds = encoder.encode_padded(batch.prompt)
            if negative_wanted:
                negative = encoder.encode_padded(batch.negative_prompt)
                self._negative = (batch.negative_prompt, negative)
                batch.negative_prompt_embeds = negative
        return batch
