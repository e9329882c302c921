"""Pipelines whose transformer is compiled: the same videos, telemetry and activation traces."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
import torch
from torch._dynamo.utils import counters

from fastvideo import observability
from fastvideo.analysis import ActivationFile, Tolerances, diff_activations
from fastvideo.dataset.encoders import load_transformer
from fastvideo.errors import ConfigError
from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline
from fastvideo.pipelines.video_generator import VideoGenerator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

ASKED: Final[dict[str, Any]] = {
    "height": 16,
    "width": 32,
    "num_frames": 1,
    "num_inference_steps": 3,
    "guidance_scale": 3.0,
    "save_video": False,
}


class Seen(NamedTuple):
    """What two requests to a generator left behind.

    Attributes:
        samples: Pixels of each.
        spans: Name, name of the parent, and denoising step of each span.
        counts: Of every series of the requests: how often it was observed.
        graphs: Graphs that were captured up to the end of each request.
    """

    samples: list[Tensor]
    spans: list[tuple[str, str, int]]
    counts: dict[str, float]
    graphs: list[int]


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """A graph that is compiled anew raises, which no step and no second request may do."""
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()
    observability.shutdown()


@pytest.fixture
def watched(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Seen]:
    """Makes two videos with telemetry on."""

    def run(name: str, *, blocks: int = 2, **settings: Any) -> Seen:
        monkeypatch.setenv("FASTVIDEO_METRICS", "1")
        monkeypatch.setenv("FASTVIDEO_SPAN_DIR", str(tmp_path / name))
        samples, graphs = [], []
        with VideoGenerator.from_pretrained(tiny_model, **settings) as generator:
            del generator.pipeline.modules["transformer"].blocks[blocks:]
            for prompt in ("a", "b"):
                samples.append(generator.generate_video(prompt, **ASKED)["samples"])
                graphs.append(counters["stats"]["unique_graphs"])
            counts = _counts()
        return Seen(samples, _spans(tmp_path / name), counts, graphs)

    return run


def _compiled(backend: str, **options: Any) -> dict[str, Any]:
    return {"enable_torch_compile": True, "torch_compile_kwargs": {"backend": backend, **options}}


def _counts() -> dict[str, float]:
    telemetry = observability.active()
    assert telemetry is not None
    assert telemetry.metrics_url is not None
    with urllib.request.urlopen(telemetry.metrics_url, timeout=5) as response:
        lines = response.read().decode().splitlines()
    found = {}
    for line in lines:
        series, _, value = line.rpartition(" ")
        name, _, labels = series.partition("{")
        if name.endswith("_seconds_count"):
            found[name, re.sub(r'run="[^"]*"', "", labels)] = float(value)
    return {f"{name} {labels}": value for (name, labels), value in found.items()}


def _spans(folder: Path) -> list[tuple[str, str, int]]:
    spans = [
        span
        for file in folder.glob("*.jsonl")
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    by_id = {span["spanId"]: span for span in spans}
    found = []
    for span in spans:
        parent = by_id.get(span.get("parentSpanId", ""))
        attributes = {item["key"]: item["value"] for item in span["attributes"]}
        step = attributes.get("fastvideo.denoising_step", {"intValue": "-1"})["intValue"]
        found.append((span["name"], parent["name"] if parent else "", int(step)))
        if parent is not None and span["name"].startswith("inference_"):
            assert int(parent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
            assert int(span["endTimeUnixNano"]) <= int(parent["endTimeUnixNano"])
    return sorted(found)


def test_compiling_changes_neither_videos_nor_telemetry(watched: Callable[..., Seen]) -> None:
    """One graph for all steps, both passes of guidance and all requests of a size.

    This backend runs the operators that the graph was captured from, so pixels are equal to the
    bit. Regions are outside of the graph: spans and counts are those of an eager run.
    """
    eager = watched("eager")
    assert eager.graphs == [0, 0]
    compiled = watched("compiled", **_compiled("aot_eager"))
    assert compiled.graphs == [1, 1]
    assert counters["graph_break"] == {}
    for found, expected in zip(compiled.samples, eager.samples, strict=True):
        assert torch.equal(found, expected)
    assert compiled.spans == eager.spans
    assert [span for span in compiled.spans if span[0] == "inference_denoising_step"] == [
        ("inference_denoising_step", "inference_denoising", step)
        for step in range(ASKED["num_inference_steps"])
        for _ in range(2)
    ]
    assert compiled.counts == eager.counts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # its own imports
def test_the_default_backend_makes_the_same_video(watched: Callable[..., Seen]) -> None:
    """As far as float32 goes: it fuses operators, and so rounds in other places."""
    eager = watched("eager", blocks=1)
    compiled = watched("compiled", blocks=1, enable_torch_compile=True)
    assert compiled.graphs == [1, 1]
    for found, expected in zip(compiled.samples, eager.samples, strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    assert compiled.spans == eager.spans
    assert compiled.counts == eager.counts


def test_activations_of_compiled_layers_are_traced(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of an eager run, with the same numbers; the graph is broken, but not anew."""
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "1")
    monkeypatch.setenv("FASTVIDEO_TRACE_LAYERS", r"^blocks\.\d+$")
    files, graphs = [], []
    for settings in ({}, _compiled("aot_eager")):
        path = tmp_path / f"{len(files)}.jsonl"
        monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", str(path))
        with VideoGenerator.from_pretrained(tiny_model, **settings) as generator:
            for _ in range(2):
                generator.generate_video("a", **ASKED)
                graphs.append(counters["stats"]["unique_graphs"])
        files.append(path)
    assert graphs[0] == graphs[1] == 0
    assert graphs[2] == graphs[3] > 0
    a, b = (list(ActivationFile(path).records()) for path in files)
    assert len(a) == 2 * 3 * 2 * 2  # requests, steps, passes of guidance, layers
    assert [record.key for record in b] == [record.key for record in a]
    assert diff_activations(*map(ActivationFile, files), Tolerances.parse()).same


def test_whole_graphs_and_traces_exclude_each_other(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is said before anything is made, where a layer is traced."""
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "1")
    monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", str(tmp_path / "t.jsonl"))
    settings = _compiled("eager", fullgraph=True)
    message = r"torch_compile_kwargs\.fullgraph: activations of the transformer are traced"
    with pytest.raises(ConfigError, match=message):
        VideoGenerator.from_pretrained(tiny_model, **settings)
    monkeypatch.setenv("FASTVIDEO_TRACE_LAYERS", "no such layer")
    with VideoGenerator.from_pretrained(tiny_model, **settings) as generator:
        generator.generate_video("a", **{**ASKED, "num_inference_steps": 1})
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("options", [{"backend": "no such"}, {"mod": "default"}])
def test_what_torch_compile_refuses_is_named(tiny_model: Path, options: dict[str, Any]) -> None:
    """As a mistake in the settings."""
    with pytest.raises(
        ConfigError, match=r"generator\.engine\.torch_compile_kwargs: torch\.compil"
    ):
        VideoGenerator.from_pretrained(
            tiny_model, enable_torch_compile=True, torch_compile_kwargs=options
        )


def test_both_experts_are_compiled(tiny_model: Path) -> None:
    """The one for low noise takes most of the steps."""
    experts = {name: load_transformer(tiny_model) for name in ("transformer", "transformer_2")}
    pipeline = WanPipeline.from_pretrained(tiny_model, loaded_modules=experts)
    pipeline.compile(backend="eager")
    for expert in experts.values():
        assert expert._compiled_call_impl is not None
