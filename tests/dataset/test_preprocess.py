"""Preprocessing clips and captions into a data set."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fastvideo.dataset import (
    build_parquet_dataloader,
    preprocess,
    pyarrow_schema_t2v,
    pyarrow_schema_text_only,
)
from fastvideo.dataset.encoders import TextEncoder, encode_video, load_vae
from fastvideo.dataset.preprocess import (
    REPORT_NAME,
    PreprocessConfig,
    Skip,
    preprocess_captions,
    preprocess_videos,
)
from fastvideo.dataset.video import FrameSpec, frames_to_tensor, read_windows
from fastvideo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    WriteClip = Callable[..., Path]

SPEC = FrameSpec(height=32, width=48, num_frames=5, fps=10.0)
CAPTIONS = {f"clip{i}.mp4": f"clip number {i} gets brighter" for i in range(5)}


class RecordingProgress:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def begin(self, total: int, finished: int) -> None:
        self.calls.append(("begin", total, finished))

    def advance(self, count: int) -> None:
        self.calls.append(("advance", count, 0))


@pytest.fixture(scope="module")
def clips(
    tmp_path_factory: pytest.TempPathFactory, write_clip: WriteClip, grey_frames: Any
) -> Path:
    """A folder of five good clips of eleven frames, with a caption file."""
    root = tmp_path_factory.mktemp("clips")
    for index, name in enumerate(CAPTIONS):
        write_clip(root / name, grey_frames(11 + index)[index:], rate=10)
    (root / "captions.json").write_text(json.dumps(CAPTIONS))
    return root


@pytest.fixture
def config(clips: Path, tiny_model: Path, tmp_path: Path) -> PreprocessConfig:
    """Preprocessing of the five clips."""
    return PreprocessConfig(
        model=str(tiny_model), out=tmp_path / "out", videos=clips, spec=SPEC, samples_per_file=2
    )


def table_of(out: Path) -> list[dict[str, Any]]:
    """All rows of a data set, in the order of its files."""
    files = sorted((out / "combined_parquet_dataset").rglob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def hashes(out: Path) -> dict[str, str]:
    """The hash of every file of a data set."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((out / "combined_parquet_dataset").rglob("*.parquet"))
    }


def test_rows_hold_what_the_encoders_make_of_the_clips(
    config: PreprocessConfig, clips: Path, tiny_model: Path
) -> None:
    """Latents are the raw posterior mean of the first window, text is trimmed, names agree."""
    report = preprocess_videos(config)
    vae, encoder = load_vae(tiny_model), TextEncoder.from_model_dir(tiny_model)
    found = table_of(config.out)
    assert [row["id"] for row in found] == list(CAPTIONS)
    for row in found:
        window = next(read_windows(clips / row["file_name"], SPEC))
        latent = encode_video(vae, frames_to_tensor(window.frames_THWC)[None])[0]
        stored = np.frombuffer(row["vae_latent_bytes"], np.float32)
        assert row["vae_latent_shape"] == [16, 2, 4, 6]
        assert np.array_equal(stored.reshape(16, 2, 4, 6), latent.numpy())
        embedding = encoder.encode([CAPTIONS[row["id"]]])[0]
        assert row["text_embedding_shape"] == list(embedding.shape)
        assert row["text_embedding_bytes"] == embedding.numpy().tobytes()
        expected = (CAPTIONS[row["id"]], 48, 32, 10.0, "video")
        given = (row["caption"], row["width"], row["height"], row["fps"], row["media_type"])
        assert given == expected
    assert (report.clips, report.finished_now, report.samples, report.skipped) == (5, 5, 5, [])


def test_the_loader_of_the_trainer_reads_the_data_set(config: PreprocessConfig) -> None:
    """Several files, batches in the shape that training takes."""
    preprocess_videos(config)
    loader = build_parquet_dataloader(str(config.out), 5, parquet_schema=pyarrow_schema_t2v)
    (batch,) = list(loader)
    assert batch["vae_latent"].shape == (5, 16, 2, 4, 6)
    assert {info["caption"] for info in batch["info_list"]} == set(CAPTIONS.values())


def test_the_report_is_a_file_and_the_progress_is_told(config: PreprocessConfig) -> None:
    """The file says the same as the returned report; every clip moves the bar by one."""
    progress = RecordingProgress()
    report = preprocess_videos(config, progress=progress)
    written = json.loads((config.out / REPORT_NAME).read_text())
    assert written["complete"] is True
    assert written["finished_now"] == report.finished_now == 5
    assert written["dataset"] == str(config.out / "combined_parquet_dataset")
    assert progress.calls == [("begin", 5, 0)] + [("advance", 1, 0)] * 5


