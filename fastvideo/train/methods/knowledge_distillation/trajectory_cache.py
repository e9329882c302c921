"""The teacher's trajectories on disk: one file per sample, written whole or not at all.

    <root>/metadata.json         what the trajectories were made with
    <root>/samples/00000000.pt   the sample of row 0 of the data set, and so on
    <root>/COMPLETE              written when every sample is there

A sample is a dict of tensors and plain values that ``torch.load(weights_only=True)`` reads, which
executes nothing: ``trajectory_latents`` [S, T, C, H, W] and ``trajectory_timesteps`` [S], the state
before each of the teacher's steps; ``real`` [T, C, H, W], where the trajectory ends;
``text_embedding`` [L, D] without its padding and ``text_attention_mask``, whose length is that of
the padded text; ``caption``; and ``checksums``, which reading verifies. Floating tensors are
bfloat16; timesteps and masks are float32.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from typing import TYPE_CHECKING, Any, Final, final

import torch

from fastvideo.errors import ConfigError, DataError
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

logger = init_logger(__name__)

Sample = dict[str, Any]

LATENTS: Final = "trajectory_latents"
TIMESTEPS: Final = "trajectory_timesteps"
REAL: Final = "real"
TEXT: Final = "text_embedding"
MASK: Final = "text_attention_mask"
CAPTION: Final = "caption"
_CHECKSUMS: Final = "checksums"
_METADATA: Final = "metadata.json"
_SAMPLES: Final = "samples"
_COMPLETE: Final = "COMPLETE"
_TEMPORARY: Final = ".tmp"
_SOURCE: Final = "source_data_path"
_SEED: Final = "seed"
_STATE_DIMS: Final = 5
_TOLERANCE: Final = 1e-2


@final
class TrajectoryCache:
    """A directory of trajectories.

    Args:
        root: The directory; it need not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def sample_path(self, index: int) -> Path:
        """Returns the file of a row of the data set."""
        return self.root / _SAMPLES / f"{index:08d}.pt"

    # -- The whole -------------------------------------------------------------------------------

    def prepare(self, metadata: Mapping[str, Any]) -> None:
        """Makes the directory for trajectories of this kind, or checks that it holds such.

        Args:
            metadata: What the trajectories are made with; what older caches do not say is not
                compared.

        Raises:
            ConfigError: The directory holds trajectories of another kind; or cannot be written.
        """
        saved = self._read_metadata()
        if saved is not None:
            self.check_metadata(metadata, saved)
            return
        try:
            (self.root / _SAMPLES).mkdir(parents=True, exist_ok=True)
            _write_whole(self.root / _METADATA, json.dumps(dict(metadata), indent=2).encode())
        except OSError as error:
            message = f"method.teacher_path_cache: cannot write to {self.root}: {error}"
            raise ConfigError(message) from error

    def check_metadata(
        self, metadata: Mapping[str, Any], saved: Mapping[str, Any] | None = None
    ) -> None:
        """Compares what this run would make with what is there, if anything is.

        Raises:
            ConfigError: They differ in more than the path of the data set, which is a warning.
        """
        saved = self._read_metadata() if saved is None else saved
        differing = {
            key: (saved[key], value)
            for key, value in metadata.items()
            if saved is not None and key in saved and saved[key] != value
        }
        differing.pop(_SEED, None)  # another noise is as good
        moved = differing.pop(_SOURCE, None)
        if differing:
            listed = "; ".join(
                f"{key} was {was!r} and is {now!r}" for key, (was, now) in differing.items()
            )
            message = (
                f"the teacher's trajectories in {self.root} were made for another run: {listed}. "
                "Delete the directory to make them anew, or set method.teacher_path_cache to "
                "another one"
            )
            raise ConfigError(message)
        if moved is not None:
            logger.warning(
                "the teacher's trajectories in %s were made from %r, and training.data.data_path "
                "is %r; they are used as they are",
                *(self.root, *moved),
            )

    def _read_metadata(self) -> dict[str, Any] | None:
        path = self.root / _METADATA
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            message = f"{path} cannot be read: {error}; delete {self.root} to make it anew"
            raise ConfigError(message) from error
        if not isinstance(content, dict):
            message = f"{path} holds no mapping; delete {self.root} to make it anew"
            raise ConfigError(message)
        return content

    def missing(self, total: int) -> list[int]:
        """Returns the rows from 0 to ``total`` - 1 that have no file."""
        try:
            present = {entry.name for entry in os.scandir(self.root / _SAMPLES)}
        except FileNotFoundError:
            present = set()
        return [index for index in range(total) if self.sample_path(index).name not in present]

    def is_complete(self, total: int) -> bool:
        """Tells whether the cache was completed, and every file of it is still there."""
        return (self.root / _COMPLETE).exists() and not self.missing(total)

    def mark_complete(self, total: int) -> None:
        """Notes that every sample is there."""
        _write_whole(self.root / _COMPLETE, f"{total}\n".encode())

    def remove_leftovers(self) -> None:
        """Removes what runs that were killed while writing have left behind."""
        for path in (self.root / _SAMPLES).glob(f".*{_TEMPORARY}"):
            path.unlink(missing_ok=True)

    # -- Samples ---------------------------------------------------------------------------------

    def write(self, index: int, sample: Sample) -> None:
        """Writes a sample; it is there as a whole, and on the disk, or not at all.

        Args:
            index: Its row in the data set.
            sample: As the module describes it, in any floating type and without checksums.

        Raises:
            DataError: It cannot be written.
        """
        stored = {name: _stored(name, value) for name, value in sample.items()}
        stored[_CHECKSUMS] = {
            LATENTS: [_checksum(state) for state in stored[LATENTS]],
            REAL: [_checksum(stored[REAL])],
        }
        if TEXT in stored:
            stored[_CHECKSUMS][TEXT] = [_checksum(stored[TEXT])]
        path = self.sample_path(index)
        temporary = path.with_name(f".{path.stem}.{os.getpid()}{_TEMPORARY}")
        try:
            torch.save(stored, temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except (OSError, RuntimeError) as error:  # torch makes a RuntimeError of a full disk
            with contextlib.suppress(OSError):
                temporary.unlink()
            message = (
                f"method.teacher_path_cache: cannot write {path}: {error}. What has been made "
                "stays; start again to go on"
            )
            raise DataError(message) from error

    def read(self, index: int) -> Sample:
        """Opens a sample without reading its tensors: their pages are read where they are used.

        Raises:
            DataError: The file is missing, damaged or not a sample; the message says what to do.
        """
        path = self.sample_path(index)
        try:
            sample = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # whatever a damaged file makes of torch's reader
            reason = str(error).strip().partition("\n")[0]
            raise _damaged(path, f"{type(error).__name__}: {reason}") from error
        problem = _problem(sample)
        if problem:
            raise _damaged(path, problem)
        return dict(sample)

    def read_states(self, index: int, positions: Sequence[int], sample: Sample) -> Sample:
        """Returns what training needs of an opened sample, float32, verified, and in memory.

        Args:
            index: Its row.
            positions: States of the trajectory that are wanted.
            sample: What :meth:`read` returned.

        Returns:
            The sample with those states and their timesteps, and with the text padded again.

        Raises:
            DataError: A checksum does not fit.
        """
        checksums = sample.get(_CHECKSUMS, {})
        path = self.sample_path(index)
        states = [_verified(sample[LATENTS][p], checksums.get(LATENTS), p, path) for p in positions]
        result = {
            LATENTS: torch.stack(states),
            TIMESTEPS: sample[TIMESTEPS][list(positions)].float(),
            REAL: _verified(sample[REAL], checksums.get(REAL), 0, path),
            CAPTION: sample.get(CAPTION, ""),
        }
        if TEXT in sample:
            text = _verified(sample[TEXT], checksums.get(TEXT), 0, path)
            result[MASK] = sample[MASK].float().clone()
            padding = result[MASK].shape[0] - text.shape[0]
            result[TEXT] = torch.nn.functional.pad(text, (0, 0, 0, padding))
        return result

    def problem_of(self, index: int, timesteps: Sequence[float]) -> str:
        """Looks at a sample that an earlier run has left.

        Args:
            index: Its row.
            timesteps: Those that its trajectory must have.

        Returns:
            What is wrong with it; "" for nothing.
        """
        try:
            found = self.read(index)[TIMESTEPS].tolist()
        except DataError as error:
            return str(error)
        agree = len(found) == len(timesteps) and all(
            abs(a - b) <= _TOLERANCE for a, b in zip(found, timesteps, strict=True)
        )
        return "" if agree else f"{self.sample_path(index)} has other timesteps: {found}"


def trimmed_text(text: Tensor, mask: Tensor) -> Tensor:
    """Returns an embedding [L, D] without the zeros behind its last token.

    Args:
        text: The padded embedding.
        mask: 1 at tokens and 0 at padding, [L].
    """
    used = mask.bool() | (text != 0).any(dim=1)
    length = int(used.nonzero()[-1]) + 1 if bool(used.any()) else 0
    return text[:length]


def _stored(name: str, value: Any) -> Any:  # noqa: ANN401 - a tensor or a plain value
    if not isinstance(value, torch.Tensor):
        return value
    exact = name in {TIMESTEPS, MASK} or not value.is_floating_point()
    dtype = torch.float32 if exact and value.is_floating_point() else value.dtype
    return value.detach().to("cpu", dtype if exact else torch.bfloat16).contiguous().clone()


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().data)


def _verified(tensor: Tensor, checksums: Sequence[int] | None, position: int, path: Path) -> Tensor:
    if checksums is not None and _checksum(tensor) != checksums[position]:
        raise _damaged(path, "its content is not what was written")
    return tensor.float()


def _problem(sample: object) -> str:
    if not isinstance(sample, dict):
        return f"it holds a {type(sample).__name__}"
    absent = [name for name in (LATENTS, TIMESTEPS, REAL) if name not in sample]
    if absent:
        return f"it lacks {', '.join(absent)}"
    shape = sample[LATENTS].shape
    fits = sample[TIMESTEPS].shape == shape[:1] and sample[REAL].shape == shape[1:]
    if len(shape) != _STATE_DIMS or not fits:
        return (
            f"its shapes do not fit: {LATENTS} {list(shape)}, {TIMESTEPS} "
            f"{list(sample[TIMESTEPS].shape)}, {REAL} {list(sample[REAL].shape)}"
        )
    return ""


def _damaged(path: Path, reason: str) -> DataError:
    message = (
        f"{path} cannot be used: {reason}. Delete it and start again with models.teacher: the "
        "teacher makes it anew"
    )
    return DataError(message)


def _write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
