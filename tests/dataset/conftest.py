"""Small data sets for the tests of this folder."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import av
import numpy as np
import pytest
import torch

from fastvideo.dataset import (
    ParquetDatasetWriter,
    VideoBatch,
    basic_t2v_record_creator,
    pyarrow_schema_t2v,
    records_to_table,
)
from fastvideo.dataset.tiny_assets import write_tiny_wan_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class DatasetFactory(Protocol):
    """Writes a text-to-video data set and returns its directory."""

    def __call__(
        self,
        rows: int,
        *,
        name: str = "data",
        samples_per_file: int = 4,
        dtype: torch.dtype = torch.float32,
    ) -> Path: ...


def make_videos(
    count: int, *, dtype: torch.dtype = torch.float32, prefix: str = "clip"
) -> VideoBatch:
    """Samples whose latent holds their number everywhere, with 1 to 4 text tokens of size 5."""
    return VideoBatch(
        video_file_name=[f"{prefix}{i:03d}" for i in range(count)],
        prompt=[f"caption {i}" for i in range(count)],
        latents=[torch.full((4, 3, 2, 2), float(i), dtype=dtype) for i in range(count)],
        prompt_embeds=[torch.full((1 + i % 4, 5), i + 1.0, dtype=dtype) for i in range(count)],
        width=[64] * count,
        height=[48] * count,
        fps=[8.0] * count,
    )


@pytest.fixture
def videos() -> Callable[..., VideoBatch]:
    """The function that makes samples; see :func:`make_videos`."""
    return make_videos


@pytest.fixture
def t2v_dataset(tmp_path: Path) -> DatasetFactory:
    """A factory of text-to-video data sets, each in its own directory."""

    def write(
        rows: int,
        *,
        name: str = "data",
        samples_per_file: int = 4,
        dtype: torch.dtype = torch.float32,
    ) -> Path:
        writer = ParquetDatasetWriter(tmp_path / name, samples_per_file)
        records = basic_t2v_record_creator(make_videos(rows, dtype=dtype))
        writer.append_table(records_to_table(records, pyarrow_schema_t2v))
        writer.flush(write_remainder=True)
        return tmp_path / name

    return write


GREY_OF_FIRST, GREY_STEP = 20, 4


def grey_frames(count: int, *, height: int = 48, width: int = 64) -> list[np.ndarray[Any, Any]]:
    """Plain frames [H, W, 3] whose grey level tells their number, up to 58 of them."""
    return [
        np.full((height, width, 3), GREY_OF_FIRST + GREY_STEP * index, dtype=np.uint8)
        for index in range(count)
    ]


def write_clip(
    path: Path,
    frames: Sequence[np.ndarray[Any, Any]],
    *,
    rate: Fraction | int = 25,
    times: Sequence[float] | None = None,
    rotation: int = 0,
    pixel_aspect: Fraction | None = None,
    pix_fmt: str = "yuv444p",
    options: dict[str, str] | None = None,
) -> Path:
    """Writes frames [H, W, 3] as a video file without visible loss.

    Args:
        path: The file: ``.mp4`` for H.264, ``.mkv`` for FFV1.
        frames: uint8, RGB.
        rate: Frames per second, where ``times`` is not given.
        times: Seconds at which each frame is shown.
        rotation: Degrees counter-clockwise that a player must turn the picture.
        pixel_aspect: Width of a pixel over its height.
        pix_fmt: Pixel format of the stream.
        options: Options of the container's format.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    codec = "ffv1" if path.suffix == ".mkv" else "libx264"
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pix_fmt
        if codec == "libx264":
            stream.options = {"qp": "0", "preset": "ultrafast"}
        if pixel_aspect is not None:
            stream.codec_context.sample_aspect_ratio = pixel_aspect
        if rotation:
            stream.set_display_rotation(rotation)
        tick = Fraction(1, 12800) if times is not None else 1 / Fraction(rate)
        stream.codec_context.time_base = tick
        for index, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.time_base = tick
            frame.pts = index if times is None else round(times[index] / tick)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="session", name="write_clip")
def write_clip_fixture() -> Callable[..., Path]:
    """The function that writes video files; see :func:`write_clip`."""
    return write_clip


@pytest.fixture(scope="session", name="grey_frames")
def grey_frames_fixture() -> Callable[..., list[np.ndarray[Any, Any]]]:
    """The function that makes frames which tell their number; see :func:`grey_frames`."""
    return grey_frames


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Wan model; tests must not change it."""
    return write_tiny_wan_model(tmp_path_factory.mktemp("tiny") / "model")
