"""Runs real regions under real controllers, one scenario after the other, and notes what happened.

It is run with warnings as errors and without KINETO_LOG_LEVEL, so its standard error shows noise.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, profile, schedule

from fastvideo.profiler import nvtx, profile_region, profiler_region
from fastvideo.profiler.config import TorchProfilerConfig
from fastvideo.profiler.controller import TorchProfilerController

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEP, FORWARD, BACKWARD = "training_train_one_step", "training_forward", "training_backward"


class LogLines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one line."""
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Scenario:
    """A directory, a started controller, and notes."""

    def __init__(self, folder: Path, *regions: str, **options: Any) -> None:
        self.folder = folder
        self.notes: dict[str, Any] = {}
        factory = options.pop("profiler_factory", None)
        self.controller = TorchProfilerController(
            None,
            [ProfilerActivity.CPU, ProfilerActivity.CUDA],
            TorchProfilerConfig(frozenset(regions), **options),
            profiler_factory=factory,
            trace_dir=folder,
        )
        self.controller.start()


def inside() -> None:
    """Work that belongs to a region."""
    torch.cos(torch.ones(4))


def outside() -> None:
    """Work that does not."""
    torch.sin(torch.ones(4))


def first(folder: Path) -> Scenario:
    """The first segment of the process, after which nothing is imported any more."""
    before = set(sys.modules)
    scenario = Scenario(folder, FORWARD)
    armed = set(sys.modules)
    with profiler_region(FORWARD):
        inside()
    late = set(sys.modules) - armed
    scenario.notes["imported when armed"] = len(armed - before)
    scenario.notes["imported by the first segment"] = sorted(late)
    scenario.notes["KINETO_LOG_LEVEL"] = os.environ.get("KINETO_LOG_LEVEL")
    return scenario


def windows(folder: Path) -> Scenario:
    """Five entries, with other work between them."""
    scenario = Scenario(folder, FORWARD)
    for step in range(5):
        outside()
        with profiler_region(FORWARD, step=step):
            inside()
        outside()
    return scenario


def nested(folder: Path) -> Scenario:
    """Selected and unselected regions in a selected one, by two spellings."""
    scenario = Scenario(folder, STEP, FORWARD)
    with profiler_region(STEP, step=7, step_kind="critic", batch=torch.ones(1)):
        with profiler_region(f"profiler_region_{FORWARD}"):
            inside()
        with profiler_region(BACKWARD):
            inside()
    return scenario


def empty(folder: Path) -> Scenario:
    """A region in which nothing runs."""
    scenario = Scenario(folder, FORWARD)
    with profiler_region(FORWARD):
        pass
    return scenario


def out_of_order(folder: Path) -> Scenario:
    """A generator that is closed early, then tasks that overlap."""
    scenario = Scenario(folder, STEP, FORWARD)

    def batches() -> Iterator[int]:
        with profiler_region(FORWARD):
            inside()
            yield 1
            yield 2

    generator = batches()
    with profiler_region(STEP):
        next(generator)
    generator.close()

    async def task(mine: asyncio.Event, other: asyncio.Event, name: str) -> None:
        with profiler_region(name):
            mine.set()
            await other.wait()
            inside()

    async def overlap() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        await asyncio.gather(task(one, two, STEP), task(two, one, FORWARD))

    asyncio.run(overlap())
    with profiler_region(STEP):
        inside()
    return scenario


def threads(folder: Path) -> Scenario:
    """Another thread enters regions while the main thread's segment is open."""
    scenario = Scenario(folder, STEP, FORWARD)

    def work() -> None:
        for _ in range(3):
            with profiler_region(FORWARD):
                inside()

    with profiler_region(STEP):
        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join()
        inside()
    thread = threading.Thread(target=work, name="alone")
    thread.start()
    thread.join()
    return scenario


def raising(folder: Path) -> Scenario:
    """The body raises, and the next entry is recorded all the same."""
    scenario = Scenario(folder, FORWARD)
    error = KeyError("secret text")
    try:
        with profiler_region(FORWARD):
            inside()
            raise error
    except KeyError as caught:
        scenario.notes["same exception"] = caught is error
    with profiler_region(FORWARD):
        inside()
    return scenario


