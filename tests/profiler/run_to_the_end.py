"""Trains a little with kernel traces on, and ends in one way after the other.

Each way is a forked process of its own, which saves them the import of torch. Nothing of a
profiler has run before the fork.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import torch

from fastvideo.profiler import profiler_region
from fastvideo.profiler.controller import get_global_controller, get_or_create_profiler
from fastvideo.profiler.torch_session import warm_up

FOLDER = Path(sys.argv[1])


def work() -> None:
    """Runs one operator."""
    torch.cos(torch.ones(4))


def arm() -> None:
    """Turns tracing on; two pipelines share one controller."""
    controller = get_or_create_profiler(Path())
    assert get_or_create_profiler(Path() / "other") is controller
    assert get_global_controller() is controller


def terminate() -> None:
    """Gets SIGTERM in the middle of a region."""
    with profiler_region("training_train"):
        work()
        os.kill(os.getpid(), signal.SIGTERM)
        work()
        say("survived")


def say(text: str) -> None:
    """Tells the test something."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def chained() -> None:
    """Gets SIGTERM with a handler of its own that exits."""

    def leave(number: int, frame: object) -> NoReturn:
        say(f"handler {number}")
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    arm()
    terminate()


def going_on() -> None:
    """Gets SIGTERM with a handler of its own that lets the step end."""
    signal.signal(signal.SIGTERM, lambda *_: say("handler"))
    arm()
    terminate()
    with profiler_region("training_train"):
        work()


def ignored() -> None:
    """Gets SIGTERM, which it ignores."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    arm()
    terminate()
    say(str(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN))


def default() -> None:
    """Gets SIGTERM, and has no handler."""
    arm()
    terminate()


def while_starting() -> None:
    """Gets SIGTERM while torch's profiler is being started, and while it is being stopped."""
    start = torch.profiler.profile.start

    def interrupted(self: torch.profiler.profile) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        start(self)

    torch.profiler.profile.start = interrupted  # type: ignore[method-assign]
    arm()
    with profiler_region("training_train"):
        say("survived")


def in_a_thread() -> None:
    """Gets SIGTERM while another thread has a segment open."""
    arm()
    inside, leave = threading.Event(), threading.Event()

    def train() -> None:
        with profiler_region("training_train"):
            work()
            inside.set()
            while not leave.wait(0.01):
                with profiler_region("training_train"):
                    work()

    threading.Thread(target=train, daemon=True).start()
    inside.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
    leave.wait(60)


def raises() -> None:
    """Ends with an exception in a region, and never calls stop()."""
    arm()
    with profiler_region("training_train"):
        work()
        message = "out of data"
        raise RuntimeError(message)


def returns() -> None:
    """Ends normally, and never calls stop()."""
    arm()
    for _ in range(2):
        with profiler_region("training_train"):
            work()
            break


def stops() -> None:
    """Stops while a region is open, twice, and is terminated afterwards."""
    arm()
    controller = get_global_controller()
    assert controller is not None
    with profiler_region("training_train"):
        assert controller.is_enabled
        work()
        controller.stop()
        controller.stop()
        assert not controller.is_enabled
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with profiler_region("training_train"):
        work()
    assert get_or_create_profiler(Path()) is controller
    with profiler_region("training_train"):
        work()


def forks() -> None:
    """Forks inside a region; one child ends like a data loader's worker, one by SIGTERM.

    A child that ended with exit() would hang or crash: kineto's own destructors do that in every
    process that was forked from one that has profiled, whether or not a session was running.
    """
    arm()
    with profiler_region("training_train"):
        work()
        for end in (leave, lambda: os.kill(os.getpid(), signal.SIGTERM)):
            child = os.fork()
            if child == 0:
                live_as_a_child()
                end()
            _, status = os.waitpid(child, 0)
            say(f"child ended with {os.waitstatus_to_exitcode(status)}")
        work()
    with profiler_region("training_train"):
        work()


def leave() -> None:
    """Ends a child after its exit handlers, like :mod:`multiprocessing`."""
    atexit._run_exitfuncs()
    os._exit(7)


def live_as_a_child() -> None:
    """Does what a data loader's worker does, and tells what telemetry is left."""

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])

    controller = get_or_create_profiler(Path())
    before = pages()
    for _ in range(20_000):
        torch.ones(2)
    grown = (pages() - before) * os.sysconf("SC_PAGE_SIZE")
    with profiler_region("training_train"):
        work()
    with controller.region("training_train"):
        work()
    controller.start()
    controller.stop()
    inert = not (controller.has_profiler or controller.is_enabled or controller.counters)
    say(f"inert {inert}, grew {grown > 4 * 1024**2}, threads {threading.active_count()}")
    say(f"handler {signal.getsignal(signal.SIGTERM)!r}")


class Squares(torch.utils.data.Dataset[int]):
    """Computes in its worker, inside a selected region."""

    def __len__(self) -> int:
        """Returns the number of items."""
        return 4

    def __getitem__(self, index: int) -> int:
        """Returns a square, computed with torch."""
        with profiler_region("training_train"):
            work()
            return int(torch.tensor(index) ** 2)


def loads() -> None:
    """Starts the workers of a data loader inside a region."""
    arm()
    with profiler_region("training_train"):
        loader = torch.utils.data.DataLoader(Squares(), batch_size=None, num_workers=2)
        say(str(list(loader)))
        work()


WAYS = (
    chained,
    going_on,
    ignored,
    default,
    while_starting,
    in_a_thread,
    raises,
    returns,
    stops,
    forks,
    loads,
)


def main() -> None:
    """Runs every way in a process and a directory of its own; writes ``ways.json``."""
    warm_up()
    statuses = {}
    for way in WAYS:
        folder = FOLDER / way.__name__
        folder.mkdir()
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            for stream, name in ((1, "../{}.out"), (2, "../{}.err")):
                os.dup2(os.open(name.format(folder.name), os.O_CREAT | os.O_WRONLY), stream)
            way()
            return
        _, status = os.waitpid(child, 0)
        statuses[way.__name__] = os.waitstatus_to_exitcode(status)
    (FOLDER / "ways.json").write_text(json.dumps(statuses), encoding="utf-8")


if __name__ == "__main__":
    main()
