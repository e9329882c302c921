"""Reading traces of activations."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.analysis import ActivationFile
from fastvideo.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def test_records_and_modules(traces: Any) -> None:
    """What may be left out of a line has its usual value."""
    more = {"loop": "denoising", "entry": 2, "recompute": True, "nonfinite": {"nan": 1}}
    file = traces.write("t", [traces.record(3, "a"), traces.record(4, "b", None, **more)])
    first, second = file.records()
    assert (first.key.step.loop, first.key.step.number, first.key.step.entry) == ("", 3, 0)
    assert first.values == {"abs_mean": 1.0}
    assert not first.key.recompute
    assert str(second.key.step) == "denoising step 4 (entered again, 3)"
    assert second.key.recompute
    assert (second.values, second.nonfinite) == ({"abs_mean": None}, {"nan": 1})
    assert file.modules == {"student": frozenset("abc")}
    assert file.header["run_id"] == "r"
    assert not file.torn


def test_the_last_line_may_be_torn(traces: Any) -> None:
    """That of a killed process is; all before it is read."""
    path = traces.write("t", [traces.record(1, "a"), traces.record(1, "b")]).path
    path.write_bytes(path.read_bytes()[:-5])
    file = ActivationFile(path)
    assert [record.key.module for record in file.records()] == ["a"]
    assert file.torn


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: no trace of activations was begun in it"),
        (b"\xff\xfe\n", "is no trace of activations: its first line is no header"),
        (b"[1]\n", "is no trace of activations"),
        (b'\x40\0\0\0\0\0\0\0{"a":{}}', "is no trace of activations"),
        (gzip.compress(b"{}"), "is compressed: unpack it first"),
        (b'{"module": "a"}\n', "its first line is no header"),
        (b'{"kind": "header", "version": 99}\n', "is of version 99; this release reads version 1"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """With what is wrong."""
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(DataError, match=message):
        ActivationFile(tmp_path / "t")


def test_missing_files_and_directories(tmp_path: Path) -> None:
    """They are said to be what they are."""
    with pytest.raises(FileNotFoundError, match="t does not exist"):
        ActivationFile(tmp_path / "t")
    with pytest.raises(DataError, match="is a directory"):
        ActivationFile(tmp_path)


RECORD = (
    '{"module": "a", "tensor": "out", "step": 1, "call": 0, "role": "student", '
    '"shape": [2], "dtype": "torch.float32", "numel": 2, "abs_mean": 1.0}'
)


@pytest.mark.parametrize(
    "line",
    [
        '{"module": "a"}',
        '{"sum": NaN}',
        "{",
        '"text"',
        '{"kind": "model"}',
        '{"kind": "model", "role": "student", "modules": 3}',
        RECORD.replace("1.0", "1e999"),
        RECORD.replace("1.0", '"1.0"'),
        RECORD.replace('"step": 1', '"step": "1"'),
        RECORD.replace("[2]", "2"),
        RECORD.replace('"a"', "[]"),
    ],
)
def test_a_damaged_line_is_named(traces: Any, line: str) -> None:
    """By its number; NaN is no JSON."""
    path = traces.write("t", [traces.record(1, "a")]).path
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match="line 4"):
        list(ActivationFile(path).records())


def test_a_record_of_a_file_from_elsewhere(traces: Any) -> None:
    """What is left out and what is unknown do no harm."""
    path = traces.write("t", []).path
    path.write_text(path.read_text() + RECORD.replace("{", '{"new": [], ', 1) + "\n")
    (record,) = ActivationFile(path).records()
    assert (record.key.module, record.shape, record.values) == ("a", (2,), {"abs_mean": 1.0})
