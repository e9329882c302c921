"""NaN and infinite values are found, whatever the type of the tensor."""

from __future__ import annotations

import pytest
import torch

from fastvideo.train.checkpoint.finite import describe_nonfinite, nonfinite_names


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_value_is_enough(dtype: torch.dtype, value: float) -> None:
    """Anywhere in a tensor; large numbers, empty tensors and whole numbers are no such thing."""
    bad = torch.zeros(3, 5, dtype=dtype)
    bad[1, 3] = value
    tensors = {
        "large": torch.full((4,), torch.finfo(dtype).max, dtype=dtype),
        "b": bad,
        "empty": torch.zeros(0, dtype=dtype),
        "whole": torch.tensor(3),
        "a": torch.tensor(value, dtype=dtype, requires_grad=True),
    }
    assert nonfinite_names(tensors) == ["b", "a"]
    assert nonfinite_names({}) == []


def test_the_first_are_named() -> None:
    """A diverged model has thousands."""
    assert describe_nonfinite(["a"]) == "1 tensor holds NaN or infinite values (a)"
    assert describe_nonfinite(list("abcd")) == (
        "4 tensors hold NaN or infinite values (a, b, c, ...)"
    )
