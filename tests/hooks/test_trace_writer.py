"""The thread that writes a trace, and the process that is killed."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from fastvideo.analysis import ActivationFile
from fastvideo.errors import ConfigError
from fastvideo.hooks.trace_writer import LineWriter

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, signal, sys, torch, torch._dynamo
from fastvideo.hooks import attach_activation_trace, trace_step

class Last(torch.nn.Module):
    def forward(self, x):
        if self.ends:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

def killed():
    last = Last()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), last)
    attach_activation_trace(model)
    for step in range(6):
        last.ends = step == 5
        with trace_step(step):
            model(torch.ones(2))

def forked():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    attach_activation_trace(model)
    model(torch.ones(2))
    child = os.fork()
    with trace_step(1):
        model(torch.ones(2))
    if child:
        os.waitpid(child, 0)

for run in (killed, forked):
    os.environ["FASTVIDEO_TRACE_OUTPUT"] = os.path.join(sys.argv[1], run.__name__)
    child = os.fork()
    if not child:
        run()
        sys.exit()
    print(os.waitpid(child, 0)[1])
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the traces of a process that was killed, and of one that had a child."""
    folder = tmp_path_factory.mktemp("ended")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder],
        env={**os.environ, "FASTVIDEO_TRACE_ACTIVATIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [str(int(signal.SIGKILL)), "0"], done.stderr
    return folder


def _steps(path: Path) -> list[int | None]:
    return [record.key.step.number for record in ActivationFile(path).records()]


def test_a_killed_process_loses_the_last_steps_only(ended: Path) -> None:
    """It was in step 5: what came before step 4 is in the file, and step 4 as far as it got."""
    steps = _steps(ended / "killed")
    assert steps[:8] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(steps[8:]) <= {4}


def test_a_forked_child_writes_nothing_and_the_end_of_the_parent_all(ended: Path) -> None:
    """Both go on calling the model; nothing is detached."""
    assert _steps(ended / "forked") == [None, 1]


def test_pieces_are_written_in_order(tmp_path: Path) -> None:
    """And waiting for one means it is in the file."""
    writer = LineWriter(tmp_path / "f", b"first\n")
    assert (tmp_path / "f").read_bytes() == b"first\n"
    numbers = [writer.submit(lambda n=n: b"%d\n" % n) for n in range(100)]
    assert writer.wait(numbers[50])
    assert len((tmp_path / "f").read_bytes().splitlines()) > 51
    writer.close(10)
    lines = (tmp_path / "f").read_bytes().splitlines()
    assert lines == [b"first", *(b"%d" % n for n in range(100))]


def test_a_writer_that_lags_behind_is_waited_for(tmp_path: Path) -> None:
    """So that memory does not grow with the length of the run."""
    writer = LineWriter(tmp_path / "f", b"")
    go = threading.Event()

    def wait() -> bytes:
        go.wait(10)
        return b"x"

    accepted: list[int] = []
    producer = threading.Thread(
        target=lambda: accepted.extend(writer.submit(wait) for _ in range(12))
    )
    assert not writer.wait(writer.submit(wait), timeout_s=0.01)
    producer.start()
    producer.join(0.1)
    assert producer.is_alive()
    go.set()
    producer.join(10)
    writer.close(10)
    assert len(accepted) == 12
    assert (tmp_path / "f").read_bytes() == b"x" * 13


def test_an_error_ends_the_trace_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says why; whoever waits is let go."""
    writer = LineWriter(tmp_path / "f", b"first\n")

    def fail() -> bytes:
        message = "no space left"
        raise OSError(message)

    with caplog.at_level(logging.ERROR, "fastvideo"):
        assert writer.wait(writer.submit(fail), timeout_s=10)
        assert writer.wait(writer.submit(lambda: b"second\n"), timeout_s=10)
        writer.close(10)
    assert writer.stopped
    assert caplog.text.count("activations are traced no longer: OSError: no space left") == 1
    assert (tmp_path / "f").read_bytes() == b"first\n"


def test_what_this_process_wrote_before_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under the next free name; what comes from elsewhere is overwritten."""
    path, before = tmp_path / "f.jsonl", None
    path.write_text("from another day\n")
    for number in range(3):
        writer = LineWriter(path, b"%d\n" % number, before=before)
        before = writer.close(10)
    kept = {name.name: name.read_text() for name in tmp_path.iterdir()}
    assert kept == {"f_1.jsonl": "0\n", "f_2.jsonl": "1\n", "f.jsonl": "2\n"}
    assert f"traced to {path} before is now {tmp_path / 'f_2.jsonl'}" in caplog.text
    (tmp_path / "new").write_text("from another hand\n")
    (tmp_path / "new").replace(path)
    LineWriter(path, b"3\n", before=before).close(10)
    assert path.read_text() == "3\n"
    assert len(list(tmp_path.iterdir())) == 3


def test_two_processes_do_not_write_one_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second takes the next name, until the first has closed its file."""
    path = tmp_path / "f.jsonl"
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("other\n")
        other.flush()
        writer = LineWriter(path, b"ours\n")
        assert writer.path == tmp_path / "f_1.jsonl"
        assert f"another process is tracing to {path}" in caplog.text
        writer.close(10)
    assert path.read_text() == "other\n"
    assert (tmp_path / "f_1.jsonl").read_text() == "ours\n"
    writer = LineWriter(path, b"ours\n")
    assert (writer.path, path.read_text()) == (path, "ours\n")
    writer.close(10)


@pytest.mark.parametrize(
    ("name", "reason"), [("/dev/full", "No space left"), ("", "Is a directory"), ("x" * 300, "")]
)
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str, reason: str) -> None:
    """With the variable and the reason, before anything is traced."""
    with pytest.raises(ConfigError, match=f"FASTVIDEO_TRACE_OUTPUT: cannot write .*{reason}"):
        LineWriter(tmp_path / name, b"first\n")
