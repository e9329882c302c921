"""Kernel traces when a process ends: normally, by an exception, by SIGTERM, or as a fork."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.profiler.lifecycle import Chain

if TYPE_CHECKING:
    from collections.abc import Callable

REGION = "fastvideo.region::training_train"
END = "survived\n"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and what it left behind."""

    status: int
    output: str
    errors: str
    traces: list[dict[str, Any]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Gives the end of every process of ``run_to_the_end.py``, by its way."""
    folder = tmp_path_factory.mktemp("ends")
    settings = {
        "OMP_NUM_THREADS": "1",
        "FASTVIDEO_TORCH_PROFILE_REGIONS": "training_train",
        "FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS": "10",
    }
    script = Path(__file__).with_name("run_to_the_end.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(folder)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    statuses = json.loads((folder / "ways.json").read_text(encoding="utf-8"))
    return {way: _read(folder, way, status) for way, status in statuses.items()}


def _read(folder: Path, way: str, status: int) -> Ended:
    """Reads what one process left; temporary files are none of it."""
    files = folder / way
    assert not list(files.glob(".*")), "something temporary stayed"
    assert not (files / "other").exists()
    return Ended(
        status,
        (folder / f"{way}.out").read_text(encoding="utf-8"),
        (folder / f"{way}.err").read_text(encoding="utf-8"),
        [
            json.loads(gzip.decompress(path.read_bytes()))
            for path in sorted(files.glob("trace_*.gz"))
        ],
    )


def cosines(trace: dict[str, Any]) -> int:
    """Returns how often the work ran while the trace was recorded."""
    return sum(event.get("name") == "aten::cos" for event in trace["traceEvents"])


def marked(trace: dict[str, Any]) -> bool:
    """Tells whether the region's marker is in the trace."""
    return any(event.get("name") == REGION for event in trace["traceEvents"])


def test_sigterm_in_a_region_keeps_the_trace_and_the_exit_status(ended: dict[str, Ended]) -> None:
    """The default action still ends the process (143 in a shell), with a whole trace."""
    end = ended["default"]
    assert (end.status, end.output) == (-signal.SIGTERM, "")
    assert [cosines(trace) for trace in end.traces] == [1]
    assert marked(end.traces[0])


def test_sigterm_goes_on_to_the_handler_of_the_program(ended: dict[str, Ended]) -> None:
    """A handler that exits with 143 is called once the trace is whole."""
    end = ended["chained"]
    assert (end.status, end.output) == (143, "handler 15\n")
    assert [cosines(trace) for trace in end.traces] == [1]


def test_a_program_that_survives_sigterm_goes_on_tracing(ended: dict[str, Ended]) -> None:
    """When its handler returns, the open segment is closed and the next one is recorded."""
    end = ended["going_on"]
    assert (end.status, end.output) == (0, "handler\n" + END)
    assert [cosines(trace) for trace in end.traces] == [1, 1]


def test_ignored_sigterm_stays_ignored(ended: dict[str, Ended]) -> None:
    """A process that ignores SIGTERM does so with tracing on, and its segment is whole."""
    end = ended["ignored"]
    assert (end.status, end.output) == (0, END + "True\n")
    assert [cosines(trace) for trace in end.traces] == [2]


def test_sigterm_while_the_profiler_starts_waits_for_it(ended: dict[str, Ended]) -> None:
    """The profiler is never stopped in the middle of its start."""
    end = ended["while_starting"]
    assert (end.status, end.output) == (-signal.SIGTERM, "")
    assert len(end.traces) == 1


def test_sigterm_closes_the_segment_of_another_thread(ended: dict[str, Ended]) -> None:
    """The owning thread closes it at its next region, while the main thread waits a little."""
    end = ended["in_a_thread"]
    assert end.status == -signal.SIGTERM
    assert len(end.traces) >= 1
    assert marked(end.traces[0])


def test_an_exception_that_ends_the_run_keeps_the_trace(ended: dict[str, Ended]) -> None:
    """Status and traceback are the program's; the segment is whole."""
    end = ended["raises"]
    assert end.status == 1
    assert end.errors.rstrip().endswith("RuntimeError: out of data")
    assert [trace["fastvideo"]["error"] for trace in end.traces] == ["RuntimeError"]


def test_a_run_that_never_stops_the_controller_is_flushed(ended: dict[str, Ended]) -> None:
    """Leaving a loop early and ending without stop() loses nothing, and is silent."""
    end = ended["returns"]
    assert (end.status, len(end.traces)) == (0, 1)
    assert end.errors.count("\n") == 1
    assert "kernel trace: each outermost training_train becomes a segment in /" in end.errors


def test_stop_inside_a_region_closes_it(ended: dict[str, Ended]) -> None:
    """stop() may come at any time and twice; get_or_create_profiler arms the controller again."""
    end = ended["stops"]
    assert (end.status, len(end.traces)) == (0, 2), end.errors


def test_a_fork_inside_a_region_is_inert(ended: dict[str, Ended]) -> None:
    """Children record nothing, keep no handler, and end as they would; the parent goes on."""
    end = ended["forks"]
    assert end.status == 0, end.errors
    child = f"inert True, grew False, threads 1\nhandler {signal.SIG_DFL!r}\n"
    assert end.output == f"{child}child ended with 7\n{child}child ended with -15\n"
    assert [cosines(trace) for trace in end.traces] == [2, 1]


def test_the_workers_of_a_data_loader_are_inert(ended: dict[str, Ended]) -> None:
    """Workers started inside a region work and end as ever, and record nothing."""
    end = ended["loads"]
    assert (end.status, end.output) == (0, "[0, 1, 4, 9]\n"), end.errors
    assert [cosines(trace) for trace in end.traces] == [1]


def test_two_ranks_in_open_segments_end_soon_after_sigterm(tmp_path: Path) -> None:
    """Both have exported their segment and left within ten seconds of the signal."""
    traces = tmp_path / "traces"
    ready = [tmp_path / f"ready{rank}" for rank in (0, 1)]
    script = str(Path(__file__).with_name("end_on_signal.py"))
    settings = os.environ | {
        "OMP_NUM_THREADS": "1",
        "FASTVIDEO_TORCH_PROFILER_DIR": str(traces),
        "FASTVIDEO_TORCH_PROFILE_REGIONS": "training_train,training_train_one_step",
        "WORLD_SIZE": "2",
    }
    ranks = [
        subprocess.Popen([sys.executable, script, str(file)], env=settings | {"RANK": str(rank)})
        for rank, file in enumerate(ready)
    ]
    try:
        wait_for(lambda: all(file.exists() for file in ready))
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        signalled = time.monotonic()
        statuses = [rank.wait(60) for rank in ranks]
        took = time.monotonic() - signalled
        assert took < 10
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert statuses == [143, 143]
    assert list(traces.glob(".*")) == []
    for number in (0, 1):
        (path,) = traces.glob(f"trace_rank{number}_*.gz")
        trace = json.loads(gzip.decompress(path.read_bytes()))
        steps = [e for e in trace["traceEvents"] if e.get("name", "").endswith("_one_step")]
        assert len(steps) == 100
        assert trace["fastvideo"]["world_size"] == 2


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until ``condition`` holds, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_chain_calls_the_handler_with_what_it_would_have_got() -> None:
    """The program's handler sees the signal's number and the interrupted frame."""
    calls: list[tuple[object, object]] = []
    frame = sys._getframe()
    Chain(lambda number, at: calls.append((number, at)), frame)()
    assert calls == [(signal.SIGTERM, frame)]
