"""What a generator leaves behind when it ends, and when nobody ends it."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo import observability
from fastvideo.analysis import ActivationFile
from fastvideo.dataset.encoders import load_transformer
from fastvideo.errors import DataError
from fastvideo.hooks import activation_trace_of, attach_activation_trace, detach_activation_trace
from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline
from fastvideo.pipelines.video_generator import VideoGenerator

if TYPE_CHECKING:
    from torch import nn

SMALL: dict[str, Any] = {
    "height": 16,
    "width": 32,
    "num_frames": 1,
    "num_inference_steps": 2,
    "guidance_scale": 1.0,
    "save_video": False,
}


@pytest.fixture
def trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tracing is on, for two layers."""
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "1")
    monkeypatch.setenv("FASTVIDEO_TRACE_LAYERS", r"^blocks\.[01]$")
    monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", str(tmp_path / "t.jsonl"))
    return tmp_path / "t.jsonl"


def hooks(model: nn.Module) -> int:
    """Returns how many hooks are on the modules of a model."""
    return sum(len(module._forward_hooks) for module in model.modules())


def is_open(path: Path) -> bool:
    """Tells whether this process has a file open."""
    links = Path("/proc/self/fd").iterdir()
    return path in {link.readlink() for link in links if link.is_symlink()}


def steps(path: Path) -> list[int | None]:
    """Returns the steps of the records of a trace, each of which must be readable."""
    return [record.key.step.number for record in ActivationFile(path).records()]


def test_the_end_takes_the_hooks_off_and_closes_the_trace(
    tiny_model: Path, trace_file: Path
) -> None:
    """Whoever holds the transformer has it as it was; a second end changes nothing."""
    with VideoGenerator.from_pretrained(tiny_model) as generator:
        transformer = generator.pipeline.modules["transformer"]
        generator.generate_video("a", **SMALL)
        assert hooks(transformer) == 2
        assert is_open(trace_file)
    assert hooks(transformer) == 0
    assert activation_trace_of(transformer) is None
    assert not is_open(trace_file)
    assert steps(trace_file) == [0, 0, 1, 1]
    generator.shutdown()
    assert steps(trace_file) == [0, 0, 1, 1]


def test_a_second_generator_keeps_the_trace_of_the_first(
    tiny_model: Path, trace_file: Path
) -> None:
    """Both are whole, in files of their own."""
    for count in (2, 1):
        with VideoGenerator.from_pretrained(tiny_model) as generator:
            generator.generate_video("a", **{**SMALL, "num_inference_steps": count})
    assert steps(trace_file.with_name("t_1.jsonl")) == [0, 0, 1, 1]
    assert steps(trace_file) == [0, 0]


def test_the_trace_of_an_error_is_closed(
    tiny_model: Path, trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pipeline that could not be made, and of a request that went wrong."""

    def fail(self: WanPipeline) -> None:
        message = "no stages"
        raise DataError(message)

    with monkeypatch.context() as patched:
        patched.setattr(WanPipeline, "create_stages", fail)
        with pytest.raises(DataError, match="no stages"):
            VideoGenerator.from_pretrained(tiny_model)
    assert trace_file.exists()
    assert not is_open(trace_file)

    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    def ask() -> None:
        with VideoGenerator.from_pretrained(tiny_model) as generator:
            generator.pipeline.modules["scheduler"].step = interrupt
            generator.generate_video("a", **SMALL)

    with pytest.raises(KeyboardInterrupt):
        ask()
    assert not is_open(trace_file)
    assert steps(trace_file) == [0, 0]


def test_a_model_that_others_trace_stays_traced(tiny_model: Path, trace_file: Path) -> None:
    """As that of a trainer, which samples it now and then."""
    transformer = load_transformer(tiny_model)
    trace = attach_activation_trace(transformer, role="student")
    pipeline = WanPipeline.from_pretrained(tiny_model, loaded_modules={"transformer": transformer})
    pipeline.close()
    assert activation_trace_of(transformer) is trace
    assert hooks(transformer) == 2
    detach_activation_trace(trace)
    pipeline = WanPipeline.from_pretrained(tiny_model, loaded_modules={"transformer": transformer})
    assert hooks(transformer) == 2
    pipeline.close()
    pipeline.close()
    assert hooks(transformer) == 0


@pytest.mark.usefixtures("trace_file")
def test_the_end_frees_the_model(tiny_model: Path) -> None:
    """Though it was traced, and the generator itself and what it made are still there."""
    _assert_frees_the_model(tiny_model)


def test_the_end_frees_a_compiled_model(tiny_model: Path) -> None:
    """The caches of the compiler do not hold it."""
    options = {"torch_compile_kwargs": {"backend": "eager"}}
    _assert_frees_the_model(tiny_model, enable_torch_compile=True, **options)


def _assert_frees_the_model(tiny_model: Path, **settings: Any) -> None:
    generator = VideoGenerator.from_pretrained(tiny_model, **settings)
    modules = generator.pipeline.modules
    models = [weakref.ref(modules[name]) for name in ("transformer", "vae", "text_encoder")]
    del modules
    result = generator.generate_video("a", **SMALL)
    generator.shutdown()
    gc.collect()
    assert [model() for model in models] == [None, None, None]
    assert result["samples"] is not None


@pytest.mark.slow
def test_every_end_flushes_the_kernel_traces_of_its_generator(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Those of a second generator, too, though the process has one profiler."""
    program = f"""
import os, sys
os.environ["FASTVIDEO_TORCH_PROFILER_DIR"] = sys.argv[1]
os.environ["FASTVIDEO_TORCH_PROFILE_REGIONS"] = "inference_decoding"
from fastvideo import VideoGenerator
for count in (1, 2):
    with VideoGenerator.from_pretrained({str(tiny_model)!r}) as generator:
        generator.generate_video("a", **{SMALL})
    print(len([n for n in os.listdir(sys.argv[1]) if n.endswith(".pt.trace.json.gz")]))
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert run.stdout.split() == ["1", "2"]


def test_a_generator_that_nobody_ends_loses_no_line(tiny_model: Path, trace_file: Path) -> None:
    """It is collected, another one is made, and the process ends."""
    program = f"""
import gc
from fastvideo import VideoGenerator
for prompt in ("a", "b"):
    generator = VideoGenerator.from_pretrained({str(tiny_model)!r})
    generator.generate_video(prompt, **{SMALL})
    block = generator.pipeline.modules["transformer"].blocks[0]
    ones = block.scale_shift_table.new_ones(1, 6, 32)
    block(ones, ones, ones, None)  # outside of steps, whose lines wait longest
    del generator, block
    gc.collect()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    made = [steps(trace_file.with_name(name)) for name in ("t_1.jsonl", "t.jsonl")]
    assert made == [[0, 0, 1, 1, None], [0, 0, 1, 1, None]]


def test_telemetry_ends_though_the_rest_cannot(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with one thing is raised when all of them have had their turn."""
    monkeypatch.setenv("FASTVIDEO_METRICS", "1")
    monkeypatch.setenv("FASTVIDEO_METRICS_PORT", "0")
    generator = VideoGenerator.from_pretrained(tiny_model)
    assert observability.active() is not None

    def fail() -> None:
        message = "cannot close"
        raise OSError(message)

    monkeypatch.setattr(generator.pipeline, "close", fail)
    with pytest.raises(OSError, match="cannot close"):
        generator.shutdown()
    assert observability.active() is None
    generator.shutdown()
