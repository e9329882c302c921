"""Validation prompts are read from the usual file types, and mistakes in them are named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastvideo.dataset.validation_file import read_validation_file, share_of_group
from fastvideo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path

_RECORDS = [
    {"caption": "a cat, asleep", "image_path": "img/cat.png", "height": 480},
    {"caption": "ein Hund läuft", "image_path": None, "height": 720},
]


def _write(folder: Path, suffix: str) -> Path:
    path = folder / f"val{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps({"data": _RECORDS}))
    elif suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, _RECORDS)) + "\n\n")
    elif suffix == ".csv":
        path.write_text(
            'caption,image_path,height\n"a cat, asleep",img/cat.png,480\nein Hund läuft,,720\n',
            encoding="utf-8",
        )
    else:
        pq.write_table(pa.Table.from_pylist(_RECORDS), path)
    return path


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".csv", ".parquet"])
def test_file_types(tmp_path: Path, suffix: str) -> None:
    """Every file type gives the same captions, prompts and absolute paths."""
    records = read_validation_file(_write(tmp_path, suffix))
    assert [record["caption"] for record in records] == ["a cat, asleep", "ein Hund läuft"]
    assert [record["prompt"] for record in records] == ["a cat, asleep", "ein Hund läuft"]
    assert records[0]["image_path"] == str(tmp_path / "img" / "cat.png")
    assert records[1].get("image_path") is None
    assert [int(record["height"]) for record in records] == [480, 720]


def test_bare_list(tmp_path: Path) -> None:
    """A json file may be the list itself."""
    path = tmp_path / "val.json"
    path.write_text(json.dumps(_RECORDS))
    assert len(read_validation_file(path)) == 2


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every path column is resolved; absolute paths, URLs and other columns stay."""
    record = {
        "caption": "x",
        "video_path": "v.mp4",
        "ref_video": "/data/r.mp4",
        "action_path": "https://example.org/a.npy",
        "control_depth": "d/depth.mp4",
        "control_scale": 0.5,
        "file_name": "v.mp4",
    }
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "val.json").write_text(json.dumps([record]))
    monkeypatch.chdir(tmp_path)
    assert read_validation_file("sub/val.json") == [
        record
        | {
            "prompt": "x",
            "video_path": str(tmp_path / "sub" / "v.mp4"),
            "control_depth": str(tmp_path / "sub" / "d" / "depth.mp4"),
        }
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.json", "{", r"v\.json cannot be read as a \.json"),
        ("v.json", '{"captions": []}', r'expected \{"data"'),
        ("v.json", '{"data": []}', "has no records"),
        ("v.json", '[{"caption": "a"}, "b"]', "record 1 must be a mapping, got str"),
        ("v.json", '[{"captoin": "a"}]', "record 0 needs a 'caption'.*Did you mean 'captoin'"),
        ("v.json", '[{"caption": " "}]', "record 0 needs a 'caption' with text, got ' '"),
        ("v.jsonl", '{"caption": "a"}\n{', r"v\.jsonl cannot be read"),
        ("v.csv", "caption,height\na cat, asleep,480\n", "more cells than the header"),
        ("v.csv", "caption\n", "has no records"),
        ("v.parquet", "no parquet", r"v\.parquet cannot be read as a \.parquet"),
        ("v.yaml", "a: 1", r"ends in one of \.csv, \.json, \.jsonl, \.parquet"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    """The error names the file, and the record where one is to blame."""
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_validation_file(tmp_path / name)


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".csv", ".parquet"])
def test_missing_file(tmp_path: Path, suffix: str) -> None:
    """A file that is not there is a FileNotFoundError naming it."""
    with pytest.raises(FileNotFoundError, match="absent"):
        read_validation_file(tmp_path / f"absent{suffix}")


@pytest.mark.parametrize(
    ("count", "groups", "shares"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4, 0]]),
        (1, 3, [[0], [0], [0]]),
        (2, 5, [[0], [1], [0], [1], [0]]),
        (3, 1, [[0, 1, 2]]),
    ],
)
def test_shares_are_contiguous_and_equal(count: int, groups: int, shares: list[list[int]]) -> None:
    """Records are padded from the front and split into equal, contiguous parts."""
    records = list(range(count))
    got = [share_of_group(records, num_groups=groups, group=g) for g in range(groups)]
    assert got == shares


def test_shares_of_nothing() -> None:
    """No records and unknown groups are errors."""
    with pytest.raises(ConfigError, match="0 records to group 0 of 2"):
        share_of_group([], num_groups=2, group=0)
    with pytest.raises(ConfigError, match="1 records to group 2 of 2"):
        share_of_group([1], num_groups=2, group=2)
