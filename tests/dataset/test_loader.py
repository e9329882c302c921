"""The loader hands out fresh epochs and resumes exactly, with and without workers."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from fastvideo.dataset import (
    build_parquet_dataloader,
    pyarrow_schema_t2v,
    pyarrow_schema_text_only,
    records_to_table,
    text_only_record_creator,
)
from fastvideo.dataset.loader import stateful_loader
from fastvideo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchdata.stateful_dataloader import StatefulDataLoader

_PROCESSES = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
_WORKERS = pytest.mark.parametrize("workers", [0, 2])


def _loader(path: object, *, workers: int = 0, **kwargs: object) -> StatefulDataLoader:
    options = {"parquet_schema": pyarrow_schema_t2v, "text_padding_length": 4} | kwargs
    return build_parquet_dataloader(path, 2, num_data_workers=workers, **options)


def _with_processes(path: object, workers: int, **kwargs: object) -> StatefulDataLoader:
    """A loader of the same batches that reads them in worker processes."""
    dataset = _loader(path, **kwargs).dataset
    return stateful_loader(dataset, dataset.sampler, num_data_workers=workers)


def _key(batch: dict[str, object]) -> tuple[object, ...]:
    """What tells batches apart: the rows, their latents and which of them lost their text."""
    return (
        tuple(batch["caption_text"]),
        tuple(batch["vae_latent"][:, 0, 0, 0, 0].tolist()),
        tuple(batch["text_embedding"].sum((1, 2)).tolist()),
    )


def _epoch(loader: Iterable[dict[str, object]]) -> list[tuple[object, ...]]:
    return [_key(batch) for batch in loader]


@pytest.fixture
def root(t2v_dataset: Callable[..., Path]) -> Path:
    """A data set of 15 rows: 7 batches of two."""
    return t2v_dataset(15)


@_WORKERS
def test_epochs(root: Path, workers: int) -> None:
    """An epoch has every batch once, and the next one is in another order with other drops."""
    loader = _loader(root, workers=workers, cfg_rate=0.4)
    epochs = [_epoch(loader) for _ in range(3)]
    assert len(loader) == 7
    assert [len(epoch) for epoch in epochs] == [7, 7, 7]
    assert len({str(epoch) for epoch in epochs}) == 3
    drops = [
        {name for names, _, sums in epoch for name, s in zip(names, sums, strict=True) if s == 0}
        for epoch in epochs
    ]
    assert drops[0] != drops[1]


def test_workers_change_nothing(root: Path) -> None:
    """Four threads that share two files give the batches that one gives, in every epoch."""
    alone, together = (_loader(root, workers=n, cfg_rate=0.4) for n in (0, 4))
    for _ in range(3):
        assert _epoch(together) == _epoch(alone)


@_WORKERS
@pytest.mark.parametrize("done", [0, 1, 4, 7])
def test_resume(root: Path, workers: int, done: int) -> None:
    """A loader with the state of another goes on with the rest, then with fresh epochs."""
    build = lambda: _loader(root, workers=workers, cfg_rate=0.4)  # noqa: E731 - twice the same
    straight = build()
    epochs = [_epoch(straight) for _ in range(4)]

    first = build()
    assert _epoch(first) == epochs[0]
    iterator = iter(first)
    assert [_key(next(iterator)) for _ in range(done)] == epochs[1][:done]
    state = first.state_dict()

    second = build()
    second.load_state_dict(state)
    assert _epoch(second) == epochs[1][done:]
    assert _epoch(second) == epochs[2]
    assert _epoch(second) == epochs[3]
    assert _epoch(iterator) == epochs[1][done:]


@_WORKERS
def test_resume_after_a_whole_epoch(root: Path, workers: int) -> None:
    """A state taken when the iterator said it was finished resumes with the next epoch."""
    loader = _loader(root, workers=workers)
    epochs = [_epoch(loader) for _ in range(3)]
    first = _loader(root, workers=workers)
    _epoch(first)
    state = first.state_dict()
    second = _loader(root, workers=workers)
    second.load_state_dict(state)
    assert [_epoch(second), _epoch(second)] == epochs[1:]


@_WORKERS
def test_resume_of_a_resumed_run(root: Path, workers: int) -> None:
    """Stopping twice in one epoch loses and repeats nothing."""
    expected = _epoch(_loader(root, workers=workers))
    got, state = [], None
    for count in (2, 3, 2):
        loader = _loader(root, workers=workers)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        got += [_key(next(iterator)) for _ in range(count)]
        state = loader.state_dict()
    assert got == expected


@_WORKERS
def test_epochs_shorter_than_the_prefetch(t2v_dataset: Callable[..., Path], workers: int) -> None:
    """Workers that run ahead of a one-batch epoch neither skip nor repeat one."""
    root = t2v_dataset(2)
    straight = _loader(root, workers=workers, cfg_rate=0.5)
    epochs = [_epoch(straight) for _ in range(4)]
    first = _loader(root, workers=workers, cfg_rate=0.5)
    assert [_epoch(first), _epoch(first)] == epochs[:2]
    second = _loader(root, workers=workers, cfg_rate=0.5)
    second.load_state_dict(first.state_dict())
    assert [_epoch(second), _epoch(second)] == epochs[2:]


@_PROCESSES
@pytest.mark.parametrize("done", [0, 1, 4, 7])
def test_states_of_loaders_with_processes(root: Path, done: int) -> None:
    """Checkpoints of versions that read in worker processes resume at the same batch."""
    straight = _loader(root, cfg_rate=0.4)
    epochs = [_epoch(straight) for _ in range(3)]
    former = _with_processes(root, 2, cfg_rate=0.4)
    assert _epoch(former) == epochs[0]
    iterator = iter(former)
    assert [_key(next(iterator)) for _ in range(done)] == epochs[1][:done]
    loader = _loader(root, workers=2, cfg_rate=0.4)
    loader.load_state_dict(former.state_dict())
    assert _epoch(loader) == epochs[1][done:]
    assert _epoch(loader) == epochs[2]


@_PROCESSES
def test_a_state_of_processes_at_the_end_of_an_epoch(root: Path) -> None:
    """The next epoch follows when the iterator had said that it was finished."""
    former = _with_processes(root, 2)
    epochs = [_epoch(former)]
    loader = _loader(root)
    loader.load_state_dict(former.state_dict())
    epochs += [_epoch(loader)]
    straight = _loader(root)
    assert epochs == [_epoch(straight), _epoch(straight)]


def _readers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("parquet-reader")]


@pytest.mark.parametrize(("workers", "threads"), [(0, 1), (1, 1), (3, 3)])
def test_workers_are_threads_that_end_with_the_loader(
    root: Path, workers: int, threads: int
) -> None:
    """They leave no process, file descriptor or shared memory behind, and no thread."""
    gc.collect()
    others = _readers()
    files = len(list(Path("/proc/self/fd").iterdir()))
    loader = _loader(root, workers=workers)
    for _ in range(3):
        assert not any(batch["vae_latent"].is_shared() for batch in loader)
    started = [thread for thread in _readers() if thread not in others]
    assert len(started) == threads
    assert multiprocessing.active_children() == []
    del loader
    deadline = time.monotonic() + 60
    while any(thread.is_alive() for thread in started) and time.monotonic() < deadline:
        started[0].join(0.05)  # they finish what they have begun, and hold the data set until then
        gc.collect()
    assert not any(thread.is_alive() for thread in started)
    assert len(list(Path("/proc/self/fd").iterdir())) <= files


def test_memory_of_released_batches_is_used_again(root: Path) -> None:
    """However many batches are read; batches that are kept stay as they are."""
    loader = _loader(root)
    first = _epoch(loader)
    kept = list(loader)
    keys = [_key(batch) for batch in kept]
    addresses = set()
    for _ in range(20):
        addresses |= {batch["vae_latent"].data_ptr() for batch in loader}
    assert len(addresses) <= 8
    assert not addresses & {batch["vae_latent"].data_ptr() for batch in kept}
    assert [_key(batch) for batch in kept] == keys
    assert len(first) == 7


def test_groups_share_an_epoch(root: Path) -> None:
    """Two data-parallel groups together see every row of the epoch once."""
    parts = [_loader(root, num_sp_groups=2, global_rank=rank) for rank in range(2)]
    names = [name for part in parts for names, _, _ in _epoch(part) for name in names]
    assert len(names) == len(set(names)) == 12


@_WORKERS
def test_global_random_state_is_left_alone(root: Path, workers: int) -> None:
    """Building, iterating and resuming draw nothing from torch's global generator."""
    before = torch.get_rng_state()
    loader = _loader(root, workers=workers, cfg_rate=0.5)
    _epoch(loader)
    other = _loader(root, workers=workers)
    other.load_state_dict(loader.state_dict())
    _epoch(other)
    assert torch.equal(torch.get_rng_state(), before)


