"""Lets a traced program do what programs do: interrupt, give up threads, nest too deep, profile.

Each kind of trouble is a forked process of its own in a directory of its own, which saves them the
import of torch. Nothing of a profiler has run before the fork. What it says is a list of facts.
"""

from __future__ import annotations

import cProfile
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.profiler import ProfilerActivity, profile

from fastvideo.profiler import profiler_region, sink_error_counts
from fastvideo.profiler.config import TorchProfilerConfig
from fastvideo.profiler.controller import TorchProfilerController
from fastvideo.profiler.torch_session import a_profiler_runs, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

FOLDER = Path(sys.argv[1])
TRAIN, STEP = "training_train", "training_train_one_step"
FACTS: dict[str, Any] = {}
LOG: list[str] = []


class LogLines(logging.Handler):
    """Keeps what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one line."""
        LOG.append(f"{record.levelname} {record.getMessage()}")


def work() -> None:
    """Runs one operator."""
    torch.cos(torch.ones(4))


def arm(folder: Path | None = None, **options: Any) -> TorchProfilerController:
    """Turns tracing on."""
    factory = options.pop("profiler_factory", None)
    controller = TorchProfilerController(
        None,
        [ProfilerActivity.CPU],
        TorchProfilerConfig(frozenset({TRAIN}), **options),
        profiler_factory=factory,
        trace_dir=folder or Path.cwd(),
    )
    controller.start()
    FACTS["controller"] = controller
    return controller


def segment() -> None:
    """Enters the selected region once."""
    with profiler_region(TRAIN):
        work()


def in_thread(action: Callable[[], object]) -> None:
    """Runs an action on another thread, to its end."""
    thread = threading.Thread(target=action, name="other")
    thread.start()
    thread.join()


def own_profiler() -> int:
    """Uses torch's profiler as the program would without tracing; returns what it saw."""
    with profile(activities=[ProfilerActivity.CPU]) as own:
        work()
    return sum(event.name == "aten::cos" for event in own.events())


class TerminatedError(Exception):
    """What the program's own handler of SIGTERM raises."""


def raising_handler() -> None:
    """Installs a handler of SIGTERM that raises."""

    def leave(number: int, frame: object) -> NoReturn:
        raise TerminatedError(number)

    signal.signal(signal.SIGTERM, leave)


def interrupted(method: str) -> Callable[[], profile]:
    """Makes profilers of which the first gets SIGTERM in one of its methods."""
    left = [method]

    def factory() -> profile:
        session = profile(activities=[ProfilerActivity.CPU])
        if left:
            name = left.pop()
            original = getattr(session, name)

            def disturbed(*arguments: Any) -> None:
                os.kill(os.getpid(), signal.SIGTERM)
                original(*arguments)

            setattr(session, name, disturbed)
        return session

    return factory


def handler_raises() -> None:
    """SIGTERM arrives while a profiler starts, stops and writes, and the handler raises."""
    for method in ("start", "stop", "export_chrome_trace"):
        raising_handler()
        controller = arm(profiler_factory=interrupted(method))
        caught = False
        try:
            segment()
        except TerminatedError:
            caught = True
        segment()
        controller.stop()
        FACTS[method] = [caught, controller.counters.get("exported_ok")]
    FACTS["sinks detached"] = sink_error_counts()


def handler_raises_elsewhere() -> None:
    """SIGTERM arrives in a region's body; the handler raises, which the program catches."""
    raising_handler()
    arm()
    try:
        with profiler_region(TRAIN):
            os.kill(os.getpid(), signal.SIGTERM)
    except TerminatedError:
        FACTS["caught"] = True
    segment()


def interrupt() -> None:
    """KeyboardInterrupt comes while a profiler starts, stops and writes."""
    for method in ("start", "stop", "export_chrome_trace"):
        left = [method]

        def factory(left: list[str] = left) -> profile:
            session = profile(activities=[ProfilerActivity.CPU])

            def stopped(*_: object) -> NoReturn:
                raise KeyboardInterrupt

            if left:
                setattr(session, left.pop(), stopped)
            return session

        controller = arm(profiler_factory=factory)
        caught = False
        try:
            segment()
        except KeyboardInterrupt:
            caught = True
        clean = not a_profiler_runs() and not list(Path.cwd().glob(".*"))
        segment()
        controller.stop()
        counters = controller.counters
        FACTS[method] = [caught, clean, counters["failed"], counters["exported_ok"]]
    FACTS["own"] = own_profiler()


def ended_thread() -> None:
    """A generator enters a region on a thread that ends, and leaves it on another one."""
    arm()

    def batches() -> Generator[int]:
        with profiler_region(TRAIN):
            work()
            yield 1

    generator = batches()
    in_thread(lambda: next(generator))
    FACTS["own inside"] = own_profiler()
    generator.close()
    segment()
    generator = batches()
    in_thread(lambda: next(generator))
    in_thread(segment)
    segment()
    FACTS["own"] = own_profiler()
    FACTS["generator"] = generator


def ended_thread_at_stop() -> None:
    """A thread that has ended left a segment open, and the controller is stopped and started."""
    controller = arm()
    region = profiler_region(TRAIN)
    in_thread(region.__enter__)
    controller.stop()
    FACTS["recording"] = controller.is_enabled
    FACTS["hidden"] = [path.name for path in Path.cwd().glob(".*")]
    controller.start()
    segment()
    FACTS["region"] = region


