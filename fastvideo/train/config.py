"""The `training:` section of a run file, as typed dataclasses.

Every field below is a key that a person may write in YAML or override on the command line as
`--training.<section>.<field>`. What a value must satisfy stands beside the field, in its metadata,
and is checked by `fastvideo.train.typed_section`; the reference page of all keys is made of both.
The classes hold values and nothing else: importing this module reads no file and no environment
variable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastvideo.train.tracker_names import SUPPORTED_TRACKERS

DataPath = str | list[str] | dict[str, int]
"""One data set, several, or a mapping from data set to how often it is repeated per epoch."""

DTYPE_NAMES = ("fp32", "fp16", "bf16")
LR_SCHEDULERS = (
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "polynomial",
    "piecewise_constant",
)
DATA_TYPES = ("t2v", "t2va", "text_only")
WEIGHTING_SCHEMES = ("uniform", "logit_normal", "mode")
CHECKPOINTING_TYPES = ("full", "ops", "block_skip")
NONFINITE_ACTIONS = ("raise", "skip", "warn")
LARGEST_RATE = 1e6
"""Learning rates and decays beyond it are slips of the keyboard, and overflow in float32 later."""
LARGEST_SEED = 2**63 - 1
"""What is added to a seed, such as ranks and prompts, must fit into the 64 bits of a generator."""


@dataclass(slots=True)
class DistributedConfig:
    """How the ranks are arranged.

    Attributes:
        num_gpus: Processes in the run, on all nodes together; where another number is started, that
            one counts.
        tp_size: Tensor-parallel size; more than 1 is not offered.
        sp_size: Sequence-parallel size; more than 1 is not offered.
        hsdp_replicate_dim: Replicas of the sharded weights.
        hsdp_shard_dim: Ranks that one replica is sharded over; -1: all that `hsdp_replicate_dim`
            leaves. Where the product of both is not the number of processes, they are fitted to it.
        pin_cpu_memory: Keep batches in page-locked host memory where CUDA is used, so that they are
            copied to the device while it computes.
        reduce_every_round: Reduce gradients over the shards in every accumulation round instead of
            the last one: each rank then keeps its share of them between the rounds, not all.
    """

    num_gpus: int = field(default=1, metadata={"at_least": 1})
    tp_size: int = field(default=1, metadata={"at_least": 1, "allowed": (1,)})
    sp_size: int = field(default=1, metadata={"at_least": 1, "allowed": (1,)})
    hsdp_replicate_dim: int = field(default=1, metadata={"at_least": 1})
    hsdp_shard_dim: int = field(
        default=-1,
        metadata={"at_least": -1, "default": "that of `training.distributed.num_gpus`"},
    )
    pin_cpu_memory: bool = False
    reduce_every_round: bool = False


@dataclass(slots=True)
class DataConfig:
    """What is read, and in which shapes.

    Attributes:
        data_path: Parquet data set: a directory, several as `"a:2,b:1"` or as a list, or a mapping
            from directory to how often it is repeated in an epoch.
        preprocessed_data_type: What a row holds: `t2v` latents and text, `t2va` audio as well,
            `text_only` text.
        train_batch_size: Samples per data-parallel rank and forward pass.
        dataloader_num_workers: Threads that read batches ahead, 0 like 1; worker processes for
            trajectories of knowledge distillation, which 0 loads in the training thread.
        training_cfg_rate: Probability that a sample's text embedding is zeroed.
        seed: Seed of the sampler, of the method's generator and of the global generators.
        num_height: Height of the videos. Methods that make latents themselves need it; for others,
            0 leaves it to the data set and, in validation, to the model's preset.
        num_width: Width of the videos, likewise.
        num_latent_t: Latent frames used of each sample; 0: all, where the latents are data.
        num_frames: Length of the videos, `(num_latent_t - 1) * 4 + 1` for Wan; 0: unset.
    """

    data_path: DataPath = ""
    preprocessed_data_type: str = field(
        default="t2v",
        metadata={"choices": DATA_TYPES, "lower": True},
    )
    train_batch_size: int = field(default=1, metadata={"at_least": 1, "unit": "samples"})
    dataloader_num_workers: int = field(
        default=0, metadata={"at_least": 0, "at_most": 256, "unit": "workers"}
    )
    training_cfg_rate: float = field(default=0.0, metadata={"at_least": 0.0, "at_most": 1.0})
    seed: int = field(
        default=0, metadata={"at_least": 0, "at_most": LARGEST_SEED, "allowed": "0 to 2^63 - 1"}
    )
    num_height: int = field(default=0, metadata={"at_least": 0, "unit": "pixels"})
    num_width: int = field(default=0, metadata={"at_least": 0, "unit": "pixels"})
    num_latent_t: int = field(default=0, metadata={"at_least": 0, "unit": "latent frames"})
    num_frames: int = field(default=0, metadata={"at_least": 0, "unit": "frames"})


@dataclass(slots=True)
class OptimizerConfig:
    """AdamW and the learning-rate schedule of the student.

    Attributes:
        learning_rate: Peak learning rate; every method needs more than 0.
        betas: AdamW betas, as a list or as the text `"b1,b2"`.
        weight_decay: Decoupled weight decay.
        lr_scheduler: Name of the schedule.
        lr_warmup_steps: Length of the linear warm-up; `constant` has none.
        lr_num_cycles: Cycles of `cosine_with_restarts`; 0 means 1.
        lr_power: Power of `polynomial`; with 0 the rate never falls.
        min_lr_ratio: Lowest rate of `cosine_with_min_lr`, as a fraction of the peak.
    """

    learning_rate: float = field(
        default=0.0, metadata={"at_least": 0.0, "at_most": LARGEST_RATE, "allowed": "above 0"}
    )
    betas: tuple[float, float] = field(
        default=(0.9, 0.999), metadata={"allowed": "each from 0 to below 1"}
    )
    weight_decay: float = field(default=0.0, metadata={"at_least": 0.0, "at_most": LARGEST_RATE})
    lr_scheduler: str = field(default="constant", metadata={"choices": LR_SCHEDULERS})
    lr_warmup_steps: int = field(default=0, metadata={"at_least": 0, "unit": "steps"})
    lr_num_cycles: int = field(default=0, metadata={"at_least": 0})
    lr_power: float = 0.0
    min_lr_ratio: float = field(default=0.5, metadata={"at_least": 0.0})


@dataclass(slots=True)
class LoopConfig:
    """Length of the run.

    Attributes:
        max_train_steps: Length of the run in optimizer steps; 0, an unset length, is refused.
        gradient_accumulation_steps: Forward and backward rounds per optimizer step.
    """

    max_train_steps: int = field(
        default=0, metadata={"at_least": 0, "allowed": "at least 1", "unit": "steps"}
    )
    gradient_accumulation_steps: int = field(default=1, metadata={"at_least": 1, "unit": "rounds"})


@dataclass(slots=True)
class CheckpointConfig:
    """Where results go and what a run continues from.

    Attributes:
        output_dir: Directory of everything the run writes; "" writes nothing.
        resume_from_checkpoint: Checkpoint that the run goes on from: a directory, or `latest`, the
            newest one in `output_dir` if there is one; "" starts afresh.
        training_state_checkpointing_steps: Steps from one checkpoint to the next; 0 never saves.
        checkpoints_total_limit: Checkpoints kept, newest first; 0 keeps all.
        async_save: Write checkpoints in a thread, from a copy in host memory.
        save_on_sigterm: Finish the step and save when SIGTERM comes, if checkpoints are saved.
        sigterm_timeout_s: Longest time that this may take; then the run ends without.
    """

    output_dir: str = ""
    resume_from_checkpoint: str = ""
    training_state_checkpointing_steps: int = field(
        default=0, metadata={"at_least": 0, "unit": "steps"}
    )
    checkpoints_total_limit: int = field(default=0, metadata={"at_least": 0, "unit": "checkpoints"})
    async_save: bool = False
    save_on_sigterm: bool = True
    sigterm_timeout_s: int = field(default=300, metadata={"at_least": 1, "unit": "seconds"})


@dataclass(slots=True)
class TrackerConfig:
    """Where metrics are logged.

    Attributes:
        trackers: Trackers; an empty list is the default too, unless `project_name` is empty.
        entity: Account or team at the tracking service; "" is the service's default.
        project_name: Project (experiment) name.
        run_name: Name of this run; "" lets the service choose.
    """

    trackers: list[str] = field(
        default_factory=list,
        metadata={"allowed": SUPPORTED_TRACKERS, "default": "`[wandb]`"},
    )
    entity: str = ""
    project_name: str = "fastvideo"
    run_name: str = ""


@dataclass(slots=True)
class VSAConfig:
    """Video sparse attention.

    Attributes:
        sparsity: Fraction of attention blocks left out; more than 0 is not offered.
        cache_tile_buf: No effect, as attention is dense.
    """

    sparsity: float = field(
        default=0.0, metadata={"at_least": 0.0, "at_most": 1.0, "allowed": (0,)}
    )
    cache_tile_buf: bool = field(default=False, metadata={"idle": True})


@dataclass(slots=True)
class ModelTrainingConfig:
    """Training-time behaviour shared by all model roles.

    Attributes:
        weighting_scheme: Density that FineTune draws its timesteps from.
        logit_mean: Mean of the `logit_normal` density.
        logit_std: Standard deviation of the `logit_normal` density.
        mode_scale: Scale of the `mode` density.
        precondition_outputs: Compare clean predictions instead of velocities in FineTune.
        moba_config: No effect, as attention is dense.
        enable_gradient_checkpointing_type: What trainable roles recompute in backward instead of
            keeping it: every block, all but attention and half of the products, or every second
            block.
        enable_torch_compile: Compile each block of every role's transformer.
        torch_compile_kwargs: Options of `torch.compile`, such as `{mode: max-autotune}`.
    """

    weighting_scheme: str = field(default="uniform", metadata={"choices": WEIGHTING_SCHEMES})
    logit_mean: float = 0.0
    logit_std: float = field(default=1.0, metadata={"at_least": 0.0})
    mode_scale: float = 1.0
    precondition_outputs: bool = False
    moba_config: dict[str, Any] = field(default_factory=dict, metadata={"idle": True})
    enable_gradient_checkpointing_type: str | None = field(
        default=None,
        metadata={"choices": CHECKPOINTING_TYPES},
    )
    enable_torch_compile: bool = False
    torch_compile_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PerformanceConfig:
    """`perf/*` metrics of other versions; this one logs none.

    Attributes:
        enabled: No effect.
        peak_tflops_per_gpu: No effect; peak throughput of one device.
    """

    enabled: bool = True
    peak_tflops_per_gpu: float | None = field(
        default=None, metadata={"at_least": 0.0, "unit": "TFLOP/s", "idle": True}
    )


@dataclass(slots=True)
class PipelineSettings:
    """The `pipeline:` section, which sampling and timestep shifting read.

    Attributes:
        flow_shift: Shift of the sampling schedule, and the default of `models.<role>.flow_shift`;
            unset leaves 3 in training and the model's own in sampling.
        options: Every other key, untouched.
    """

    flow_shift: float | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TrainingConfig:
    """How a run is trained: the section `training`, and the sections in it.

    Attributes:
        dit_precision: Data type of the transformer's master weights.
        dit_compute_dtype: Data type of forward and backward. Unset: FASTVIDEO_TRAIN_DTYPE, else
            `dit_precision` if that is a half type, else bf16 on CUDA and fp32 on a CPU.
        model_path: Model that VAE, text encoder and scheduler are taken from: directory or name.
        nonfinite_loss: What a NaN or infinite loss does: end the run, skip the step, or warn.
        pipeline_config: The `pipeline:` section, or None when the run file has none.
    """

    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    vsa: VSAConfig = field(default_factory=VSAConfig)
    model: ModelTrainingConfig = field(default_factory=ModelTrainingConfig)
    performance: PerformanceConfig = field(default_factory=PerformanceConfig)
    dit_precision: str = field(default="fp32", metadata={"choices": DTYPE_NAMES})
    dit_compute_dtype: str | None = field(default=None, metadata={"choices": DTYPE_NAMES})
    model_path: str = field(default="", metadata={"default": "that of `models.student.init_from`"})
    nonfinite_loss: str = field(default="raise", metadata={"choices": NONFINITE_ACTIONS})
    pipeline_config: PipelineSettings | None = field(default=None, metadata={"derived": True})

    @property
    def vsa_sparsity(self) -> float:
        """`vsa.sparsity`, under the name that methods log it by."""
        return self.vsa.sparsity

    @property
    def vsa_cache_tile_buf(self) -> bool:
        """`vsa.cache_tile_buf`, under its flat name."""
        return self.vsa.cache_tile_buf
