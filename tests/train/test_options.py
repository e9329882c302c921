"""Casts and lookups: what is accepted, and how a refusal reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train import options

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("cast", "value", "expected"),
    [
        (options.as_int, 4, 4),
        (options.as_int, 4.0, 4),
        (options.as_int, "4", 4),
        (options.as_int, "1e3", 1000),
        (options.as_float, 2, 2.0),
        (options.as_float, "1e-3", 0.001),
        (options.as_bool, "TRUE", True),
        (options.as_bool, 0, False),
        (options.as_text, 7, "7"),
        (options.as_betas, [0, "0.999"], (0.0, 0.999)),
        (options.as_betas, "0.9, 0.95", (0.9, 0.95)),
        (options.as_betas, "[0.9,0.95]", (0.9, 0.95)),
    ],
)
def test_casts_accept_what_people_write(
    cast: Callable[..., Any], value: object, expected: object
) -> None:
    """Numbers as text, integral floats and the usual words are understood."""
    result = cast(value, where="here")
    assert (result, type(result)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("cast", "value"),
    [
        (options.as_int, True),
        (options.as_int, 4.5),
        (options.as_int, "four"),
        (options.as_int, float("inf")),
        (options.as_int, None),
        (options.as_int, [1]),
        (options.as_float, False),
        (options.as_float, "nan"),
        (options.as_float, float("inf")),
        (options.as_float, 10**400),
        (options.as_bool, 2),
        (options.as_bool, 1.0),
        (options.as_bool, None),
        (options.as_text, True),
        (options.as_text, ["a"]),
        (options.as_betas, [0.9]),
        (options.as_betas, "0.9"),
        (options.as_betas, [0.9, 1.0]),
        (options.as_betas, [0.9, True]),
        (options.as_betas, 0.9),
        (options.as_betas, [-0.1, 0.9]),
        (options.as_mapping, [1]),
        (options.as_mapping, {1: "x"}),
    ],
)
def test_casts_refuse_everything_else(cast: Callable[..., Any], value: object) -> None:
    """A refusal is a ValueError that names the path and what was given."""
    with pytest.raises(ValueError, match=r"training\.x") as caught:
        cast(value, where="training.x")
    assert isinstance(caught.value, ConfigError)


def test_refusal_names_path_expected_and_given() -> None:
    """The message says where, what was expected, what was given, and of which type."""
    with pytest.raises(ConfigError) as caught:
        options.as_float("fast", where="training.optimizer.learning_rate")
    expected = "training.optimizer.learning_rate: expected a finite number, got 'fast' (str)."
    assert str(caught.value) == expected


def test_choice_suggests_the_nearest() -> None:
    """A misspelt choice is answered with the list and the nearest one."""
    with pytest.raises(ConfigError, match=r"one of constant, cosine.*Did you mean 'cosine'"):
        options.as_choice("cosin", ("constant", "cosine"), where="x")


def test_optional_values_fall_back_to_the_default() -> None:
    """An absent or null key means the default, and zero is not absent."""
    mapping = {"zero": 0, "null": None}
    assert options.get_optional_int(mapping, "zero", default=5, where="m") == 0
    assert options.get_optional_int(mapping, "null", default=5, where="m") == 5
    assert options.get_optional_int(mapping, "absent", where="m") is None
    assert options.get_optional_float(mapping, "zero", default=0.5, where="m") == 0.0
    assert options.get_optional_float(mapping, "absent", default=0.5, where="m") == 0.5


def test_required_lookups_return_typed_values() -> None:
    """Each lookup casts and checks its own range."""
    mapping = {"n": "3", "zero": 0, "f": 0.5, "mode": " Simulate ", "on": "true", "b": "0,0.9"}
    assert options.require_positive_int(mapping, "n", where="m") == 3
    assert options.require_non_negative_int(mapping, "zero", where="m") == 0
    assert options.require_non_negative_float(mapping, "f", where="m") == 0.5
    assert options.require_choice(mapping, "mode", ("simulate",), where="m") == "simulate"
    assert options.require_bool(mapping, "on", where="m") is True
    assert options.parse_betas(mapping, "b", where="m") == (0.0, 0.9)
    assert options.require_positive_int({}, "n", default=2, where="m") == 2
    assert options.require_bool({}, "on", default=False, where="m") is False


@pytest.mark.parametrize(
    ("lookup", "value"),
    [
        (options.require_positive_int, 0),
        (options.require_non_negative_int, -1),
        (options.require_non_negative_float, -0.1),
        (options.require_bool, "maybe"),
        (options.parse_betas, 3),
    ],
)
@pytest.mark.parametrize("where", ["method", "method.key"])
def test_lookup_errors_name_the_value_once(
    lookup: Callable[..., Any], value: object, where: str
) -> None:
    """The path in a message is complete whether the caller named the mapping or the value."""
    with pytest.raises(ConfigError, match=r"^method\.key: "):
        lookup({"key": value}, "key", where=where)


def test_missing_required_key_suggests_a_similar_one() -> None:
    """A key that is missing because it is misspelt is found."""
    expected = "method.rollout_mode is required and missing. Did you mean 'rolout_mode'?"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        options.require_choice({"rolout_mode": "sim"}, "rollout_mode", ("sim",), where="method")
