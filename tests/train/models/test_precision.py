"""Data types of weights and of computing."""

from __future__ import annotations

import logging

import pytest
import torch

from fastvideo.errors import ConfigError
from fastvideo.train.config import TrainingConfig
from fastvideo.train.models.precision import compute_dtype, master_dtype, parse_dtype

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTVIDEO_TRAIN_DTYPE", raising=False)


def _config(master: str = "fp32", compute: str | None = None) -> TrainingConfig:
    return TrainingConfig(dit_precision=master, dit_compute_dtype=compute)


def test_defaults_depend_on_the_device() -> None:
    """Weights are fp32; computing is bf16 on CUDA and fp32 on a CPU."""
    assert master_dtype(_config()) == torch.float32
    assert compute_dtype(_config(), CPU) == torch.float32
    assert compute_dtype(_config(), CUDA) == torch.bfloat16


def test_the_config_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """FASTVIDEO_TRAIN_DTYPE counts where the run file is silent."""
    monkeypatch.setenv("FASTVIDEO_TRAIN_DTYPE", "bf16")
    assert compute_dtype(_config(), CPU) == torch.bfloat16
    assert compute_dtype(_config(compute="fp32"), CPU) == torch.float32
    monkeypatch.setenv("FASTVIDEO_TRAIN_DTYPE", "bf17")
    with pytest.raises(ConfigError, match=r"FASTVIDEO_TRAIN_DTYPE is 'bf17'.*Did you mean 'bf16'"):
        compute_dtype(_config(), CPU)


def test_half_weights_are_computed_in_their_type() -> None:
    """Computing in fp32 with bf16 weights would fail deep inside, so it is refused here."""
    assert compute_dtype(_config("bf16"), CPU) == torch.bfloat16
    with pytest.raises(ConfigError, match=r"training\.dit_precision is 'bf16'"):
        compute_dtype(_config("bf16", "fp32"), CPU)


def test_fp16_warns_that_there_is_no_loss_scaling(caplog: pytest.LogCaptureFixture) -> None:
    """Small gradients become zero."""
    with caplog.at_level(logging.WARNING):
        assert compute_dtype(_config(compute="fp16"), CPU) == torch.float16
    assert "without loss scaling" in caplog.text


def test_torchs_own_names_are_understood() -> None:
    """So is any case."""
    assert parse_dtype("BFloat16", where="x") == torch.bfloat16
