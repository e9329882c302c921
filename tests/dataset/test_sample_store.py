"""Finished samples: on disk at once, in the data set exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastvideo.dataset.sample_store import DATASET_FOLDER, SampleStore, open_store
from fastvideo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

SCHEMA = pa.schema([("id", pa.string()), ("caption", pa.string())])


def rows(*ids: str) -> pa.Table:
    """A table with these ids."""
    return pa.table({"id": list(ids), "caption": [f"about {name}" for name in ids]}, schema=SCHEMA)


def opened(
    out: Path, *, samples_per_file: int = 3, **settings: Any
) -> AbstractContextManager[SampleStore]:
    """The store of a directory."""
    return open_store(out, schema=SCHEMA, samples_per_file=samples_per_file, settings=settings)


def in_dataset(out: Path) -> list[str]:
    """The ids in the parquet files, in the order of the files."""
    files = sorted((out / DATASET_FOLDER).rglob("*.parquet"))
    return [name for file in files for name in pq.read_table(file)["id"].to_pylist()]


def file_sizes(out: Path) -> list[int]:
    """Rows of every parquet file."""
    files = sorted((out / DATASET_FOLDER).rglob("*.parquet"))
    return [pq.read_metadata(file).num_rows for file in files]


def test_full_files_are_written_on_the_way_and_the_rest_at_the_end(tmp_path: Path) -> None:
    """Files have the number of rows asked for, in the order of adding."""
    with opened(tmp_path) as store:
        for name in "abcd":
            store.add(rows(name))
        assert in_dataset(tmp_path) == ["a", "b", "c"]
        store.finish()
    assert in_dataset(tmp_path) == ["a", "b", "c", "d"]
    assert file_sizes(tmp_path) == [3, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        DATASET_FOLDER,
        "preprocess.json",
    ]


def test_rows_that_belong_together_may_be_split_over_files(tmp_path: Path) -> None:
    """A clip with many windows does not change the number of rows per file."""
    with opened(tmp_path) as store:
        store.add(rows("a0", "a1"))
        store.add(rows("b0", "b1", "b2", "b3", "b4"))
        store.finish()
    assert in_dataset(tmp_path) == ["a0", "a1", "b0", "b1", "b2", "b3", "b4"]
    assert file_sizes(tmp_path) == [3, 3, 1]


def test_a_store_that_was_not_finished_remembers(tmp_path: Path) -> None:
    """Rows that were added and in no parquet file yet are there after a new start."""
    with opened(tmp_path) as store:
        for name in "abcd":
            store.add(rows(name))
    with opened(tmp_path) as store:
        assert [name in store for name in "abcde"] == [True, True, True, True, False]
        assert store.captions["d"] == "about d"
        store.add(rows("e"))
        store.finish()
    assert in_dataset(tmp_path) == list("abcde")


def test_adding_the_same_sample_twice_is_an_error(tmp_path: Path) -> None:
    """No caller can make duplicates."""
    with opened(tmp_path) as store:
        store.add(rows("a"))
        with pytest.raises(DataError, match="sample 'a' was written before"):
            store.add(rows("b", "a"))


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the code under test may run for it."""


def killed_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the run just before or after the n-th change of the file system."""
    left = [steps]

    def wrap(owner: type, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    for name in ("replace", "unlink", "mkdir", "rmdir"):
        wrap(Path, name)


def run_until_killed(out: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Adds all samples that are missing; returns whether it came to the end."""
    samples = [("a0", "a1"), ("b0",), ("c0", "c1", "c2", "c3"), ("d0",), ("e0",)]
    with monkeypatch.context() as patch:
        killed_after(steps, patch)
        try:
            with opened(out) as store:
                for names in samples:
                    if names[0] not in store:
                        store.add(rows(*names))
                store.finish()
        except Killed:
            return False
    return True


