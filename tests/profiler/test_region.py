"""The hot path: entering and leaving regions."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo import profiler
from fastvideo.profiler import RecordingSink, profile_region, profiler_region
from fastvideo.profiler import region as region_module

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from fastvideo.profiler.region import Site
    from fastvideo.profiler.sinks import Attributes


@pytest.fixture
def sink() -> Iterator[RecordingSink]:
    """Gives an attached sink that records."""
    recording = RecordingSink()
    profiler.attach(recording)
    yield recording
    profiler.detach(recording)


class RaisingSink(RecordingSink):
    """Raises where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def enter(self, *args: object) -> object:
        if self.where == "enter":
            raise RuntimeError(self.where)
        return "token"

    def exit(self, *args: object) -> None:
        if self.where == "exit":
            raise RuntimeError(self.where)


class SelectiveSink(RecordingSink):
    """Wants the backward pass only."""

    def wants(self, region: profiler.ProfilerRegion) -> bool:
        return region.short_name == "training_backward"


def test_nothing_attached_gives_one_shared_object() -> None:
    """With no sink, every call of every region returns the same no-op."""
    assert profiler_region("training_forward") is profiler_region("training_backward", step=1)


def test_entry_and_exit_reach_the_sink_in_order(sink: RecordingSink) -> None:
    """Nested regions are entered outside in and left inside out."""
    with profiler_region("training_train_one_step", step=3), profiler_region("training_forward"):
        pass
    assert sink.events == [
        ("enter", "training_train_one_step"),
        ("enter", "training_forward"),
        ("exit", "training_forward"),
        ("exit", "training_train_one_step"),
    ]
    assert sink.attributes == [{"step": 3}, {}]


@pytest.mark.parametrize("name", ["training_forward", "profiler_region_training_forward"])
def test_both_spellings_are_one_region_with_the_annotation_as_written(name: str) -> None:
    """The prefix is optional, and the annotation keeps the spelling of the call site."""
    seen: list[tuple[str, str]] = []

    class Spelling(RecordingSink):
        def enter(
            self, region: profiler.ProfilerRegion, annotation: str, attributes: dict[str, object]
        ) -> object:
            seen.append((region.name, annotation))
            return None

    spelling = Spelling()
    profiler.attach(spelling)
    with profiler_region(name):
        pass
    profiler.detach(spelling)
    assert seen == [("profiler_region_training_forward", f"fastvideo.region::{name}")]


