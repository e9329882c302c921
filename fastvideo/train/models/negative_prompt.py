"""The embedding of the negative prompt, computed once per model and kept on disk.

Loading a text encoder of several gigabytes to encode one sentence is the slowest part of a start,
so the result is cached. Every rank reads or encodes by itself: no rank waits for another, and a
cache that only some ranks can see causes no mismatch of collectives.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from fastvideo.dataset.encoders import TextEncoder
from fastvideo.dataset.model_files import cache_directory
from fastvideo.errors import import_extra
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

logger = init_logger(__name__)

_ENCODER_FOLDERS = ("tokenizer", "text_encoder")


def negative_prompt_embedding(
    model_dir: Path, prompt: str, *, text_len: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Returns the padded embedding of ``prompt`` and its mask, from the cache if it is there.

    The cache entry depends on the model's directory, on its encoder files (name, size and time of
    change), on the prompt and on ``text_len``. A cache that cannot be read or written costs time
    and nothing else.

    Args:
        model_dir: A model in diffusers layout, with ``tokenizer`` and ``text_encoder``.
        prompt: The negative prompt.
        text_len: Length L to which the embedding is cut or zero-padded, in tokens.
        device: Where the encoder runs and where the result is.

    Returns:
        Embedding [1, L, D], float32, and mask [1, L], 1 at real tokens.
    """
    path = _cache_path(model_dir, prompt, text_len)
    tokens = _read(path)
    if tokens is None:
        tokens = _encode(model_dir, prompt, text_len=text_len, device=device)
        _write(path, tokens)
    tokens = tokens[:text_len].to(device=device, dtype=torch.float32)
    missing = text_len - tokens.shape[0]
    mask = torch.ones(tokens.shape[0], device=device)
    return pad(tokens, (0, 0, 0, missing))[None], pad(mask, (0, missing))[None]


def _encode(model_dir: Path, prompt: str, *, text_len: int, device: torch.device) -> Tensor:
    logger.info("encoding the negative prompt with the text encoder of %s", model_dir)
    encoder = TextEncoder.from_model_dir(model_dir, device=device, text_len=text_len)
    with torch.no_grad():
        tokens = encoder.encode([prompt])[0].float().cpu()
    del encoder
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return tokens


def _cache_path(model_dir: Path, prompt: str, text_len: int) -> Path:
    digest = hashlib.sha256()
    for part in (str(model_dir.resolve()), prompt, str(text_len), *_encoder_files(model_dir)):
        digest.update(part.encode())
        digest.update(b"\0")
    return cache_directory() / "text_embeddings" / f"{digest.hexdigest()[:32]}.safetensors"


def _encoder_files(model_dir: Path) -> list[str]:
    stamps = []
    for folder in _ENCODER_FOLDERS:
        for file in sorted((model_dir / folder).glob("*")):
            stat = file.stat()
            stamps.append(f"{folder}/{file.name}:{stat.st_size}:{stat.st_mtime_ns}")
    return stamps


def _read(path: Path) -> Tensor | None:
    if not path.is_file():
        return None
    safetensors = import_extra("safetensors.torch", extra="train")
    try:
        tokens = safetensors.load_file(path)["tokens"]
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a cache, we encode again
        logger.warning(
            "the cached text embedding %s cannot be read (%s); encoding again", path, error
        )
        return None
    return tokens if isinstance(tokens, torch.Tensor) else None


def _write(path: Path, tokens: Tensor) -> None:
    safetensors = import_extra("safetensors.torch", extra="train")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        safetensors.save_file({"tokens": tokens.contiguous()}, temporary)
        temporary.replace(path)
    except Exception as error:  # noqa: BLE001 - a full or read-only disk must not stop training
        logger.warning("the text embedding cannot be cached at %s: %s", path, error)
        with contextlib.suppress(OSError):
            temporary.unlink()