def test_spawned_workers(root: Path) -> None:
    """The data set also reaches workers that are not forked."""
    dataset = _loader(root).dataset
    loader = DataLoader(
        dataset,
        batch_sampler=dataset.sampler,
        collate_fn=_loader(root).collate_fn,
        num_workers=1,
        multiprocessing_context="spawn",
    )
    assert _epoch(loader) == _epoch(_loader(root))


def test_too_small_data_set(t2v_dataset: Callable[..., Path]) -> None:
    """Fewer rows than one batch per group is an error when the loader is built."""
    with pytest.raises(ValueError, match=r"has 3 rows, fewer than one batch of 4"):
        _loader(t2v_dataset(3), num_sp_groups=2)


def test_missing_data(tmp_path: Path) -> None:
    """A data path without files is a FileNotFoundError."""
    with pytest.raises(FileNotFoundError, match=r"training\.data\.data_path"):
        _loader(tmp_path)


def test_bad_cfg_rate(root: Path) -> None:
    """A rate that is no probability is refused."""
    with pytest.raises(ConfigError, match="training_cfg_rate"):
        _loader(root, cfg_rate=-0.1)


# --- columns that a method needs


def _text_only(folder: Path) -> Path:
    records = [text_only_record_creator(str(i), torch.ones(2, 5), f"c{i}") for i in range(4)]
    folder.mkdir()
    pq.write_table(records_to_table(records, pyarrow_schema_text_only), folder / "a.parquet")
    return folder


