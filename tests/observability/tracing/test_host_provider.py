"""The TracerProvider of the program around us."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.tracing.ids import is_sampled, step_trace_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_programs_provider_is_used(
    run_program: Callable[..., Any], tmp_path: Path, http_receiver: Any, order: str
) -> None:
    """Whether it is set before or after the start, spans go through it, with ids of ours."""
    result = run_program(
        "host_provider",
        ORDER=order,
        OTEL_EXPORTER_OTLP_ENDPOINT=http_receiver.endpoint,
        FASTVIDEO_SPAN_DIR=str(tmp_path),
    )
    assert result["same"]
    assert result["stderr"] == ""
    assert result["traces"] == [f"{step_trace_id('run-1', '0-abcd', 0):032x}"]
    step, root, _ = result["spans"]
    assert (step["name"], root["name"]) == ("training_train_one_step", "training_step")
    assert step["parent_id"] == root["context"]["span_id"]
    assert root["parent_id"] is None
    assert (step["status"], step["attributes"]["error.type"]) == (
        {"status_code": "ERROR"},
        "ValueError",
    )
    resource = step["resource"]["attributes"]
    assert (resource["service.name"], resource["theirs"]) == ("theirs", "yes")
    assert resource["fastvideo.run_id"] == "run-1"
    assert len(root["links"]) == 1
    # What the user asked for beside it stays; nothing is sent twice to the same kind of place.
    assert result["counts"] == {"exported/host": 3, "exported/file": 3}
    assert http_receiver.inbox.attempts == 0


def test_the_programs_sampler_is_asked(run_program: Callable[..., Any]) -> None:
    """A provider that keeps a tenth gets a tenth, the same as on every other rank."""
    result = run_program("host_provider", ORDER="before", RATIO="0.1", STEPS="200")
    expected = [step_trace_id("run-1", "0-abcd", step) for step in range(200)]
    kept = sorted(f"{trace:032x}" for trace in expected if is_sampled(trace, 0.1))
    assert result["traces"] == kept
    assert 5 < len(kept) < 40
    exported = 3 * len(kept)
    assert result["counts"] == {"exported/host": exported, "dropped/host_sampler": 600 - exported}


def test_a_provider_that_takes_no_finished_spans(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    """A provider that is not the SDK's is left alone, which is said once."""
    result = run_program("foreign_provider", FASTVIDEO_SPAN_DIR=str(tmp_path))
    assert result["exported"] == 15
    assert result["stderr"].count("takes no finished spans") == 1


@pytest.mark.alone
def test_an_exporter_that_hangs(run_program: Callable[..., Any]) -> None:
    """What it holds is counted as dropped at the end, which is in time, and never again."""
    result = run_program("host_hangs")
    assert result["seconds"] < 1.5
    assert result["at_shutdown"] == {"dropped/shutdown": 195, "exported/host": 5}
    assert result["counts"] == result["at_shutdown"]
    assert result["threads"] == 1
    assert result["stderr"] == ""


@pytest.mark.parametrize("exit_handler", ["", "none"])
@pytest.mark.parametrize("processor", ["SimpleSpanProcessor", "BatchSpanProcessor"])
def test_a_provider_that_is_shut_down(
    run_program: Callable[..., Any], processor: str, exit_handler: str
) -> None:
    """It gets nothing afterwards: one line says so, and the spans count as dropped."""
    result = run_program("host_shuts_down", PROCESSOR=processor, NO_EXIT_HANDLER=exit_handler)
    assert result["counts"] == {"dropped/host_shutdown": 15, "exported/host": 10}
    assert result["arrived"] == 10
    (line,) = result["stderr"].splitlines()
    assert "do not reach the program's own TracerProvider (it was shut down)" in line


@pytest.mark.parametrize("processor", ["SimpleSpanProcessor", "BatchSpanProcessor"])
def test_a_provider_that_ends_before_us(run_program: Callable[..., Any], processor: str) -> None:
    """Spans that are left when its exit handler has run are not counted as exported."""
    result = run_program("host_ends_first", PROCESSOR=processor)
    assert result["counts"] == {"dropped/host_shutdown": 10, "exported/host": 10}
    assert result["arrived"] == 10
    assert len(result["stderr"].splitlines()) <= 1


def test_a_provider_without_processors(run_program: Callable[..., Any]) -> None:
    """Spans that go nowhere are not exported."""
    result = run_program("host_shuts_down", PROCESSOR="none")
    assert result["counts"] == {"dropped/no_destination": 25}
