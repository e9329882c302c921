"""Where and how this process runs a pipeline."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from fastvideo.distributed import get_local_torch_device
from fastvideo.pipelines.pipeline_config import PipelineConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

_DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class InferenceArgs:
    """What every stage is told about this process.

    Attributes:
        pipeline_config: Settings of the pipeline.
        device: Where it computes.
        autocast_dtype: Run the transformer under autocast in this type: for modules whose weights
            are of higher precision than they compute in, such as those being trained. None: in
            the type of its weights.
        offload: Modules that are on the CPU while they are not used, by name.
    """

    pipeline_config: PipelineConfig = field(default_factory=PipelineConfig)
    device: torch.device = field(default_factory=get_local_torch_device)
    autocast_dtype: torch.dtype | None = None
    offload: frozenset[str] = frozenset()

    @property
    def dit_dtype(self) -> torch.dtype:
        """Data type of the transformer's weights."""
        name = self.pipeline_config.dit_precision
        if name is None:
            return torch.bfloat16 if self.device.type == "cuda" else torch.float32
        return _DTYPES[name]

    @property
    def vae_dtype(self) -> torch.dtype:
        """Data type of the VAE's weights."""
        return _DTYPES[self.pipeline_config.vae_precision]

    @property
    def text_encoder_dtype(self) -> torch.dtype:
        """Data type of the text encoder's weights."""
        name = self.pipeline_config.text_encoder_precision
        return self.dit_dtype if name is None else _DTYPES[name]

    def initial_device(self, name: str) -> torch.device:
        """Returns where a module is while it is not used."""
        return torch.device("cpu") if name in self.offload else self.device

    @contextmanager
    def in_use(self, name: str, module: Any) -> Iterator[Any]:  # noqa: ANN401 - any module
        """Has a module on the device for the body.

        Args:
            name: Its name.
            module: The module, with a method ``to``.

        Yields:
            The module.
        """
        if name not in self.offload:
            yield module
            return
        module.to(self.device)
        try:
            yield module
        finally:
            module.to("cpu")

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns the context in which the transformer is called."""
        if self.autocast_dtype is None or self.autocast_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_dtype)
