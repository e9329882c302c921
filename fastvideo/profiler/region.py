"""The hot path: entering and leaving regions, and nothing else.

``_table`` maps every spelling of every registered name to the :class:`Site` that a call site
enters, or to None while no sink wants the region. It is rebuilt when sinks or the registry change,
so a call that nobody listens to is one dictionary lookup and a shared no-op. That no-op is a
``contextlib.nullcontext`` because TorchDynamo knows how to trace that class and no other.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeGuard, TypeVar, cast

from torch.compiler import is_dynamo_compiling

from fastvideo.errors import did_you_mean
from fastvideo.logger import init_logger
from fastvideo.profiler.catalogue import built_in_registry
from fastvideo.profiler.passing import must_pass
from fastvideo.profiler.sinks import SinkList

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from fastvideo.profiler.registry import ProfilerRegion
    from fastvideo.profiler.sinks import (
        Attributes,
        ClockTimer,
        ContextManager,
        RegionClock,
        RegionSink,
    )

logger = init_logger(__name__)

ANNOTATION_PREFIX: Final = "fastvideo.region::"

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NOOP: Final[contextlib.nullcontext[None]] = contextlib.nullcontext()
_registry = built_in_registry()


class Site:
    """One spelling of one region, and what an entry of it does at the moment.

    The object of a spelling lives as long as the process: compiled code that was guarded on its
    identity stays valid when sinks come and go.

    Attributes:
        region: The region.
        short_name: Its short name, at hand.
        annotation: Its name in traces, as this spelling has it.
        sinks: The sinks that want it.
        idle: The clock's idle timers of the region; empty when an entry needs more than a timer.
        open: Gives the context manager of an entry when no timer is idle. It takes nothing, and
            the entry is told its site and attributes afterwards, because a constructor in Python
            would cost as much as all the rest. Where it takes from what was made ahead and there
            is nothing left it raises IndexError, and ``time`` has more.
        time: Gives the clock's part of an entry, or None while no clock is set.
    """

    __slots__ = ("annotation", "idle", "open", "region", "short_name", "sinks", "time")

    def __init__(self, region: ProfilerRegion, spelling: str) -> None:
        self.region = region
        self.short_name = region.short_name
        self.annotation = ANNOTATION_PREFIX + spelling
        self.sinks: tuple[RegionSink, ...] = ()
        self.idle: list[ContextManager] = []
        self.open: Callable[[], _Entry | ClockTimer] = _Entry
        self.time: Callable[[], ClockTimer] | None = None

    def bind(self, sinks: tuple[RegionSink, ...], clock: RegionClock | None) -> None:
        """Sets what an entry does, but for what the clock sets by itself."""
        self.sinks = sinks
        if clock is None:
            self.time = None
        if sinks or clock is None:
            self.idle = []
            self.open = _Entry if clock is None else _TimedEntry


class _Entry:
    """One entry of a region that sinks listen to."""

    __slots__ = ("_generation", "_opened", "attributes", "site")

    site: Site
    attributes: Attributes

    def __enter__(self) -> None:
        site = self.site
        self._generation = _sinks.generation
        around: list[tuple[RegionSink | None, Any]] | None = getattr(self, "_opened", None)
        self._opened: list[tuple[RegionSink | None, Any]] = []
        if around:  # this object is entered again before it is left
            self._opened.append((None, around))
        for sink in site.sinks:
            try:
                token = sink.enter(site.region, site.annotation, self.attributes)
            except (RecursionError, MemoryError):  # nothing can be called here, logging least
                _sinks.starved += 1
            except BaseException as error:
                if not _is_of_sink(error):
                    _Entry.__exit__(self, type(error), error, None)
                    raise
                _sinks.drop(sink, error)
            else:
                self._opened.append((sink, token))

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._generation != _sinks.generation:  # entered before a fork, left in the child
            return
        opened = self._opened
        passing: BaseException | None = None
        while opened:
            sink, token = opened.pop()
            if sink is None:
                self._opened = token
                break
            try:
                sink.exit(token, error_type)
            except (RecursionError, MemoryError):  # nothing can be called here, logging least
                _sinks.starved += 1
            except BaseException as error:  # noqa: BLE001 - it is raised when all sinks are told
                if _is_of_sink(error):
                    _sinks.drop(sink, error)
                else:
                    passing = error
        if passing is not None:
            raise passing


def _is_of_sink(error: BaseException) -> TypeGuard[Exception]:
    """Tells whether a sink's call raised for a fault of its own, which the program never sees.

    Interrupts are not its own, nor is what a signal handler of the program raised meanwhile.
    """
    return isinstance(error, Exception) and not must_pass(error)


class _TimedEntry(_Entry):
    """One entry of a region that sinks listen to while a clock is set; the clock is innermost."""

    __slots__ = ("_timers",)

    def __enter__(self) -> None:
        super().__enter__()
        timers: list[ClockTimer] = getattr(self, "_timers", [])
        self._timers = timers  # more than one when this object is entered again before it is left
        time = self.site.time
        if time is None:
            return
        timer = time()
        timer.site = self.site
        timer.attributes = self.attributes
        for sink, token in self._opened:
            segment = getattr(token, "segment_file", None) if sink is not None else None
            if segment is not None:
                timer.note_segment(segment)
        timer.__enter__()
        timers.append(timer)

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._timers:
                self._timers.pop().__exit__(error_type, raised, traceback)
        finally:
            super().__exit__(error_type, raised, traceback)


_sites: dict[str, Site] = {}
_clock: RegionClock | None = None
_table: dict[str, Site | None] = {}


def profiler_region(name: str, /, **attributes: object) -> ContextManager:
    """Marks the body of a ``with`` statement as an entry of a registered region.

    Costs a dictionary lookup while nothing is attached. Exceptions of the body pass unchanged.
    While ``torch.compile`` traces, it is a no-op that breaks no graph.

    Args:
        name: A registered name, short or long. A name that is not registered is reported once
            and not recorded.
        **attributes: Plain values that describe this entry, such as ``step=12``; they reach
            spans and trace segments, never metric labels.

    Returns:
        A context manager for one entry.
    """
    try:
        site = _table[name]
    except KeyError:
        return _NOOP if is_dynamo_compiling() else _report_unknown(name)
    if site is None or is_dynamo_compiling():
        return _NOOP
    idle = site.idle
    if idle:
        try:
            return idle.pop()
        except IndexError:  # another thread took the last one
            pass
    try:
        entry = site.open()
    except IndexError:  # what was made ahead is used up
        if site.time is None:
            return _NOOP
        entry = site.time()
    entry.site = site
    entry.attributes = attributes
    return entry


def profile_region(name: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Makes every call of a function, method or coroutine function an entry of a region.

    A method of an object that has its own ``profiler_controller`` is traced by that controller.

    Args:
        name: A registered name, short or long.

    Returns:
        A decorator.

    Raises:
        TypeError: The decorated object is a generator function, whose call returns before its
            body runs.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        if isinstance(function, classmethod | staticmethod):
            inner = decorate(cast("Callable[_P, _R]", function.__func__))
            return cast("Callable[_P, _R]", type(function)(inner))
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            message = (
                f"@profile_region({name!r}) cannot decorate the generator function "
                f"{function.__qualname__}: calling it runs none of its body, so the region would "
                f"be empty; use 'with profiler_region({name!r}):' inside it, between the yields"
            )
            raise TypeError(message)
        if inspect.iscoroutinefunction(function):
            return cast("Callable[_P, _R]", _wrap_coroutine(name, function))
        if next(iter(_parameters(function)), None) == "self":
            return _wrap_method(name, function)
        return _wrap_function(name, function)

    return decorate


def register_profiler_region(name: str, description: str) -> ProfilerRegion:
    """Registers a region of your own.

    Args:
        name: ASCII letters, digits and underscores; the prefix ``profiler_region_`` is optional.
        description: What the region covers, in one line.

    Returns:
        The region; the present one when it was registered before with the same description.

    Raises:
        ValueError: The name cannot be used, or is taken with another description.
    """
    region = _registry.register(name, description)
    with _sinks.lock:
        _rebuild_table()
    return region


def resolve_profiler_region(name: str) -> ProfilerRegion | None:
    """Returns the registered region called ``name`` (short or long form), or None."""
    return _registry.resolve(name)


def list_profiler_regions() -> list[ProfilerRegion]:
    """Returns all registered regions, the built-in ones first."""
    return _registry.list()


def attach(sink: RegionSink) -> None:
    """Makes ``sink`` receive the entries of the regions it wants, from now on."""
    _sinks.attach(sink)


def detach(sink: RegionSink) -> None:
    """Ends what :func:`attach` began; entries that are open now still reach the sink's exit."""
    _sinks.detach(sink)


