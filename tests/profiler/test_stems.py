"""Names of a segment's files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from fastvideo.profiler.stems import Stem, claim_stem, next_index

if TYPE_CHECKING:
    from pathlib import Path


def test_a_stem_is_numbered_per_rank(tmp_path: Path) -> None:
    """Numbers count up within a rank; the raw file stands for the number."""
    stems = [claim_stem(tmp_path, rank, "training_forward") for rank in (0, 0, 3)]
    assert [stem.name for stem in stems] == [
        "rank0_segment0000_training_forward",
        "rank0_segment0001_training_forward",
        "rank3_segment0000_training_forward",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {
        f".raw_{stem.name}.{os.getpid()}.json" for stem in stems
    }
    assert all(stem.raw_path.stat().st_size == 0 for stem in stems)


@pytest.mark.parametrize(
    "name",
    [
        "trace_rank0_segment0041_training_train.pt.trace.json.gz",
        "summary_rank0_segment0041_training_train.txt",
        "raw_rank0_segment0041_training_train.json",
        ".raw_rank0_segment0041_training_train.77.json",
        ".trace_rank0_segment0041_training_train.pt.trace.json.gz.77.tmp",
    ],
)
def test_numbers_of_earlier_runs_are_not_used_again(tmp_path: Path, name: str) -> None:
    """Any file of a segment keeps its number, whatever region it is of."""
    (tmp_path / name).touch()
    (tmp_path / "trace_rank1_segment0099_x.pt.trace.json.gz").touch()
    assert claim_stem(tmp_path, 0, "training_forward").index == 42


def test_a_number_that_another_process_is_taking_is_left_to_it(tmp_path: Path) -> None:
    """While a lock file is there, its number counts as taken."""
    (tmp_path / ".rank0_segment0000.lock").touch()
    assert claim_stem(tmp_path, 0, "training_forward").index == 1


def test_directories_are_made(tmp_path: Path) -> None:
    """A missing directory is created, with its parents."""
    stem = claim_stem(tmp_path / "a" / "b", 0, "training_forward")
    assert stem.raw_path.parent == tmp_path / "a" / "b"


def test_numbers_beyond_four_digits_go_on(tmp_path: Path) -> None:
    """Nothing breaks after segment 9999."""
    (tmp_path / "trace_rank0_segment12345_x.pt.trace.json.gz").touch()
    assert claim_stem(tmp_path, 0, "x").name == "rank0_segment12346_x"


def test_discarding_removes_what_kineto_left(tmp_path: Path) -> None:
    """The raw file and kineto's own temporary file go; a second time changes nothing."""
    stem = claim_stem(tmp_path, 0, "training_forward")
    stem.raw_path.with_name(stem.raw_path.name + ".tmp").touch()
    stem.discard()
    stem.discard()
    assert list(tmp_path.iterdir()) == []
    assert next_index(tmp_path, 0) == 0


def test_threads_and_processes_never_share_a_number(tmp_path: Path) -> None:
    """Two processes of the same rank, each with two threads, all get numbers of their own."""
    code = (
        "import sys, pathlib\n"
        "from fastvideo.profiler.stems import claim_stem\n"
        "for _ in range(40): claim_stem(pathlib.Path(sys.argv[1]), 0, 'x')\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    own: list[int] = []

    def claim() -> None:
        own.extend(claim_stem(tmp_path, 0, "y").index for _ in range(40))

    threads = [threading.Thread(target=claim) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert other.wait(60) == 0
    numbers = [path.name.split("segment")[1][:4] for path in tmp_path.iterdir()]
    assert len(own) == len(set(own)) == 80
    assert len(numbers) == len(set(numbers)) == 120


def test_an_interrupt_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes, whoever was told the name can remove what is left."""
    told: list[Stem] = []

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for place in ("os.close", "pathlib.Path.touch"):
        with monkeypatch.context() as patch:
            patch.setattr(place, interrupted)
            with pytest.raises(KeyboardInterrupt):
                claim_stem(tmp_path, 0, "x", tell=told.append)
    for stem in told:
        stem.discard()
    assert len(told) == 1
    assert list(tmp_path.iterdir()) == []
