"""What torch's profiler does in its corners, and how this package stays clear of it.

- The first session of a process imports for over a second.
- Kineto writes to standard error, and reads how much only when its first session begins.
- A second profiler on another thread ends the first; stopping that one hangs or crashes.
- Stopping on a thread that did not start does nothing, and says nothing.
- A child forked inside a session records every operator for the rest of its life.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity

if TYPE_CHECKING:
    from collections.abc import Iterator

KINETO_LOG_LEVEL: Final = "KINETO_LOG_LEVEL"
_SILENT: Final = "6"

Annotation = autograd_profiler.record_function


def existing_activities() -> tuple[ProfilerActivity, ...]:
    """Returns the activities this machine has: CPU, and CUDA where there is a device."""
    supported = torch.autograd._supported_activities()  # type: ignore[attr-defined] # noqa: SLF001
    wanted = [ProfilerActivity.CPU]
    if ProfilerActivity.CUDA in supported and torch.cuda.is_available():
        wanted.append(ProfilerActivity.CUDA)
    return tuple(wanted)


def warm_up() -> None:
    """Pays for the imports of the first session.

    It runs no session: an empty one can cost a later one its first CUDA kernels. An annotation
    outside of any session records nothing.
    """
    with contextlib.suppress(Exception):
        __import__("torch._inductor.config")
    end_annotation(begin_annotation("fastvideo.warm_up"))


def begin_annotation(text: str) -> Annotation:
    """Opens an annotation in whatever profiler records on this thread."""
    annotation = Annotation(text)
    annotation.__enter__()  # type: ignore[no-untyped-call]
    return annotation


def end_annotation(annotation: Annotation) -> None:
    """Ends what :func:`begin_annotation` opened; on any thread, but once."""
    annotation.__exit__(None, None, None)


def a_profiler_runs() -> bool:
    """Tells whether a profiler runs in this process, or one was left in an unsafe state here."""
    return runs_somewhere() or records_here()


def session_is_intact() -> bool:
    """Tells whether the session that this thread started is still its own and safe to touch."""
    return runs_somewhere() and records_here()


def a_graph_is_captured() -> bool:
    """Tells whether this thread captures a CUDA graph, which waiting for the device would break."""
    try:
        return bool(torch.cuda.is_current_stream_capturing())
    except RuntimeError:  # a build without CUDA, or a driver that is not there
        return False


def force_off(*, ours: bool = True) -> None:
    """Leaves this thread without the session that it started, as far as that is safe.

    Args:
        ours: Whether the session that torch runs, if it runs one, is the one of this thread.
    """
    if ours and session_is_intact():
        with contextlib.suppress(Exception):
            torch.autograd._disable_profiler()  # type: ignore[attr-defined]  # noqa: SLF001
    _let_go()
    if ours:
        clear_flag()


def clear_flag() -> None:
    """Takes back torch's note that a profiler runs in this process."""
    autograd_profiler._run_on_profiler_stop()  # type: ignore[no-untyped-call]  # noqa: SLF001


def records_here() -> bool:
    """Tells whether a session records on this thread, whoever started it."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # noqa: SLF001


def a_hook_cannot_be_restored() -> bool:
    """Tells whether a profiler written in C, as cProfile is, holds this thread's profile hook.

    Recording stacks replaces the hook, and only a Python function can be given it back.
    """
    hook = sys.getprofile()
    return hook is not None and not callable(hook)


def _let_go() -> None:
    """Ends a session of this thread that kineto has ended before.

    Torch would wait for kineto for ever. So another thread starts a session, which is ended in
    the place of this thread's and is gone with its thread. No other session may run meanwhile.
    """
    if not records_here():
        return
    begun, ended = threading.Event(), threading.Event()
    failed: list[Exception] = []

    def stand_in() -> None:
        try:
            _begin_session()
        except Exception as error:  # noqa: BLE001 - then this thread's session stays as it is
            failed.append(error)
        begun.set()
        ended.wait()

    thread = threading.Thread(target=stand_in, name="fastvideo-stand-in", daemon=True)
    with contextlib.suppress(RuntimeError):  # no more threads
        thread.start()
        try:
            begun.wait()
            if not failed:
                torch.autograd._disable_profiler()  # type: ignore[attr-defined]  # noqa: SLF001
        finally:
            ended.set()
        thread.join()


def _begin_session() -> None:
    """Starts the smallest session there is, past everything that watches for sessions."""
    session = autograd_profiler.profile(use_kineto=True)
    config, activities = session.config(create_trace_id=True), session.kineto_activities  # type: ignore[no-untyped-call]
    torch.autograd._prepare_profiler(config, activities)  # type: ignore[attr-defined]  # noqa: SLF001
    torch.autograd._enable_profiler(config, activities)  # type: ignore[attr-defined]  # noqa: SLF001


def release_after_fork() -> None:
    """Ends recording in a child that was forked inside a session.

    Closing the session there could wait for threads that exist in the parent only, so the child's
    thread stops calling profilers at all.
    """
    if records_here():
        torch.autograd._enable_record_function(False)  # type: ignore[attr-defined]  # noqa: SLF001
    clear_flag()


@contextlib.contextmanager
def kineto_silenced() -> Iterator[None]:
    """Sets kineto's log level while its first session begins, unless the user chose one."""
    if KINETO_LOG_LEVEL in os.environ:
        yield
        return
    os.environ[KINETO_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(KINETO_LOG_LEVEL, None)


def runs_somewhere() -> bool:
    """Tells whether torch has noted that a profiler runs, on whatever thread."""
    return bool(autograd_profiler._is_profiler_enabled)  # noqa: SLF001