def test_unknown_name_warns_once_and_is_not_recorded(
    sink: RecordingSink, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that nobody registered is reported once, with the nearest one, and never raises."""
    with caplog.at_level(logging.WARNING, logger="fastvideo"):
        for _ in range(3):
            with profiler_region("training_forwards"):
                pass
    assert sink.events == []
    assert len(caplog.records) == 1
    assert "'training_forwards'" in caplog.text
    assert "Did you mean 'training_forward'?" in caplog.text


def test_unknown_name_warns_with_nothing_attached(caplog: pytest.LogCaptureFixture) -> None:
    """The warning does not depend on telemetry being on."""
    with caplog.at_level(logging.WARNING, logger="fastvideo"), profiler_region("no_such_region_x"):
        pass
    assert len(caplog.records) == 1


def test_unknown_names_are_reported_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty names are reported, and once that there are more; all of them run."""
    monkeypatch.setattr(region_module, "_unknown_names", itertools.count(1))
    with caplog.at_level(logging.WARNING, logger="fastvideo"):
        for number in range(1000):
            with profiler_region(f"invented_{number}"):
                pass
    texts = [record.getMessage() for record in caplog.records]
    assert [f"'invented_{number}' is not" in text for number, text in enumerate(texts)] == (
        [True] * 20 + [False]
    )
    assert texts[20].startswith("more than 20 profiler regions are not registered")


def test_a_name_that_is_registered_after_its_first_use_is_recorded(sink: RecordingSink) -> None:
    """Registering a region mends call sites that were reached too early."""
    with profiler_region("late_region"):
        pass
    profiler.register_profiler_region("late_region", "Registered after its first use")
    with profiler_region("late_region"):
        pass
    assert sink.events == [("enter", "late_region"), ("exit", "late_region")]


def test_exception_passes_unchanged_and_its_type_is_told(sink: RecordingSink) -> None:
    """An exception closes the region, is reported by type, and reaches the caller."""
    error = KeyError("x")
    with pytest.raises(KeyError) as caught, profiler_region("training_forward"):
        raise error
    assert caught.value is error
    assert sink.errors == [KeyError]


@pytest.mark.parametrize("where", ["enter", "exit"])
def test_a_sink_that_raises_is_detached_and_reported_once(
    sink: RecordingSink, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken sink disturbs neither the body nor the other sinks."""
    broken = RaisingSink(where)
    before = profiler.sink_error_counts().get("RaisingSink", 0)
    profiler.attach(broken)
    with caplog.at_level(logging.ERROR, logger="fastvideo"):
        for _ in range(3):
            with profiler_region("training_forward"):
                pass
    assert len(sink.events) == 6
    assert len(caplog.records) == 1
    assert profiler.sink_error_counts()["RaisingSink"] == before + 1


def test_a_sink_gets_only_the_regions_it_wants() -> None:
    """Regions that no sink wants stay free."""
    selective = SelectiveSink()
    profiler.attach(selective)
    free = profiler_region("training_forward")
    with profiler_region("training_backward"):
        pass
    profiler.detach(selective)
    assert free is profiler_region("training_forward")
    assert selective.events == [("enter", "training_backward"), ("exit", "training_backward")]


def test_attaching_twice_is_attaching_once(sink: RecordingSink) -> None:
    """A sink that is attached again is still called once."""
    profiler.attach(sink)
    with profiler_region("training_forward"):
        pass
    assert len(sink.events) == 2


def test_exits_may_come_out_of_order(sink: RecordingSink) -> None:
    """A generator that is closed early leaves its region when it is closed."""

    def frames() -> Generator[int]:
        with profiler_region("inference_denoising"):
            yield 1
            yield 2

    generator = frames()
    next(generator)
    with profiler_region("inference_decoding"):
        generator.close()
    assert sink.events == [
        ("enter", "inference_denoising"),
        ("enter", "inference_decoding"),
        ("exit", "inference_denoising"),
        ("exit", "inference_decoding"),
    ]


def test_recursion_and_threads(sink: RecordingSink) -> None:
    """Regions nest in themselves, and every thread has its own entries."""

    def recurse(depth: int) -> None:
        with profiler_region("training_forward"):
            if depth:
                recurse(depth - 1)

    threads = [threading.Thread(target=recurse, args=(9,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sink.events.count(("enter", "training_forward")) == 40
    assert sink.events.count(("exit", "training_forward")) == 40


def test_decorator_on_functions_methods_and_coroutines(sink: RecordingSink) -> None:
    """Every kind of callable that runs its body when called can be decorated."""

    class Model:
        @profile_region("training_forward")
        def method(self, x: int) -> int:
            return x + 1

        @classmethod
        @profile_region("training_forward")
        def inner(cls, x: int) -> int:
            return x + 2

        @profile_region("training_forward")
        @staticmethod
        def outer(x: int) -> int:
            return x + 3

    @profile_region("training_backward")
    async def coroutine(x: int) -> int:
        await asyncio.sleep(0)
        return x + 4

    model = Model()
    results = [model.method(0), Model.inner(0), model.outer(0), asyncio.run(coroutine(0))]
    assert results == [1, 2, 3, 4]
    assert sink.events.count(("exit", "training_forward")) == 3
    assert sink.events[-2:] == [("enter", "training_backward"), ("exit", "training_backward")]


def test_decorator_keeps_name_and_documentation() -> None:
    """A decorated function still looks like itself."""

    @profile_region("training_forward")
    def forward() -> None:
        """Documentation."""

    assert (forward.__name__, forward.__doc__) == ("forward", "Documentation.")


def test_generator_functions_are_refused_with_the_reason() -> None:
    """Decorating a generator function fails at once and says what to do."""

    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> object:
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(TypeError, match="calling it runs none of its body"):
            profile_region("training_forward")(function)


def test_method_of_an_object_with_its_own_controller() -> None:
    """The decorator prefers the controller that the object carries."""
    events: list[str] = []

    class Controller:
        def region(self, name: str) -> object:
            events.append(name)
            return profiler_region(name)

    class Pipeline:
        def __init__(self) -> None:
            self.profiler_controller = Controller()

        @profile_region("inference_denoising")
        def run(self) -> int:
            return 7

    assert Pipeline().run() == 7
    assert events == ["inference_denoising"]


@pytest.mark.parametrize("attached", [False, True])
def test_compiled_functions_keep_one_graph(attached: bool) -> None:  # noqa: FBT001
    """Regions and decorated functions trace as nothing under fullgraph=True."""
    recording = RecordingSink()
    if attached:
        profiler.attach(recording)

    @profile_region("training_forward")
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(x: torch.Tensor) -> torch.Tensor:
        with profiler_region("training_forward", step=1):
            y = inner(x) + 1
        with profiler_region("not_registered_at_all"):
            return y * 2

    result = compiled(torch.ones(1))
    profiler.detach(recording)
    assert result.item() == 8.0
    assert recording.events == []


def test_compiled_functions_survive_sinks_that_come_and_go() -> None:
    """Attaching and detaching many times compiles at most twice."""
    graphs = 0

    def counting(graph: torch.fx.GraphModule, inputs: object) -> object:
        nonlocal graphs
        graphs += 1
        return graph.forward

    @torch.compile(fullgraph=True, backend=counting)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        with profiler_region("training_backward"):
            return x + 1

    recording = RecordingSink()
    for _ in range(12):
        compiled(torch.ones(1))
        profiler.attach(recording)
        compiled(torch.ones(1))
        profiler.detach(recording)
    assert graphs <= 2


def test_forked_child_is_silent(sink: RecordingSink) -> None:
    """A child forked inside a region neither closes the parent's entry nor records its own."""
    read_end, write_end = os.pipe()
    with profiler_region("training_dataloader"):
        child = os.fork()
    if child == 0:
        with profiler_region("training_forward"):
            pass
        os.write(write_end, f"{len(sink.events)} {profiler_region('training_forward')}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(read_end, 200).decode()
    os.close(read_end)
    os.close(write_end)
    assert answer.startswith("1 ")
    assert "nullcontext" in answer
    assert sink.events == [("enter", "training_dataloader"), ("exit", "training_dataloader")]


def test_detaching_inside_a_region_still_closes_it(sink: RecordingSink) -> None:
    """An entry that a sink has seen is an exit that it will see."""
    with profiler_region("training_forward"):
        profiler.detach(sink)
    assert sink.events == [("enter", "training_forward"), ("exit", "training_forward")]


def test_invented_names_do_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names made up in a loop stop being remembered at a limit."""
    monkeypatch.setattr(region_module, "_table", dict.fromkeys(map(str, range(10_000))))
    with profiler_region("one_more"):
        pass
    assert len(region_module._table) == 10_000


class StopWatch:
    """A timer of the clock below; puts itself back when it is left."""

    site: Site
    attributes: Attributes

    def __init__(self, idle: list[StopWatch]) -> None:
        self.idle = idle
        self.entries = 0

    def note_segment(self, file_name: str) -> None:
        pass

    def __enter__(self) -> None:
        self.entries += 1

    def __exit__(self, *error: object) -> None:
        self.idle.append(self)


class Clock:
    """Times every region with watches that are used again."""

    def __init__(self) -> None:
        self.idle: dict[str, list[StopWatch]] = {}
        self.made: list[StopWatch] = []

    def bind(self, sites: Sequence[Site]) -> None:
        for site in sites:
            idle: list[Any] = self.idle.setdefault(site.region.short_name, [])
            make = functools.partial(self.make, idle)
            site.time = make
            if not site.sinks:
                site.idle, site.open = idle, make

    def make(self, idle: list[StopWatch]) -> StopWatch:
        self.made.append(StopWatch(idle))
        return self.made[-1]


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Gives a clock that is set."""
    clock = Clock()
    region_module.set_clock(clock)
    yield clock
    region_module.set_clock(None)


def test_a_clock_times_every_region_and_its_timers_are_used_again(clock: Clock) -> None:
    """Both spellings share the timers of a region, and nesting makes one more."""
    for _ in range(5):
        with (
            profiler_region("training_forward"),
            profiler_region("profiler_region_training_forward"),
        ):
            pass
    assert [watch.entries for watch in clock.made] == [5, 5]


def test_clock_and_sinks_see_the_same_entries(clock: Clock, sink: RecordingSink) -> None:
    """A sink that comes and goes changes nothing for the clock."""
    with profiler_region("training_forward", step=4):
        pass
    profiler.detach(sink)
    with profiler_region("training_forward"):
        pass
    assert sink.events == [("enter", "training_forward"), ("exit", "training_forward")]
    assert clock.made[0].attributes == {"step": 4}
    assert sum(watch.entries for watch in clock.made) == 2


def test_a_compiled_function_does_not_hear_the_clock(clock: Clock) -> None:
    """Regions trace as nothing while a clock is set, too."""

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(x: torch.Tensor) -> torch.Tensor:
        with profiler_region("training_forward"):
            return x + 1

    assert compiled(torch.ones(1)).item() == 2.0
    assert clock.made == []


def test_threads_never_share_a_timer(clock: Clock) -> None:
    """Concurrent entries have timers of their own, and every entry is counted once."""
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for _ in range(2000):
            with profiler_region("training_forward"):
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(watch.entries for watch in clock.made) == 16000
    assert len(clock.made) <= 8


def test_a_forked_child_has_no_clock(clock: Clock) -> None:
    """Regions of a child are not timed, and the parent's go on."""
    child = os.fork()
    if child == 0:
        silent = region_module.get_clock() is None and profiler_region("training_forward") is (
            profiler_region("training_backward")
        )
        os._exit(0 if silent else 1)
    _, status = os.waitpid(child, 0)
    with profiler_region("training_forward"):
        pass
    assert (status, len(clock.made)) == (0, 1)


def test_one_object_may_be_entered_again_before_it_is_left(sink: RecordingSink) -> None:
    """A stored region that is entered twice is left twice."""
    stored = profiler_region("training_forward")
    with stored:
        with stored:
            pass
        assert sink.events[-1] == ("exit", "training_forward")
    with stored:
        pass
    kinds = [kind for kind, _ in sink.events]
    assert kinds == ["enter", "enter", "exit", "exit", "enter", "exit"]


def test_a_stored_region_is_timed_once_for_each_entry(clock: Clock, sink: RecordingSink) -> None:
    """Entered again before it is left, with sinks and a clock, it has a timer for each entry."""
    stored = profiler_region("training_forward")
    with stored, stored:
        pass
    assert [watch.entries for watch in clock.made] == [1, 1]
    assert len(clock.idle["training_forward"]) == 2
    assert len(sink.events) == 4
