"""Reading caption files and finding each clip's caption."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from fastvideo.dataset.captions import AUTO, CaptionRecord, load_captions, match_captions
from fastvideo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> Path:
    """Writes a text file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def clips(root: Path, *names: str) -> list[Path]:
    """Empty files that stand for clips."""
    return [write(root / name, "") for name in names]


EXPECTED = [("a.mp4", "a cat"), ("sub/b.mp4", "a dog, barking")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "list.json",
            '[{"path": "a.mp4", "cap": ["a cat"]}, {"path": "sub/b.mp4", "cap": "a dog, barking"}]',
        ),
        (
            "data.json",
            (
                '{"data": [{"file_name": "a.mp4", "caption": " a cat "},'
                ' {"video": "sub/b.mp4", "prompt": "a dog, barking"}]}'
            ),
        ),
        ("mapping.json", '{"a.mp4": "a cat", "sub/b.mp4": {"text": "a dog, barking"}}'),
        (
            "lines.jsonl",
            (
                '{"name": "a.mp4", "text": "a cat"}\n\n'
                '{"name": "sub/b.mp4", "text": "a dog, barking"}\n'
            ),
        ),
        ("table.csv", 'file_name,caption\r\na.mp4,a cat\r\nsub/b.mp4,"a dog, barking"\r\n'),
        ("bom.csv", '\ufefffile_name,caption\na.mp4,a cat\nsub/b.mp4,"a dog, barking"\n'),
    ],
)
def test_the_usual_forms_of_caption_files_are_read(name: str, text: str, tmp_path: Path) -> None:
    """Lists, mappings, lines and tables give the same records."""
    records = load_captions(write(tmp_path / name, text))
    assert [(record.name, record.caption) for record in records] == EXPECTED


def test_a_text_file_holds_a_prompt_per_line(tmp_path: Path) -> None:
    """Prompts without clips are numbered by line, and empty lines are left out."""
    path = write(tmp_path / "prompts.txt", "a cat\n\n  a dog\n")
    assert load_captions(path) == [
        CaptionRecord("", "a cat", "prompts.txt:1"),
        CaptionRecord("", "a dog", "prompts.txt:3"),
    ]


