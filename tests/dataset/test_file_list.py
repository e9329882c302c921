"""Files are found, counted once, and counted again when they change."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastvideo.dataset import file_list, get_parquet_files_and_length
from fastvideo.dataset.file_list import PathSpec, check_data_path, parse_data_path_specs
from fastvideo.errors import ConfigError, DataError

_MANY = 40  # above the size from which counts are stored


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps the user's own cache out of the tests."""
    monkeypatch.setenv("FASTVIDEO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose footer was read, in this test."""
    names: list[str] = []
    count_rows = file_list.count_rows

    def recording(path: Path) -> int:
        names.append(path.name)
        return count_rows(path)

    monkeypatch.setattr(file_list, "count_rows", recording)
    return names


def _write(path: Path, rows: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": list(range(rows))}), path)
    return path


def _write_many(root: Path) -> Path:
    for i in range(_MANY):
        _write(root / f"f{i:02d}.parquet", i + 1)
    return root


def _names(files: tuple[str, ...]) -> list[str]:
    return [Path(file).name for file in files]


# --- path specs


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", [("a", 1)]),
        ("a:2,b:1", [("a", 2), ("b", 1)]),
        (" a : 2 , b ,", [("a", 2), ("b", 1)]),
        ("a:0,c", [("c", 1)]),
        (["a", "b:2"], [("a", 1), ("b:2", 1)]),
        ({"a": 3, "b": 0}, [("a", 3)]),
        ("", []),
        ([], []),
    ],
)
def test_path_specs(
    path: str | list[str] | dict[str, int], expected: list[tuple[str, int]]
) -> None:
    """Strings, lists and mappings name roots and repeats; a repeat of 0 drops a root."""
    assert parse_data_path_specs(path) == [PathSpec(*pair) for pair in expected]


@pytest.mark.parametrize("path", ["a:x", {"a": 1.5}, {"a": True}, {"a": None}, "a:-1", {"a": -1}])
def test_repeat_must_be_whole(path: str | dict[str, int]) -> None:
    """A repeat that is no whole number names the path, the value and the key."""
    with pytest.raises(ConfigError, match="data_path: the repeat of 'a' must be a whole number"):
        parse_data_path_specs(path)


@pytest.mark.parametrize("path", ["a:0", {"a": 0}])
def test_a_repeat_of_0_everywhere_is_named(path: str | dict[str, int]) -> None:
    """It is the repeat that is wrong, not the directory."""
    with pytest.raises(ConfigError, match="the repeat of 'a' is 0, which drops it"):
        parse_data_path_specs(path)


def test_a_repeat_that_fits_into_no_memory_is_refused(tmp_path: Path) -> None:
    """It would take minutes and gigabytes before anything else is wrong."""
    _write(tmp_path / "1.parquet", 1)
    for read in (get_parquet_files_and_length, check_data_path):
        with pytest.raises(ConfigError, match=r"repeat of .*, 1000000000, makes .* at most 1000"):
            read({str(tmp_path): 10**9})


def test_a_data_path_is_checked_without_writing(tmp_path: Path) -> None:
    """No file and too few rows are told; repeats count, and a large data set is left to later."""
    with pytest.raises(FileNotFoundError, match=r"no \*\.parquet file found"):
        check_data_path(str(tmp_path))
    _write(tmp_path / "1.parquet", 3)
    check_data_path(str(tmp_path), at_least=3)
    check_data_path({str(tmp_path): 2}, at_least=6)
    check_data_path(f"{tmp_path / '1.parquet'}:2", at_least=6)
    with pytest.raises(ConfigError, match=r"has 3 rows, fewer than one batch: .*batch_size is 4"):
        check_data_path(str(tmp_path), at_least=4)
    for number in range(40):
        _write(tmp_path / "many" / f"{number}.parquet", 1)
    before = sorted(tmp_path.rglob("*"))
    check_data_path(str(tmp_path), at_least=1000)
    assert sorted(tmp_path.rglob("*")) == before


def test_existing_path_is_taken_as_it_is(tmp_path: Path) -> None:
    """A directory whose name holds a colon or a comma is one directory."""
    for name in ("a:2", "a,b", "c:d"):
        (tmp_path / name).mkdir()
        path = str(tmp_path / name)
        assert parse_data_path_specs(path) == [PathSpec(path, 1)]


def test_long_list_of_roots() -> None:
    """A list longer than any file name is still a list."""
    names = [f"root{i:03d}" for i in range(200)]
    specs = parse_data_path_specs(",".join(f"{name}:1" for name in names))
    assert [spec.path for spec in specs] == names


# --- listing


def test_files_at_any_depth_sorted_by_name(tmp_path: Path) -> None:
    """Every parquet file counts, in one order, with its rows; others and hidden ones do not."""
    root = tmp_path / "data"
    _write(root / "b" / "deep" / "1.parquet", 3)
    _write(root / "a.parquet", 2)
    _write(root / ".hidden.parquet", 9)
    _write(root / ".trash" / "x.parquet", 9)
    (root / "notes.txt").write_text("x")
    files, lengths = get_parquet_files_and_length(str(root))
    assert files == (str(root / "a.parquet"), str(root / "b" / "deep" / "1.parquet"))
    assert lengths == (2, 3)


