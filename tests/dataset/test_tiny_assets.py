"""The tiny random model and its data."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from diffusers import WanPipeline

from fastvideo.dataset import (
    build_parquet_dataloader,
    pyarrow_schema_t2v,
    pyarrow_schema_text_only,
)
from fastvideo.dataset.encoders import TextEncoder, encode_video, load_transformer, load_vae
from fastvideo.dataset.tiny_assets import (
    MARKER_NAME,
    cached_tiny_wan_model,
    is_complete,
    synthetic_clips,
    write_tiny_assets,
    write_tiny_wan_model,
)
from fastvideo.dataset.validation_file import read_validation_file
from fastvideo.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def contents(root: Path) -> dict[str, str]:
    """The hash of every file below a directory."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_the_parts_have_the_documented_size(tiny_model: Path) -> None:
    """Parameter counts of the three networks, and less than a megabyte on disk."""
    parts = (
        load_transformer(tiny_model),
        load_vae(tiny_model),
        TextEncoder.from_model_dir(tiny_model)._model,
    )
    assert [sum(p.numel() for p in part.parameters()) for part in parts] == [40864, 61887, 29088]
    assert sum(path.stat().st_size for path in tiny_model.rglob("*") if path.is_file()) < 10**6


def test_the_stock_pipeline_loads_the_model_and_makes_a_video(tiny_model: Path) -> None:
    """Diffusers reads the layout; its transformer and VAE loaders would need accelerate."""
    pipeline = WanPipeline.from_pretrained(
        tiny_model, transformer=load_transformer(tiny_model), vae=load_vae(tiny_model)
    )
    pipeline.set_progress_bar_config(disable=True)
    frames = pipeline(
        "a red ball",
        height=32,
        width=32,
        num_frames=5,
        num_inference_steps=2,
        output_type="pt",
        generator=torch.Generator().manual_seed(0),
    ).frames
    assert frames.shape == (1, 5, 3, 32, 32)
    assert bool(frames.isfinite().all())


def test_the_stock_pipeline_embeds_text_like_our_encoder(tiny_model: Path) -> None:
    """Diffusers pads to the full length and masks; the rows of real tokens are the same."""
    pipeline = WanPipeline.from_pretrained(
        tiny_model, transformer=load_transformer(tiny_model), vae=load_vae(tiny_model)
    )
    prompts = ["a red ball", "a man in a car &amp; a dog"]
    stock = pipeline.encode_prompt(
        prompts, do_classifier_free_guidance=False, max_sequence_length=512
    )[0]
    for embedding, expected in zip(
        TextEncoder.from_model_dir(tiny_model).encode(prompts), stock, strict=True
    ):
        assert torch.allclose(embedding, expected[: len(embedding)], atol=1e-5)
        assert not expected[len(embedding) :].any()


def test_the_tokenizer_has_the_ids_of_t5(tiny_model: Path) -> None:
    """Pad, end and unknown are 0, 1 and 2; text comes back; no id is beyond the embedding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model / "tokenizer")
    ids = tokenizer("a red ball ☃")["input_ids"]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert ids[-2:] == [2, 1]
    assert tokenizer.decode(tokenizer("Two dogs, 3 cats!")["input_ids"][:-1]) == "Two dogs, 3 cats!"
    assert len(tokenizer) <= 256


def test_captions_take_few_tokens(tiny_model: Path) -> None:
    """The tokenizer learnt pieces of words of the corpus, not letters alone."""
    encoder = TextEncoder.from_model_dir(tiny_model)
    caption = "two people ride their bicycles down a sunny road"
    assert encoder.count_tokens(caption) < 0.7 * len(caption)


def test_normalised_latents_have_unit_scale(tiny_model: Path) -> None:
    """The statistics in the config are those of this VAE, so clips differ after normalising."""
    vae = load_vae(tiny_model)
    videos = torch.stack([video for video, _ in synthetic_clips(6, seed=5)])
    mean, std = (
        torch.tensor(values)[None, :, None, None, None]
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    latents = (encode_video(vae, videos) - mean) / std
    assert abs(float(latents.mean())) < 0.3
    assert 0.7 < float(latents.std()) < 1.3
    assert float(latents.var(dim=0).mean()) > 0.1


def test_another_seed_is_another_model(tiny_model: Path, tmp_path: Path) -> None:
    """All three networks change, the tokenizer does not."""
    other = contents(write_tiny_wan_model(tmp_path / "model", seed=1))
    changed = {name for name, digest in contents(tiny_model).items() if other[name] != digest}
    assert {name.split("/")[0] for name in changed} == {
        "transformer",
        "vae",
        "text_encoder",
        MARKER_NAME,
    }


def test_the_global_random_state_does_not_matter_and_stays(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Only the seed decides, and numbers drawn afterwards are as if nothing had happened."""
    torch.manual_seed(123)
    before = torch.get_rng_state()
    written = write_tiny_wan_model(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)
    assert contents(written) == contents(tiny_model)


