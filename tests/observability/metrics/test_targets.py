"""Target files for Prometheus."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import socket
import stat
from pathlib import Path

import pytest

from fastvideo.observability.metrics import targets
from fastvideo.observability.metrics.targets import TargetFile, target_of


def test_a_target_file_names_the_endpoint(tmp_path: Path) -> None:
    """The file is what file_sd reads: one target, how to reach it, no label of the series."""
    target = TargetFile(tmp_path / "new" / "dir", run="run-1", rank=3)
    assert target.write(("127.0.0.1", 9467), scheme="https")
    assert target.path == tmp_path / "new" / "dir" / "fastvideo_run-1_rank3.json"
    assert json.loads(target.path.read_text("utf-8")) == [
        {"targets": ["127.0.0.1:9467"], "labels": {"__scheme__": "https"}}
    ]
    assert stat.S_IMODE(target.path.stat().st_mode) & stat.S_IRUSR


def test_nothing_but_the_file_is_left_for_prometheus_to_find(tmp_path: Path) -> None:
    """A file that is being written has a name that *.json does not match."""
    target = TargetFile(tmp_path, run="r", rank=0)
    for port in range(1, 20):
        assert target.write(("127.0.0.1", port))
    assert [path.name for path in tmp_path.iterdir()] == ["fastvideo_r_rank0.json"]


def test_a_clean_end_removes_the_file(tmp_path: Path) -> None:
    """The file goes with the endpoint; a second time, or before the first, changes nothing."""
    target = TargetFile(tmp_path, run="r", rank=0)
    target.remove()
    target.write(("127.0.0.1", 1))
    target.remove()
    target.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_or_of_another_attempt_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a later attempt wrote under the same name stays; a missing file is no trouble."""
    target = TargetFile(tmp_path, run="r", rank=0)
    target.write(("127.0.0.1", 1))
    TargetFile(tmp_path, run="r", rank=0).write(("127.0.0.1", 2))
    target.remove()
    assert json.loads(target.path.read_text("utf-8"))[0]["targets"] == ["127.0.0.1:2"]
    other = TargetFile(tmp_path, run="other", rank=0)
    other.write(("127.0.0.1", 1))
    other.path.unlink()
    other.remove()
    assert caplog.records == []


def test_a_forked_child_does_not_remove_the_file(tmp_path: Path) -> None:
    """Only the process that wrote it takes it away."""
    target = TargetFile(tmp_path, run="r", rank=0)
    target.write(("127.0.0.1", 1))
    target._owner += 1
    target.remove()
    assert target.path.exists()


@pytest.mark.parametrize("obstacle", ["file in the way", "read only", "full"])
def test_a_directory_that_cannot_be_written_is_one_warning(
    tmp_path: Path,
    obstacle: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the reason, the run goes on and is told once, and no half file is left."""
    directory = tmp_path / "targets"
    if obstacle == "file in the way":
        directory.write_text("")
    else:
        code = errno.EROFS if obstacle == "read only" else errno.ENOSPC

        def refuse(self: Path, data: bytes) -> int:
            with self.open("wb") as file:
                file.write(data[:5])
            raise OSError(code, os.strerror(code), str(self))

        monkeypatch.setattr(Path, "write_bytes", refuse)
    target = TargetFile(directory, run="r", rank=0)
    assert not target.write(("127.0.0.1", 1))
    target.remove()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "Prometheus is not told of this endpoint" in caplog.text
    assert not directory.is_dir() or list(directory.iterdir()) == []


@pytest.mark.parametrize(
    "run", ["", "../../etc", "a/b\\c", ".hidden", "größe", "x" * 500, "spaces and\nlines", "*?[]"]
)
def test_any_run_name_makes_a_file_name(tmp_path: Path, run: str) -> None:
    """Names stay in the directory, are visible, and hold no character with a meaning."""
    target = TargetFile(tmp_path, run=run, rank=12)
    assert target.path.parent == tmp_path
    assert re.fullmatch(r"fastvideo_[A-Za-z0-9_-][A-Za-z0-9._-]*_rank12\.json", target.path.name)
    assert target.write(("127.0.0.1", 1))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (("127.0.0.1", 9464), "127.0.0.1:9464"),
        (("192.0.2.7", 1), "192.0.2.7:1"),
        (("::1", 9464), "[::1]:9464"),
        (("0.0.0.0", 9464), "node7:9464"),  # noqa: S104 - compared, not bound
        (("::", 9464), "node7:9464"),
    ],
)
def test_targets_are_what_prometheus_can_connect_to(
    address: tuple[str, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint on every address is found by the machine's name, IPv6 has brackets."""
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    assert target_of(address) == expected
    assert targets.socket is socket
