"""The validation callback: its settings, what it samples, and what it leaves alone."""

from __future__ import annotations

import json
import os
import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import pytest
import torch

from fastvideo.errors import ConfigError, DataError
from fastvideo.profiler import RecordingSink, attach, detach
from fastvideo.train.callbacks.validation import ValidationCallback
from fastvideo.train.callbacks.validation_sampler import ValidationSampler
from fastvideo.train.trainer import Trainer

if TYPE_CHECKING:
    from types import ModuleType

PIPELINE = "fastvideo.pipelines.basic.wan.wan_dmd_pipeline.WanDMDPipeline"


def make(**kwargs: Any) -> ValidationCallback:
    """Returns a callback with the two settings it needs."""
    settings = {"pipeline_target": PIPELINE, "dataset_file": "prompts.json", **kwargs}
    return ValidationCallback(**settings)


def test_settings_of_the_documented_run_file_are_understood() -> None:
    """The keys of the DMD2 run file, with numbers as text, come out typed."""
    callback = make(
        every_steps="50",
        run_at_start="false",
        sampling_steps=[4],
        sampling_timesteps="1000,750, 500,250",
        guidance_scale="6.0",
        num_frames="77",
        num_videos_per_prompt="2",
        metrics="sharpness",
        flow_shift=8,
    )
    assert (callback.every_steps, callback.run_at_start) == (50, False)
    assert callback.sampling_steps == [4]
    assert callback.sampling_timesteps == [1000, 750, 500, 250]
    assert (callback.guidance_scale, callback.num_frames) == (6.0, 77)
    assert callback.num_videos_per_prompt == 2
    assert callback.metrics == ["sharpness"]
    assert callback.pipeline_kwargs == {"flow_shift": 8}


def test_defaults() -> None:
    """What is not given has the documented value."""
    callback = make()
    assert (callback.every_steps, callback.run_at_start) == (100, True)
    assert (callback.sampling_steps, callback.sampling_timesteps) == ([40], None)
    assert (callback.guidance_scale, callback.num_frames, callback.output_dir) == (None, None, None)
    assert callback.num_videos_per_prompt == 1
    assert callback.metrics == ["sharpness", "motion_smoothness", "temporal_flicker"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pipeline_target", "NoDots"),
        ("pipeline_target", "a..b"),
        ("dataset_file", " "),
        ("dataset_file", ["a"]),
        ("every_steps", "often"),
        ("every_steps", 1.5),
        ("run_at_start", "perhaps"),
        ("sampling_steps", []),
        ("sampling_steps", [0]),
        ("sampling_steps", "4,x"),
        ("sampling_timesteps", [1000, -1]),
        ("guidance_scale", "much"),
        ("num_frames", 0),
        ("num_videos_per_prompt", 0),
        ("num_videos_per_prompt", -2),
        ("output_dir", ""),
        ("keyboard_value_scale", "nan"),
        ("metrics", 3),
        ("metrics", [None]),
        ("metrics", ["sharpnes"]),
    ],
)
def test_a_wrong_setting_is_named(key: str, value: Any) -> None:
    """Every error is a ConfigError with the path of the key."""
    with pytest.raises(ConfigError, match=rf"callbacks\.validation\.{key}: (expected|there is no)"):
        make(**{key: value})


@pytest.mark.parametrize("every", [0, -1])
def test_switched_off_it_never_runs(every: int) -> None:
    """With 0 or less all hooks pass."""
    callback = make(every_steps=every)
    method: Any = object()
    callback.on_train_start(method, iteration=0)
    callback.on_validation_begin(method, iteration=0)
    callback.on_validation_end(method, iteration=0)


def test_a_mistyped_key_is_suspected(caplog: pytest.LogCaptureFixture) -> None:
    """Any key goes to the pipeline, but one that is nearly known is named."""
    make(every_step=0, flow_shift=8)
    assert caplog.messages == [
        "callbacks.validation.every_step is passed to the pipeline. Did you mean 'every_steps'?"
    ]


