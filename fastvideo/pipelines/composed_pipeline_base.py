"""A pipeline: modules of a model, and the stages they are used in, one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, final

import torch

from fastvideo import envs
from fastvideo.dataset.model_files import resolve_model_path
from fastvideo.distributed import (
    get_local_torch_device,
    maybe_init_distributed_environment_and_model_parallel,
)
from fastvideo.errors import ConfigError, did_you_mean
from fastvideo.hooks.activation_trace import (
    ActivationTrace,
    activation_trace_of,
    attach_activation_trace,
    detach_activation_trace,
)
from fastvideo.logger import init_logger
from fastvideo.pipelines.inference_args import InferenceArgs
from fastvideo.pipelines.model_index import has_second_expert, read_model_index
from fastvideo.pipelines.model_modules import load_module
from fastvideo.pipelines.pipeline_config import PipelineConfig
from fastvideo.pipelines.typed_fields import fail, field_names
from fastvideo.profiler import get_or_create_profiler, profiler_region

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.stages import PipelineStage

logger = init_logger(__name__)

_TRANSFORMERS: Final = ("transformer", "transformer_2")


class ComposedPipelineBase(ABC):
    """Makes videos in stages.

    Subclasses say which stages there are; :meth:`from_pretrained` makes a pipeline.

    Attributes:
        model_dir: The model, in diffusers layout.
        model_index: What its ``model_index.json`` says.
        args: Where and how the pipeline runs.
        modules: The parts of the model, by name: ``transformer``, ``vae``, ``text_encoder`` (with
            its tokenizer), ``scheduler``, and ``transformer_2`` where there is one.
        stages: In the order in which they run.
    """

    required_modules: ClassVar[tuple[str, ...]] = (
        "scheduler",
        "text_encoder",
        "transformer",
        "vae",
    )

    @final
    def __init__(
        self,
        model_dir: Path,
        args: InferenceArgs,
        *,
        loaded_modules: Mapping[str, Any] | None = None,
    ) -> None:
        """Loads what is not loaded yet, and makes the stages.

        Args:
            model_dir: A model in diffusers layout.
            args: Where and how it runs.
            loaded_modules: Modules to use instead of those of the model, by name.

        Raises:
            DataError: Files are missing or hold another class of model.
        """
        maybe_init_distributed_environment_and_model_parallel(1, 1)
        get_or_create_profiler(envs.FASTVIDEO_TORCH_PROFILER_DIR or None)
        self.model_dir = model_dir
        self.args = args
        self.modules: dict[str, Any] = dict(loaded_modules or {})
        self._traces: list[ActivationTrace | None] = []
        with profiler_region("model_loading"):
            self.model_index = read_model_index(model_dir)
            for name in self._module_names():
                if name not in self.modules:
                    self.modules[name] = load_module(name, model_dir, args)
        try:
            self.post_init()
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_pretrained(
        cls,
        model_path: str | Path,
        *,
        loaded_modules: Mapping[str, Any] | None = None,
        pipeline_config: PipelineConfig | None = None,
        device: torch.device | str | None = None,
        autocast_dtype: torch.dtype | None = None,
        offload: frozenset[str] = frozenset(),
        **options: Any,  # noqa: ANN401 - fields of PipelineConfig
    ) -> Self:
        """Makes a pipeline of a model.

        Args:
            model_path: A directory in diffusers layout, a hub name, or ``tiny-random:wan2.1``.
            loaded_modules: Modules to use instead of the model's own, by name, such as the
                transformer that is being trained. They are used as they are: not moved, not
                converted.
            pipeline_config: Settings; None: the defaults.
            device: Where to compute; None: this rank's device.
            autocast_dtype: See :class:`InferenceArgs`.
            offload: Modules that are on the CPU while they are not used.
            **options: Fields of :class:`PipelineConfig` to change; others are left out with a
                warning.

        Raises:
            ConfigError: A setting cannot be used, or there is no such model.
            DataError: Files are missing or hold another class of model.
        """
        known = field_names(PipelineConfig)
        for name in [name for name in options if name not in known]:
            logger.warning(
                "%s has no setting %r, which is left out.%s",
                cls.__name__,
                name,
                did_you_mean(name, known),
            )
            del options[name]
        args = InferenceArgs(
            pipeline_config=(pipeline_config or PipelineConfig()).updated(
                options, where="pipeline"
            ),
            device=get_local_torch_device() if device is None else torch.device(device),
            autocast_dtype=autocast_dtype,
            offload=offload,
        )
        model_dir = resolve_model_path(str(model_path), option="model_path")
        return cls(model_dir, args, loaded_modules=loaded_modules)

    def post_init(self) -> None:
        """Attaches what watches the transformers, and makes the stages, when all modules are there.

        Raises:
            ConfigError: An environment variable on activation tracing cannot be used.
        """
        for role in _TRANSFORMERS:
            module = self.modules.get(role)
            if module is not None and activation_trace_of(module) is None:
                self._traces.append(attach_activation_trace(module, role=role))
        self.stages: tuple[PipelineStage, ...] = tuple(self.create_stages())

    def compile(self, **options: Any) -> None:  # noqa: ANN401 - those of torch.compile
        """Has the transformers compiled, each when it is first called.

        What is around them stays as it is: stages, denoising steps, and the regions of both.

        Args:
            **options: Arguments of ``torch.compile``.

        Raises:
            ConfigError: ``torch.compile`` refuses them, or they want whole graphs, which
                activation tracing breaks.
        """
        where = "generator.engine.torch_compile_kwargs"
        for role in _TRANSFORMERS:
            module = self.modules.get(role)
            if module is None:
                continue
            trace = activation_trace_of(module)
            if options.get("fullgraph") and trace is not None and trace.modules:
                fail(
                    f"{where}.fullgraph",
                    f"activations of the {role} are traced, which breaks its graph; leave out "
                    "either fullgraph or FASTVIDEO_TRACE_ACTIVATIONS",
                )
            try:
                module.compile(**options)
            except (RuntimeError, TypeError, ValueError) as error:
                message = f"{where}: torch.compile refuses {options!r}: {error}"
                raise ConfigError(message) from error

    def close(self) -> None:
        """Takes off the activation traces that this pipeline attached, and closes their file.

        A second time does nothing. Models that were traced before, such as those of a trainer,
        stay so.
        """
        while self._traces:
            detach_activation_trace(self._traces.pop())

    @abstractmethod
    def create_stages(self) -> tuple[PipelineStage, ...]:
        """Returns the stages in the order in which they run."""

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, args: InferenceArgs | None = None) -> ForwardBatch:
        """Makes the videos of a request.

        Args:
            batch: The request.
            args: Where and how to run; None: as the pipeline was made for.

        Returns:
            The request with ``latents`` and, unless only these are wanted, ``output``.

        Raises:
            ConfigError: The request cannot be fulfilled; the message names the field.
        """
        for stage in self.stages:
            batch = stage(batch, args or self.args)
        return batch

    def _module_names(self) -> tuple[str, ...]:
        second = ("transformer_2",) if has_second_expert(self.model_index) else ()
        return self.required_modules + second
