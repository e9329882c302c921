"""One live run for one output directory; a dead one never stands in the way."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from fastvideo.train.checkpoint import lock as lock_module
from fastvideo.train.checkpoint.errors import CheckpointWriteError
from fastvideo.train.checkpoint.lock import LOCK, OutputInUseError, OutputLock, output_dir_held

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import os, sys, time
from pathlib import Path
from fastvideo.train.checkpoint.lock import OutputLock

lock = OutputLock(Path(sys.argv[1]), run_id="first")
lock.acquire()
forked = os.fork() if "fork" in sys.argv else None
if forked == 0:
    os.closerange(0, 3)  # nobody waits for the end of what it could write
    time.sleep(120)
    os._exit(0)
print(forked or 0, flush=True)
sys.stdin.read()
"""


def _hold(folder: Path, *words: str) -> tuple[subprocess.Popen[str], int]:
    """Starts a process that holds the lock; returns it, and its child if it was to fork one."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    return holder, int(holder.stdout.readline())


def _end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()


def test_a_second_run_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    """With process, host, identifier and time, and what to do; not longer than the first lives."""
    holder, _ = _hold(tmp_path)
    try:
        with pytest.raises(OutputInUseError) as refusal:
            OutputLock(tmp_path).acquire(wait_s=0)
    finally:
        _end(holder)
    message = str(refusal.value)
    assert message.startswith(f"training.checkpoint.output_dir: {tmp_path} is in use by another ")
    assert f"run first, process {holder.pid} on {os.uname().nodename}, since 20" in message
    assert "set --training.checkpoint.output_dir to another directory" in message
    assert str(tmp_path / LOCK) in message
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == holder.pid  # stale, and of no effect
    after = OutputLock(tmp_path, run_id="second")
    after.acquire(wait_s=0)
    assert json.loads((tmp_path / LOCK).read_text())["run_id"] == "second"
    after.release()
    after.release()
    assert (tmp_path / LOCK).read_text() == ""


def test_children_that_outlive_a_killed_run_do_not_hold_its_lock(tmp_path: Path) -> None:
    """As workers of a loader do for a while."""
    holder, child = _hold(tmp_path, "fork")
    try:
        with pytest.raises(OutputInUseError):
            OutputLock(tmp_path).acquire(wait_s=0)
        _end(holder)
        os.kill(child, 0)
        after = OutputLock(tmp_path)
        after.acquire(wait_s=0)
        after.release()
    finally:
        _end(holder)
        os.kill(child, signal.SIGKILL)


def test_programs_that_are_executed_do_not_hold_the_lock(tmp_path: Path) -> None:
    """Even where descriptors are handed on."""
    lock = OutputLock(tmp_path)
    lock.acquire()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        close_fds=False,
    )
    try:
        assert lock._descriptor is not None
        os.close(lock._descriptor)  # as the end of the process would, without taking it back
        lock_module._held.discard(lock._descriptor)
        after = OutputLock(tmp_path)
        after.acquire()  # the kernel closes descriptors a moment after the program has begun
        after.release()
    finally:
        child.communicate()


def test_a_run_that_is_about_to_end_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A restart may come before the last process of the run before has gone."""
    caplog.set_level("INFO", "fastvideo")
    first, second = OutputLock(tmp_path, run_id="first"), OutputLock(tmp_path)
    first.acquire()
    threading.Timer(0.05, first.release).start()
    second.acquire(wait_s=60)
    second.release()
    assert caplog.text.count("in use by another run (run first, process") == 1


def test_a_removed_file_is_a_lock_no_more(tmp_path: Path) -> None:
    """Nor does an empty or damaged one keep anybody from being refused."""
    first, second = OutputLock(tmp_path), OutputLock(tmp_path)
    first.acquire()
    (tmp_path / LOCK).write_text("{")
    with pytest.raises(OutputInUseError, match=r"in use by another run; two runs"):
        second.acquire(wait_s=0)
    (tmp_path / LOCK).unlink()
    second.acquire(wait_s=0)
    second.release()
    first.release()


def test_a_file_that_is_removed_while_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two runs would hold locks of two files."""
    real = fcntl.flock
    calls = []

    def removing(descriptor: int, operation: int) -> None:
        real(descriptor, operation)
        if not calls:
            (tmp_path / LOCK).unlink()
        calls.append(operation)

    monkeypatch.setattr(fcntl, "flock", removing)
    lock = OutputLock(tmp_path)
    lock.acquire(wait_s=0)
    assert len(calls) == 2
    with pytest.raises(OutputInUseError):
        OutputLock(tmp_path).acquire(wait_s=0)
    lock.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """And the run goes on."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with output_dir_held(tmp_path):
        pass
    (record,) = (r for r in caplog.records if r.levelname == "WARNING")
    assert f"{tmp_path} cannot be locked ({os.strerror(number)})" in record.getMessage()


def test_the_directory_is_made_and_held_for_the_body(tmp_path: Path) -> None:
    """Also when the body fails; a directory that cannot be made is named."""
    out = tmp_path / "a" / "b"

    def fail() -> None:
        with output_dir_held(out, run_id="x"):
            with pytest.raises(OutputInUseError, match="run x, process"):
                OutputLock(out).acquire(wait_s=0)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()
    with output_dir_held(out):
        assert [path.name for path in out.iterdir()] == [LOCK]
    with (
        pytest.raises(CheckpointWriteError, match="cannot write to /proc/none"),
        output_dir_held("/proc/none"),
    ):
        pytest.fail("it is held")
