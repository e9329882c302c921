"""Videos as files: mp4 with H.264, which every browser plays.

Tensor legend: T frames, C colour channels (RGB), H/W height and width.
"""

from __future__ import annotations

import os
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fastvideo.errors import FastVideoError, import_extra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


class VideoWriteError(FastVideoError, OSError):
    """A video could not be written."""


def to_frames(video_CTHW: Tensor) -> NDArray[np.uint8]:
    """Returns a video as frames.

    Args:
        video_CTHW: [3, T, H, W], float in [0, 1]; values outside are clamped.

    Returns:
        [T, H, W, 3], uint8, RGB, on the CPU.
    """
    levels = (video_CTHW.detach().float() * 255).round().clamp(0, 255)
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
    av = import_extra("av", extra="train")
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(part.absolute()), mode="w", format="mp4") as container:
            _encode(av, container, frames_THWC, fps)
        part.replace(target)
    except (av.FFmpegError, OSError, ValueError) as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        message = f"{target} cannot be written: {reason}"
        raise VideoWriteError(message) from error
    return target


def _encode(av: Any, container: Any, frames: NDArray[np.uint8], fps: float) -> None:  # noqa: ANN401
    stream = container.add_stream(
        "libx264", rate=Fraction(fps).limit_denominator(1001), options={"crf": "18"}
    )
    stream.height, stream.width = frames.shape[1:3]
    stream.pix_fmt = "yuv420p"
    for image in frames:
        container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
    container.mux(stream.encode())
