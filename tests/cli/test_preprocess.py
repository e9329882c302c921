"""The command `fastvideo preprocess`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest
import torch

from fastvideo.cli.main import main
from fastvideo.dataset import get_parquet_files_and_length
from fastvideo.dataset.tiny_assets import write_tiny_wan_model

if TYPE_CHECKING:
    from pathlib import Path

FRAMES = ["--height", "32", "--width", "32", "--num-frames", "5", "--fps", "10"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model."""
    return write_tiny_wan_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """A good clip and one that is too short, with captions."""
    root = tmp_path / "clips"
    root.mkdir()
    for name, count in (("good", 6), ("short", 2)):
        with av.open(str(root / f"{name}.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=10)
            stream.height = stream.width = 32
            stream.pix_fmt = "yuv420p"
            for index in range(count):
                image = np.full((32, 32, 3), 20 * index, dtype=np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
    lines = [
        json.dumps({"file_name": name, "caption": f"a {name} clip"}) for name in ("good", "short")
    ]
    (root / "captions.jsonl").write_text("\n".join(lines))
    return root


def command(model: Path, clips: Path, *more: str) -> list[str]:
    """A command line for the folder of clips."""
    out = str(clips.parent / "out")
    return ["preprocess", "--model", str(model), "--videos", str(clips), "--out", out, *more]


def test_good_clips_are_written_and_bad_ones_listed(
    model: Path, clips: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0, a table of what was skipped and why, and the counts."""
    assert main(command(model, clips, *FRAMES)) == 0
    out = capsys.readouterr().out
    assert "short.mp4" in out
    assert "too short: 2 frames at 10 fps, 5 are needed" in out
    counts = {
        line.rsplit(maxsplit=1)[0].strip(): line.split()[-1]
        for line in out.splitlines()
        if len(line.split()) > 1
    }
    expected = {"clips found": "2", "finished by this run": "1", "skipped: too short": "1"}
    assert {key: counts[key] for key in expected} == expected
    files, lengths = get_parquet_files_and_length(str(clips.parent / "out"))
    assert (len(files), sum(lengths)) == (1, 1)


def test_strict_makes_a_skip_a_failure(model: Path, clips: Path) -> None:
    """The good clips are written all the same."""
    assert main(command(model, clips, *FRAMES, "--strict")) == 1
    assert sum(get_parquet_files_and_length(str(clips.parent / "out"))[1]) == 1
    (clips / "short.mp4").unlink()
    assert main(command(model, clips, *FRAMES, "--strict")) == 0


def test_nothing_but_bad_clips_is_a_failure(model: Path, clips: Path) -> None:
    """Status 1, and the report says why."""
    (clips / "good.mp4").write_bytes(b"")
    assert main(command(model, clips, *FRAMES)) == 1
    report = json.loads((clips.parent / "out" / "preprocess_report.json").read_text())
    assert {skip["name"] for skip in report["skipped"]} == {"good.mp4", "short.mp4"}


def test_several_windows_of_a_clip(model: Path, clips: Path) -> None:
    """`all` takes every window that fits."""
    assert (
        main(
            command(
                model,
                clips,
                *FRAMES[:4],
                "--num-frames",
                "1",
                "--fps",
                "10",
                "--windows-per-clip",
                "all",
            )
        )
        == 0
    )
    assert sum(get_parquet_files_and_length(str(clips.parent / "out"))[1]) == 8


def test_text_only_needs_no_videos(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of prompts and no frame options."""
    (tmp_path / "prompts.txt").write_text("a cat\na dog\n")
    arguments = ["preprocess", "--task", "text_only", "--model", str(model), "--out"]
    prompts = ["--captions", str(tmp_path / "prompts.txt")]
    assert main([*arguments, str(tmp_path / "out"), *prompts]) == 0
    out = capsys.readouterr().out
    assert "samples in the data set" in out
    assert "captions found" in out
    assert "clip" not in out
    assert sum(get_parquet_files_and_length(str(tmp_path / "out"))[1]) == 2


def test_an_unknown_model_is_blamed_on_its_option(
    clips: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names what was typed on the command line."""
    assert main(command(clips.parent / "nomodel", clips, *FRAMES)) == 2
    assert "/nomodel' is not a directory (looked in " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "error: --task t2v also needs --height, --width, --num-frames, --fps"),
        ([*FRAMES, "--height", "100"], "error: height is 100; expected a positive multiple of 16"),
        ([*FRAMES, "--num-frames", "8"], "error: num_frames is 8; expected 4k+1"),
        ([*FRAMES, "--device", "gpu"], "error: --device is 'gpu'; expected auto, cpu, cuda or"),
        ([*FRAMES, "--captions", "none.json"], "error: captions file none.json does not exist"),
        ([*FRAMES, "--model", "./none"], "error: --model './none' is not a directory"),
        ([*FRAMES, "--videos", "none"], "error: none is not a directory; expected a folder of"),
    ],
)
def test_mistakes_are_one_line_and_status_two(
    options: list[str], message: str, model: Path, clips: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, no output directory full of nothing."""
    assert main(command(model, clips, *options)) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not (clips.parent / "out" / "combined_parquet_dataset").exists()


def test_cuda_without_a_device_is_refused(
    model: Path,
    clips: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error says so at once, not after the model was read."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(command(model, clips, *FRAMES, "--device", "cuda:0")) == 2
    assert "PyTorch sees no CUDA device; use --device cpu" in capsys.readouterr().err


def test_a_number_of_windows_is_checked(
    model: Path, clips: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zero windows and words are refused by the parser."""
    with pytest.raises(SystemExit) as caught:
        main(command(model, clips, *FRAMES, "--windows-per-clip", "0"))
    assert caught.value.code == 2
    assert "expected a whole number of at least 1, or all; got '0'" in capsys.readouterr().err
