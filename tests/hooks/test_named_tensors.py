"""Names of the tensors in an output."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from torch import Tensor

from fastvideo.hooks.named_tensors import named_tensors

X, Y = torch.ones(1), torch.ones(2)


@dataclass
class Pair:
    """A dataclass with a part that is no tensor."""

    first: Tensor
    name: str
    rest: tuple[Tensor, ...]


class Named(NamedTuple):
    """A named tuple."""

    count: int
    mean: Tensor


Old = namedtuple("Old", ["low", "high"])  # noqa: PYI024 - the old kind is walked, too


@pytest.mark.parametrize(
    ("output", "names"),
    [
        (X, ["out"]),
        ((X, None, Y), ["out[0]", "out[2]"]),
        ([X, (Y, 3)], ["out[0]", "out[1][0]"]),
        ({"a": X, "b": {"c": Y}}, ["out.a", "out.b.c"]),
        (Pair(X, "name", (Y, X)), ["out.first", "out.rest[0]", "out.rest[1]"]),
        (Named(3, X), ["out.mean"]),
        (Old(X, Y), ["out.low", "out.high"]),
        (Transformer2DModelOutput(sample=X), ["out.sample"]),
        (None, []),
        ("text", []),
        (Pair, []),
    ],
)
def test_names(output: Any, names: list[str]) -> None:
    """Fields are named, positions are numbered, and what is no tensor is passed over."""
    assert [name for name, _ in named_tensors(output)] == names


def test_a_container_in_itself_ends() -> None:
    """However deep an output is, the walk comes to an end."""
    endless: list[Any] = [X]
    endless.append(endless)
    assert [name for name, _ in named_tensors(endless)][:2] == ["out[0]", "out[1][0]"]