def test_a_kill_at_any_moment_neither_loses_nor_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending at every single step, and going on afterwards, gives the same files as one run."""
    assert run_until_killed(tmp_path / "whole", 10**6, monkeypatch)
    expected = in_dataset(tmp_path / "whole")
    assert expected == ["a0", "a1", "b0", "c0", "c1", "c2", "c3", "d0", "e0"]
    steps = 0
    while True:
        out = tmp_path / str(steps)
        finished = run_until_killed(out, steps, monkeypatch)
        assert run_until_killed(out, 10**6, monkeypatch)
        assert in_dataset(out) == expected, steps
        assert file_sizes(out) == file_sizes(tmp_path / "whole"), steps
        assert [p.name for p in out.rglob("*") if p.name.endswith((".tmp", ".arrow"))] == []
        if finished:
            break
        steps += 1
    assert steps > 15


def test_a_kill_again_and_again_comes_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress is made even when every run is killed after five steps."""
    runs = 0
    while not run_until_killed(tmp_path, 5, monkeypatch):
        runs += 1
        assert runs < 50
    assert in_dataset(tmp_path) == ["a0", "a1", "b0", "c0", "c1", "c2", "c3", "d0", "e0"]


def test_a_damaged_unfinished_file_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a power failure such a file may be empty; its samples count as not finished."""
    with opened(tmp_path) as store:
        store.add(rows("a"))
        store.add(rows("b"))
    (tmp_path / "unfinished" / "00000000.arrow").write_bytes(b"")
    with opened(tmp_path) as store:
        assert ["a" in store, "b" in store] == [False, True]
        store.add(rows("a"))
        store.finish()
    assert sorted(in_dataset(tmp_path)) == ["a", "b"]
    assert "00000000.arrow is damaged and will be made again" in caplog.text


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    """Whose samples are finished cannot be known then, so nothing is guessed."""
    with opened(tmp_path) as store:
        store.add(rows("a", "b", "c"))
    (file,) = (tmp_path / DATASET_FOLDER).rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:50])
    with (
        pytest.raises(DataError, match=r"data_chunk_000000\.parquet cannot be read.* remove it"),
        opened(tmp_path),
    ):
        pass


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    """Samples of two sizes do not mix."""
    with opened(tmp_path, height=64, fps=16.0) as store:
        store.add(rows("a"))
    message = r"made with other settings \(height was 64, is 128\)"
    with pytest.raises(ConfigError, match=message), opened(tmp_path, height=128, fps=16.0):
        pass
    with opened(tmp_path, height=64, fps=16.0) as store:
        assert "a" in store


def test_settings_may_change_while_there_are_no_samples(tmp_path: Path) -> None:
    """A first try with a wrong option does not spoil the directory."""
    with opened(tmp_path, height=64):
        pass
    with opened(tmp_path, height=128):
        pass
    assert json.loads((tmp_path / "preprocess.json").read_text()) == {"height": 128}


def test_a_data_set_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    """Parquet files without our settings beside them are not added to."""
    (tmp_path / DATASET_FOLDER).mkdir()
    pq.write_table(rows("x"), tmp_path / DATASET_FOLDER / "x.parquet")
    with (
        pytest.raises(ConfigError, match=r"preprocess\.json, which says how they were made"),
        opened(tmp_path),
    ):
        pass


def test_two_processes_do_not_write_at_once(tmp_path: Path) -> None:
    """The second one is told so; when the first has ended, it may begin."""
    code = (
        "import sys, pathlib, pyarrow as pa\n"
        "from fastvideo.dataset.sample_store import open_store\n"
        "with open_store(pathlib.Path(sys.argv[1]), schema=pa.schema([('id', pa.string())]),"
        " samples_per_file=1, settings={}):\n"
        "    print('open', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(ConfigError, match="another process is writing to"), opened(tmp_path):
            pass
        other.kill()
    with opened(tmp_path) as store:
        store.add(rows("a"))
