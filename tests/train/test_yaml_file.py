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
    [("1e-5", 1e-5), ("2E3", 2000.0), ("-1.5e+2", -150.0), (".5e1", 5.0), ("1e", "1e"), ("7", 7)],
)
def test_exponents_are_numbers_without_a_dot(text: str, value: object) -> None:
    """`1e-5` is a number, as YAML 1.2 and every reader think."""
    result = parse_yaml(f"x: {text}", where="test")["x"]
    assert (result, type(result)) == (value, type(value))


def test_repeated_key_is_one_warning_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    """The last of two equal keys counts, and a person is told where."""
    with caplog.at_level(logging.WARNING):
        assert parse_yaml("a: 1\nb: 2\na: 3\n", where="run.yaml") == {"a": 3, "b": 2}
    assert [r.getMessage() for r in caplog.records] == [
        "run.yaml, line 3: key 'a' is repeated; the last one counts"
    ]


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
    content = {"z": "1e-5", "a": 1e-5, "n": None, "t": "true", "list": [shared, shared], "x": "é"}
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
