"""Distributed checkpoints: only tensors, only known classes, and damage is found and named."""

from __future__ import annotations

import operator
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from fastvideo.distributed import RankGroup
from fastvideo.train.checkpoint import storage
from fastvideo.train.checkpoint.errors import CheckpointError, CheckpointWriteError

if TYPE_CHECKING:
    from pathlib import Path

ALONE = RankGroup(0, 0, (0,))


def _tensors() -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    return {
        "roles.student.transformer.a.weight": torch.randn((64, 32), generator=draws),
        "roles.student.transformer.a.bias": torch.randn((4,), generator=draws).bfloat16(),
        "optimizers.student.state.a.weight.step": torch.tensor(3.0),
        "alone": torch.arange(5),
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of some tensors."""
    storage.save_tensors(_tensors(), tmp_path / "dcp", ALONE)
    return tmp_path / "dcp"


def _names(path: Path) -> set[str]:
    return set(storage.read_index(path).state_dict_metadata)


def test_tensors_come_back_into_the_ones_that_are_there(saved: Path) -> None:
    """With names and types; what is not asked for is not read."""
    assert _names(saved) == set(_tensors())
    read = {name: torch.zeros_like(tensor) for name, tensor in _tensors().items()}
    del read["alone"]
    targets = dict(read)
    storage.load_tensors(targets, saved, ALONE)
    assert all(torch.equal(read[name], _tensors()[name]) for name in read)
    storage.verify_files(saved, storage.read_index(saved))


def test_a_later_save_writes_what_was_there_when_it_began(tmp_path: Path) -> None:
    """The tensors may change at once, also those that are on the CPU already."""
    tensors = _tensors() | {"large": torch.ones(2_000_000)}
    writer = storage.CheckpointWriter(tmp_path / "first")
    for name in ("first", "second"):
        future = storage.save_tensors_later(tensors, tmp_path / name, ALONE, writer)
        for tensor in tensors.values():
            tensor.zero_()
        storage.finished_save(future, tmp_path / name)
    read = {name: torch.ones_like(tensor) for name, tensor in tensors.items()}
    storage.load_tensors(read, tmp_path / "first", ALONE)
    assert all(torch.equal(read[name], tensor) for name, tensor in _tensors().items())
    assert bool((read["large"] == 1).all())
    storage.load_tensors(read, tmp_path / "second", ALONE)
    assert not any(tensor.any() for tensor in read.values())


def test_a_changed_byte_and_a_cut_off_file_are_found(saved: Path) -> None:
    """Torch itself reads changed bytes without a word."""
    index = storage.read_index(saved)
    path = saved / "__0_0.distcp"
    content = path.read_bytes()
    info = max(index.storage_data.values(), key=operator.attrgetter("length"))
    place = info.offset + info.length // 2
    changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    path.write_bytes(changed)
    storage.load_tensors(_tensors(), saved, ALONE)
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is damaged: its content does not"):
        storage.verify_files(saved, index)
    storage.verify_files(saved, index, part=1, parts=2)  # another rank looks at other files
    path.write_bytes(content[:-10])
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is damaged: it ends 10 bytes"):
        storage.verify_files(saved, index)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is damaged: .*No such file"):
        storage.verify_files(saved, index)


def test_an_index_cannot_run_code(saved: Path) -> None:
    """A class or function that no index needs is refused by its name."""
    marker = saved / "marker"

    class Evil:
        def __reduce__(self) -> Any:
            return (open, (str(marker), "w"))

    for evil, said in (
        (Evil(), "it contains io.open, which no index needs"),
        (_Call(getattr, torch.Size, "__new__"), "it asks for '__new__'"),
        (_Call(getattr, _MEM_FORMAT_ENCODING, "__class__"), "it asks for '__class__'"),
        ({"no": "index"}, "AttributeError"),
    ):
        (saved / ".metadata").write_bytes(pickle.dumps(evil))
        with pytest.raises(CheckpointError, match=r"\.metadata cannot be read") as caught:
            storage.read_index(saved)
        assert said in str(caught.value)
    assert not marker.exists()


class _Call:
    """Pickles as a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def test_the_first_python_311_wrote_enum_members_as_calls() -> None:
    """That one call is understood."""
    member = _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT
    assert storage._enum_member(_MEM_FORMAT_ENCODING, member.name) is member


def test_pickled_values_are_not_loaded(tmp_path: Path) -> None:
    """Other programs put them beside the tensors; a checkpoint of theirs is refused."""
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp.save({"value": {1, 2}}, checkpoint_id=tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="value is a pickled value, which is not loaded"):
        storage.load_tensors({"value": set()}, tmp_path / "theirs", ALONE)


def test_indexes_of_torch_itself_can_be_read(tmp_path: Path) -> None:
    """They hold the path they were written to."""
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp.save(_tensors(), checkpoint_id=tmp_path / "theirs")
    assert _names(tmp_path / "theirs") == set(_tensors())


def test_a_failed_write_is_one_line(tmp_path: Path) -> None:
    """With the rank, the path and the reason."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointWriteError, match=r"cannot write .*file: rank 0: \w+: .*"):
        storage.save_tensors(_tensors(), tmp_path / "file", ALONE)
    writer = storage.CheckpointWriter(tmp_path / "file")
    future = storage.save_tensors_later(_tensors(), tmp_path / "file", ALONE, writer)
    with pytest.raises(CheckpointWriteError, match="cannot write"):
        storage.finished_save(future, tmp_path / "file")
