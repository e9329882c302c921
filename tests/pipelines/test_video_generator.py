"""The programming interface: results, files, batches, errors, and what telemetry sees."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry import context, trace

from fastvideo import observability
from fastvideo.errors import ConfigError, DataError
from fastvideo.pipelines import video_generator
from fastvideo.pipelines.basic.wan.wan_dmd_pipeline import WanDMDPipeline
from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline
from fastvideo.pipelines.generation import GenerationRequest
from fastvideo.pipelines.pipeline_config import PipelineConfig
from fastvideo.pipelines.sampling_param import SamplingParam
from fastvideo.pipelines.video_file import VideoWriteError
from fastvideo.pipelines.video_generator import VideoGenerator

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL: dict[str, Any] = {"height": 16, "width": 32, "num_frames": 1, "num_inference_steps": 2}


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Asks for no telemetry, and leaves none behind."""
    monkeypatch.delenv("FASTVIDEO_METRICS", raising=False)
    yield
    observability.shutdown()


@pytest.fixture(scope="module")
def generator(tiny_model: Path) -> Iterator[VideoGenerator]:
    """A generator of the tiny model."""
    with VideoGenerator.from_pretrained(tiny_model) as made:
        yield made


def test_a_result_has_everything_that_is_documented(
    generator: VideoGenerator, tmp_path: Path
) -> None:
    """Pixels, frames, sizes, times, the file, and memory."""
    result = generator.generate_video("a red ball", output_path=str(tmp_path), num_frames=5, seed=3)
    assert result["prompts"] == "a red ball"
    assert result["samples"].shape == (1, 3, 5, 64, 64)
    assert 0 <= result["samples"].min() < result["samples"].max() <= 1
    assert (len(result["frames"]), result["frames"][0].shape) == (5, (64, 64, 3))
    assert result["size"] == (64, 64, 5)
    assert 0 < result["generation_time"] < result["e2e_latency"]
    assert result["video_path"] == str(tmp_path / "a red ball.mp4")
    assert Path(result["video_path"]).stat().st_size > 0
    assert len(result["logging_info"]["denoising_steps_s"]) == 4
    assert result["peak_memory_mb"] > 50
    assert (result["error"], result["trajectory"]) == (None, None)


def test_results_hold_only_what_is_wanted(generator: VideoGenerator, tmp_path: Path) -> None:
    """No frames, no file, but every step's latents."""
    param = SamplingParam(**SMALL, return_frames=False, save_video=False)
    result = generator.generate_video("a", param, return_trajectory_latents=True)
    assert (result["samples"], result["frames"], result["video_path"]) == (None, None, None)
    assert result["trajectory"].shape == (2, 1, 16, 1, 2, 4)
    assert len(result["trajectory_timesteps"]) == 2
    assert list(tmp_path.iterdir()) == []
    assert not param.return_trajectory_latents


def test_each_video_of_a_prompt_has_a_seed_of_its_own(
    generator: VideoGenerator, tmp_path: Path
) -> None:
    """Seeds count up from the first, and a seed gives the same video each time."""
    options = {**SMALL, "output_path": str(tmp_path)}
    both = generator.generate_video("a", num_videos_per_prompt=2, seed=4, **options)
    second = generator.generate_video("a", seed=5, **options)
    assert both["seeds"] == (4, 5)
    assert torch.allclose(both["samples"][1], second["samples"][0], atol=1e-5)
    assert not torch.allclose(both["samples"][0], both["samples"][1], atol=1e-2)
    names = [Path(path).name for path in (*both["video_paths"], *second["video_paths"])]
    assert names == ["a.mp4", "a_1.mp4", "a_2.mp4"]


