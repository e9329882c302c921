"""A tiny, random, complete Wan model and data to train it on: made here, never downloaded.

The model has the layout and classes of a real checkpoint (``diffusers.WanPipeline`` loads it) at
about 0.6 MB. The same seed gives the same bytes with the same library versions.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch

from fastvideo.dataset.encoders import TextEncoder, encode_video, load_vae, quiet_transformers
from fastvideo.dataset.records import (
    VideoBatch,
    basic_t2v_record_creator,
    records_to_table,
    text_only_record_creator,
)
from fastvideo.dataset.sample_store import DATASET_FOLDER, write_json_atomically
from fastvideo.dataset.schema import pyarrow_schema_t2v, pyarrow_schema_text_only
from fastvideo.dataset.writer import ParquetDatasetWriter
from fastvideo.errors import DataError, import_extra
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastvideo.dataset.arrow import pa

logger = init_logger(__name__)

MARKER_NAME = "tiny_assets.json"
"""File that marks a directory as written here: it holds the seed and the hash of every file."""

_FORMAT = 1
_RENAME_ATTEMPTS = 5
_CLIP_FPS = 16.0

TRANSFORMER_CONFIG: dict[str, Any] = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 32,
    "freq_dim": 32,
    "ffn_dim": 64,
    "num_layers": 2,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": 1e-6,
    "rope_max_seq_len": 64,
}
"""Arguments of ``WanTransformer3DModel``: 40,864 parameters."""

VAE_CONFIG: dict[str, Any] = {
    "base_dim": 4,
    "z_dim": 16,
    "dim_mult": [1, 2, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
}
"""Arguments of ``AutoencoderKLWan``: 61,887 parameters, 4x in time and 8x in space."""

TEXT_ENCODER_CONFIG: dict[str, Any] = {
    "vocab_size": 256,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "feed_forward_proj": "gated-gelu",
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}
"""Arguments of ``UMT5Config``: 29,088 parameters."""

_COLOURS = {
    "red": (0.8, -0.7, -0.7),
    "green": (-0.6, 0.6, -0.5),
    "blue": (-0.7, -0.5, 0.9),
    "yellow": (0.9, 0.8, -0.6),
    "white": (0.9, 0.9, 0.9),
    "grey": (0.0, 0.0, 0.0),
    "black": (-0.9, -0.9, -0.9),
}
_DIRECTIONS = {
    "up": (-1.0, 0.0),
    "down": (1.0, 0.0),
    "left": (0.0, -1.0),
    "right": (0.0, 1.0),
}

_PAD, _END, _UNKNOWN = _SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")
_SPACE = "▁"

_CORPUS = (
    "a red ball rolls slowly over a green field",
    "two people ride their bicycles down a sunny road",
    "a grey rabbit sits in the grass and looks at the camera",
    "a man in a car talks while trees pass by the window",
    "waves break on the beach under a cloudy sky",
    "the camera moves from left to right across the city at night",
    "a blue square moves upward on a dark background",
    "a woman walks her dog through the falling snow",
    "close view of a hand that draws a circle on paper",
    "a train crosses a long bridge over the river in the morning",
    "bright colours, overexposed, static, blurred details, low quality",
    "a small bird lands on a branch and flies away again",
    "children play football in front of a white house",
    "smoke rises from a cup of coffee on a wooden table",
    "the sun sets behind the mountains while clouds drift past",
    "an old boat rocks gently in the harbour",
)


def write_tiny_wan_model(out: str | Path, *, seed: int = 0) -> Path:
    """Writes a tiny Wan model in diffusers layout.

    The directory appears complete or not at all. One that was written here before is replaced.

    Args:
        out: The directory to create; its parents are created too.
        seed: Decides every weight. The same seed gives the same bytes.

    Returns:
        ``out`` as an absolute path.

    Raises:
        DataError: ``out`` exists, is not empty and was not written here.
    """
    target = Path(out).expanduser().absolute()
    _check_replaceable(target)
    with _staging_directory(target) as staging, quiet_transformers():
        pipeline = _build_pipeline(seed)
        # transformers would leave it to rank 0, but whichever rank comes first writes the model.
        pipeline.text_encoder.should_save_on_this_rank = bool
        pipeline.save_pretrained(staging)
        _mark_and_move(staging, target, seed)
    return target


def write_tiny_assets(out: str | Path, *, seed: int = 0, rows: int = 16) -> dict[str, Path]:
    """Writes a tiny model and everything a first training run needs beside it.

    Args:
        out: Directory that gets ``model/``, ``t2v/``, ``text_only/`` and ``validation.json``.
            What an earlier call wrote there is replaced.
        seed: Decides the weights and the drawn clips.
        rows: Samples in each data set.

    Returns:
        The four paths, by those names without endings.

    Raises:
        DataError: One of the folders exists and was not written here.
    """
    root = Path(out).expanduser().absolute()
    paths = {name: root / name for name in ("model", "t2v", "text_only")}
    for path in paths.values():
        _check_replaceable(path)
    model = write_tiny_wan_model(paths["model"], seed=seed)
    vae, text_encoder = load_vae(model), TextEncoder.from_model_dir(model)
    clips = list(synthetic_clips(rows, seed=seed))
    captions = [caption for _, caption in clips]
    embeddings = text_encoder.encode(captions)
    names = [f"drawn_{index:04d}" for index in range(rows)]
    batch = VideoBatch(
        video_file_name=names,
        prompt=captions,
        latents=[encode_video(vae, video[None])[0] for video, _ in clips],
        prompt_embeds=embeddings,
        width=[video.shape[-1] for video, _ in clips],
        height=[video.shape[-2] for video, _ in clips],
        fps=[_CLIP_FPS] * rows,
    )
    t2v = records_to_table(basic_t2v_record_creator(batch), pyarrow_schema_t2v)
    texts = [
        text_only_record_creator(*row) for row in zip(names, embeddings, captions, strict=True)
    ]
    _write_dataset(t2v, paths["t2v"], seed)
    _write_dataset(records_to_table(texts, pyarrow_schema_text_only), paths["text_only"], seed)
    validation = {"data": [{"caption": caption} for caption in captions[:2]]}
    paths["validation"] = root / "validation.json"
    write_json_atomically(paths["validation"], validation)
    return paths


def _write_dataset(table: pa.Table, target: Path, seed: int) -> None:
    with _staging_directory(target) as staging:
        writer = ParquetDatasetWriter(staging / DATASET_FOLDER, table.num_rows)
        writer.append_table(table)
        writer.flush()
        _mark_and_move(staging, target, seed)


def cached_tiny_wan_model(cache_dir: Path, *, seed: int = 0) -> Path:
    """Returns the tiny model below a cache directory, and writes it first if it is not there.

    Several processes may call this at once: each sees a complete model, and the first one to
    finish wins. A model that lost files since is written again.

    Args:
        cache_dir: The cache's root.
        seed: Decides every weight.
    """
    target = cache_dir.absolute() / f"tiny-random-wan2.1-{_cache_key(seed)}"
    if not is_complete(target):
        logger.info("writing the tiny random model to %s", target)
        write_tiny_wan_model(target, seed=seed)
    return target


def is_complete(directory: Path) -> bool:
    """Returns whether a tiny model is there and every file is as it was written."""
    try:
        marker = json.loads((directory / MARKER_NAME).read_text(encoding="utf-8"))
        return bool(marker["files"]) and marker["files"] == _hashes(directory)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def build_tokenizer() -> Any:  # noqa: ANN401 - transformers is untyped
    """Trains a Unigram tokenizer on a fixed corpus, in process, and wraps it for transformers.

    Training finds the pieces. Their scores are counted again here, because the trainer's own
    depend on the order of its hash tables and differ from run to run.

    Returns:
        A ``PreTrainedTokenizerFast`` with T5's special ids: pad 0, end 1, unknown 2.
    """
    tokenizers = import_extra("tokenizers", extra="train")
    transformers = import_extra("transformers", extra="train")
    vocabulary = [(token, 0.0) for token in _SPECIAL_TOKENS] + _scored_pieces(tokenizers)
    tokenizer = _unigram(tokenizers, vocabulary)
    tokenizer.add_special_tokens(list(_SPECIAL_TOKENS))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {_END}", special_tokens=[(_END, 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        eos_token=_END,
        unk_token=_UNKNOWN,
        model_max_length=512,
    )


def synthetic_clips(
    count: int, *, seed: int, num_frames: int = 9, size: int = 64
) -> Iterator[tuple[torch.Tensor, str]]:
    """Yields drawn clips, a square or disc that moves over a plain background, with captions.

    Args:
        count: How many clips.
        seed: Decides colours, sizes and paths.
        num_frames: T, frames per clip.
        size: Height and width in pixels.

    Yields:
        ``(video, caption)``; the video is [3, T, size, size], float32 in [-1, 1].
    """
    draw = random.Random(seed)  # noqa: S311 - pictures, not secrets
    for _ in range(count):
        shape = draw.choice(["square", "disc"])
        colour, background = draw.sample(sorted(_COLOURS), 2)
        direction = draw.choice(sorted(_DIRECTIONS))
        radius = draw.uniform(0.12, 0.25) * size
        start = (draw.uniform(0.3, 0.7) * size, draw.uniform(0.3, 0.7) * size)
        video = _draw_clip(shape, radius, start, _DIRECTIONS[direction], num_frames, size)
        front, back = (
            torch.tensor(_COLOURS[name])[:, None, None, None] for name in (colour, background)
        )
        caption = f"a {colour} {shape} moves {direction} on a {background} background"
        yield video * front + (1 - video) * back, caption


def _draw_clip(
    shape: str,
    radius: float,
    start: tuple[float, float],
    direction: tuple[float, float],
    num_frames: int,
    size: int,
) -> torch.Tensor:
    """Returns the moving shape's coverage: [1, T, size, size] in [0, 1], with soft edges."""
    step = size * 0.3 / max(num_frames - 1, 1)
    t = torch.arange(num_frames, dtype=torch.float32)[:, None, None]
    grid = torch.arange(size, dtype=torch.float32) + 0.5
    dy = (grid[None, :, None] - start[0] - t * step * direction[0]).abs()
    dx = (grid[None, None, :] - start[1] - t * step * direction[1]).abs()
    distance = torch.maximum(dy, dx) if shape == "square" else torch.sqrt(dy * dy + dx * dx)
    return (radius - distance + 0.5).clamp(0, 1)[None]