def sink_error_counts() -> dict[str, int]:
    """Returns how often sinks raised, by the name of their class."""
    return dict(_sinks.error_counts())


def set_clock(clock: RegionClock | None) -> None:
    """Makes ``clock`` time every region; None ends that. There is one clock per process.

    Args:
        clock: Replaces the one that was set before.
    """
    global _clock  # noqa: PLW0603 - part of the one process-global, what regions report to
    if clock is not None:
        _sinks.watch_forks()
    with _sinks.lock:
        _clock = clock
        _rebuild_table()


def get_clock() -> RegionClock | None:
    """Returns the clock that times every region, or None."""
    return _clock


def changing_sites() -> AbstractContextManager[object]:
    """Returns what is held while call sites change; may be held twice by one thread."""
    return _sinks.lock


def _rebuild_table() -> None:
    """Fills the table anew from the registry, the attached sinks and the clock."""
    for region in _registry.list():
        wanting = tuple(sink for sink in _sinks.current if _wants(sink, region))
        for spelling in (region.short_name, region.name):
            site = _sites.get(spelling)
            if site is None:
                site = _sites[spelling] = Site(region, spelling)
            site.bind(wanting, _clock)
    if _clock is not None:
        _clock.bind(tuple(_sites.values()))
    for spelling, site in _sites.items():
        _table[spelling] = site if site.sinks or _clock is not None else None


