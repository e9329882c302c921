"""Command-line overrides: grammar, casting, application."""

from __future__ import annotations

from typing import Any

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.overrides import (
    apply_overrides,
    cast_value,
    parse_overrides,
    unknown_path,
)


def _apply(raw: dict[str, Any], *tokens: str, text: bool = False) -> dict[str, Any]:
    apply_overrides(raw, parse_overrides(tokens), check_path=lambda _: text)
    return raw


def test_both_spellings_are_read_in_order() -> None:
    """`--a=v` and `--a v` mean the same, and values may hold equals signs."""
    found = parse_overrides(["--a.b=1", "--c.d", "x=y", "--e=f=g"])
    assert [(o.path, o.text) for o in found] == [
        (("a", "b"), "1"),
        (("c", "d"), "x=y"),
        (("e",), "f=g"),
    ]


def test_negative_numbers_and_empty_values_are_values() -> None:
    """A single dash starts a value, and `--a=` is the empty text."""
    assert [o.text for o in parse_overrides(["--a", "-5", "--b="])] == ["-5", ""]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["run"], "unexpected argument 'run'"),
        (["-x", "1"], "unexpected argument '-x'"),
        (["--a.b", "1", "2"], "unexpected argument '2'"),
        (["--a.b"], "--a.b has no value: nothing follows"),
        (["--a.b", "--c", "1"], "--a.b has no value: '--c' follows"),
        (["--a..b=1"], "has an empty part"),
        (["--=1"], "has an empty part"),
        (["--", "1"], "has an empty part"),
    ],
)
def test_wrong_grammar_is_refused(tokens: list[str], message: str) -> None:
    """Each way to write no override is one clear error."""
    with pytest.raises(ValueError, match=message):
        parse_overrides(tokens)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("none", None),
        ("NULL", None),
        ("0", 0),
        ("-7", -7),
        ("1e-3", 0.001),
        ("0.0", 0.0),
        ("[1, 2.5, a]", [1, 2.5, "a"]),
        ("[1e-3]", [0.001]),
        ("{text: zero, on_missing: ignore}", {"text": "zero", "on_missing": "ignore"}),
        ("outputs/x", "outputs/x"),
        ("", ""),
        ("yes", "yes"),
        ("a:2,b:1", "a:2,b:1"),
    ],
)
def test_cast_order(text: str, value: object) -> None:
    """Truth values, null, integers, floats, lists, mappings, and otherwise the text."""
    result = cast_value(text)
    assert (result, type(result)) == (value, type(value))


def test_broken_list_names_the_option() -> None:
    """A list that is no YAML is refused with the option it belongs to."""
    with pytest.raises(ConfigError, match=r"--method\.steps"):
        _apply({}, "--method.steps", "[1, {]")


def test_missing_mappings_are_created_and_scalars_replaced() -> None:
    """The way to the key is made, whatever stood there."""
    assert _apply({"a": 1}, "--a.b.c=2", "--x.y=3") == {"a": {"b": {"c": 2}}, "x": {"y": 3}}


def test_mapping_at_the_end_is_replaced_whole() -> None:
    """A data-path mapping overridden by a path leaves nothing of the mapping."""
    raw = {"data": {"data_path": {"a": 1, "b": 2}}}
    assert _apply(raw, "--data.data_path", "c") == {"data": {"data_path": "c"}}


def test_later_overrides_win() -> None:
    """The same key twice keeps the last value."""
    assert _apply({}, "--a.b=1", "--a.b=2") == {"a": {"b": 2}}


def test_dashes_become_underscores_in_keys_only() -> None:
    """A dash in a key is an underscore unless the mapping has that very key."""
    raw = {"callbacks": {"my-own": {}}}
    expected = {"callbacks": {"my-own": {"every_steps": "a-b"}, "grad_clip": {"x": 1}}}
    tokens = ("--callbacks.my-own.every-steps", "a-b", "--callbacks.grad-clip.x", "1")
    assert _apply(raw, *tokens) == expected


def test_star_reaches_every_mapping_at_its_place() -> None:
    """`--models.*.init_from` sets the key in all roles."""
    raw = {"models": {"student": {"init_from": "a"}, "critic": {}, "note": "text"}}
    assert _apply(raw, "--models.*.init_from", "tiny") == {
        "models": {
            "student": {"init_from": "tiny"},
            "critic": {"init_from": "tiny"},
            "note": "text",
        }
    }


def test_star_that_matches_nothing_is_an_error() -> None:
    """A wildcard without a role to stand for is not silently nothing."""
    with pytest.raises(ConfigError, match="nothing that '\\*' could stand for"):
        _apply({}, "--models.*.init_from", "tiny")


def test_text_keys_keep_names_that_look_like_numbers() -> None:
    """`007` stays a name for a key of text, while null is still null."""
    assert _apply({}, "--a=007", "--b=null", "--c=true", text=True) == {
        "a": "007",
        "b": None,
        "c": "true",
    }


@pytest.mark.parametrize(
    ("flag", "path"),
    [
        ("--resume-from-checkpoint", ("training", "checkpoint", "resume_from_checkpoint")),
        ("--resume_from_checkpoint", ("training", "checkpoint", "resume_from_checkpoint")),
        ("--override-output-dir", ("training", "checkpoint", "output_dir")),
    ],
)
def test_old_flags_are_aliases(flag: str, path: tuple[str, ...]) -> None:
    """Flags of older launch scripts set the key they always meant."""
    assert parse_overrides([flag, "x"])[0].path == path


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("training.loop.max_train_step", "--training.loop.max_train_steps"),
        ("max_train_steps", "--training.loop.max_train_steps"),
        ("training.max_train_steps", "--training.loop.max_train_steps"),
        ("model.student.init_from", "--models.student.init_from"),
        ("trainin.loop.max_train_steps", "--training.loop.max_train_steps"),
        ("resume_from_checkpont", "--resume_from_checkpoint"),
    ],
)
def test_unknown_paths_get_the_nearest_match(path: str, suggestion: str) -> None:
    """The suggestion finds a wrong section, a wrong key and a missing prefix."""
    typed = ["training.loop.max_train_steps", "training.data.seed"]
    error = unknown_path(path, typed=typed, free=("models", "method", "callbacks"))
    assert str(error).endswith(f"Did you mean {suggestion}?")


def test_unknown_path_without_a_match_suggests_nothing() -> None:
    """Nothing is guessed where nothing is near."""
    error = unknown_path("zzz.qqq", typed=["training.data.seed"], free=("models",))
    assert str(error) == "unknown override --zzz.qqq: there is no such key."