def _unigram(tokenizers: Any, vocabulary: list[tuple[str, float]] | None) -> Any:  # noqa: ANN401
    model = tokenizers.models.Unigram(vocabulary, unk_id=2) if vocabulary else None
    tokenizer = tokenizers.Tokenizer(model or tokenizers.models.Unigram())
    tokenizer.normalizer = tokenizers.normalizers.NFKC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always")
    tokenizer.decoder = tokenizers.decoders.Metaspace(_SPACE, prepend_scheme="always")
    return tokenizer


def _scored_pieces(tokenizers: Any) -> list[tuple[str, float]]:  # noqa: ANN401 - a module
    """Returns the trained pieces with their log frequency in the corpus, most frequent first."""
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=TEXT_ENCODER_CONFIG["vocab_size"],
        special_tokens=list(_SPECIAL_TOKENS),
        unk_token=_UNKNOWN,
        initial_alphabet=[chr(code) for code in range(33, 127)],
        show_progress=False,
    )
    tokenizer = _unigram(tokenizers, None)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    pieces = sorted(set(tokenizer.get_vocab()) - set(_SPECIAL_TOKENS))
    text = " ".join(_CORPUS).replace(" ", _SPACE)
    counts = {piece: text.count(piece) + 0.5 for piece in pieces}
    total = sum(counts.values())
    scored = [(piece, round(math.log(counts[piece] / total), 6)) for piece in pieces]
    return sorted(scored, key=lambda item: (-item[1], item[0]))


