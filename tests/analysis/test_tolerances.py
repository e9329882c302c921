"""Tolerances as they are typed."""

from __future__ import annotations

import pytest

from fastvideo.analysis import Tolerances
from fastvideo.errors import ConfigError


def test_each_type_has_its_default() -> None:
    """Between two types the looser one counts; types without one must be equal."""
    tolerances = Tolerances.parse()
    assert tolerances.of("torch.float32") == (1e-5, 1e-8)
    assert tolerances.of("torch.float32", "torch.bfloat16") == (8e-3, 1e-8)
    assert tolerances.of("torch.int64") == (0.0, 1e-8)


def test_one_for_all_and_one_for_a_type() -> None:
    """In any order; short and long names are the same; what is not named keeps its default."""
    tolerances = Tolerances.parse(["bf16=0.5", "0.1"], ["torch.float16=2"])
    assert tolerances.of("torch.float32") == (0.1, 1e-8)
    assert tolerances.of("torch.bfloat16") == (0.5, 1e-8)
    assert tolerances.of("torch.float16") == (0.1, 2.0)
    assert Tolerances.parse(["fp32=0.25"]).of("torch.bfloat16")[0] == 8e-3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf61=1", "--rtol bf61=1: there is no type 'bf61'"),
        ("flot32=1", "Did you mean 'float32'"),
        ("much", "--rtol much: expected a number of at least 0"),
        ("-1", "at least 0"),
        ("nan", "at least 0"),
    ],
)
def test_what_cannot_be_used(text: str, message: str) -> None:
    """The message repeats what was typed."""
    with pytest.raises(ConfigError, match=message):
        Tolerances.parse([text])