def _forget_clock() -> None:
    global _clock  # noqa: PLW0603 - see set_clock
    _clock = None


def _wants(sink: RegionSink, region: ProfilerRegion) -> bool:
    try:
        return bool(sink.wants(region))
    except Exception:
        logger.exception("region sink %s could not say what it wants", type(sink).__name__)
        return False


def _report_unknown(name: str) -> contextlib.nullcontext[None]:
    """Reports a name that is not registered, once, and makes later entries of it free."""
    if len(_table) >= _MAX_SPELLINGS:
        return _NOOP
    _table[name] = None
    number = next(_unknown_names)
    if number > _MAX_REPORTS:
        if number == _MAX_REPORTS + 1:
            logger.warning(
                "more than %d profiler regions are not registered; further ones are neither "
                "recorded nor reported",
                _MAX_REPORTS,
            )
        return _NOOP
    known = [region.short_name for region in _registry.list()]
    logger.warning(
        "profiler region %r is not registered and is not recorded.%s Register it with "
        "register_profiler_region(name, description)",
        name,
        did_you_mean(str(name), known),
    )
    return _NOOP


_MAX_SPELLINGS: Final = 10_000
_MAX_REPORTS: Final = 20
_unknown_names = itertools.count(1)


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _wrap_function(name: str, function: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(function)
    def in_region(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with profiler_region(name):
            return function(*args, **kwargs)

    return in_region


def _wrap_method(name: str, function: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(function)
    def in_region(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with profiler_region(name):
            if is_dynamo_compiling():
                return function(*args, **kwargs)
            own = getattr(args[0] if args else None, "__dict__", _NO_ATTRIBUTES).get(
                "profiler_controller"
            )
            if own is None or getattr(own, "is_started", False):  # a started one hears it anyway
                return function(*args, **kwargs)
            with own.region(name):
                return function(*args, **kwargs)

    return in_region


_NO_ATTRIBUTES: Final[dict[str, Any]] = {}


def _wrap_coroutine(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def in_region(*args: object, **kwargs: object) -> object:
        with profiler_region(name):
            return await function(*args, **kwargs)

    return in_region


_sinks = SinkList(_rebuild_table, in_child=_forget_clock)
_rebuild_table()