def stacks(folder: Path) -> Scenario:
    """Stacks are recorded while the program has a profile hook of its own."""
    scenario = Scenario(folder, FORWARD, with_stack=True)
    calls: list[str] = []

    def hook(frame: object, event: str, argument: object) -> None:
        calls.append(event)

    sys.setprofile(hook)
    for _ in range(2):
        with profiler_region(FORWARD):
            inside()
    scenario.notes["hook is back"] = sys.getprofile() is hook
    sys.setprofile(None)
    scenario.notes["hook was called"] = len(calls) > 0
    return scenario


def shapes(folder: Path) -> Scenario:
    """Tensors and profilers are gone when the region is over, without the garbage collector."""
    made: list[weakref.ref[profile]] = []

    def factory() -> profile:
        session = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        made.append(weakref.ref(session))
        return session

    scenario = Scenario(folder, FORWARD, record_shapes=True, profiler_factory=factory)
    gc.disable()
    with profiler_region(FORWARD):
        tensor = torch.ones(64, 64)
        tensor_is_alive = weakref.ref(tensor)
        torch.mm(tensor, tensor)
        del tensor
    scenario.notes["tensor is gone"] = tensor_is_alive() is None
    scenario.notes["profiler is gone"] = made[0]() is None
    gc.enable()
    return scenario


def foreign(folder: Path) -> Scenario:
    """The user's own profiler runs around regions, then inside of one."""
    scenario = Scenario(folder, FORWARD)
    with profile(activities=[ProfilerActivity.CPU]) as own:
        for _ in range(2):
            with profiler_region(FORWARD):
                inside()
    scenario.notes["annotated"] = sum("region::" in event.name for event in own.events())
    with profiler_region(FORWARD):
        inside()
    with profiler_region(FORWARD), profile(activities=[ProfilerActivity.CPU]) as own:
        inside()
    scenario.notes["own profiler inside"] = sum("cos" in event.name for event in own.events())
    with profiler_region(FORWARD):
        inside()
    return scenario


def scheduled(folder: Path) -> Scenario:
    """The user's own profiler follows a schedule and is stepped outside, then inside of regions."""
    scenario = Scenario(folder, FORWARD)
    for place in ("outside", "inside"):
        found: list[int] = []

        def count(own: profile, found: list[int] = found) -> None:
            found.append(sum(event.name == "aten::cos" for event in own.events()))

        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=1, warmup=1, active=1, repeat=1),
            on_trace_ready=count,
        ) as own:
            for _ in range(4):
                with profiler_region(FORWARD):
                    inside()
                    if place == "inside":
                        own.step()
                if place == "outside":
                    own.step()
        scenario.notes[place] = found
    scenario.notes["watched"] = hasattr(autograd_profiler.profile._prepare_trace, "__wrapped__")
    scenario.controller.stop()
    scenario.notes["restored"] = not hasattr(
        autograd_profiler.profile._prepare_trace, "__wrapped__"
    )
    return scenario


def failing(folder: Path) -> Scenario:
    """Profilers that cannot start, stop or write."""
    plan = iter(["start", "", "stop", "stop", "", "export_chrome_trace", ""])

    def factory() -> profile:
        session = profile(activities=[ProfilerActivity.CPU])
        method = next(plan)

        def broken(*_: object) -> None:
            raise RuntimeError(method)

        if method:
            setattr(session, method, broken)
        return session

    scenario = Scenario(folder, FORWARD, BACKWARD, profiler_factory=factory)
    for _ in range(7):
        with profiler_region(FORWARD), profiler_region(BACKWARD):
            inside()
    return scenario


