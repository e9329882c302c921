"""Videos as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import av
import numpy as np
import pytest
import torch

from fastvideo.pipelines.video_file import VideoWriteError, to_frames, write_mp4

if TYPE_CHECKING:
    from pathlib import Path


def test_levels_are_rounded_and_clamped() -> None:
    """[3, T, H, W] in [0, 1] becomes [T, H, W, 3] in 0 to 255."""
    video = torch.tensor([-1.0, 0.5, 2.0])[:, None, None, None].expand(3, 2, 4, 6)
    frames = to_frames(video)
    assert (frames.shape, frames.dtype) == ((2, 4, 6, 3), np.uint8)
    assert frames[1, 3, 5].tolist() == [0, 128, 255]


def test_what_is_written_can_be_read_back(tmp_path: Path) -> None:
    """Colours, number of frames, rate and format survive; nothing else is left in the folder."""
    colours = np.array([[200, 30, 30], [30, 200, 30], [30, 30, 200]], dtype=np.uint8)
    frames = np.broadcast_to(colours[:, None, None], (3, 32, 48, 3)).copy()
    path = write_mp4(tmp_path / "new" / "video.mp4", frames, fps=23.976)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        read = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert float(stream.average_rate) == pytest.approx(23.976, abs=1e-3)
    assert np.abs(np.stack(read).astype(int) - frames).max() < 12
    assert [each.name for each in path.parent.iterdir()] == ["video.mp4"]


def test_an_error_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    """What is in the way is said, and no part of a file stays."""
    (tmp_path / "v.mp4").mkdir()
    frames = np.zeros((1, 16, 16, 3), dtype=np.uint8)
    with pytest.raises(VideoWriteError, match=r"v\.mp4 cannot be written: "):
        write_mp4(tmp_path / "v.mp4", frames, fps=8)
    assert [each.name for each in tmp_path.iterdir()] == ["v.mp4"]