def test_a_caption_may_hold_line_breaks_and_unusual_separators(tmp_path: Path) -> None:
    """Only real line ends separate entries."""
    lines = write(tmp_path / "a.jsonl", '{"caption": "one\u2028two"}\n{"caption": "three"}')
    table = write(tmp_path / "a.csv", 'caption\n"one\ntwo"\nthree\n')
    assert [record.caption for record in load_captions(lines)] == ["one\u2028two", "three"]
    assert [record.caption for record in load_captions(table)] == ["one\ntwo", "three"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "a.json is not valid JSON"),
        ("a.json", "3", "a.json holds a JSON int; expected a list of objects"),
        ("a.json", "[3]", "a.json[0] is a int; expected an object with a caption"),
        ("a.json", '{"x": 3}', "a.json['x'] has a caption of type int; expected text"),
        ("a.jsonl", '{"caption": "x"}\n{"caption"', "a.jsonl:2 is not valid JSON"),
        ("a.jsonl", '{"file": "x"}', "a.jsonl:1 has the keys file; expected one of caption"),
        ("a.csv", "file,words\nx,y\n", "has the columns file, words; expected a header with one"),
        ("a.csv", "", "has the columns none; expected a header with one"),
    ],
)
def test_files_that_cannot_be_understood_name_the_place(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    """The error says where, what was found and what was expected."""
    path = write(tmp_path / name, text)
    with pytest.raises(DataError, match=re.escape(message)):
        load_captions(path)


def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    """Latin-1 is not guessed at."""
    path = tmp_path / "a.csv"
    path.write_bytes("caption\nein Bär\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.csv is not UTF-8 text"):
        load_captions(path)


def test_missing_files_and_unknown_endings_are_mistakes_of_the_caller(tmp_path: Path) -> None:
    """Both name the file."""
    with pytest.raises(ConfigError, match=r"a\.json does not exist"):
        load_captions(tmp_path / "a.json")
    with pytest.raises(ConfigError, match=r"ends in '\.xlsx'; expected \.json, \.jsonl, \.csv"):
        load_captions(tmp_path / "a.xlsx")


@pytest.mark.parametrize(
    "name", ["one/a.mp4", "one/a", "videos/one/a.mp4", "./one/a.mp4", "one\\a.mp4"]
)
def test_a_name_is_the_end_of_the_clips_path(name: str, tmp_path: Path) -> None:
    """Names are relative to the folder or one above it, with or without the file's ending."""
    root = tmp_path / "videos"
    found = clips(root, "one/a.mp4", "two/a.mp4")
    source = write(tmp_path / "captions.json", json.dumps({name: "a cat"}))
    matched = match_captions(found, str(source), root)
    assert matched.captions == {found[0]: "a cat"}
    assert matched.problems == {found[1]: "no caption in captions.json names it"}


def test_names_may_be_relative_to_the_caption_file_or_absolute(tmp_path: Path) -> None:
    """A list kept elsewhere still finds its clips."""
    root = tmp_path / "videos"
    found = clips(root, "a.mp4", "b.mp4")
    listed = {"../videos/a.mp4": "a cat", str(found[1]): "a dog"}
    source = write(tmp_path / "lists" / "captions.json", json.dumps(listed))
    matched = match_captions(found, str(source), root)
    assert matched.captions == {found[0]: "a cat", found[1]: "a dog"}
    assert matched.unused == []


def test_part_of_a_file_name_is_no_match(tmp_path: Path) -> None:
    """``cat.mp4`` is not the caption of ``bobcat.mp4``, nor of a clip in another folder."""
    found = clips(tmp_path, "bobcat.mp4", "two/dog.mp4")
    source = write(tmp_path / "c.json", '{"cat.mp4": "a cat", "one/dog.mp4": "a dog"}')
    matched = match_captions(found, str(source), tmp_path)
    assert matched.captions == {}
    assert matched.unused == ["c.json['cat.mp4']", "c.json['one/dog.mp4']"]


def test_the_longest_name_wins(tmp_path: Path) -> None:
    """A name with its folder is preferred to a bare one."""
    found = clips(tmp_path, "one/a.mp4")
    source = write(tmp_path / "c.json", '{"a.mp4": "some cat", "one/a.mp4": "this cat"}')
    assert match_captions(found, str(source), tmp_path).captions == {found[0]: "this cat"}


def test_two_captions_of_one_clip_are_a_problem(tmp_path: Path) -> None:
    """Which one is meant is not guessed; the same caption twice is no problem."""
    found = clips(tmp_path, "a.mp4", "b.mp4")
    lines = [("a.mp4", "a cat"), ("a.mp4", "a dog"), ("b.mp4", "a bird"), ("b.mp4", "a bird")]
    text = "".join(json.dumps({"file": name, "caption": text}) + "\n" for name, text in lines)
    matched = match_captions(found, str(write(tmp_path / "c.jsonl", text)), tmp_path)
    assert matched.captions == {found[1]: "a bird"}
    assert matched.problems == {found[0]: "2 different captions name it (c.jsonl:1, c.jsonl:2)"}


def test_one_caption_of_two_clips_is_a_problem(tmp_path: Path) -> None:
    """A bare name that fits two folders says which clips it fits."""
    found = clips(tmp_path, "one/a.mp4", "two/a.mp4")
    source = write(tmp_path / "c.json", '{"a.mp4": "a cat"}')
    matched = match_captions(found, str(source), tmp_path)
    assert matched.captions == {}
    assert "names 2 clips (one/a.mp4, two/a.mp4)" in matched.problems[found[0]]


def test_an_empty_caption_is_a_problem(tmp_path: Path) -> None:
    """White space is no caption."""
    found = clips(tmp_path, "a.mp4")
    source = write(tmp_path / "c.json", '{"a.mp4": "  "}')
    matched = match_captions(found, str(source), tmp_path)
    assert matched.problems == {found[0]: "its caption is empty (c.json['a.mp4'])"}


def test_a_file_without_names_cannot_caption_clips(tmp_path: Path) -> None:
    """A list of prompts says nothing about clips."""
    found = clips(tmp_path, "a.mp4")
    source = write(tmp_path / "prompts.txt", "a cat\n")
    with pytest.raises(ConfigError, match=r"prompts\.txt names no clips"):
        match_captions(found, str(source), tmp_path)


def test_auto_prefers_the_text_beside_the_clip(tmp_path: Path) -> None:
    """Clips without such a text are looked up in the folder's caption file."""
    found = clips(tmp_path, "a.mp4", "b.mp4", "c.mp4", "d.mp4", "e.mp4")
    write(tmp_path / "a.txt", "a cat\n")
    write(tmp_path / "b.mp4.txt", "a dog\n")
    write(tmp_path / "d.txt", "\n")
    (tmp_path / "e.txt").write_bytes(b"\xff\xfe\x00")
    write(tmp_path / "captions.csv", "file,caption\na,other\nc,a bird\n")
    matched = match_captions(found, AUTO, tmp_path)
    assert matched.captions == dict(zip(found, ["a cat", "a dog", "a bird"], strict=False))
    assert matched.problems == {
        found[3]: "its caption file d.txt is empty",
        found[4]: "its caption file e.txt is not UTF-8 text",
    }


def test_auto_says_what_it_looked_for(tmp_path: Path) -> None:
    """Without any caption, the reason names the files that would do."""
    found = clips(tmp_path, "a.mp4")
    reason = match_captions(found, AUTO, tmp_path).problems[found[0]]
    assert reason.startswith("no a.txt beside it, and no captions.json, .jsonl or .csv in ")


def test_many_clips_with_equal_names_are_matched_quickly(tmp_path: Path) -> None:
    """Numbered files in numbered folders: the work grows with the clips, not with their square."""
    names = [f"part{folder}/{number:05d}.mp4" for folder in range(300) for number in range(20)]
    source = write(tmp_path / "c.json", json.dumps({name: f"about {name}" for name in names}))
    found = [tmp_path / name for name in names]
    matched = match_captions(found, str(source), tmp_path)
    assert matched.captions == {tmp_path / name: f"about {name}" for name in names}