@pytest.fixture(scope="module")
def data(tiny_runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of eight rows."""
    written: Path = tiny_runs.write_dataset(tmp_path_factory.mktemp("data"))
    return written


class Videos:
    """A tracker that remembers what it is given."""

    active = True

    def __init__(self) -> None:
        self.scalars: dict[int, dict[str, float]] = {}
        self.artifacts: dict[int, dict[str, Any]] = {}

    def log(self, metrics: Any, step: int) -> None:
        self.scalars.setdefault(step, {}).update(metrics)

    def log_artifacts(self, artifacts: Any, step: int) -> None:
        self.artifacts.setdefault(step, {}).update(artifacts)

    def video(self, data: Any, **options: Any) -> Any:
        return data, options

    def finish(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code


class Run:
    """A short run of a method with validation.

    Args:
        tiny_runs: The module that makes methods.
        data: The data set.
        out: The output directory.
        name: The method.
        ema: Whether the average is kept.
        settings: Of the callback; None: the callback is not there.
    """

    def __init__(
        self,
        tiny_runs: ModuleType,
        data: Path,
        out: Path,
        *,
        name: str = "finetune",
        ema: bool = False,
        settings: dict[str, Any] | None,
    ) -> None:
        self.out = out
        config = tiny_runs.training_config(data)
        config.checkpoint.output_dir = str(out)
        config.tracker.trackers = ["none"]
        callbacks: dict[str, Any] = {}
        if settings is not None:
            prompts = out.parent / f"{out.name}_prompts.json"
            captions = [{"caption": text} for text in ("a red ball", "a blue square", "snow")]
            prompts.write_text(json.dumps({"data": captions}))
            pipeline = "wan_dmd_pipeline.WanDMDPipeline"
            callbacks["validation"] = {
                "pipeline_target": f"fastvideo.pipelines.basic.wan.{pipeline}",
                "dataset_file": str(prompts),
                "every_steps": 2,
                "sampling_steps": [2],
                "sampling_timesteps": [1000, 500],
                "num_frames": 1,
                **settings,
            }
        if ema:
            callbacks["ema"] = {"decay": 0.5}
        self.config = config
        self.method = tiny_runs.METHODS[name](config)
        self.trainer = Trainer(config, callback_configs=callbacks)
        self.tracker = Videos()
        self.trainer.tracker._tracker = self.tracker  # type: ignore[assignment]

    def train(self, steps: int) -> Run:
        """Trains for some steps."""
        loader = self.method.student.dataloader
        self.trainer.run(self.method, dataloader=loader, max_steps=steps)
        return self

    @property
    def losses(self) -> list[float]:
        """The loss of every step."""
        logged = self.tracker.scalars
        return [
            logged[step]["total_loss"] for step in sorted(logged) if "total_loss" in logged[step]
        ]


def test_videos_are_written_measured_and_logged(
    tiny_runs: ModuleType, data: Path, tmp_path: Path
) -> None:
    """Each due step has a playable file per prompt, scalars, and videos with captions."""
    run = Run(
        tiny_runs, data, tmp_path / "run", settings={"sampling_steps": [2, 4], "num_frames": None}
    ).train(2)
    names = sorted(path.name for path in run.out.glob("*.mp4"))
    assert names == sorted(
        f"validation_step_{step}_inference_steps_{steps}_rank_0_video_{video}.mp4"
        for step in (0, 2)
        for steps in (2, 4)
        for video in range(3)
    )
    with av.open(str(run.out / names[0])) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        codec = (stream.codec_context.name, stream.codec_context.pix_fmt)
        assert (codec, stream.average_rate) == (("h264", "yuv420p"), 16)
    assert (len(frames), frames[0].width, frames[0].height) == (9, 64, 64)
    scalars = run.tracker.scalars[2]
    assert scalars["validation/2_steps_video_count"] == 3
    assert scalars["validation/2_steps_duration_sec"] > 0
    assert scalars["validation/4_steps_sharpness"] > 0
    assert 0 <= scalars["validation/2_steps_motion_smoothness"] <= 1
    videos = run.tracker.artifacts[2]["validation_videos_2_steps"]
    assert [options["caption"] for _, options in videos] == ["a red ball", "a blue square", "snow"]
    assert set(run.tracker.artifacts) == {0, 2}


@pytest.mark.parametrize("name", ["finetune", "dmd2"])
def test_training_is_the_same_with_and_without_validation(
    tiny_runs: ModuleType, data: Path, tmp_path: Path, name: str
) -> None:
    """Losses, weights and random states are equal to the bit, with the average kept as well."""
    results = []
    for settings in (None, {"every_steps": 2, "num_videos_per_prompt": 2}):
        out = tmp_path / str(settings is None)
        run = Run(tiny_runs, data, out, name=name, ema=True, settings=settings).train(4)
        weights = [p.detach().clone() for p in run.method.student.transformer.parameters()]
        states = (torch.rand(()).item(), random.random())
        generator = run.method.generator.get_state()
        results.append((run.losses, weights, states, generator, run.method))
    plain, validated = results
    assert len(plain[0]) == 4
    assert plain[0] == validated[0]
    assert all(map(torch.equal, plain[1], validated[1]))
    assert plain[2] == validated[2]
    assert torch.equal(plain[3], validated[3])
    assert validated[4].student.transformer.training


def test_the_average_is_sampled_where_there_is_one(
    tiny_runs: ModuleType, data: Path, tmp_path: Path
) -> None:
    """With a decay of 1 the averaged student never changes, and neither do its videos."""
    seen: list[float] = []
    for ema in (True, False):
        run = Run(tiny_runs, data, tmp_path / str(ema), ema=ema, settings={"every_steps": 1})
        if ema:
            callback: Any = run.trainer.callbacks.get("ema")
            callback.decay = 1.0
        run.train(3)
        logged = [run.tracker.scalars[step]["validation/2_steps_sharpness"] for step in (1, 2, 3)]
        seen.append(len(set(logged)))
    assert seen == [1, 3]


@pytest.mark.parametrize(
    ("name", "callback"), [("dmd2", True), ("kd", True), ("nft", True), ("nft", False)]
)
def test_every_method_samples_its_average(
    tiny_runs: ModuleType,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    *,
    callback: bool,
) -> None:
    """That of the callback, else the method's own; the student trains on with its weights."""
    sampled: list[torch.Tensor] = []
    sample = ValidationSampler.sample

    def recording(self: ValidationSampler, *args: Any) -> Any:
        weight: Any = self.transformer.proj_out.weight
        sampled.append(weight.detach().clone())
        return sample(self, *args)

    monkeypatch.setattr(ValidationSampler, "sample", recording)
    settings = {"every_steps": 4, "run_at_start": False}
    run = Run(tiny_runs, data, tmp_path / "run", name=name, ema=callback, settings=settings)
    run.train(4)
    owner: Any = run.trainer.callbacks.get("ema") if callback else run.method
    (weight,) = sampled
    assert torch.equal(weight, owner.student_ema.shadow["proj_out.weight"])
    assert not torch.equal(weight, run.method.student.transformer.proj_out.weight)


def test_seeds_belong_to_prompts(tiny_runs: ModuleType, data: Path, tmp_path: Path) -> None:
    """An unchanged model gives the same files each time, and prompts have noise of their own."""
    run = Run(tiny_runs, data, tmp_path / "run", settings={"num_videos_per_prompt": 2})
    callback: Any = run.trainer.callbacks.get("validation")
    files = []
    for step in (2, 4):
        callback.on_validation_begin(run.method, iteration=step)
        files.append([path.read_bytes() for path in sorted(run.out.glob(f"*step_{step}_*.mp4"))])
    assert files[0] == files[1]
    assert len(set(files[0])) == 6
    prompts = [prompt for prompt, _ in callback._prompts]
    assert [prompt.seeds for prompt in prompts] == [(11, 12), (13, 14), (15, 16)]


def test_the_region_is_entered_only_for_real_validations(
    tiny_runs: ModuleType, data: Path, tmp_path: Path
) -> None:
    """Steps that are not validated leave no region; those that are have the stages inside."""
    sink = RecordingSink()
    attach(sink)
    try:
        run = Run(tiny_runs, data, tmp_path / "run", settings={"run_at_start": False})
        run.train(3)
    finally:
        detach(sink)
    entered = [name for kind, name in sink.events if kind == "enter"]
    assert entered.count("training_validation") == 1
    inside = entered[entered.index("training_validation") :]
    assert inside.count("inference_text_encoding") == 6  # encoded once, then given
    assert inside.count("inference_denoising") == 3
    assert inside.count("inference_denoising_step") == 6
    assert inside.count("inference_decoding") == 3


def test_a_video_that_cannot_be_written_is_left_out(
    tiny_runs: ModuleType,
    data: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others are written, the count says how many, and training goes on."""
    run = Run(tiny_runs, data, tmp_path / "run", settings={})
    run.out.mkdir()
    (run.out / "validation_step_2_inference_steps_2_rank_0_video_1.mp4").mkdir()
    run.train(2)
    assert run.tracker.scalars[2]["validation/2_steps_video_count"] == 2
    assert len(run.losses) == 2
    assert "video_1.mp4 cannot be written" in caplog.text


def test_prompts_are_read_before_the_first_step(
    tiny_runs: ModuleType, data: Path, tmp_path: Path
) -> None:
    """A record without a caption, or a pipeline that is none, ends the run at once."""
    run = Run(tiny_runs, data, tmp_path / "run", settings={})
    (tmp_path / "run_prompts.json").write_text('{"data": [{"captoin": "x"}]}')
    with pytest.raises(DataError, match="record 0 needs a 'caption'"):
        run.train(1)
    run = Run(tiny_runs, data, tmp_path / "two", settings={"pipeline_target": "json.JSONDecoder"})
    with pytest.raises(ConfigError, match=r"pipeline_target: json\.JSONDecoder is no pipeline"):
        run.train(1)


def test_settings_for_other_models_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """What changes nothing in text-to-video is said once."""
    make(overlay_actions=True, attn_qat_infer=True)
    assert caplog.messages == [
        "callbacks.validation: attn_qat_infer, overlay_actions changes nothing in text-to-video"
    ]


@pytest.mark.distributed
def test_two_ranks_share_the_prompts_of_a_sharded_student(data: Path, tmp_path: Path) -> None:
    """Each prompt is sampled once, the numbers are those of one rank, and training is the same."""
    script = Path(__file__).with_name("validation_runs.py")
    result = tmp_path / "result.json"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run(
        [sys.executable, *launcher, str(script), str(data), str(tmp_path / "out2"), str(result)],
        check=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    validation_runs = runpy.run_path(str(script))
    alone, alone_validated = (
        json.loads(json.dumps(validation_runs["run"](data, tmp_path / name, every_steps=int(name))))
        for name in ("0", "1")
    )
    shared, shared_validated = json.loads(result.read_text())
    for plain, validated in ((alone, alone_validated), (shared, shared_validated)):
        for step in ("1", "2"):
            assert validated[step]["total_loss"] == plain[step]["total_loss"]
    counts = [
        steps["2"]["validation/2_steps_video_count"]
        for steps in (alone_validated, shared_validated)
    ]
    assert counts == [3, 3]
    sharpness = [
        steps["0"]["validation/2_steps_sharpness"] for steps in (alone_validated, shared_validated)
    ]
    assert sharpness[0] == pytest.approx(sharpness[1], rel=1e-4)
    videos = sorted(path.name[-19:] for path in (tmp_path / "out2" / "1").glob("*step_2_inf*.mp4"))
    assert videos == ["_rank_0_video_0.mp4", "_rank_0_video_1.mp4", "_rank_1_video_0.mp4"]
