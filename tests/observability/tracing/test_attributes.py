"""Values of attributes."""

from __future__ import annotations

import enum
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

from fastvideo.observability.tracing.attributes import coerce, coerce_attributes, error_type
from fastvideo.observability.tracing.settings import SpanLimits


class Colour(enum.Enum):
    """An enumeration of a program."""

    RED = "a secret value"


class Hostile:
    """An object whose text is a secret and whose methods raise."""

    def __str__(self) -> str:
        return "password"

    __repr__ = __str__


class DeviceTensor:
    """Stands for a tensor on a device: reading it fails the test."""

    __module__ = "torch"
    shape = (2, 3)
    dtype = torch.float32
    device = "cuda:0"

    def __getattr__(self, name: str) -> Any:
        message = f"a tensor's {name} was read"
        raise AssertionError(message)


@pytest.mark.parametrize(
    ("value", "coerced"),
    [
        ("text", "text"),
        (True, True),
        (3, 3),
        (2.5, 2.5),
        (np.float32(2.5), 2.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
        (1 << 70, hex(1 << 70)),
        (Colour.RED, "RED"),
        (PurePosixPath("a/b"), "a/b"),
        (torch.float16, "torch.float16"),
        (torch.zeros(2, 3), "<Tensor [2x3] torch.float32 cpu>"),
        (ValueError("password"), "<ValueError>"),
        (ValueError, "<ValueError>"),
        (Hostile(), "<Hostile>"),
        ({"password": 1}, "<dict>"),
        ([1, 2], (1, 2)),
        ((1, "a"), ("1", "a")),
        ([Hostile()], ("<Hostile>",)),
        ("\ud800", "?"),
        ("x" * 20, "x" * 10),
    ],
)
def test_coerce(value: object, coerced: object) -> None:
    """Every value becomes something OTLP knows, tensors are not read, and secrets stay inside."""
    result = coerce(value, 10 if isinstance(value, str) else 100)
    assert result == coerced
    assert type(result) is type(coerced)


def test_tensors_on_a_device_are_not_read() -> None:
    """Reading one would make the device wait, so it is told by shape, type and device."""
    assert coerce(DeviceTensor(), 100) == "<DeviceTensor [2x3] torch.float32 cuda:0>"


def test_names_and_limits() -> None:
    """Names without a dot are the package's; None is no attribute; the limit is counted."""
    given = {"batch": 2, "none": None, "app.key": "v", "more": 1, "most": 2}
    attributes, dropped = coerce_attributes(given, SpanLimits(attributes=3))
    assert attributes == {"fastvideo.batch": 2, "app.key": "v", "fastvideo.more": 1}
    assert dropped == 1


def test_error_types_are_named_in_full() -> None:
    """Built-in exceptions have their short name, others the module's as well."""
    assert error_type(None) is None
    assert error_type(ValueError) == "ValueError"
    assert error_type(torch.OutOfMemoryError) == "torch.OutOfMemoryError"
