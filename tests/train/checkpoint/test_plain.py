"""Files of plain values: what goes in comes out, and nothing in them is executed."""

from __future__ import annotations

import pickle
import random
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.checkpoint.plain import from_plain, read_plain, to_plain, write_plain

if TYPE_CHECKING:
    from pathlib import Path


class Colour(IntEnum):
    """A number that is more than a number."""

    RED = 1


def _round_trip(value: Any, path: Path) -> Any:
    write_plain(path, {"value": to_plain(value, where="state")})
    return from_plain(read_plain(path))["value"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        0.1,
        "text",
        b"bytes",
        [1, (2, 3.5), {"a": None, 4: [False]}],
        random.Random(3).getstate(),
        2**63 + 5,
    ],
)
def test_values_come_back_as_they_were(tmp_path: Path, value: Any) -> None:
    """Types of containers and keys included."""
    assert _round_trip(value, tmp_path / "file") == value


def test_tensors_are_copied(tmp_path: Path) -> None:
    """What is trained on after the save does not reach the file."""
    tensor = torch.arange(3.0, requires_grad=True)
    plain = to_plain({"t": tensor}, where="state")
    with torch.no_grad():
        tensor.zero_()
    write_plain(tmp_path / "file", plain)
    assert torch.equal(read_plain(tmp_path / "file")["t"], torch.arange(3.0))


def test_numpy_arrays_and_scalars_come_back_with_their_types(tmp_path: Path) -> None:
    """The state of numpy's generator is a tuple with an array of unsigned numbers."""
    state = np.random.RandomState(5).get_state()
    restored = _round_trip(state, tmp_path / "file")
    assert isinstance(restored, tuple)
    assert restored[1].dtype == np.uint32
    assert np.array_equal(state[1], restored[1])
    assert restored[::2] == state[::2]
    number = _round_trip(np.float32(0.1), tmp_path / "file")
    assert (type(number), number) == (np.float32, np.float32(0.1))


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, object()]}, r"state\['a'\]\[1\] is a builtins\.object"),
        (Colour.RED, r"state is a \S*Colour"),
        ({("a",): 1}, "state is a builtins.tuple"),
        (np.array(["text"]), "state is a numpy.ndarray"),
        (np.zeros(2, np.longdouble), "state is a numpy.ndarray"),
    ],
)
def test_other_objects_are_refused_when_they_are_saved(value: Any, where: str) -> None:
    """With their place; a file with them could not be read again."""
    with pytest.raises(CheckpointError, match=where):
        to_plain(value, where="state")


def test_a_pickled_call_in_a_file_is_not_made(tmp_path: Path) -> None:
    """The file is refused and named."""
    marker = tmp_path / "marker"

    class Evil:
        def __reduce__(self) -> Any:
            return (marker.write_text, ("executed",))

    torch.save({"value": Evil()}, tmp_path / "torch")
    (tmp_path / "pickle").write_bytes(pickle.dumps({"value": Evil()}, protocol=2))
    for name in ("torch", "pickle"):
        with pytest.raises(CheckpointError, match=f"{name} cannot be read: UnpicklingError"):
            read_plain(tmp_path / name)
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    """Whatever is in it, or if it is not there."""
    path = tmp_path / "rng_state_rank1.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"rng_state_rank1\.pt cannot be read"):
        read_plain(path)
    with pytest.raises(CheckpointError, match=r"missing\.pt cannot be read: FileNotFoundError"):
        read_plain(tmp_path / "missing.pt")
    torch.save([1], path)
    with pytest.raises(CheckpointError, match="holds a list; expected the state of a rank"):
        read_plain(path)