def _build_pipeline(seed: int) -> Any:  # noqa: ANN401 - diffusers is untyped
    diffusers = import_extra("diffusers", extra="train")
    transformers = import_extra("transformers", extra="train")
    with torch.random.fork_rng(devices=[]):
        # A seed for each part, so that changing one does not change the others.
        torch.manual_seed(seed * 3)
        transformer = diffusers.WanTransformer3DModel(**TRANSFORMER_CONFIG)
        torch.manual_seed(seed * 3 + 1)
        vae = diffusers.AutoencoderKLWan(**VAE_CONFIG).eval()
        torch.manual_seed(seed * 3 + 2)
        text_encoder = transformers.UMT5EncoderModel(transformers.UMT5Config(**TEXT_ENCODER_CONFIG))
    _calibrate(vae)
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    return diffusers.WanPipeline(
        tokenizer=build_tokenizer(),
        text_encoder=text_encoder.eval(),
        transformer=transformer.eval(),
        vae=vae,
        scheduler=scheduler,
    )


def _calibrate(vae: Any) -> None:  # noqa: ANN401 - diffusers is untyped
    """Sets the latent statistics to those of this VAE, so normalised latents have unit scale.

    With the statistics of the real VAE, the latents of all clips would be all but equal.
    """
    latents = torch.cat([encode_video(vae, clip[None]) for clip, _ in synthetic_clips(8, seed=0)])
    std, mean = torch.std_mean(latents, dim=(0, 2, 3, 4))
    vae.register_to_config(
        latents_mean=[round(value, 4) for value in mean.tolist()],
        latents_std=[max(round(value, 4), 1e-3) for value in std.tolist()],
    )


