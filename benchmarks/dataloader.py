"""What a sample costs to load, against a reader that converts whole row groups for each sample.

Rows are those of a text-to-video data set at the size of real ones: latents of 16x20x56x104 and 200
tokens of 4096, both float32, 11 MB together. The reader we compare with opens the file of a
sample, reads the row group that it is in, turns that into Python objects, and takes the one row:
what is quickly written, and was the reader of FastVideo when this was made. Its files have eight
rows in a row group, as pyarrow's defaults and preprocessors leave them. Ours reads the same files,
and those that our own writer makes of the same rows, in the same shuffled order. Our writer makes
row groups of about 8 MiB, and does not compress numbers that hardly shrink.

Times are seconds of the clock per sample until a batch of one is there, in the consumer: that is
what a training step waits for when it does nothing else. Files are in the page cache for all.
Workers are threads in our loader; they are processes in torch's, from which each sample comes
through shared memory.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from _harness import measure, parse_arguments, ratio, report
from torch.utils.data import DataLoader, Dataset

from fastvideo.dataset import (
    ParquetDatasetWriter,
    VideoBatch,
    basic_t2v_record_creator,
    build_parquet_dataloader,
    pyarrow_schema_t2v,
    records_to_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS: Final = 48
GROUP: Final = 8
LATENTS: Final = (16, 20, 56, 104)
TEXT: Final = (200, 4096)
TEXT_LEN: Final = 512
SAMPLES: Final = 8
GOAL: Final = 0.15
PEER: Final = "whole row groups"


def make_table(first: int, count: int) -> pa.Table:
    """Returns rows of noise."""
    draws = torch.Generator().manual_seed(first)
    batch = VideoBatch(
        video_file_name=[f"clip{first + i}" for i in range(count)],
        prompt=[f"caption {first + i}" for i in range(count)],
        latents=[torch.randn(LATENTS, generator=draws) for _ in range(count)],
        prompt_embeds=[torch.randn(TEXT, generator=draws) for _ in range(count)],
        width=[832] * count,
        height=[448] * count,
        fps=[16.0] * count,
    )
    return records_to_table(basic_t2v_record_creator(batch), pyarrow_schema_t2v)


def write_data(root: Path) -> tuple[Path, Path]:
    """Writes the rows twice: in row groups of eight, and by our writer."""
    large, ours = root / "large", root / "ours"
    large.mkdir()
    writer = ParquetDatasetWriter(str(ours), samples_per_file=GROUP * 2)
    for number, first in enumerate(range(0, ROWS, GROUP * 2)):
        table = make_table(first, GROUP * 2)
        pq.write_table(table, large / f"{number}.parquet", compression="zstd", row_group_size=GROUP)
        writer.append_table(table)
        writer.flush()
    return large, ours


class WholeRowGroups(Dataset[dict[str, Any]]):
    """The reader that ours is compared with.

    Args:
        root: Directory of the files.
    """

    def __init__(self, root: Path) -> None:
        self._rows = [
            (str(file), group, row)
            for file in sorted(root.glob("*.parquet"))
            for group in range(pq.ParquetFile(file).metadata.num_row_groups)
            for row in range(GROUP)
        ]

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns a sample: its latents, padded text, mask, and the other columns."""
        file, group, number = self._rows[index]
        columns = pq.ParquetFile(file).read_row_group(group).to_pydict()
        row = {name: values[number] for name, values in columns.items()}
        text = self._tensor(row, "text_embedding")
        padded, mask = torch.zeros(TEXT_LEN, TEXT[1]), torch.zeros(TEXT_LEN)
        padded[: len(text)], mask[: len(text)] = text, 1.0
        return {
            "vae_latent": self._tensor(row, "vae_latent"),
            "text_embedding": padded,
            "text_attention_mask": mask,
            "info": {name: row[name] for name in ("caption", "file_name", "fps")},
        }

    @staticmethod
    def _tensor(row: dict[str, Any], name: str) -> torch.Tensor:
        array = np.frombuffer(row[f"{name}_bytes"], dtype=np.float32)
        return torch.from_numpy(array.reshape(row[f"{name}_shape"]).copy())


def loads(make: Callable[[], Iterator[Any]]) -> Callable[[], float]:
    """Returns what loads some samples and returns the seconds of one."""
    iterator = make()

    def load() -> float:
        nonlocal iterator
        taken = 0
        begin = perf_counter()
        while taken < SAMPLES:
            try:
                next(iterator)
                taken += 1
            except StopIteration:
                iterator = make()
        return (perf_counter() - begin) / SAMPLES

    return load


def peer(root: Path, workers: int) -> Callable[[], Iterator[Any]]:
    """Returns the iterators of the other reader, shuffled."""
    loader = DataLoader(
        WholeRowGroups(root),
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(0),
    )
    return lambda: iter(loader)


def ours(root: Path, workers: int) -> Callable[[], Iterator[Any]]:
    """Returns the iterators of our loader."""
    loader = build_parquet_dataloader(
        str(root),
        1,
        parquet_schema=pyarrow_schema_t2v,
        num_data_workers=workers,
        text_padding_length=TEXT_LEN,
    )
    return lambda: iter(loader)


def main() -> None:
    """Measures and reports."""
    arguments = parse_arguments(__doc__ or "", rounds=6)
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix=".dataloader-benchmark-"))
    try:
        large, written = write_data(folder)
        seconds: dict[str, list[float]] = {}
        for workers in (0, 2):
            cases = {
                f"{workers} workers: {PEER}": loads(peer(large, workers)),
                f"{workers} workers: ours, our files": loads(ours(written, workers)),
                f"{workers} workers: ours, those files": loads(ours(large, workers)),
            }
            seconds |= measure(cases, rounds=arguments.rounds)
    finally:
        shutil.rmtree(folder)
    report(
        "Loading one sample, against reading and converting its whole row group",
        [
            ratio(seconds, f"{n} workers: ours, {files}", f"{n} workers: {PEER}", goal)
            for n in (0, 2)
            for files, goal in (("our files", GOAL), ("those files", None))
        ],
        seconds=seconds,
        json_path=arguments.json,
    )
    for name, values in seconds.items():
        print(f"{name}: {1e3 * statistics.median(values):.1f} ms a sample")


if __name__ == "__main__":
    main()
