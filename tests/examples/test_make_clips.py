"""The demo's clips, cut from real videos."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fastvideo.dataset.captions import AUTO, match_captions
from fastvideo.dataset.preprocess import PreprocessConfig, preprocess_videos
from fastvideo.dataset.tiny_assets import write_tiny_wan_model
from fastvideo.dataset.video import FrameSpec, find_videos, read_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parents[2] / "examples" / "demo" / "make_clips.py"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("make_clips", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_clips"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["make_clips"]


@pytest.fixture(scope="module")
def clips(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder the script lays out."""
    out = tmp_path_factory.mktemp("demo") / "clips"
    assert script.make_clips(out) == len(script.CUTS)
    return out


def test_every_clip_has_a_caption_and_enough_frames(script: Any, clips: Path) -> None:
    """At least sixteen clips; each gives nine frames at sixteen per second."""
    found = find_videos(clips)
    assert len(found) == len(script.CUTS) >= 16
    matched = match_captions(found, AUTO, clips)
    assert (len(matched.captions), matched.problems, matched.unused) == (len(found), {}, [])
    for path in found:
        assert next(read_windows(path, FrameSpec(64, 64, 9, 16.0))).frames_THWC.any()


def test_no_two_clips_show_the_same(clips: Path) -> None:
    """Windows and crops differ, so that the data set has as many samples as clips."""
    first = [next(read_windows(p, FrameSpec(32, 32, 1, 16.0))) for p in find_videos(clips)]
    pictures = np.stack([window.frames_THWC[0] for window in first]).astype(float)
    for index, picture in enumerate(pictures):
        others = np.delete(pictures, index, axis=0)
        assert np.abs(others - picture).mean(axis=(1, 2, 3)).min() > 1


def test_clips_that_are_there_are_kept(script: Any, clips: Path) -> None:
    """A second call writes only what is missing."""
    kept, removed = find_videos(clips)[:2]
    before = kept.stat().st_mtime_ns
    removed.unlink()
    assert script.make_clips(clips) == 1
    assert removed.is_file()
    assert kept.stat().st_mtime_ns == before


def test_the_script_says_what_is_missing(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the distribution the error names the extra."""
    monkeypatch.setattr(script, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(SystemExit, match=r"run  pip install 'fastvideo\[demo\]'"):
        script.source_videos()


def test_real_videos_become_a_data_set(script: Any, tmp_path: Path) -> None:
    """The untouched source files, two windows each, give finite latents that differ."""
    root = tmp_path / "videos"
    root.mkdir()
    for name, path in script.source_videos().items():
        (root / name).symlink_to(path)
        (root / name).with_suffix(".txt").write_text(f"the video called {name}")
    model = write_tiny_wan_model(tmp_path / "model")
    spec = FrameSpec(64, 64, 9, 16.0)
    config = PreprocessConfig(
        model=str(model), videos=root, out=tmp_path / "out", spec=spec, max_windows=2
    )
    report = preprocess_videos(config)
    assert (report.clips, report.samples, report.skipped) == (4, 8, [])