def pool_thread() -> None:
    """A thread of a pool enters a region, and another one leaves it; the pool lives on."""
    arm()
    region = profiler_region(TRAIN)
    entered, go_on, through = threading.Event(), threading.Event(), threading.Event()

    def pooled() -> None:
        region.__enter__()
        entered.set()
        go_on.wait(60)
        segment()
        FACTS["own of the pool"] = own_profiler()
        through.set()

    thread = threading.Thread(target=pooled, name="pool")
    thread.start()
    entered.wait(60)
    region.__exit__(None, None, None)
    segment()
    FACTS["own"] = own_profiler()
    go_on.set()
    through.wait(60)
    thread.join()


def stopped_elsewhere() -> None:
    """The controller is stopped on another thread while this one is inside a region."""
    controller = arm()
    with profiler_region(TRAIN):
        in_thread(controller.stop)
        FACTS["hidden"] = [path.name for path in Path.cwd().glob(".*")]
        FACTS["own inside"] = own_profiler()
    FACTS["own"] = own_profiler()
    controller.start()
    segment()


def foreign_across() -> None:
    """A profiler of another thread begins inside a region and ends behind it."""
    arm()
    running, end = threading.Event(), threading.Event()
    found: list[int] = []

    def other() -> None:
        with profile(activities=[ProfilerActivity.CPU]) as own:
            work()
            running.set()
            end.wait(60)
            work()
        found.append(sum(event.name == "aten::cos" for event in own.events()))

    thread = threading.Thread(target=other)
    with profiler_region(TRAIN):
        thread.start()
        running.wait(60)
    segment()
    end.set()
    thread.join()
    FACTS["found"] = found
    FACTS["own"] = own_profiler()
    segment()


def deep() -> None:
    """A region is entered where calls are nested to Python's limit."""
    arm()

    def dive() -> None:
        with profiler_region(STEP), profiler_region(TRAIN):
            dive()

    try:
        dive()
    except RecursionError:
        FACTS["raised"] = True
    segment()

    def dive_first() -> None:
        try:
            dive_first()
        except RecursionError:
            with profiler_region(TRAIN):
                pass

    try:
        dive_first()
    except RecursionError:
        FACTS["raised again"] = True
    segment()
    FACTS["detached"] = sink_error_counts()


def terminated_elsewhere() -> None:
    """SIGTERM arrives while another thread stays inside a region."""
    survived = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: survived.set())
    arm()
    inside, leave = threading.Event(), threading.Event()

    def train() -> None:
        with profiler_region(TRAIN):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=train)
    thread.start()
    inside.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
    FACTS["handled"] = survived.wait(60)
    FACTS["hidden"] = [path.name for path in Path.cwd().glob(".*")]
    leave.set()
    thread.join()
    segment()


def c_profiler() -> None:
    """The program runs under cProfile, and stacks are to be recorded."""
    arm(with_stack=True)
    observer = cProfile.Profile()
    observer.enable()
    for _ in range(2):
        segment()
        sum_of_squares()
    observer.disable()
    names = [str(getattr(entry.code, "co_name", entry.code)) for entry in observer.getstats()]
    FACTS["seen"] = "sum_of_squares" in names
    segment()


def sum_of_squares() -> int:
    """Returns a number, by a function that cProfile is to see."""
    return sum(number * number for number in range(10))


def odd_attributes() -> None:
    """Attributes that no file can hold as they are."""
    arm()
    long = "x" * 100_000
    for attributes in (
        {"big": 10**5000, "text": long, long: 1, "bare": "\ud800"},
        {"step": 10**5000},
    ):
        with profiler_region(TRAIN, **attributes):
            work()


def odd_directories() -> None:
    """Directories with names that kineto rewrites."""
    written = {}
    for name in ("two  blanks", "percent %p", 'a "quote"', "line\nbreak", "ünïcode ✓"):
        controller = arm(Path.cwd() / name)
        segment()
        controller.stop()
        written[name] = [
            len(list((Path.cwd() / name).glob("trace_*.gz"))),
            len(list((Path.cwd() / name).glob(".*"))),
        ]
    FACTS["written"] = written


TROUBLES = (
    handler_raises,
    handler_raises_elsewhere,
    interrupt,
    ended_thread,
    ended_thread_at_stop,
    pool_thread,
    stopped_elsewhere,
    foreign_across,
    deep,
    terminated_elsewhere,
    c_profiler,
    odd_attributes,
    odd_directories,
)


def run(trouble: Callable[[], None]) -> None:
    """Runs one kind of trouble and writes down what came of it."""
    logging.getLogger("fastvideo").addHandler(LogLines())
    trouble()
    controller = FACTS.pop("controller")
    controller.stop()
    FACTS.pop("region", None)
    FACTS.pop("generator", None)
    hidden = [path.name for path in Path.cwd().rglob(".*")]
    result = {"facts": FACTS, "log": LOG, "counters": controller.counters, "hidden": hidden}
    Path(f"../{trouble.__name__}.json").write_text(json.dumps(result), encoding="utf-8")


def main() -> None:
    """Runs every kind of trouble in a process and a directory of its own."""
    warm_up()
    statuses = {}
    for trouble in [t for t in TROUBLES if len(sys.argv) < 3 or t.__name__ in sys.argv[2:]]:
        folder = FOLDER / trouble.__name__
        folder.mkdir()
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            os.dup2(os.open(f"../{folder.name}.err", os.O_CREAT | os.O_WRONLY), 2)
            run(trouble)
            return
        _, status = os.waitpid(child, 0)
        statuses[trouble.__name__] = os.waitstatus_to_exitcode(status)
    (FOLDER / "statuses.json").write_text(json.dumps(statuses), encoding="utf-8")


if __name__ == "__main__":
    main()
