"""Videos as files: mp4 with H.264, which every browser plays.

Tensor legend: T frames, C colour channels (RGB), H/W height and width.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fastvideo.errors import FastVideoError, import_extra

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fastvideo.pipelines.generation import GenerationResult


class VideoWriteError(FastVideoError, OSError):
    """A video could not be written.

    Attributes:
        result: What was made nevertheless: pixels, if they are wanted, and the files of the
            videos before this one; or None.
    """

    result: GenerationResult | None = None


def to_frames(video_CTHW: Tensor) -> NDArray[np.uint8]:
    """Returns a video as frames.

    Args:
        video_CTHW: [3, T, H, W], float in [0, 1]; values outside are clamped, and NaN is 0.

    Returns:
        [T, H, W, 3], uint8, RGB, on the CPU.
    """
    levels = (video_CTHW.detach().float().nan_to_num(0.0) * 255).round().clamp(0, 255)
    frames = levels.permute(1, 2, 3, 0).to("cpu").byte().contiguous().numpy()
    return cast("NDArray[np.uint8]", frames)


def write_mp4(path: str | Path, frames_THWC: NDArray[np.uint8], *, fps: float) -> Path:
    """Writes frames as an mp4 file, H.264 in yuv420p; it appears whole or not at all.

    Args:
        path: The file; its folder is created.
        frames_THWC: [T, H, W, 3], uint8, RGB; H and W even.
        fps: Frames per second.

    Returns:
        The path.

    Raises:
        VideoWriteError: It could not be written; the message says why.
    """
    target = Path(path)
    with _encoded(target, frames_THWC, fps) as part:
        part.replace(target)
    return target


def write_new_mp4(
    paths: Iterable[str | Path], frames_THWC: NDArray[np.uint8], *, fps: float
) -> Path:
    """Writes an mp4 file as :func:`write_mp4` does, but never over a file that is there.

    That holds even if another process is about to write a file of the same name.

    Args:
        paths: Names in one folder, the best first; the first that is free is taken.
        frames_THWC: See :func:`write_mp4`.
        fps: Frames per second.

    Returns:
        The file.

    Raises:
        VideoWriteError: It could not be written, or no name is free.
    """
    names = (Path(path) for path in paths)
    first = next(names)
    with _encoded(first, frames_THWC, fps) as part:
        for target in chain((first,), names):
            if _take_name(part, target):
                return target
    message = f"{first} cannot be written: it is there, and no other name is given"
    raise VideoWriteError(message)


def _take_name(part: Path, target: Path) -> bool:
    """Gives a file its name, unless that is taken."""
    try:
        target.hardlink_to(part)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if target.exists():
            return False
        part.replace(target)
        return True
    part.unlink()
    return True


@contextmanager
def _encoded(target: Path, frames: NDArray[np.uint8], fps: float) -> Iterator[Path]:
    """Has a video in a file beside its target for the body, which gives it its name."""
    av = import_extra("av", extra="train")
    part = target.with_name(f".{target.name}.{os.getpid()}{secrets.token_hex(2)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(part.absolute()), mode="w", format="mp4") as container:
            _encode(av, container, frames, fps)
        yield part
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{target} cannot be written: {reason}"
        raise VideoWriteError(message) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _encode(av: Any, container: Any, frames: NDArray[np.uint8], fps: float) -> None:  # noqa: ANN401
    stream = container.add_stream(
        "libx264", rate=Fraction(fps).limit_denominator(1001), options={"crf": "18"}
    )
    stream.height, stream.width = frames.shape[1:3]
    stream.pix_fmt = "yuv420p"
    for image in frames:
        container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
    container.mux(stream.encode())
