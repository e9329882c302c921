"""What kernel tracing says at its start and at its end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from fastvideo.profiler import trace_report
from fastvideo.profiler.config import TorchProfilerConfig

FOLDER = Path("/traces")
FORWARD = "training_forward"


@pytest.fixture(autouse=True)
def _rank_zero(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    caplog.set_level(logging.INFO, logger="fastvideo")


def config(*regions: str, **options: Any) -> TorchProfilerConfig:
    """Makes a configuration."""
    return TorchProfilerConfig(frozenset(regions or {FORWARD}), **options)


@pytest.mark.parametrize(
    ("regions", "what"),
    [
        (["b"], "b"),
        (["b", "a"], "of a, b"),
        (["d", "c", "b", "a"], "of a, b, c, d"),
        (["e", "d", "c", "b", "a"], "of a, b, c and 2 more"),
    ],
)
def test_the_start_names_a_few_regions(
    regions: list[str], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one line, of bearable length however many regions are selected."""
    trace_report.announce(FOLDER, config(*regions))
    assert caplog.messages == [f"kernel trace: each outermost {what} becomes a segment in {FOLDER}"]


def test_the_start_names_what_limits_tracing(caplog: pytest.LogCaptureFixture) -> None:
    """A window and a filter are in the line as the variables have them."""
    limits = {"steps": ((10, 12), (100, 100)), "ranks": frozenset({0, 3, 4})}
    trace_report.announce(FOLDER, config(**limits))
    assert caplog.messages[0].endswith(f"in {FOLDER} (steps 10-12,100; ranks 0,3-4)")


def test_other_ranks_leave_the_start_to_rank_zero(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same line from every rank says nothing more."""
    monkeypatch.setenv("RANK", "1")
    trace_report.announce(FOLDER, config())
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("ranks", "world_size", "said"),
    [
        ({0, 1}, 2, None),
        ({0, 2}, 2, "FASTVIDEO_TORCH_PROFILE_RANKS is 0,2, but the run has ranks 0-1 only"),
        ({4, 5}, 1, "is 4-5, but the run has rank 0 only: nothing is traced"),
    ],
)
def test_ranks_that_do_not_exist_are_named(
    ranks: set[int], world_size: int, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says which ranks there are."""
    assert trace_report.warn_of_missing_ranks(config(ranks=frozenset(ranks)), world_size)
    assert [message.endswith(said or "-") for message in caplog.messages] == [True] * bool(said)


def test_a_number_of_ranks_that_is_not_known_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a process group, only the launcher's variable tells."""
    filtered = config(ranks=frozenset({1}))
    assert not trace_report.warn_of_missing_ranks(filtered)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert trace_report.warn_of_missing_ranks(filtered)
    assert caplog.messages == []
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert trace_report.warn_of_missing_ranks(filtered)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ((1, 6), "steps 1-6 were seen, FASTVIDEO_TORCH_PROFILE_STEPS is 10-12,20"),
        ((3, 3), "step 3 was seen, FASTVIDEO_TORCH_PROFILE_STEPS is 10-12,20"),
        (None, "no region said which step runs, FASTVIDEO_TORCH_PROFILE_STEPS is 10-12,20"),
        (
            (9, 10),
            (
                "steps 9-10 were seen, FASTVIDEO_TORCH_PROFILE_STEPS is 10-12,20, and "
                "model_loading was entered outside of that window"
            ),
        ),
    ],
)
def test_a_window_that_nothing_fell_into(
    seen: tuple[int, int] | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning has the steps that ran beside the steps that were asked for."""
    window = config("model_loading", steps=((10, 12), (20, 20)))
    trace_report.warn_of_no_segment(window, {"profiler_region_model_loading"}, seen)
    assert caplog.messages == [f"kernel trace: no segment was recorded: {said}"]
    assert caplog.records[0].levelno == logging.WARNING


def test_nothing_recorded_without_a_window(caplog: pytest.LogCaptureFixture) -> None:
    """The only cause that is left is named."""
    trace_report.warn_of_no_segment(config(), {FORWARD}, (1, 6))
    assert "no segment was recorded, though training_forward was entered" in caplog.text
    assert "CUDA graph" in caplog.text


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        ({}, []),
        ({"recorded": 1, "exported_ok": 1}, ["1 segment in /traces"]),
        (
            {"recorded": 6, "exported_ok": 4, "exported_no_kernels": 2},
            ["6 segments in /traces"],
        ),
        (
            {
                "recorded": 6,
                "exported_summary_failed": 2,
                "exported_failed": 1,
                "failed": 2,
                "skipped": 5,
            },
            ["2 segments in /traces, 3 failed, 5 skipped, 3 still being exported"],
        ),
        ({"skipped": 1}, ["0 segments in /traces, 1 skipped"]),
    ],
)
def test_the_end_counts_segments(
    counters: dict[str, int], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What was written, and what became of the others."""
    trace_report.report_end(FOLDER, counters)
    assert caplog.messages == [f"kernel trace: {text}" for text in said]
    assert {record.levelno for record in caplog.records} <= {logging.INFO}


def test_the_end_counts_for_one_rank(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there are more ranks, the line says whose segments it counts."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    trace_report.report_end(FOLDER, {"recorded": 6, "exported_ok": 6})
    assert caplog.messages == [f"kernel trace: 6 segments of rank 1 in {FOLDER}"]
