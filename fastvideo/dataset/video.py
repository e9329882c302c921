"""Reading video files: finding them, sampling frames by timestamp, resizing and cropping.

Frames are chosen by their presentation timestamps, never by counting, so files with an odd or a
variable frame rate come out at the speed they play at.

Tensor legend: T frames, H/W height and width, C colour channels (RGB).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastvideo.errors import ConfigError, DataError, import_extra

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

VIDEO_SUFFIXES = frozenset(
    {".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov"}
    | {".mp4", ".mpeg", ".mpg", ".ogv", ".ts", ".webm", ".wmv"}
)
"""File name endings, in lower case, that count as video."""

_SPATIAL_MULTIPLE = 16  # 8x by the VAE and 2x by the transformer's patches
_TEMPORAL_FACTOR = 4
_RIGHT_ANGLE = 90


class VideoError(DataError):
    """A clip cannot be used.

    Attributes:
        path: The file.
        kind: One or two words for counting: ``unreadable``, ``no video`` or ``too short``.
        reason: What is wrong, without the path.
    """

    def __init__(self, path: Path, kind: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """The size and rate that every clip is brought to.

    Attributes:
        height: Pixels, a multiple of 16.
        width: Pixels, a multiple of 16.
        num_frames: Frames in a window: 1, 5, 9, … (4k+1, because of the VAE's stride in time).
        fps: Frames per second after sampling.

    Raises:
        ConfigError: A value cannot be used; the message says which are possible.
    """

    height: int
    width: int
    num_frames: int
    fps: float

    def __post_init__(self) -> None:
        for name, value in (("height", self.height), ("width", self.width)):
            if value <= 0 or value % _SPATIAL_MULTIPLE:
                near = max(round(value / _SPATIAL_MULTIPLE), 1) * _SPATIAL_MULTIPLE
                message = (
                    f"{name} is {value}; expected a positive multiple of {_SPATIAL_MULTIPLE}, "
                    f"such as {near}"
                )
                raise ConfigError(message)
        if self.num_frames < 1 or (self.num_frames - 1) % _TEMPORAL_FACTOR:
            near = max(round((self.num_frames - 1) / _TEMPORAL_FACTOR), 0) * _TEMPORAL_FACTOR + 1
            message = f"num_frames is {self.num_frames}; expected 4k+1 (1, 5, 9, …), such as {near}"
            raise ConfigError(message)
        if not 0 < self.fps < float("inf"):
            message = f"fps is {self.fps}; expected frames per second above 0"
            raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a file says about its video stream.

    Attributes:
        width: Stored pixels, before rotation.
        height: Stored pixels, before rotation.
        fps: Average frames per second; None if the file does not say.
        duration_s: Seconds; None if the file does not say.
    """

    width: int
    height: int
    fps: float | None
    duration_s: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive frames of a clip, ready to encode.

    Attributes:
        index: Number of the window in its clip, from 0.
        start_s: Seconds from the clip's first frame.
        frames_THWC: [T, H, W, 3], uint8, RGB.
    """

    index: int
    start_s: float
    frames_THWC: NDArray[np.uint8]  # noqa: N815 - shape suffix


def find_videos(root: Path) -> list[Path]:
    """Returns the video files at any depth below a directory, sorted by their relative path.

    Hidden files and folders are left out, and links to folders are not followed.

    Args:
        root: The directory to search.

    Raises:
        ConfigError: ``root`` is not a directory.
    """
    if not root.is_dir():
        message = f"{root} is not a directory; expected a folder of video files"
        raise ConfigError(message)
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [
            Path(folder, name)
            for name in names
            if not name.startswith(".") and Path(name).suffix.lower() in VIDEO_SUFFIXES
        ]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def probe_video(path: Path) -> VideoInfo:
    """Reads what a file says about its video stream, without decoding it.

    Raises:
        VideoError: The file cannot be opened or has no video stream.
    """
    with _open_stream(path) as (container, stream):
        duration = None
        if stream.duration is not None and stream.time_base is not None:
            duration = float(stream.duration * stream.time_base)
        elif container.duration is not None:
            duration = container.duration / 1_000_000
        rate = stream.average_rate
        context = stream.codec_context
        return VideoInfo(context.width, context.height, float(rate) if rate else None, duration)


def read_windows(path: Path, spec: FrameSpec, *, max_windows: int | None = 1) -> Iterator[Window]:
    """Yields windows of a clip one after the other, without gaps or overlap.

    A frame is shown until the next one's timestamp. The frame for a moment is the one that is
    shown then, or the following one if that is closer than half a frame interval, so that
    rounded timestamps neither repeat nor drop frames. Where the clip has fewer frames per second
    than ``spec.fps`` frames repeat. Decoding stops as soon as the last window is full; frames
    after the last full window are left out.

    Frames are turned as the file says, scaled with their aspect ratio kept until they cover the
    window's size, and cropped around the centre.

    Args:
        path: A video file.
        spec: Size and rate of the windows.
        max_windows: Most windows to yield; None yields all that fit.

    Yields:
        At least one window.

    Raises:
        VideoError: The file is damaged, has no video, or is too short for one window.
    """
    numpy = import_extra("numpy", extra="train")
    shape = (spec.num_frames, spec.height, spec.width, 3)
    filled, index = 0, 0
    frames = numpy.empty(shape, dtype=numpy.uint8)
    for image in _sampled_images(path, spec):
        frames[filled] = image
        filled += 1
        if filled < spec.num_frames:
            continue
        yield Window(index, index * spec.num_frames / spec.fps, frames)
        filled, index = 0, index + 1
        if index == max_windows:
            return
        frames = numpy.empty(shape, dtype=numpy.uint8)
    if index == 0:
        reason = (
            f"too short: {filled} frames at {spec.fps:g} fps, {spec.num_frames} are needed "
            f"({spec.num_frames / spec.fps:.2f} s)"
        )
        raise VideoError(path, "too short", reason)


def frames_to_tensor(frames_THWC: NDArray[np.uint8]) -> torch.Tensor:
    """Returns uint8 RGB frames [T, H, W, 3] as float32 [3, T, H, W] in [-1, 1]."""
    return torch.from_numpy(frames_THWC).permute(3, 0, 1, 2).float().div(127.5).sub(1.0)


@contextmanager
def _open_stream(path: Path) -> Iterator[tuple[Any, Any]]:
    """Opens a file and its first real video stream; errors inside the block name the file."""
    av = import_extra("av", extra="train")
    try:
        # Absolute: a relative name with a colon would be taken for a protocol.
        with av.open(str(path.absolute()), metadata_errors="ignore") as container:
            streams = [s for s in container.streams.video if not _is_cover_picture(av, s)]
            if not streams:
                raise VideoError(path, "no video", "holds no video stream")
            if streams[0].codec_context is None:
                raise VideoError(path, "unreadable", "its video codec is not supported")
            streams[0].thread_type = "AUTO"
            yield container, streams[0]
    except (av.FFmpegError, OSError) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise VideoError(path, "unreadable", reason) from error


def _is_cover_picture(av: Any, stream: Any) -> bool:  # noqa: ANN401 - av is untyped here
    return bool(stream.disposition & av.stream.Disposition.attached_pic)


def _sampled_images(path: Path, spec: FrameSpec) -> Iterator[NDArray[np.uint8]]:
    """Yields the images [H, W, 3] for the moments 0, 1/fps, 2/fps, … while the clip lasts."""
    period = 1 / Fraction(str(spec.fps))
    with _open_stream(path) as (container, stream):
        moment, shown, image = Fraction(0), None, None
        for start, end, frame in _intervals(_timed(container, stream), period):
            while moment < end:
                if shown != start:
                    if frame.is_corrupt:
                        reason = f"cannot be read: damaged frame at {float(start):.2f} s"
                        raise VideoError(path, "unreadable", reason)
                    shown, image = start, _fit(frame, stream.sample_aspect_ratio, spec)
                if image is not None:
                    yield image
                moment += period


def _timed(container: Any, stream: Any) -> Iterator[tuple[Fraction, Any]]:  # noqa: ANN401
    """Yields ``(seconds since the first frame, frame)`` with strictly rising times.

    A frame without a timestamp follows its predecessor by the average frame interval. One whose
    time does not rise, which broken muxers write, is left out.
    """
    rate = stream.average_rate or stream.guessed_rate or Fraction(25)
    origin, last = None, None
    for frame in container.decode(stream):
        if frame.pts is not None and frame.time_base is not None:
            time = Fraction(frame.pts * frame.time_base)
        else:
            time = Fraction(0) if last is None else last + 1 / Fraction(rate)
        origin = time if origin is None else origin
        if last is not None and time <= last:
            continue
        last = time
        yield time - origin, frame


def _intervals(
    timed: Iterator[tuple[Fraction, Any]], period: Fraction
) -> Iterator[tuple[Fraction, Fraction, Any]]:
    """Yields ``(start, end, frame)``: sampled moments before ``end`` take this frame or one before.

    A frame ends when the next one starts, less half an interval of the source or of the sampling,
    whichever is shorter.
    """
    current: tuple[Fraction, Any] | None = None
    gap = Fraction(0)
    for time, frame in timed:
        if current is not None:
            gap = time - current[0]
            yield current[0], time - min(gap, period) / 2, current[1]
        current = (time, frame)
    if current is not None:
        time, frame = current
        duration = getattr(frame, "duration", None)
        if duration and frame.time_base is not None:
            gap = Fraction(duration * frame.time_base)
        # Half a tick at the least, so that a clip of one frame has that frame.
        yield time, time + max(gap - min(gap, period) / 2, Fraction(1, 1_000_000)), frame


def _fit(frame: Any, pixel_aspect: Fraction | None, spec: FrameSpec) -> NDArray[np.uint8]:  # noqa: ANN401
    """Returns a frame turned upright, scaled to cover [H, W] and cropped around the centre."""
    numpy = import_extra("numpy", extra="train")
    quarter_turns = round(frame.rotation / _RIGHT_ANGLE) % 4
    shown_width = frame.width * float(pixel_aspect or 1)
    height, width = spec.height, spec.width
    if quarter_turns % 2:
        height, width = width, height
    scale = max(height / frame.height, width / shown_width)
    resized = frame.reformat(
        width=max(width, round(shown_width * scale)),
        height=max(height, round(frame.height * scale)),
        format="rgb24",
        interpolation="BICUBIC",
    )
    image = resized.to_ndarray()
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    cropped = image[top : top + height, left : left + width]
    upright: NDArray[np.uint8] = numpy.rot90(cropped, quarter_turns)
    return upright
