"""Finding, sampling, scaling and cropping of video files."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
import torch

from fastvideo.dataset.video import (
    FrameSpec,
    VideoError,
    VideoInfo,
    find_videos,
    frames_to_tensor,
    probe_video,
    read_windows,
)
from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    WriteClip = Callable[..., Path]

RED, GREEN, BLUE, WHITE, BLACK = (200, 0, 0), (0, 200, 0), (0, 0, 200), (255,) * 3, (0,) * 3


def numbers(images: np.ndarray[Any, Any]) -> list[int]:
    """The numbers that frames made by ``grey_frames`` tell."""
    return [round((float(image.mean()) - 20) / 4) for image in images]


def sampled(path: Path, *, count: int, fps: float) -> list[int]:
    """The numbers of the frames in a clip's first window."""
    window = next(read_windows(path, FrameSpec(48, 64, count, fps)))
    return numbers(window.frames_THWC)


def stripes(*colours: tuple[int, ...], height: int, width: int) -> np.ndarray[Any, Any]:
    """An image of upright stripes of equal width."""
    image = np.empty((height, width, 3), dtype=np.uint8)
    edges = [round(width * i / len(colours)) for i in range(len(colours) + 1)]
    for colour, left, right in zip(colours, edges, edges[1:], strict=False):
        image[:, left:right] = colour
    return image


def test_videos_are_found_at_any_depth_in_order_of_their_path(tmp_path: Path) -> None:
    """Endings count in any case; hidden files and folders and other files do not."""
    for name in ("b.mp4", "a/z.MKV", "a/notes.txt", ".hidden/c.mp4", "a/.d.mp4", "a/b/e.webm"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = [path.relative_to(tmp_path).as_posix() for path in find_videos(tmp_path)]
    assert found == ["a/b/e.webm", "a/z.MKV", "b.mp4"]


def test_searching_a_missing_folder_names_it(tmp_path: Path) -> None:
    """A folder that is not there is an error, not an empty list."""
    with pytest.raises(ConfigError, match="nowhere is not a directory"):
        find_videos(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": 100}, "height is 100; expected a positive multiple of 16, such as 96"),
        ({"width": 0}, "width is 0; expected a positive multiple of 16, such as 16"),
        ({"num_frames": 16}, "num_frames is 16; expected 4k+1 (1, 5, 9, …), such as 17"),
        ({"num_frames": 0}, "num_frames is 0; expected 4k+1 (1, 5, 9, …), such as 1"),
        ({"fps": 0.0}, "fps is 0.0; expected frames per second above 0"),
        ({"fps": float("nan")}, "fps is nan; expected frames per second above 0"),
    ],
)
def test_sizes_the_model_cannot_take_are_refused(change: dict[str, Any], message: str) -> None:
    """The error says what is possible, with a value nearby."""
    good: dict[str, Any] = {"height": 64, "width": 64, "num_frames": 9, "fps": 16.0}
    with pytest.raises(ConfigError, match=re.escape(message)):
        FrameSpec(**(good | change))