def test_repeats_and_mixed_roots(tmp_path: Path) -> None:
    """Repeats duplicate the entries, and several roots are sorted as one list."""
    _write(tmp_path / "z" / "1.parquet", 1)
    _write(tmp_path / "y" / "2.parquet", 2)
    spec = {str(tmp_path / "z"): 2, str(tmp_path / "y"): 1}
    files, lengths = get_parquet_files_and_length(spec)
    assert _names(files) == ["2.parquet", "1.parquet", "1.parquet"]
    assert lengths == (2, 1, 1)
    text = ",".join(f"{path}:{repeat}" for path, repeat in spec.items())
    assert get_parquet_files_and_length(text) == (files, lengths)


def test_single_file(tmp_path: Path) -> None:
    """A path may name one parquet file."""
    path = _write(tmp_path / "one.parquet", 5)
    assert get_parquet_files_and_length(path) == ((str(path),), (5,))


def test_relative_and_linked_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths become absolute, links are followed, and a looping link ends."""
    _write(tmp_path / "elsewhere" / "1.parquet", 1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    files, _ = get_parquet_files_and_length("data")
    assert files == (str(tmp_path / "data" / "linked" / "1.parquet"),)


@pytest.mark.parametrize("path", ["", [], {}, "missing", "data"])
def test_nothing_found(
    path: str | list[str] | dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No data is a FileNotFoundError that names the key, never a silent empty data set."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"training\.data\.data_path"):
        get_parquet_files_and_length(path)


@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
def test_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    """A file that is no parquet is named in the error."""
    _write(tmp_path / "good.parquet", 3)
    bad = _write(tmp_path / "bad.parquet", 3)
    content = {"empty": b"", "cut": bad.read_bytes()[:-9], "text": b"hello" * 10}
    bad.write_bytes(content[damage])
    with pytest.raises(DataError, match=r"bad\.parquet cannot be read as parquet"):
        get_parquet_files_and_length(str(tmp_path))


# --- stored counts


def test_small_data_sets_store_nothing(tmp_path: Path, cache_dir: Path) -> None:
    """A few files are counted each time, and nothing is written beside them."""
    _write(tmp_path / "data" / "a.parquet", 1)
    get_parquet_files_and_length(str(tmp_path / "data"))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["a.parquet"]
    assert not cache_dir.exists()


def test_counts_are_stored_and_used(tmp_path: Path, counted: list[str]) -> None:
    """The second listing reads no footer and gives the same answer."""
    root = _write_many(tmp_path / "data")
    first = get_parquet_files_and_length(str(root))
    assert len(counted) == _MANY
    counted.clear()
    assert get_parquet_files_and_length(str(root)) == first
    assert counted == []
    assert first[1] == tuple(range(1, _MANY + 1))
    stored = json.loads((root / "map_style_cache" / "file_list.json").read_text())
    assert stored["files"][0][::3] == ["f00.parquet", 1]


def test_changes_are_noticed(tmp_path: Path, counted: list[str]) -> None:
    """New, rewritten and removed files are noticed, and only they are read."""
    root = _write_many(tmp_path / "data")
    get_parquet_files_and_length(str(root))
    counted.clear()
    _write(root / "new.parquet", 7)
    _write(root / "f03.parquet", 99)
    (root / "f00.parquet").unlink()
    files, lengths = get_parquet_files_and_length(str(root))
    assert sorted(counted) == ["f03.parquet", "new.parquet"]
    rows = dict(zip(_names(files), lengths, strict=True))
    assert "f00.parquet" not in rows
    assert (rows["f03.parquet"], rows["new.parquet"]) == (99, 7)
    counted.clear()
    assert get_parquet_files_and_length(str(root)) == (files, lengths)
    assert counted == []


def test_file_of_the_same_size_written_later_is_noticed(tmp_path: Path, counted: list[str]) -> None:
    """The modification time alone is reason enough to read a file again."""
    root = _write_many(tmp_path / "data")
    get_parquet_files_and_length(str(root))
    counted.clear()
    os.utime(root / "f05.parquet", ns=(1, 1))
    get_parquet_files_and_length(str(root))
    assert counted == ["f05.parquet"]


def test_moved_data_set_keeps_its_counts(tmp_path: Path, counted: list[str]) -> None:
    """Names are relative to the root, so a moved data set is not read again."""
    root = _write_many(tmp_path / "data")
    get_parquet_files_and_length(str(root))
    counted.clear()
    files, _ = get_parquet_files_and_length(str(root.rename(tmp_path / "moved")))
    assert counted == []
    assert files[0] == str(tmp_path / "moved" / "f00.parquet")


def test_read_only_root_uses_the_user_cache(
    tmp_path: Path, cache_dir: Path, counted: list[str]
) -> None:
    """Where nothing can be written beside the data, the counts go to the user's cache."""
    root = _write_many(tmp_path / "data")
    (root / "map_style_cache").write_text("in the way, also for root")
    first = get_parquet_files_and_length(str(root))
    assert len(list((cache_dir / "file_lists").glob("*.json"))) == 1
    counted.clear()
    assert get_parquet_files_and_length(str(root)) == first
    assert counted == []