def test_processes_that_start_together_share_one_model(tiny_model: Path, tmp_path: Path) -> None:
    """All ranks resolve the name to one complete directory, with the bytes of any process."""
    code = (
        "from fastvideo.dataset.model_files import resolve_model_path\n"
        "print(resolve_model_path('tiny-random:wan2.1'))"
    )
    ranks = []
    for rank in range(2):
        env = {
            **os.environ,
            "FASTVIDEO_CACHE_DIR": str(tmp_path),
            "PYTHONHASHSEED": str(rank + 1),
            "OMP_NUM_THREADS": "1",
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", code],
                env=env,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    outputs = [process.communicate(timeout=120) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    (directory,) = tmp_path.iterdir()
    assert {out.strip() for out, _ in outputs} == {str(directory)}
    assert contents(directory) == contents(tiny_model)


def test_any_rank_writes_all_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the text encoder, which transformers writes on rank 0 only."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 1)
    model = write_tiny_wan_model(tmp_path / "model")
    assert {path.name for path in (model / "text_encoder").iterdir()} == {
        "config.json",
        "model.safetensors",
    }


def test_a_damaged_cached_model_is_written_again(tiny_model: Path, tmp_path: Path) -> None:
    """A truncated file is noticed; an intact model is left as it is."""
    directory = cached_tiny_wan_model(tmp_path)
    inode = directory.stat().st_ino
    assert cached_tiny_wan_model(tmp_path).stat().st_ino == inode
    (directory / "vae" / "config.json").write_text("{")
    assert not is_complete(directory)
    assert contents(cached_tiny_wan_model(tmp_path)) == contents(tiny_model)
    assert [path.name for path in tmp_path.iterdir()] == [directory.name]


def test_a_model_written_here_is_replaced(tmp_path: Path) -> None:
    """Writing again with another seed leaves the new model and nothing else."""
    write_tiny_wan_model(tmp_path / "model")
    target = write_tiny_wan_model(tmp_path / "model", seed=2)
    assert json.loads((target / MARKER_NAME).read_text())["seed"] == 2
    assert is_complete(target)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_other_peoples_directories_are_not_overwritten(tmp_path: Path) -> None:
    """A folder with foreign files, or a file, stays; an empty folder is used."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(DataError, match="mine is not empty and was not written by fastvideo"):
        write_tiny_wan_model(tmp_path / "mine")
    with pytest.raises(DataError, match=r"thesis\.tex is a file; expected a directory"):
        write_tiny_wan_model(tmp_path / "mine" / "thesis.tex")
    (tmp_path / "empty").mkdir()
    assert is_complete(write_tiny_wan_model(tmp_path / "empty"))


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in mid-write leaves neither a target nor a temporary directory."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(WanPipeline, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        write_tiny_wan_model(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_drawn_clips_move_and_say_so() -> None:
    """The shape has the caption's colour and moves in the caption's direction."""
    for video, caption in synthetic_clips(12, seed=3):
        assert video.shape == (3, 9, 64, 64)
        assert -1 <= float(video.min()) < float(video.max()) <= 1
        background = video[:, :, :1, :1]
        cover = (video - background).abs().amax(dim=0)
        rows, columns = (
            (cover.sum(dim=axis) * torch.arange(64.0)).sum(dim=-1) / cover.sum(dim=(1, 2))
            for axis in (2, 1)
        )
        down, right = float(rows[-1] - rows[0]), float(columns[-1] - columns[0])
        expected = {"up": -down, "down": down, "left": -right, "right": right}
        assert expected[caption.split(" moves ")[1].split()[0]] > 4, caption


def test_tiny_assets_train_out_of_the_box(tiny_model: Path, tmp_path: Path) -> None:
    """Model, sixteen rows for each kind of data, and a validation file, all readable."""
    paths = write_tiny_assets(tmp_path / "tiny")
    assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == [
        "model",
        "t2v",
        "text_only",
        "validation.json",
    ]
    assert contents(paths["model"]) == contents(tiny_model)
    videos = build_parquet_dataloader(
        str(paths["t2v"]), 16, parquet_schema=pyarrow_schema_t2v, required_columns=("vae_latent",)
    )
    texts = build_parquet_dataloader(
        str(paths["text_only"]), 16, parquet_schema=pyarrow_schema_text_only, required_columns=()
    )
    (batch,), (text_batch,) = list(videos), list(texts)
    assert batch["vae_latent"].shape == (16, 16, 3, 8, 8)
    assert torch.equal(batch["text_embedding"], text_batch["text_embedding"])
    assert len({info["id"] for info in batch["info_list"]}) == 16
    captions = {info["caption"] for info in batch["info_list"]}
    assert {r["caption"] for r in read_validation_file(paths["validation"])} <= captions


def test_tiny_assets_can_be_written_again(tmp_path: Path) -> None:
    """A second call replaces what the first one wrote."""
    write_tiny_assets(tmp_path, seed=0, rows=2)
    paths = write_tiny_assets(tmp_path, seed=1, rows=3)
    loader = build_parquet_dataloader(str(paths["t2v"]), 3, parquet_schema=pyarrow_schema_t2v)
    assert len(loader.dataset) == 3