def test_the_same_rate_takes_every_frame(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """Sampling at the clip's own rate is the identity."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(12), rate=25)
    assert sampled(path, count=9, fps=25) == list(range(9))


@pytest.mark.parametrize(
    ("rate", "fps", "expected"),
    [
        (30, 10, [0, 3, 6, 9, 12]),
        (25, 10, [0, 3, 5, 8, 10]),
        (Fraction(30000, 1001), 30, [0, 1, 2, 3, 4]),
        (30, 29.97, [0, 1, 2, 3, 4]),
        (Fraction(24000, 1001), 12, [0, 2, 4, 6, 8]),
        (8, 16, [0, 0, 1, 1, 2]),
        (10, 25, [0, 0, 1, 1, 1]),
    ],
)
def test_frames_are_chosen_by_time(
    rate: Any,
    fps: float,
    expected: list[int],
    tmp_path: Path,
    write_clip: WriteClip,
    grey_frames: Any,
) -> None:
    """Each moment has the frame shown then; rates that only nearly agree skip nothing."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(14), rate=rate)
    assert sampled(path, count=5, fps=fps) == expected


def test_a_clip_stays_in_step_with_nearly_equal_rates(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """29.97 frames per second sampled at 30 neither repeat nor drop over a second and a half."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(46), rate=Fraction(30000, 1001))
    assert sampled(path, count=45, fps=30) == list(range(45))


def test_a_frame_of_a_variable_rate_clip_is_held_until_the_next(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """A long pause repeats the frame before it to its end, not to its middle."""
    times = [0.0, 0.04, 0.08, 0.7, 0.74, 0.78, 0.82, 0.9]
    path = write_clip(tmp_path / "a.mp4", grey_frames(8), times=times)
    assert sampled(path, count=9, fps=10) == [0, 2, 2, 2, 2, 2, 2, 3, 6]


def test_times_count_from_the_first_frame(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """A clip that starts at three seconds is read like one that starts at zero."""
    times = [3 + index / 25 for index in range(12)]
    path = write_clip(tmp_path / "a.mkv", grey_frames(12), times=times)
    assert sampled(path, count=9, fps=25) == list(range(9))


@pytest.mark.parametrize(("rotation", "white_half"), [(90, "bottom"), (180, "right"), (-90, "top")])
def test_a_rotated_clip_is_turned_upright(
    rotation: int, white_half: str, tmp_path: Path, write_clip: WriteClip
) -> None:
    """The left half of the stored picture ends where a player shows it."""
    image = stripes(WHITE, BLACK, height=64, width=64)
    path = write_clip(tmp_path / "a.mp4", [image] * 3, rotation=rotation)
    frame = next(read_windows(path, FrameSpec(64, 64, 1, 25))).frames_THWC[0].astype(float)
    halves = {
        "top": frame[:32],
        "bottom": frame[32:],
        "left": frame[:, :32],
        "right": frame[:, 32:],
    }
    assert halves[white_half].mean() > 240
    assert max(halves, key=lambda name: halves[name].mean()) == white_half


def test_a_rotated_clip_is_cropped_in_its_shown_direction(
    tmp_path: Path, write_clip: WriteClip
) -> None:
    """A wide picture shown upright fills a tall window without losing its ends."""
    image = stripes(RED, GREEN, BLUE, height=32, width=96)
    path = write_clip(tmp_path / "a.mp4", [image] * 2, rotation=90)
    frame = next(read_windows(path, FrameSpec(96, 32, 1, 25))).frames_THWC[0]
    assert frame.shape == (96, 32, 3)
    assert [int(frame[row, 16].argmax()) for row in (8, 48, 88)] == [2, 1, 0]


def test_the_crop_is_around_the_centre_and_keeps_the_shape(
    tmp_path: Path, write_clip: WriteClip
) -> None:
    """Of three stripes of a wide picture, the square window shows the middle one alone."""
    image = stripes(RED, GREEN, BLUE, height=32, width=96)
    path = write_clip(tmp_path / "a.mp4", [image] * 2)
    frame = next(read_windows(path, FrameSpec(64, 64, 1, 25))).frames_THWC[0]
    assert np.abs(frame[:, 4:-4].astype(int) - np.array(GREEN)).max() <= 6


def test_pixels_that_are_not_square_are_stretched(tmp_path: Path, write_clip: WriteClip) -> None:
    """A narrow stored picture with wide pixels fills the window from end to end."""
    image = stripes(RED, GREEN, BLUE, height=64, width=32)
    path = write_clip(tmp_path / "a.mp4", [image] * 2, pixel_aspect=Fraction(2, 1))
    frame = next(read_windows(path, FrameSpec(64, 64, 1, 25))).frames_THWC[0]
    assert [int(frame[32, column].argmax()) for column in (6, 32, 57)] == [0, 1, 2]


@pytest.mark.parametrize(("height", "width"), [(16, 16), (49, 65), (200, 33)])
def test_any_picture_size_fills_the_window(
    height: int, width: int, tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """Small pictures are enlarged, odd sizes are no trouble, and no border is left."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(3, height=height, width=width))
    frame = next(read_windows(path, FrameSpec(48, 80, 1, 25))).frames_THWC[0]
    assert frame.shape == (48, 80, 3)
    assert np.abs(frame.astype(int) - 20).max() <= 2


def test_a_grey_clip_has_three_equal_channels(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """A stream without colour comes out as RGB."""
    path = write_clip(tmp_path / "a.mkv", grey_frames(5), pix_fmt="gray")
    frames = next(read_windows(path, FrameSpec(48, 64, 5, 25))).frames_THWC
    assert numbers(frames) == [0, 1, 2, 3, 4]
    assert np.array_equal(frames[..., 0], frames[..., 2])


def test_windows_follow_each_other_without_gap_or_overlap(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """All windows that fit are read; the frames after the last full one are left out."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(13), rate=10)
    windows = list(read_windows(path, FrameSpec(48, 64, 5, 10), max_windows=None))
    assert [(w.index, w.start_s, numbers(w.frames_THWC)) for w in windows] == [
        (0, 0.0, [0, 1, 2, 3, 4]),
        (1, 0.5, [5, 6, 7, 8, 9]),
    ]


def test_no_more_windows_than_asked_for(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """The first window alone is the default."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(13), rate=10)
    assert len(list(read_windows(path, FrameSpec(48, 64, 5, 10)))) == 1
    assert len(list(read_windows(path, FrameSpec(48, 64, 5, 10), max_windows=2))) == 2


def test_a_clip_of_exactly_the_length_fits(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """Nine frames make a window of nine."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(9), rate=16)
    assert sampled(path, count=9, fps=16) == list(range(9))


def test_a_clip_one_frame_shorter_is_too_short(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """Eight frames make no window of nine, and the error says how many there are."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(8), rate=16)
    message = "too short: 8 frames at 16 fps, 9 are needed"
    with pytest.raises(VideoError, match=message) as caught:
        next(read_windows(path, FrameSpec(48, 64, 9, 16)))
    assert (caught.value.kind, caught.value.path) == ("too short", path)


def test_a_clip_of_one_frame_is_a_window_of_one(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """A still picture in a video file is read at any rate."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(1), rate=1)
    assert sampled(path, count=1, fps=1) == [0]


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    """A file with an audio stream only is refused as what it is."""
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        silence = np.zeros((1, 4096), dtype=np.float32)
        frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(VideoError, match="holds no video stream") as caught:
        next(read_windows(path, FrameSpec(48, 64, 1, 25)))
    assert caught.value.kind == "no video"


@pytest.mark.parametrize("content", [b"", b"this is no video\n" * 50, b"\x00" * 4096])
def test_files_that_are_no_videos_are_unreadable(content: bytes, tmp_path: Path) -> None:
    """Empty files, text and zeros are reported, whatever their name promises."""
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(VideoError, match=r"a\.mp4: cannot be read: ") as caught:
        next(read_windows(path, FrameSpec(48, 64, 1, 25)))
    assert caught.value.kind == "unreadable"


def test_a_file_cut_off_before_its_index_is_unreadable(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """An upload that broke off has no index at its end."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(12))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(VideoError) as caught:
        next(read_windows(path, FrameSpec(48, 64, 9, 25)))
    assert caught.value.kind == "unreadable"


def noise(count: int) -> list[np.ndarray[Any, Any]]:
    """Frames that do not compress, so that a byte range of the file is a range of frames."""
    generator = np.random.default_rng(0)
    return [generator.integers(0, 255, (48, 64, 3), dtype=np.uint8) for _ in range(count)]


def test_a_file_cut_off_after_its_index_is_never_a_full_window(
    tmp_path: Path, write_clip: WriteClip
) -> None:
    """With the index in front the file opens, and the missing frames are noticed."""
    path = write_clip(tmp_path / "a.mp4", noise(12), options={"movflags": "faststart"})
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(VideoError) as caught:
        list(read_windows(path, FrameSpec(48, 64, 9, 25)))
    assert caught.value.kind in {"unreadable", "too short"}
    assert len(list(read_windows(path, FrameSpec(48, 64, 1, 25)))) == 1


def test_damage_inside_the_pictures_is_noticed(tmp_path: Path, write_clip: WriteClip) -> None:
    """Overwritten bytes make a clip unusable instead of teaching a model the damage."""
    path = write_clip(tmp_path / "a.mp4", noise(12), options={"movflags": "faststart"})
    content = bytearray(path.read_bytes())
    middle = len(content) // 3
    content[middle : middle + 20_000] = b"\xff" * 20_000
    path.write_bytes(content)
    with pytest.raises(VideoError) as caught:
        list(read_windows(path, FrameSpec(48, 64, 9, 25)))
    assert caught.value.kind == "unreadable"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that vanished since the search is reported like any other."""
    with pytest.raises(VideoError, match=r"gone\.mp4: cannot be read: No such file"):
        probe_video(tmp_path / "gone.mp4")


def test_probing_reads_size_rate_and_length(
    tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """The header alone says what a clip is."""
    path = write_clip(tmp_path / "a.mp4", grey_frames(10), rate=20)
    assert probe_video(path) == VideoInfo(width=64, height=48, fps=20.0, duration_s=0.5)


def test_pixels_become_numbers_from_minus_one_to_one() -> None:
    """Black is -1, white is 1, and the colour axis comes first."""
    frames = np.zeros((5, 4, 6, 3), dtype=np.uint8)
    frames[2] = 255
    video = frames_to_tensor(frames)
    assert (video.shape, video.dtype) == ((3, 5, 4, 6), torch.float32)
    assert [video[:, t].unique().tolist() for t in (0, 2)] == [[-1.0], [1.0]]


def test_the_colours_of_a_clip_survive(tmp_path: Path, write_clip: WriteClip) -> None:
    """Red is red after encoding, decoding and scaling."""
    image = stripes(RED, height=48, width=64)
    path = write_clip(tmp_path / "a.mp4", [image] * 2, pix_fmt="yuv420p")
    frame = next(read_windows(path, FrameSpec(48, 64, 1, 25))).frames_THWC[0]
    assert np.abs(frame.astype(int) - np.array(RED)).max() <= 4
