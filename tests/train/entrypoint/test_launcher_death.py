"""A rank notices that its launcher is gone, and takes no other process for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fastvideo.train.entrypoint.launcher_death import LauncherDeath, announce_launcher

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")

_PARENT = """
import os, subprocess, sys
from fastvideo.train.entrypoint.launcher_death import announce_launcher
announce_launcher(os.environ)
subprocess.Popen([sys.executable, "-c", sys.argv[1]])
sys.argv[2] == "wait" and input()
"""
_CHILD = """
import os, signal, sys, time
from fastvideo.train.entrypoint.launcher_death import LauncherDeath
LATE and time.sleep(0.1)
while LATE and os.getppid() == int(os.environ["FASTVIDEO_LAUNCHER_PID"]):
    time.sleep(0.01)
launcher = LauncherDeath(os.environ)
def end(*_):
    print("SIGTERM", launcher.has_happened(), "FASTVIDEO_LAUNCHER_PID" in os.environ, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
launcher.send_sigterm()
print("ready", launcher.has_happened(), flush=True)
time.sleep(30)
"""


def test_a_launcher_that_is_killed_sends_sigterm() -> None:
    """The kernel does, whatever the launcher was killed by."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT, _CHILD.replace("LATE", "False"), "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready False\n"
    process.kill()
    assert process.communicate(timeout=20)[0] == "SIGTERM True False\n"


def test_a_launcher_that_was_gone_before_is_noticed() -> None:
    """The kernel says nothing of a parent that ended before it was asked."""
    done = subprocess.run(
        [sys.executable, "-c", _PARENT, _CHILD.replace("LATE", "True"), "go"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == "SIGTERM True False\n"


def test_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks without a launcher of ours, and those with a program between them and it."""
    handled: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", handled.append)
    environ: dict[str, str] = {}
    LauncherDeath(environ).send_sigterm()
    announce_launcher(environ)
    assert environ == {"FASTVIDEO_LAUNCHER_PID": str(os.getpid())}
    monkeypatch.setenv("FASTVIDEO_LAUNCHER_PID", str(os.getpid()))  # lives, and is no parent
    launcher = LauncherDeath(environ)
    launcher.send_sigterm()
    assert not launcher.has_happened()
    assert (environ, handled) == ({}, [])
