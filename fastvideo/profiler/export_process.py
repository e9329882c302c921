"""The helper process as the training process sees it: pipes that never block.

The helper is started by file path with ``-I -S``: it imports neither torch nor fastvideo, is up in
about 20 ms and takes some 15 MB. It runs in a session of its own, so a launcher that ends the
process group of the trainer does not end the export of what the trainer handed over.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, cast

_WORKER = Path(__file__).with_name("export_worker.py")
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_ERROR_TAIL = 2000
_KILL_S = 0.5


class HelperProcess:
    """A running export helper. No method but :meth:`wait` and :meth:`wait_ready` waits."""

    def __init__(self, *, executable: str | None = None, worker: Path = _WORKER) -> None:
        """Starts the helper.

        Args:
            executable: The Python that runs it; default: the one that runs this process.
            worker: The script that it runs.

        Raises:
            OSError: It cannot be started.
        """
        python = executable or sys.executable
        if not python:
            message = "this process does not know the path of its Python (sys.executable is empty)"
            raise OSError(message)
        self._process = _spawn([python, "-I", "-S", str(worker), str(os.getpid())])
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        self._stderr = cast("IO[bytes]", self._process.stderr)
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._outbox: collections.deque[bytes] = collections.deque()
        self._inbox = b""
        self._broken = False

    @property
    def pid(self) -> int:
        """Process id of the helper."""
        return self._process.pid

    @property
    def broken(self) -> bool:
        """Whether the helper has gone away, or no longer reads what it is sent."""
        return self._broken

    def send(self, line: bytes) -> None:
        """Queues one line for the helper and passes on what its pipe takes."""
        self._outbox.append(line + b"\n")
        self.pump()

    def pump(self) -> None:
        """Passes on queued lines until the pipe is full.

        A line of up to PIPE_BUF bytes goes whole or not at all, so a signal handler that sends
        another line in between can reorder lines but not mix them.
        """
        while self._outbox and not self._broken:
            line = self._outbox.popleft()
            try:
                written = os.write(self._stdin.fileno(), line)
            except BlockingIOError:
                self._outbox.appendleft(line)
                return
            except (OSError, ValueError):
                self._outbox.appendleft(line)
                self._broken = True
                return
            if written < len(line):
                self._outbox.appendleft(line[written:])

    def receive(self) -> list[dict[str, Any]]:
        """Returns the messages that have arrived; notices the end of the helper."""
        while True:
            try:
                data = os.read(self._stdout.fileno(), _READ_BYTES)
            except BlockingIOError:
                break
            except (OSError, ValueError):
                data = b""
            if not data:
                self._broken = True
                break
            self._inbox += data
        *lines, self._inbox = self._inbox.split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):
                messages.append(json.loads(line))
        return messages

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until a message may have arrived or the pipe takes more, at most ``timeout_s``."""
        if self._broken:
            return
        waiter = select.poll()
        with contextlib.suppress(OSError, ValueError):
            waiter.register(self._stdout.fileno(), select.POLLIN)
            if self._outbox:
                waiter.register(self._stdin.fileno(), select.POLLOUT)
            waiter.poll(max(0.0, timeout_s) * 1000)

    def wait(self, timeout_s: float) -> bool:
        """Closes the helper's input and waits for its end; True when it ended in time."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        self._broken = True
        for pipe in (self._stdout, self._stderr):
            pipe.close()
        return True

    def kill(self) -> None:
        """Ends a helper that is of no use any more, at once."""
        self._process.kill()
        self.wait(_KILL_S)

    def last_words(self) -> str:
        """Returns how the helper ended: its exit code and the end of what it said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_S)
        said = ""
        with contextlib.suppress(OSError, ValueError):
            said = os.read(self._stderr.fileno(), _READ_BYTES).decode(errors="replace")
        code = self._process.returncode
        return f"exit code {code}" + (f": {said.strip()[-_ERROR_TAIL:]}" if said.strip() else "")


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    """Starts ``command`` with the signals blocked that the helper is going to ignore.

    The mask is inherited, so the helper cannot be interrupted before it has said what it ignores.
    """
    ours = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