def test_requests_can_be_mappings(generator: VideoGenerator, tmp_path: Path) -> None:
    """One prompt gives a result, several give a list, and a list of requests gives a list."""
    base = {"sampling": SMALL, "output": {"output_path": str(tmp_path)}}
    one = generator.generate({"prompt": "a", **base})
    several = generator.generate(GenerationRequest(prompt=["b", "c"], **base))
    own = {"prompt": "d", "sampling": {**SMALL, "height": 32}, "output": {"save_video": False}}
    mixed = generator.generate([own, {"prompt": "e", "sampling": {"sede": 1}}])
    assert not isinstance(one, list)
    assert isinstance(several, list)
    assert isinstance(mixed, list)
    assert (one.prompts, one.size) == ("a", (16, 32, 1))
    assert [result.prompts for result in several] == ["b", "c"]
    assert mixed[0].size == (32, 32, 1)
    assert mixed[1].prompts == "e"
    assert "request.sampling.sede: unknown field. Did you mean 'seed'" in str(mixed[1].error)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"height": 50}, ConfigError, "height: expected a multiple of 16"),
        ({"hieght": 48}, ConfigError, "hieght: unknown field. Did you mean 'height'"),
        ({"num_videos_per_prompt": 0}, ConfigError, "num_videos_per_prompt: expected"),
        ({"output_path": "a.avi"}, ConfigError, "output_path: expected a folder, or a file"),
        ({"output_path": "/dev/null/x"}, VideoWriteError, "output_path '/dev/null/x' cannot be"),
    ],
)
def test_the_only_prompt_raises_what_is_wrong(
    generator: VideoGenerator, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The message names the field."""
    with pytest.raises(error, match=message):
        generator.generate_video("a", **{**SMALL, **changes})


def test_a_video_that_cannot_be_written_costs_nothing_else(
    generator: VideoGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pixels and the files before it stay; a folder that cannot be is refused beforehand."""
    write, written, seen = video_generator.write_new_mp4, [], []

    def full(names: Any, frames: Any, *, fps: float) -> Path:
        if written:
            message = "no space left on device"
            raise VideoWriteError(message)
        written.append(write(names, frames, fps=fps))
        return written[0]

    monkeypatch.setattr(video_generator, "write_new_mp4", full)
    output = {"output_path": str(tmp_path)}
    request = {"prompt": "a", "sampling": {**SMALL, "num_videos_per_prompt": 2}, "output": output}
    nowhere = {"prompt": "b", "sampling": SMALL, "output": {"output_path": "/proc/new"}}
    first, second = generator.generate([request, nowhere], on_result=seen.append)
    assert first.error == "VideoWriteError: no space left on device"
    assert first.video_paths == [first.video_path] == [str(tmp_path / "a.mp4")]
    assert first.samples is not None
    assert len(first.samples) == 2
    assert "output_path '/proc/new' cannot be used" in str(second.error)
    assert second.generation_time == 0
    assert seen == [first, second]


def test_latents_that_are_not_finite_are_counted_and_said(
    generator: VideoGenerator, caplog: pytest.LogCaptureFixture
) -> None:
    """The video is there, for whoever wants to see it."""
    options = {**SMALL, "save_video": False}
    result = generator.generate_video("x\n" * 300, guidance_scale=1e38, **options)
    count = result["logging_info"]["nonfinite_latents"]
    assert 0 < count <= 16 * 2 * 4
    assert f"x…': {count} of 128 latents are NaN or infinite" in caplog.text
    assert result["samples"].shape == (1, 3, 1, 16, 32)
    result = generator.generate_video("x", **options)
    assert result["logging_info"]["nonfinite_latents"] == 0


def test_a_student_is_sampled_in_its_own_steps(tiny_model: Path) -> None:
    """Timesteps make the pipeline that of students; the class can be named, and must exist."""
    config = PipelineConfig(dmd_denoising_steps=[1000, 500])
    with VideoGenerator.from_pretrained(tiny_model, pipeline_config=config) as generator:
        assert isinstance(generator.pipeline, WanDMDPipeline)
        result = generator.generate_video("a", save_video=False, **SMALL)
        assert len(result["logging_info"]["denoising_steps_s"]) == 2
    with VideoGenerator.from_pretrained(
        tiny_model, override_pipeline_cls_name="WanPipeline", flow_shift=5, output_type="latent"
    ) as generator:
        assert isinstance(generator.pipeline, WanPipeline)
        assert generator.pipeline.modules["scheduler"].config.flow_shift == 5.0
        latents = generator.generate_video("a", save_video=False, **SMALL)["latents"]
        assert latents.shape == (1, 16, 1, 2, 4)
    with pytest.raises(ConfigError, match="Did you mean 'WanPipeline'"):
        VideoGenerator.from_pretrained(tiny_model, pipeline_class="WanPipelin")


def test_offloading_changes_no_video(tiny_model: Path) -> None:
    """Modules that come and go make the same samples."""
    with VideoGenerator.from_pretrained(tiny_model) as generator:
        expected = generator.generate_video("a", save_video=False, **SMALL)["samples"]
    with VideoGenerator.from_pretrained(
        tiny_model, dit_cpu_offload=True, vae_cpu_offload=True, text_encoder_cpu_offload=True
    ) as generator:
        result = generator.generate_video("a", save_video=False, **SMALL)["samples"]
        assert generator.pipeline.args.offload >= {"transformer", "vae", "text_encoder"}
    assert torch.equal(result, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_gpus": 2}, "generator.engine.num_gpus: only 1 is offered, got 2"),
        ({"sp_size": 2}, "generator.engine.sp_size: only 1 is offered"),
        ({"revision": "main"}, "generator.engine.revision: revisions are not offered"),
        ({"execution_backend": "tcp"}, r"expected one of \['mp', 'ray'\], got 'tcp'"),
        ({"flow_shift": "far"}, "generator.pipeline.flow_shift: expected a number"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    tiny_model: Path, settings: dict[str, Any], message: str
) -> None:
    """With their path in a run file."""
    with pytest.raises(ConfigError, match=message):
        VideoGenerator.from_pretrained(tiny_model, **settings)


def test_settings_that_change_nothing_are_named(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of other versions, and those that do not exist."""
    VideoGenerator.from_pretrained(
        tiny_model, use_fsdp_inference=True, trust_remote_code=True, vea_tiling=True
    ).shutdown()
    assert "no effect in this version: trust_remote_code, use_fsdp_inference" in caplog.text
    assert "'vea_tiling' is left out. Did you mean 'vae_tiling'" in caplog.text


def test_a_model_of_another_kind_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """By the pipeline that it names, and by what is missing of it."""
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    with pytest.raises(ConfigError, match="names the pipeline FluxPipeline; this version has Wan"):
        VideoGenerator.from_pretrained(tmp_path)
    (tmp_path / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    with pytest.raises(DataError, match="has no scheduler/ folder"):
        VideoGenerator.from_pretrained(tmp_path)
    (tmp_path / "model_index.json").write_text("[")
    with pytest.raises(DataError, match="is not valid JSON"):
        VideoGenerator.from_pretrained(tmp_path)


def test_after_the_end_there_are_no_videos(tiny_model: Path) -> None:
    """Ending twice is fine; asking then says what happened."""
    generator = VideoGenerator.from_pretrained(tiny_model)
    generator.shutdown()
    generator.shutdown()
    for ask in (
        lambda: generator.generate_video("a", **SMALL),
        lambda: generator.generate_video(["a"], **SMALL),
        lambda: generator.generate({"prompt": "a"}),
        lambda: generator.generate([{"prompt": "a"}]),
        lambda: generator.pipeline,
        generator.__enter__,
    ):
        with pytest.raises(RuntimeError, match="the generator was shut down; make another one"):
            ask()


def test_a_run_file_makes_a_generator(tiny_model: Path, tmp_path: Path) -> None:
    """Its ``generator`` section, with overrides."""
    file = tmp_path / "run.yaml"
    file.write_text(f"generator:\n  model_path: {tiny_model}\n  pipeline: {{flow_shift: 2}}\n")
    with VideoGenerator.from_file(file, {"generator.pipeline.flow_shift": 4}) as generator:
        assert generator.pipeline.args.pipeline_config.flow_shift == 4.0
    with pytest.raises(ConfigError, match=r"generator\.model_path: missing required field"):
        VideoGenerator.from_config({})


# -- Telemetry ------------------------------------------------------------------------------------


def scraped(url: str | None) -> dict[str, float]:
    """Returns every sample of an endpoint, by name and labels."""
    assert url is not None
    with urllib.request.urlopen(url, timeout=5) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def total(samples: dict[str, float], name: str, **labels: str) -> float:
    """Returns the sum of the samples of a name with these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        value
        for series, value in samples.items()
        if series.partition("{")[0] == name and all(part in series for part in wanted)
    )


def spans_in(directory: Path) -> list[dict[str, Any]]:
    """Returns the spans that were written to a folder."""
    return [
        span
        for file in sorted(directory.glob("*.jsonl"))
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def test_of_fifty_prompts_the_bad_ones_are_named_and_counted(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every good one is written, and what is scraped has the right counts."""
    monkeypatch.setenv("FASTVIDEO_METRICS", "1")
    requests: list[Any] = []
    bad = {7: {"height": 50}, 19: {"num_frames": 2}, 23: {}, 42: {"guidance_scale": -1}}
    for number in range(50):
        prompt = "" if number == 23 else f"prompt {number}"
        sampling = {**SMALL, "num_inference_steps": 1, **bad.get(number, {})}
        output = {"output_path": str(tmp_path / "out"), "return_frames": False}
        requests.append({"prompt": prompt, "sampling": sampling, "output": output})
    with VideoGenerator.from_pretrained(tiny_model) as generator:
        results = generator.generate(requests)
        telemetry = observability.active()
        assert telemetry is not None
        samples = scraped(telemetry.metrics_url)
    assert isinstance(results, list)
    assert [at for at, result in enumerate(results) if result.error is not None] == sorted(bad)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {f"prompt {n}.mp4" for n in range(50) if n not in bad}
    for number in bad:
        assert f"prompt {number + 1} of 50" in caplog.text
    assert "4 of 50 prompts failed" in caplog.text
    assert total(samples, "fastvideo_inference_request_duration_seconds_count") == 46
    assert total(samples, "fastvideo_inference_denoising_step_duration_seconds_count") == 46
    assert total(samples, "fastvideo_inference_errors_total", error_type="ConfigError") == 4
    region = "fastvideo_region_duration_seconds_count"
    assert total(samples, region, region="inference_request") == 50
    assert total(samples, region, region="inference_denoising_step") == 46
    assert total(samples, region, region="model_loading") == 1
    assert observability.active() is None


def test_a_request_is_one_trace_with_its_steps_as_children(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the caller's trace where there is one, else in its own."""
    monkeypatch.setenv("FASTVIDEO_SPAN_DIR", str(tmp_path / "spans"))
    caller = trace.SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=trace.TraceFlags(1))
    with VideoGenerator.from_pretrained(tiny_model) as generator:
        generator.generate_video("first", save_video=False, **SMALL)
        token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(caller)))
        try:
            generator.generate_video("second", save_video=False, **SMALL)
        finally:
            context.detach(token)
    spans = spans_in(tmp_path / "spans")
    requests = [span for span in spans if span["name"] == "inference_request"]
    assert [span.get("parentSpanId", "") for span in requests] == ["", f"{0xDEF:016x}"]
    assert requests[0]["traceId"] != requests[1]["traceId"] == f"{0xABC:032x}"
    for request in requests:
        inside = [span for span in spans if span["traceId"] == request["traceId"]]
        parents = {span["spanId"]: span["name"] for span in inside}
        named = sorted((s["name"], parents.get(s.get("parentSpanId", ""))) for s in inside)
        assert named == [
            ("inference_decoding", "inference_request"),
            ("inference_denoising", "inference_request"),
            ("inference_denoising_step", "inference_denoising"),
            ("inference_denoising_step", "inference_denoising"),
            ("inference_request", None),
            ("inference_text_encoding", "inference_request"),
        ]
    attributes = {item["key"]: item["value"] for item in requests[0]["attributes"]}
    assert attributes["fastvideo.height"] == {"intValue": "16"}
    assert "first" not in json.dumps(spans)


def test_telemetry_that_runs_is_used_and_left_running(tiny_model: Path) -> None:
    """A program's own telemetry counts requests, and ends when the program says so."""
    config = observability.TelemetryConfig.from_sources({"FASTVIDEO_METRICS_PORT": "0"})
    telemetry = observability.start(config)
    with VideoGenerator.from_pretrained(tiny_model) as generator:
        generator.generate_video("a", save_video=False, **SMALL)
    assert observability.active() is telemetry
    samples = scraped(telemetry.metrics_url)
    assert total(samples, "fastvideo_inference_request_duration_seconds_count") == 1


def test_nothing_is_started_where_nothing_is_asked_for(tiny_model: Path) -> None:
    """No port is opened because somebody makes a video."""
    with VideoGenerator.from_pretrained(tiny_model):
        assert observability.active() is None


PROGRAM = """
import sys
from fastvideo import VideoGenerator
with VideoGenerator.from_pretrained(sys.argv[1]) as generator:
    generator.generate_video("a", save_video=False, height=16, width=32, num_frames=1)
"""


def test_kernel_traces_are_written_and_regions_that_never_ran_are_named(
    tiny_model: Path, tmp_path: Path
) -> None:
    """A region of the request has its segment when the generator ends."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny_model)],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "FASTVIDEO_TORCH_PROFILER_DIR": str(tmp_path / "traces"),
            "FASTVIDEO_TORCH_PROFILE_REGIONS": "inference_denoising,training_forward",
        },
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    names = [path.name for path in (tmp_path / "traces").glob("*.pt.trace.json.gz")]
    assert names == ["trace_rank0_segment0000_inference_denoising.pt.trace.json.gz"]
    assert "enabled but never entered in this process: training_forward" in run.stderr
