"""The settings of a generator: its model, the machine it runs on, and its pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from fastvideo.errors import ConfigError, did_you_mean
from fastvideo.logger import init_logger
from fastvideo.pipelines.pipeline_config import PipelineConfig
from fastvideo.pipelines.typed_fields import fail, field_names, from_mapping

logger = init_logger(__name__)

_ONE_PROCESS: Final = ("num_gpus", "tp_size", "sp_size")
_WITHOUT_EFFECT: Final = (
    "disable_autocast",
    "dit_layerwise_offload",
    "enable_stage_verification",
    "hsdp_replicate_dim",
    "hsdp_shard_dim",
    "image_encoder_cpu_offload",
    "pin_cpu_memory",
    "trust_remote_code",
    "use_fsdp_inference",
)
_ALIASES: Final = {"override_pipeline_cls_name": "pipeline_class"}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a generator uses the machine. Everything runs in this process, on one device.

    Attributes:
        num_gpus: Devices; only 1 is offered.
        execution_backend: No effect; both mean this process.
        tp_size: Tensor-parallel size; only 1 is offered.
        sp_size: Sequence-parallel size; only 1 is offered.
        dit_cpu_offload: Keep the transformer in host memory while it is not used.
        text_encoder_cpu_offload: The same for the text encoder.
        vae_cpu_offload: The same for the VAE.
        enable_torch_compile: Compile the transformer when it is first used.
        torch_compile_kwargs: Arguments of ``torch.compile``.
        output_type: ``latent`` leaves out decoding; anything else is pixels.
        revision: Revision of a model on the hub; none can be chosen.
        use_fsdp_inference: No effect.
        hsdp_replicate_dim: No effect.
        hsdp_shard_dim: No effect.
        disable_autocast: No effect; there is no autocast.
        enable_stage_verification: No effect; stages always check.
        dit_layerwise_offload: No effect.
        image_encoder_cpu_offload: No effect; there is no image encoder.
        pin_cpu_memory: No effect.
        trust_remote_code: No effect; code of models is never run.
    """

    num_gpus: int = field(default=1, metadata={"allowed": (1,)})
    execution_backend: Literal["mp", "ray"] = "mp"
    tp_size: int = field(default=1, metadata={"allowed": (1,)})
    sp_size: int = field(default=1, metadata={"allowed": (1,)})
    dit_cpu_offload: bool = False
    text_encoder_cpu_offload: bool = False
    vae_cpu_offload: bool = False
    enable_torch_compile: bool = False
    torch_compile_kwargs: dict[str, Any] = field(default_factory=dict)
    output_type: Literal["pil", "np", "pt", "latent"] = "pt"
    revision: str | None = field(default=None, metadata={"allowed": "unset"})
    use_fsdp_inference: bool = False
    hsdp_replicate_dim: int = 1
    hsdp_shard_dim: int = -1
    disable_autocast: bool = False
    enable_stage_verification: bool = True
    dit_layerwise_offload: bool = False
    image_encoder_cpu_offload: bool = False
    pin_cpu_memory: bool = False
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for name in _ONE_PROCESS:
            if getattr(self, name) not in {1, -1}:
                fail(
                    f"generator.engine.{name}",
                    f"only 1 is offered, got {getattr(self, name)}; start one process per device "
                    "and give each its own prompts",
                )
        if self.revision is not None:
            fail(
                "generator.engine.revision",
                f"revisions are not offered, got {self.revision!r}; download that revision and "
                "give its directory as model_path",
            )

    @property
    def offload(self) -> frozenset[str]:
        """Modules that are in host memory while they are not used."""
        offloaded = {
            "transformer": self.dit_cpu_offload,
            "transformer_2": self.dit_cpu_offload,
            "text_encoder": self.text_encoder_cpu_offload,
            "vae": self.vae_cpu_offload,
        }
        return frozenset(name for name, is_off in offloaded.items() if is_off)

    def warn_of_idle_settings(self) -> None:
        """Names, once, the settings that were changed and change nothing here."""
        default = EngineConfig()
        idle = [n for n in _WITHOUT_EFFECT if getattr(self, n) != getattr(default, n)]
        if idle:
            logger.warning("generator.engine: no effect in this version: %s", ", ".join(idle))


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """Everything that a generator is made from.

    Attributes:
        model_path: A directory in diffusers layout, a hub name, or ``tiny-random:wan2.1``.
        engine: How it uses the machine.
        pipeline: Fields of :class:`PipelineConfig` that differ from the model's preset.
        pipeline_class: Class of the pipeline.
        observability: Settings of telemetry, as in the run files of training; None: telemetry
            runs where the environment asks for it.
    """

    model_path: str
    engine: EngineConfig = field(default_factory=EngineConfig)
    pipeline: dict[str, Any] = field(default_factory=dict)
    pipeline_class: str | None = field(
        default=None,
        metadata={
            "allowed": ("WanPipeline", "WanDMDPipeline"),
            "default": "the latter with `dmd_denoising_steps`, else that of `model_index.json`",
        },
    )
    observability: dict[str, Any] | None = None

    @classmethod
    def from_mapping(cls, values: object) -> GeneratorConfig:
        """Returns the config that a run file's ``generator`` section holds.

        Args:
            values: The section.

        Raises:
            ConfigError: A field is unknown, missing or of another type; the message has its path.
        """
        return from_mapping(cls, values, where="generator")

    @classmethod
    def from_keywords(cls, model_path: str, keywords: dict[str, Any]) -> GeneratorConfig:
        """Returns the config that keyword arguments describe, in one flat list.

        Args:
            model_path: The model.
            keywords: Fields of :class:`EngineConfig` and :class:`PipelineConfig`, and the other
                fields of this class. Any other is left out with a warning.

        Raises:
            ConfigError: A value has another type or cannot be used.
        """
        sections: dict[str, Any] = {"engine": {}, "pipeline": {}}
        for given, value in keywords.items():
            name = _ALIASES.get(given, given)
            if name in field_names(EngineConfig):
                sections["engine"][name] = value
            elif name in field_names(PipelineConfig):
                sections["pipeline"][name] = value
            elif name in {"pipeline_class", "observability"}:
                sections[name] = value
            elif name == "pipeline_config":
                sections["pipeline"] |= _changed_fields(value)
            else:
                known = field_names(EngineConfig) + field_names(PipelineConfig)
                hint = did_you_mean(name, known)
                logger.warning("VideoGenerator: unknown setting %r is left out.%s", name, hint)
        return cls.from_mapping({"model_path": str(model_path), **sections})


def _changed_fields(config: object) -> dict[str, Any]:
    if isinstance(config, dict):
        return config
    if not isinstance(config, PipelineConfig):
        message = f"pipeline_config: expected a PipelineConfig or a mapping, got {config!r}"
        raise ConfigError(message)
    default = PipelineConfig()
    values = {name: getattr(config, name) for name in field_names(PipelineConfig)}
    return {name: value for name, value in values.items() if value != getattr(default, name)}