def test_bad_clips_are_skipped_by_name_with_the_reason(
    config: PreprocessConfig,
    tmp_path: Path,
    write_clip: WriteClip,
    grey_frames: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Damage, shortness and a missing caption do not touch the good clips around them."""
    root = tmp_path / "mixed"
    names = ["a_good", "b_short", "c_empty", "d_uncaptioned", "e_good"]
    for name, frames in zip(names, (8, 3, 8, 8, 8), strict=True):
        write_clip(root / "deep" / f"{name}.mp4", grey_frames(frames), rate=10)
        (root / "deep" / f"{name}.txt").write_text(f"this is {name}")
    (root / "deep" / "c_empty.mp4").write_bytes(b"")
    (root / "deep" / "d_uncaptioned.txt").unlink()
    report = preprocess_videos(replace(config, videos=root))
    assert [row["id"] for row in table_of(config.out)] == ["deep/a_good.mp4", "deep/e_good.mp4"]
    assert sorted((skip.name, skip.kind) for skip in report.skipped) == [
        ("deep/b_short.mp4", "too short"),
        ("deep/c_empty.mp4", "unreadable"),
        ("deep/d_uncaptioned.mp4", "no caption"),
    ]
    reasons = {skip.name: skip.reason for skip in report.skipped}
    assert reasons["deep/b_short.mp4"].startswith("too short: 3 frames at 10 fps, 5 are needed")
    assert reasons["deep/d_uncaptioned.mp4"].startswith("no d_uncaptioned.txt beside it")
    for name, reason in reasons.items():
        assert f"skipped {name}: {reason}" in caplog.text
    written = json.loads((config.out / REPORT_NAME).read_text())["skipped"]
    assert [Skip(**skip) for skip in written] == report.skipped


def test_a_skipped_clip_is_tried_again(
    config: PreprocessConfig, tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """A clip that was repaired is added by the next run, and nothing else is."""
    root = tmp_path / "mixed"
    for name in ("a", "b"):
        write_clip(root / f"{name}.mp4", grey_frames(8), rate=10)
        (root / f"{name}.txt").write_text(f"this is {name}")
    good = (root / "a.mp4").read_bytes()
    (root / "a.mp4").write_bytes(good[:100])
    first = preprocess_videos(replace(config, videos=root))
    (root / "a.mp4").write_bytes(good)
    second = preprocess_videos(replace(config, videos=root))
    assert [row["id"] for row in table_of(config.out)] == ["b.mp4", "a.mp4"]
    assert (first.finished_now, len(first.skipped)) == (1, 1)
    assert (second.finished_now, second.finished_before, second.skipped) == (1, 1, [])


def test_all_windows_of_a_clip_become_samples(config: PreprocessConfig) -> None:
    """Further windows carry a number behind the clip's name and differ from the first."""
    report = preprocess_videos(replace(config, max_windows=None))
    found = table_of(config.out)
    assert [row["id"] for row in found[:4]] == [
        "clip0.mp4",
        "clip0.mp4#1",
        "clip1.mp4",
        "clip1.mp4#1",
    ]
    assert [row["file_name"] for row in found[:2]] == ["clip0.mp4", "clip0.mp4"]
    assert found[0]["vae_latent_bytes"] != found[1]["vae_latent_bytes"]
    assert (report.finished_now, report.samples) == (5, 10)


def test_a_finished_run_loads_no_model_again(
    config: PreprocessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running the same command again ends at once and changes no file."""
    preprocess_videos(config)
    before = hashes(config.out)
    monkeypatch.setattr(preprocess, "load_vae", None)
    monkeypatch.setattr(preprocess, "TextEncoder", None)
    report = preprocess_videos(config)
    assert hashes(config.out) == before
    assert (report.finished_before, report.finished_now, report.samples) == (5, 0, 5)
    assert report.succeeded


def test_a_run_that_is_killed_goes_on_where_it_was(
    config: PreprocessConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGKILL only the unfinished clips are encoded; the files equal those of one run."""
    code = (
        "import os, sys, signal\n"
        "from pathlib import Path\n"
        "from fastvideo.dataset.preprocess import PreprocessConfig, preprocess_videos\n"
        "from fastvideo.dataset.video import FrameSpec\n"
        "class Killer:\n"
        "    left = 3\n"
        "    def begin(self, total, finished): pass\n"
        "    def advance(self, count):\n"
        "        self.left -= count\n"
        "        if self.left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "model, videos, out = sys.argv[1:]\n"
        "preprocess_videos(PreprocessConfig(model=model, videos=Path(videos), out=Path(out),\n"
        "    spec=FrameSpec(32, 48, 5, 10.0), samples_per_file=2), progress=Killer())\n"
    )
    arguments = [config.model, str(config.videos), str(config.out)]
    killed = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(table_of(config.out)) == 2
    encoded = []

    def counted(vae: Any, video: torch.Tensor) -> torch.Tensor:
        encoded.append(video.shape)
        return encode_video(vae, video)

    monkeypatch.setattr(preprocess, "encode_video", counted)
    report = preprocess_videos(config)
    assert (report.finished_before, report.finished_now, len(encoded)) == (3, 2, 2)
    whole = replace(config, out=tmp_path / "whole")
    preprocess_videos(whole)
    assert hashes(config.out) == hashes(whole.out)


def test_an_interrupted_run_says_so_in_its_report(
    config: PreprocessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of a run that did not come to its end is marked, and counts what is there."""
    calls = []

    def interrupted(vae: Any, video: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode_video(vae, video)

    monkeypatch.setattr(preprocess, "encode_video", interrupted)
    with pytest.raises(KeyboardInterrupt):
        preprocess_videos(config)
    written = json.loads((config.out / REPORT_NAME).read_text())
    assert (written["complete"], written["finished_now"], written["samples"]) == (False, 2, 2)


def test_latents_that_are_not_finite_are_not_written(
    config: PreprocessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overflow of half precision would poison training silently."""
    calls = []

    def overflowing(vae: Any, video: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        latent = encode_video(vae, video)
        if len(calls) == 2:
            latent[0, 3, 0, 1, 1] = float("inf")
        return latent

    monkeypatch.setattr(preprocess, "encode_video", overflowing)
    report = preprocess_videos(replace(config, dtype="bf16"))
    assert report.skipped == [
        Skip("clip1.mp4", "not finite", "its latents are not finite in bf16; use --dtype fp32")
    ]
    assert [row["id"] for row in table_of(config.out)] == [
        "clip0.mp4",
        "clip2.mp4",
        "clip3.mp4",
        "clip4.mp4",
    ]


def test_what_a_person_should_know_is_noted(
    config: PreprocessConfig, tmp_path: Path, write_clip: WriteClip, grey_frames: Any
) -> None:
    """Slow clips, long captions, captions without a clip, and captions that changed."""
    root = tmp_path / "clips"
    write_clip(root / "slow.mp4", grey_frames(8), rate=5)
    write_clip(root / "fast.mp4", grey_frames(20), rate=30)
    captions = {"slow": "slow", "fast": "a red ball " * 40, "gone": "not there"}
    (root / "captions.json").write_text(json.dumps(captions))
    run = replace(config, videos=root, text_len=16)
    report = preprocess_videos(run)
    assert report.repeated_frames == ["slow.mp4"]
    assert report.shortened_captions == ["fast.mp4"]
    assert report.unused_captions == ["captions.json['gone']"]
    (root / "captions.json").write_text(json.dumps(captions | {"slow": "something else"}))
    assert preprocess_videos(run).changed_captions == ["slow.mp4"]


def test_other_settings_need_another_directory(config: PreprocessConfig, tmp_path: Path) -> None:
    """Sizes, windows, type and model are compared with those of the samples that are there."""
    preprocess_videos(config)
    for changed, name in (
        (replace(config, spec=replace(SPEC, height=48)), "height was 32, is 48"),
        (replace(config, max_windows=None), "max_windows was 1, is None"),
        (replace(config, dtype="bf16"), "dtype was 'fp32', is 'bf16'"),
    ):
        with pytest.raises(ConfigError, match=name):
            preprocess_videos(changed)
    with pytest.raises(ConfigError, match="task was 't2v', is 'text_only'"):
        preprocess_captions(replace(config, captions=str(config.videos / "captions.json")))


def test_a_folder_without_videos_is_an_error(config: PreprocessConfig, tmp_path: Path) -> None:
    """The error lists the endings that count."""
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"no video file below .*none; expected files ending in"):
        preprocess_videos(replace(config, videos=tmp_path / "none"))
    with pytest.raises(ConfigError, match="needs a folder of videos and a frame size"):
        preprocess_videos(replace(config, videos=None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; expected one of fp32, bf16, fp16"),
        ({"samples_per_file": 0}, "samples_per_file is 0; expected a whole number of at least 1"),
        ({"max_windows": 0}, "max_windows is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    """They are found before anything is loaded."""
    with pytest.raises(ConfigError, match=message):
        PreprocessConfig(model="m", out=Path("o"), **change)


def test_prompts_become_a_text_only_data_set(config: PreprocessConfig, tmp_path: Path) -> None:
    """A prompt per line, named by its hash; a repeated prompt is one row."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red ball\na blue ball\na red ball\n")
    run = replace(config, videos=None, captions=str(prompts))
    report = preprocess_captions(run)
    found = table_of(config.out)
    assert [row["caption"] for row in found] == ["a red ball", "a blue ball"]
    assert found[0]["id"] == "text_" + hashlib.sha256(b"a red ball").hexdigest()[:16]
    assert list(found[0]) == pyarrow_schema_text_only.names
    assert (report.clips, report.finished_now, report.duplicate_captions) == (3, 2, 1)
    prompts.write_text("a green ball\na red ball\na blue ball\n")
    assert preprocess_captions(run).finished_now == 1
    assert len(table_of(config.out)) == 3
    loader = build_parquet_dataloader(
        str(config.out), 3, parquet_schema=pyarrow_schema_text_only, required_columns=()
    )
    assert next(iter(loader))["text_embedding"].shape == (3, 512, 32)


def test_named_captions_keep_their_names(config: PreprocessConfig, tmp_path: Path) -> None:
    """Empty captions and names that are taken are skipped with the place."""
    table = tmp_path / "captions.csv"
    table.write_text("name,caption\none,a cat\ntwo,\none,a dog\n")
    report = preprocess_captions(replace(config, captions=str(table)))
    assert [row["id"] for row in table_of(config.out)] == ["text_one"]
    assert report.skipped == [
        Skip("captions.csv:3", "no caption", "its caption is empty"),
        Skip("captions.csv:4", "name taken", "another caption has the name 'one' already"),
    ]


def test_many_captions_are_encoded_in_batches(config: PreprocessConfig, tmp_path: Path) -> None:
    """Each row has the embedding of its own caption, in the order of the file."""
    texts = [f"a ball number {'very ' * (i % 7)}{i}" for i in range(70)]
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(texts))
    preprocess_captions(replace(config, captions=str(prompts), samples_per_file=50))
    encoder = TextEncoder.from_model_dir(config.model)
    found = table_of(config.out)
    assert [row["caption"] for row in found] == texts
    for row in found[::9]:
        stored = np.frombuffer(row["text_embedding_bytes"], np.float32)
        expected = encoder.encode([row["caption"]])[0].numpy()
        assert np.allclose(stored.reshape(expected.shape), expected, atol=1e-6)


def test_captions_of_clips_make_text_only_data_too(config: PreprocessConfig) -> None:
    """With auto, the clips' captions are encoded and the clips are not opened."""
    report = preprocess_captions(config)
    assert [row["id"] for row in table_of(config.out)] == [f"text_{name}" for name in CAPTIONS]
    assert report.clips == 5
    with pytest.raises(ConfigError, match="captions are 'auto' and there is no folder of videos"):
        preprocess_captions(replace(config, videos=None))


def test_a_file_without_captions_is_an_error(config: PreprocessConfig, tmp_path: Path) -> None:
    """An empty list of prompts is a mistake, not an empty data set."""
    (tmp_path / "none.txt").write_text("\n\n")
    with pytest.raises(DataError, match=r"no captions in .*none\.txt; there is nothing to encode"):
        preprocess_captions(replace(config, captions=str(tmp_path / "none.txt")))


def test_decoding_ahead_passes_errors_on_and_stops(tmp_path: Path) -> None:
    """Items come in order; an error reaches the consumer; a consumer that leaves ends the work."""
    produced = []

    def items(failing_at: int) -> Any:
        for number in range(100):
            if number == failing_at:
                raise RuntimeError(number)
            produced.append(number)
            yield number

    assert list(preprocess._read_ahead(items(1000), 2)) == list(range(100))
    received = []
    with pytest.raises(RuntimeError, match="3"):
        received.extend(number for number in preprocess._read_ahead(items(3), 2))
    produced.clear()
    ahead = preprocess._read_ahead(items(1000), 2)
    assert [next(ahead), next(ahead)] == [0, 1]
    ahead.close()
    assert len(produced) <= 5
