"""Videos as files."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest
import torch

from fastvideo.pipelines.output_path import output_paths
from fastvideo.pipelines.video_file import (
    VideoWriteError,
    to_frames,
    write_mp4,
    write_new_mp4,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_levels_are_rounded_and_clamped() -> None:
    """[3, T, H, W] in [0, 1] becomes [T, H, W, 3] in 0 to 255, and NaN is 0."""
    video = torch.tensor([-1.0, 0.5, 2.0])[:, None, None, None].expand(3, 2, 4, 6)
    frames = to_frames(video)
    assert (frames.shape, frames.dtype) == ((2, 4, 6, 3), np.uint8)
    assert frames[1, 3, 5].tolist() == [0, 128, 255]
    assert not to_frames(torch.full((3, 1, 2, 2), float("nan"))).any()


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


FRAME = np.zeros((1, 16, 16, 3), dtype=np.uint8)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_never_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    """Not even of one that appears while it is encoded, and on any file system."""
    if not has_links:
        monkeypatch.setattr("os.link", _refuse_links)
    names = [tmp_path / "a.mp4", tmp_path / "a_1.mp4"]
    names[0].write_text("of another process")
    assert write_new_mp4(names, FRAME, fps=8) == names[1]
    assert names[0].read_text() == "of another process"
    assert names[1].stat().st_size > 100
    assert sorted(tmp_path.iterdir()) == names
    with pytest.raises(VideoWriteError, match="it is there, and no other name is given"):
        write_new_mp4(names[:1], FRAME, fps=8)
    assert sorted(tmp_path.iterdir()) == names


def test_many_writers_of_one_name_lose_nothing(tmp_path: Path) -> None:
    """Each has a file of its own in the end."""
    with ThreadPoolExecutor(8) as threads:
        written = list(
            threads.map(
                lambda _: write_new_mp4(output_paths(str(tmp_path), "a"), FRAME, fps=8), range(16)
            )
        )
    assert sorted(written) == sorted(tmp_path.iterdir())
    assert len(set(written)) == 16


def _refuse_links(*args: object, **options: object) -> None:
    raise PermissionError(errno.EPERM, "no links here")
