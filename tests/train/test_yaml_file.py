"""Reading YAML: numbers, repeated keys, and files that are none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.yaml_file import dump_yaml, parse_yaml, read_yaml

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1e-5", 1e-5), ("2E3", 2000.0), ("-1.5e+2", -150.0), (".5e1", 5.0), ("1e", "1e")],
        *[("7", 7), ("-7", -7), ("1_000", 1000), ("0", 0), ("0x1F", 31), ("0o17", 15)],
        *[("1.5", 1.5), ("1.", 1.0), (".5", 0.5), (".inf", float("inf")), ("1_0.5", 10.5)],
        *[
            ("1:30", "1:30"),
            ("1:30.5", "1:30.5"),
            ("0b11", "0b11"),
            ("true", True),
            ("1.2.3", "1.2.3"),
        ],
    ],
)
def test_numbers_are_those_of_yaml_1_2(text: str, value: object) -> None:
    """`1e-5` is a number and `1:30` is none, as every reader thinks."""
    result = parse_yaml(f"x: {text}", where="test")["x"]
    assert (result, type(result)) == (value, type(value))


def test_a_number_with_a_leading_zero_is_decimal(caplog: pytest.LogCaptureFixture) -> None:
    """It was octal in YAML 1.1, so a person is told."""
    with caplog.at_level(logging.WARNING):
        assert parse_yaml("a: 1\nseed: 0123\n", where="run.yaml") == {"a": 1, "seed": 123}
    assert [r.getMessage() for r in caplog.records] == [
        "run.yaml, line 2: 0123 is read as 123, no octal number"
    ]


def test_a_repeated_key_is_refused_with_its_line() -> None:
    """Which of the two is meant is not for the program to say; merged keys may be written over."""
    with pytest.raises(ConfigError) as error:
        parse_yaml("a: 1\nb: 2\na: 3\n", where="run.yaml")
    assert str(error.value) == (
        "run.yaml is not valid YAML: line 3, column 1: the key 'a' is repeated; leave one of them"
    )
    merged = parse_yaml("x: &x {a: 1}\ny:\n  <<: *x\n  a: 2\n", where="run.yaml")
    assert merged == {"x": {"a": 1}, "y": {"a": 2}}


def test_unsafe_tags_are_refused() -> None:
    """A run file cannot make Python objects."""
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_yaml("x: !!python/object/apply:os.getcwd []", where="run.yaml")


def test_syntax_errors_name_file_and_line(tmp_path: Path) -> None:
    """A broken file is refused with the place of the break."""
    path = tmp_path / "run.yaml"
    path.write_text("a: 1\nb: [1,\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"(?s)run\.yaml is not valid YAML.*line 3") as caught:
        read_yaml(path)
    assert isinstance(caught.value, ValueError)


def test_files_that_are_none(tmp_path: Path) -> None:
    """A missing file, a directory and a binary file are told apart."""
    with pytest.raises(FileNotFoundError, match=r"absent\.yaml does not exist"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(ValueError, match="is a directory"):
        read_yaml(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        read_yaml(tmp_path / "binary.yaml")


def test_dumped_values_are_read_back_as_they_are() -> None:
    """Text that looks like a number stays text, order stays, and no anchors are made."""
    shared = {"a": 1}
    content = {
        "o": "0o17",
        "s": "1:30",
        "z": "1e-5",
        "a": 1e-5,
        "n": None,
        "t": "true",
        "list": [shared, shared],
        "x": "é",
    }
    text = dump_yaml(content)
    assert parse_yaml(text, where="dump") == content
    assert list(parse_yaml(text, where="dump")) == list(content)
    assert "&" not in text


def test_a_mistake_of_syntax_is_one_line_with_its_place() -> None:
    """What the parser prints otherwise is four lines and more."""
    with pytest.raises(ConfigError) as error:
        parse_yaml("models:\n  student: [a\n  b: }\n", where="run.yaml")
    assert str(error.value) == (
        "run.yaml is not valid YAML: line 3, column 4: expected ',' or ']', but got ':' "
        "(while parsing a flow sequence in what begins in line 2)"
    )
    with pytest.raises(ConfigError, match=r"^[^\n]*not allowed[^\n]*$"):
        parse_yaml("a: \x00", where="run.yaml")