def test_no_place_for_the_counts_is_a_warning(
    tmp_path: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without any writable place the data set is still listed."""
    root = _write_many(tmp_path / "data")
    (root / "map_style_cache").write_text("in the way")
    cache_dir.write_text("in the way")
    _, lengths = get_parquet_files_and_length(str(root))
    assert sum(lengths) == _MANY * (_MANY + 1) // 2
    assert "cannot be stored" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 1, "files": [["f00.parquet", 1]]}',
        '{"version": 1, "files": [["f00.parquet", -1, 1, 1]]}',
        '{"version": 1, "files": [[5, 1, 1, "many"]]}',
        '{"version": 2, "files": []}',
    ],
)
def test_damaged_counts_are_written_again(tmp_path: Path, content: str, counted: list[str]) -> None:
    """A damaged cache costs a scan and is replaced."""
    root = _write_many(tmp_path / "data")
    cache = root / "map_style_cache" / "file_list.json"
    cache.parent.mkdir()
    cache.write_text(content)
    _, lengths = get_parquet_files_and_length(str(root))
    assert lengths == tuple(range(1, _MANY + 1))
    assert len(counted) == _MANY
    assert len(json.loads(cache.read_text())["files"]) == _MANY


def test_processes_scan_once(tmp_path: Path) -> None:
    """Of two processes that start together, one reads the footers."""
    root = _write_many(tmp_path / "data")
    script = (
        "import sys; from fastvideo.dataset import file_list as f; n = []; real = f.count_rows\n"
        "f.count_rows = lambda path: (n.append(path), real(path))[1]\n"
        "print(sum(f.get_parquet_files_and_length(sys.argv[1])[1]), len(n))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script, str(root)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [int(rows) for rows, _ in outputs] == [_MANY * (_MANY + 1) // 2] * 2
    assert sorted(int(count) for _, count in outputs) == [0, _MANY]


def test_files_are_counted_under_the_lock(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one process counts, another one that comes along cannot take the lock."""
    root = _write_many(tmp_path / "data")
    refused: list[bool] = []
    count_rows = file_list.count_rows

    def probing(path: Path) -> int:
        (lock,) = (cache_dir / "file_lists").glob("*.lock")
        with lock.open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(True)
        return count_rows(path)

    monkeypatch.setattr(file_list, "count_rows", probing)
    get_parquet_files_and_length(str(root))
    assert refused == [True] * _MANY
    (lock,) = (cache_dir / "file_lists").glob("*.lock")
    with lock.open() as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- the pickle of older preprocessors


def _write_legacy(root: Path, content: object) -> Path:
    path = root / "map_style_cache" / "file_info.pkl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return path


def test_legacy_pickle_saves_the_scan(tmp_path: Path, counted: list[str]) -> None:
    """The counts of an older cache are used for files that did not change since."""
    root = _write_many(tmp_path / "data")
    names = [str(root / f"f{i:02d}.parquet") for i in range(_MANY)]
    legacy = _write_legacy(root, (names, tuple(range(1, _MANY + 1))))
    os.utime(root / "f07.parquet", ns=(2**62, legacy.stat().st_mtime_ns + 1))
    _, lengths = get_parquet_files_and_length(str(root))
    assert counted == ["f07.parquet"]
    assert lengths == tuple(range(1, _MANY + 1))


class _Attack:
    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self._target),))


def test_legacy_pickle_cannot_run_code(
    tmp_path: Path, counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A pickle that would call a function is refused, said so, and the files are counted."""
    root = _write_many(tmp_path / "data")
    _write_legacy(root, ([_Attack(tmp_path / "harm")], [1]))
    _, lengths = get_parquet_files_and_length(str(root))
    assert not (tmp_path / "harm").exists()
    assert "only tuples, lists, text and numbers are read" in caplog.text
    assert lengths == tuple(range(1, _MANY + 1))
    assert len(counted) == _MANY


@pytest.mark.parametrize("content", [5, ("a",), (["a"], [1, 2]), (["a"], ["b"]), ([1], [1])])
def test_odd_legacy_pickles_are_ignored(
    tmp_path: Path, content: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A pickle of another form is passed over with a warning."""
    root = _write_many(tmp_path / "data")
    _write_legacy(root, content)
    _, lengths = get_parquet_files_and_length(str(root))
    assert lengths == tuple(range(1, _MANY + 1))
    assert "is not used" in caplog.text
