"""Profilers that are not ours: known from the moment they are prepared, not only while they run.

Torch has one profiler session per process. A second one that is prepared or started while the
first runs ends it, and reading either then can crash the process. Torch says whether a session
runs, but not that one is prepared, which a schedule with a warm-up does a step ahead. So while a
controller is armed, the two methods that every session goes through are watched.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from torch.autograd import profiler as autograd_profiler

from fastvideo.logger import init_logger
from fastvideo.profiler import torch_session
from fastvideo.profiler.passing import must_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = init_logger(__name__)

_Session = autograd_profiler.profile
_PREPARE: Final = "_prepare_trace"
_END: Final = "__exit__"


class ForeignProfilers:
    """Knows whether somebody else's profiler is prepared or runs.

    Args:
        make_way: Called before somebody else's session is prepared, on that thread; ends a
            session of our own.
    """

    def __init__(self, make_way: Callable[[], object]) -> None:
        self._make_way = make_way
        self._prepared: weakref.WeakSet[Any] = weakref.WeakSet()
        self._own_thread = 0
        self._made_way_for: set[int] = set()

    def watch(self) -> None:
        """Begins to watch. Sessions prepared before are noticed only while they run."""
        with _lock:
            if not _watchers:
                _install()
            if self not in _watchers:
                _watchers.append(self)

    def unwatch(self) -> None:
        """Ends watching; torch is as it was once nobody watches."""
        with _lock:
            if self in _watchers:
                _watchers.remove(self)
                self._prepared = weakref.WeakSet()  # nobody will say when they end
                if not _watchers:
                    _uninstall()

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Marks sessions that this thread prepares meanwhile as our own."""
        self._own_thread = threading.get_ident()
        try:
            yield
        finally:
            self._own_thread = 0

    def present(self) -> bool:
        """Tells whether there is a profiler besides ours; asked while ours does not run."""
        return len(self._prepared) > 0 or torch_session.a_profiler_runs()

    def keep_kineto_busy(self) -> bool:
        """Tells whether a profiler besides ours is prepared or runs, on whatever thread.

        The one that this thread is about to prepare does not count yet.
        """
        own = threading.get_ident() in self._made_way_for
        return len(self._prepared) > own or torch_session.runs_somewhere()

    def before_prepare(self, session: object) -> None:
        """Makes way for a session that is not our own."""
        thread = threading.get_ident()
        if thread == self._own_thread:
            return
        self._prepared.add(session)
        self._made_way_for.add(thread)
        try:
            self._make_way()
        finally:
            self._made_way_for.discard(thread)

    def after_end(self, session: object) -> None:
        """Forgets a session."""
        self._prepared.discard(session)


_watchers: list[ForeignProfilers] = []
_originals: dict[str, Any] = {}
_lock = threading.RLock()


def _install() -> None:
    prepare, end = getattr(_Session, _PREPARE, None), getattr(_Session, _END, None)
    if prepare is None or end is None:  # a torch that is built otherwise
        return

    @functools.wraps(prepare)
    def watched_prepare(self: object, *args: object, **kwargs: object) -> object:
        for watcher in tuple(_watchers):
            _make_way(watcher, self)
        try:
            return prepare(self, *args, **kwargs)
        except BaseException:
            for watcher in tuple(_watchers):
                watcher.after_end(self)
            raise

    @functools.wraps(end)
    def watched_end(self: object, *args: object, **kwargs: object) -> object:
        try:
            return end(self, *args, **kwargs)
        finally:
            for watcher in tuple(_watchers):
                watcher.after_end(self)

    _originals.update({_PREPARE: prepare, _END: end})
    setattr(_Session, _PREPARE, watched_prepare)
    setattr(_Session, _END, watched_end)


def _make_way(watcher: ForeignProfilers, session: object) -> None:
    try:
        watcher.before_prepare(session)
    except Exception as error:
        if must_pass(error):
            raise
        logger.exception("kernel trace: cannot make way for another torch profiler")


def _uninstall() -> None:
    """Restores what is still ours; what somebody wrapped around it keeps working as it is."""
    for name, original in _originals.items():
        if getattr(getattr(_Session, name), "__wrapped__", None) is original:
            setattr(_Session, name, original)
    _originals.clear()