def test_text_only(tmp_path: Path) -> None:
    """A text-only data set loads for methods that need no latents."""
    root = _text_only(tmp_path / "text")
    loader = _loader(root, parquet_schema=pyarrow_schema_text_only)
    assert sorted(name for batch in loader for name in batch["caption_text"]) == [
        "c0",
        "c1",
        "c2",
        "c3",
    ]


def test_text_only_schema_without_needed_latents(tmp_path: Path) -> None:
    """A method that needs latents says so before the first batch."""
    root = _text_only(tmp_path / "text")
    with pytest.raises(ValueError, match=r"vae_latent not found.*preprocessed_data_type"):
        _loader(root, parquet_schema=pyarrow_schema_text_only, required_columns=("vae_latent",))


def test_schema_that_does_not_fit_the_files(tmp_path: Path) -> None:
    """A video schema over text-only files names file and columns when the loader is built."""
    root = _text_only(tmp_path / "text")
    with pytest.raises(DataError, match=r"vae_latent not found in .*a\.parquet"):
        _loader(root)


@_WORKERS
def test_damaged_file_is_named(root: Path, workers: int) -> None:
    """A file that rots between listing and reading is named, by any thread."""
    loader = _loader(root, workers=workers)
    for file in loader.dataset.parquet_files:
        with open(file, "r+b") as stream:  # noqa: PTH123 - the data set holds strings
            stream.seek(4)
            stream.write(b"\xff" * 300)
    named = r"data_chunk_00000\d\.parquet row group \d \(rows \d to \d\) cannot be read as parquet"
    with pytest.raises(DataError, match=named):
        _epoch(loader)


# --- signals


def test_workers_outlive_a_sigterm_that_reaches_all_processes(root: Path) -> None:
    """A job that is told to end still gets the batches of its last step; its end ends them."""
    loader = _with_processes(root, 1)
    expected = _epoch(_loader(root))
    iterator = iter(loader)
    found = [_key(next(iterator))]
    (worker,) = loader._iterator._workers
    script = f"import os, signal; os.kill({worker.pid}, signal.SIGTERM)"
    subprocess.run([sys.executable, "-S", "-c", script], check=True)  # not from its parent
    found += [_key(batch) for batch in iterator]
    assert found == expected
    assert worker.is_alive()
    worker.terminate()
    worker.join(10)
    assert worker.exitcode == 0


# --- without noise


@_WORKERS
def test_no_warnings_and_no_heavy_imports(root: Path, workers: int) -> None:
    """Importing, building, iterating and leaving raise no warning, and import no models."""
    script = (
        "import sys, warnings\n"
        "import fastvideo.dataset as d\n"
        "assert not {'diffusers', 'transformers', 'torchvision'} & set(sys.modules)\n"
        "loader = d.build_parquet_dataloader(sys.argv[1], 2, parquet_schema=d.pyarrow_schema_t2v,"
        " num_data_workers=int(sys.argv[2]))\n"
        "for epoch in range(2): batches = list(loader)\n"
        "loader.state_dict()\n"
        "print(len(batches))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(root), str(workers)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
