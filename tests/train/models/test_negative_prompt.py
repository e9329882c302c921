"""The cached embedding of the negative prompt."""

from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from fastvideo.dataset.encoders import TextEncoder
from fastvideo.pipelines.presets import WAN_NEGATIVE_PROMPT
from fastvideo.train.models.negative_prompt import negative_prompt_embedding

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("FASTVIDEO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "text_embeddings"


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is really encoded while the test runs."""
    seen: list[str] = []
    encode = TextEncoder.encode

    def counted(self: TextEncoder, texts: list[str]) -> list[torch.Tensor]:
        seen.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(TextEncoder, "encode", counted)
    return seen


def test_the_embedding_is_padded_with_zeros_and_cached(
    model_dir: Path, cache: Path, encodings: list[str]
) -> None:
    """The mask marks the real tokens, and the second call encodes nothing."""
    first = negative_prompt_embedding(model_dir, "static, gray", text_len=64, device=CPU)
    text, mask = first
    tokens = TextEncoder.from_model_dir(model_dir).encode(["static, gray"])[0]
    length = tokens.shape[0]
    assert text.shape == (1, 64, 32)
    assert text.dtype == torch.float32
    assert mask.tolist() == [[1.0] * length + [0.0] * (64 - length)]
    torch.testing.assert_close(text[0, :length], tokens)
    assert not text[0, length:].any()
    assert encodings == ["static, gray"] * 2

    second = negative_prompt_embedding(model_dir, "static, gray", text_len=64, device=CPU)
    assert encodings == ["static, gray"] * 2
    assert torch.equal(second[0], text)
    assert torch.equal(second[1], mask)
    assert len(list(cache.iterdir())) == 1


def test_prompt_length_and_encoder_are_part_of_the_key(
    model_dir: Path, cache: Path, encodings: list[str], tmp_path: Path
) -> None:
    """A changed encoder in the same directory is noticed."""
    own = tmp_path / "model"
    shutil.copytree(model_dir, own)
    negative_prompt_embedding(own, "a", text_len=8, device=CPU)
    negative_prompt_embedding(own, "b", text_len=8, device=CPU)
    negative_prompt_embedding(own, "a", text_len=9, device=CPU)
    weights = next((own / "text_encoder").glob("*.safetensors"))
    os.utime(weights, ns=(1, 1))
    negative_prompt_embedding(own, "a", text_len=8, device=CPU)
    assert encodings == ["a", "b", "a", "a"]
    assert len(list(cache.iterdir())) == 4


def test_a_damaged_cache_is_replaced(
    model_dir: Path, cache: Path, encodings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It costs a warning and the time to encode again."""
    expected = negative_prompt_embedding(model_dir, "a", text_len=8, device=CPU)[0]
    entry = next(cache.iterdir())
    entry.write_bytes(b"not safetensors")
    with caplog.at_level(logging.WARNING):
        again = negative_prompt_embedding(model_dir, "a", text_len=8, device=CPU)[0]
    assert "cannot be read" in caplog.text
    assert torch.equal(again, expected)
    negative_prompt_embedding(model_dir, "a", text_len=8, device=CPU)
    assert encodings == ["a", "a"]


def test_a_cache_that_cannot_be_written_is_done_without(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A file stands where the directory should be."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("FASTVIDEO_CACHE_DIR", str(blocked))
    with caplog.at_level(logging.WARNING):
        text, _ = negative_prompt_embedding(model_dir, "a", text_len=8, device=CPU)
    assert text.shape == (1, 8, 32)
    assert "cannot be cached" in caplog.text


def test_long_prompts_are_cut(model_dir: Path, cache: Path) -> None:
    """The family's own prompt has more tokens than 16 with the tiny tokenizer."""
    text, mask = negative_prompt_embedding(model_dir, WAN_NEGATIVE_PROMPT, text_len=16, device=CPU)
    assert text.shape == (1, 16, 32)
    assert mask.tolist() == [[1.0] * 16]