def compiled(folder: Path) -> Scenario:
    """Regions inside of compiled functions, off and on, as context managers and decorators."""

    def build() -> tuple[Callable[..., Any], Callable[..., Any]]:
        @profile_region(FORWARD)
        def decorated(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        class Model:
            @profile_region(BACKWARD)
            def method(self, x: torch.Tensor) -> torch.Tensor:
                return x * 3

        model = Model()

        def step(x: torch.Tensor) -> torch.Tensor:
            with profiler_region(FORWARD, step=1), nvtx.nvtx_range("x"):
                y = x + 1
            return model.method(decorated(y))

        torch.compiler.reset()
        compile_it: Any = torch.compile
        return step, compile_it(step, fullgraph=True, backend="eager")

    x = torch.arange(3.0)
    eager, off = build()
    results = [bool(torch.equal(off(x), eager(x)))]
    scenario = Scenario(folder, STEP, FORWARD, BACKWARD)
    results.append(bool(torch.equal(off(x), x * 6 + 6)))
    _, on = build()
    with profiler_region(STEP):
        results += [bool(torch.equal(on(x), x * 6 + 6)) for _ in range(2)]
    scenario.notes["equal"] = results
    return scenario


def unwritable(folder: Path) -> Scenario:
    """The trace directory cannot be made, because its parent is a file."""
    blocker = folder / "file"
    blocker.write_text("", encoding="utf-8")
    scenario = Scenario(folder, FORWARD)
    scenario.controller.stop()
    scenario.controller = TorchProfilerController(
        None,
        [ProfilerActivity.CPU],
        TorchProfilerConfig(frozenset({FORWARD})),
        trace_dir=blocker / "traces",
    )
    scenario.controller.start()
    for _ in range(3):
        with profiler_region(FORWARD):
            inside()
    return scenario


def full_disk(folder: Path) -> Scenario:
    """Files of this process may not grow for one segment, as on a full disk."""
    scenario = Scenario(folder, FORWARD)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in ((100, unlimited[1]), unlimited):
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        with profiler_region(FORWARD):
            inside()
    return scenario


def late_rank(folder: Path) -> Scenario:
    """The rank comes from RANK first, then from the process group."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    os.environ |= {"RANK": "5", "WORLD_SIZE": "6"}
    scenario = Scenario(folder, FORWARD)
    with profiler_region(FORWARD):
        inside()
    torch.distributed.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
    with profiler_region(FORWARD):
        inside()
    torch.distributed.destroy_process_group()
    del os.environ["RANK"], os.environ["WORLD_SIZE"]
    with profiler_region(FORWARD):
        inside()
    return scenario


def second_run(folder: Path) -> Scenario:
    """A second controller writes into the directory of the first."""
    for _ in range(2):
        scenario = Scenario(folder, FORWARD)
        for _ in range(2):
            with profiler_region(FORWARD):
                inside()
        scenario.controller.stop()
    return scenario


def many(folder: Path) -> Scenario:
    """Three hundred segments, and the memory after the first fifty and after all of them."""
    scenario = Scenario(folder, FORWARD, max_segments=300, record_shapes=True)

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])

    sizes = []
    for index in range(1, 302):
        with profiler_region(FORWARD):
            for _ in range(20):
                inside()
        if index in {50, 300}:
            gc.collect()
            sizes.append(pages() * resource.getpagesize())
    scenario.notes["rss"] = sizes
    return scenario


def other_thread(folder: Path) -> Scenario:
    """A profiler of another thread ends a segment; then this thread has one of its own."""
    scenario = Scenario(folder, FORWARD)
    found: list[int] = []

    def work() -> None:
        with profile(activities=[ProfilerActivity.CPU]) as own:
            inside()
        found.append(sum(event.name == "aten::cos" for event in own.events()))

    with profiler_region(FORWARD):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        work()
    scenario.notes["own profiler"], scenario.notes["own profiler later"] = found
    with profiler_region(FORWARD):
        inside()
    return scenario


SCENARIOS = (
    first,
    windows,
    nested,
    empty,
    out_of_order,
    threads,
    raising,
    stacks,
    shapes,
    failing,
    compiled,
    unwritable,
    full_disk,
    late_rank,
    second_run,
    many,
    scheduled,
    foreign,
    other_thread,
)

INTERFERENCE = "here torch itself begins to complain"


def main(folder: Path) -> None:
    """Runs all scenarios and writes ``scenarios.json``."""
    logging.getLogger().setLevel(logging.INFO)
    results = {}
    for run in SCENARIOS:
        place = folder / run.__name__
        place.mkdir()
        if run is foreign:
            print(INTERFERENCE, file=sys.stderr, flush=True)  # noqa: T201 - read by the test
        handler = LogLines()
        logging.getLogger("fastvideo").addHandler(handler)
        with contextlib.redirect_stdout(None):
            scenario = run(place)
        scenario.controller.stop()
        logging.getLogger("fastvideo").removeHandler(handler)
        counters = scenario.controller.counters
        results[run.__name__] = {
            "notes": scenario.notes,
            "log": handler.lines,
            "counters": counters,
        }
    (folder / "scenarios.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