def _cache_key(seed: int) -> str:
    versions = [metadata.version(name) for name in ("torch", "diffusers", "transformers")]
    text = json.dumps([_FORMAT, seed, versions])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _check_replaceable(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        message = f"{target} is a file; expected a directory to write to"
        raise DataError(message)
    if any(target.iterdir()) and not (target / MARKER_NAME).is_file():
        message = (
            f"{target} is not empty and was not written by fastvideo tiny-assets (it has no "
            f"{MARKER_NAME}); choose another directory or empty it"
        )
        raise DataError(message)


@contextmanager
def _staging_directory(target: Path) -> Iterator[Path]:
    """Yields a new directory beside ``target`` and removes what is left of it."""
    staging = target.parent / f".{target.name}.{os.getpid()}.{uuid4().hex[:8]}"
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _hashes(directory: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file below a directory, the marker excepted."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != MARKER_NAME
    }


def _mark_and_move(staging: Path, target: Path, seed: int) -> None:
    marker = {"format": _FORMAT, "seed": seed, "files": _hashes(staging)}
    (staging / MARKER_NAME).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    _move_into_place(staging, target)


def _move_into_place(staging: Path, target: Path) -> None:
    """Renames ``staging`` to ``target``; another process may be doing the same with equal bytes."""
    for attempt in range(_RENAME_ATTEMPTS):
        with suppress(OSError):
            staging.rename(target)
            return
        if is_complete(target) and _same_marker(staging, target):
            return
        old = staging.with_name(f"{staging.name}.old{attempt}")
        with suppress(FileNotFoundError):  # another process moved it away first
            target.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    staging.rename(target)


def _same_marker(one: Path, other: Path) -> bool:
    return (one / MARKER_NAME).read_bytes() == (other / MARKER_NAME).read_bytes()
