"""The unconditional input of guidance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastvideo.errors import ConfigError
from fastvideo.train.models.batch import TrainingBatch
from fastvideo.train.models.conditioning import (
    UnconditionalPolicy,
    guidance_pair,
    parse_unconditional_policy,
    text_conditioning,
)

PROMPT = {"encoder_hidden_states": torch.ones(1, 2, 3), "encoder_attention_mask": torch.ones(1, 2)}
NEGATIVE = {"encoder_hidden_states": torch.full((1, 2, 3), -1.0)}


def _batch(*, negative: bool = True) -> TrainingBatch:
    empty = torch.empty(0)
    return TrainingBatch(
        latents=empty,
        noise=empty,
        noisy_model_input=empty,
        timesteps=empty,
        sigmas=empty,
        raw_latent_shape=empty.shape,
        conditional_dict=PROMPT,
        unconditional_dict=NEGATIVE if negative else None,
    )


def _text(cfg_uncond: dict[str, Any] | None, **options: Any) -> torch.Tensor:
    chosen = text_conditioning(_batch(**options), conditional=False, cfg_uncond=cfg_uncond)
    return chosen["encoder_hidden_states"]


def test_policies_of_text() -> None:
    """Unset means the negative prompt; keep is the prompt; zero is zeros."""
    assert text_conditioning(_batch(), conditional=True, cfg_uncond=None) is PROMPT
    for unset in (None, {}, {"text": None}, {"text": "negative_prompt"}):
        assert _text(unset).equal(NEGATIVE["encoder_hidden_states"])
    assert _text({"text": "keep"}).equal(PROMPT["encoder_hidden_states"])
    assert _text({"text": "Zero"}).equal(torch.zeros(1, 2, 3))


def test_zeros_keep_the_mask() -> None:
    """Only the embedding is replaced."""
    chosen = text_conditioning(_batch(), conditional=False, cfg_uncond={"text": "zero"})
    assert chosen["encoder_attention_mask"] is PROMPT["encoder_attention_mask"]


def test_text_cannot_be_dropped() -> None:
    """The model always attends to text, whatever on_missing says."""
    with pytest.raises(ValueError, match=r"cfg_uncond\.text is 'drop'"):
        _text({"text": "drop", "on_missing": "ignore"})


def test_channels_the_model_lacks() -> None:
    """A policy that would change one is an error unless it is to be ignored."""
    assert _text({"image": "keep"}).equal(NEGATIVE["encoder_hidden_states"])
    with pytest.raises(ConfigError, match=r"cfg_uncond\.image is 'zero'.*on_missing"):
        _text({"image": "zero"})
    ignored = _text({"image": "zero", "on_missing": "ignore"})
    assert ignored.equal(NEGATIVE["encoder_hidden_states"])


def test_a_missing_negative_prompt_is_an_error() -> None:
    """The message says how to get one and how to do without."""
    with pytest.raises(ValueError, match=r"set_requires_negative_conditioning.*zero or keep"):
        _text(None, negative=False)


def test_a_guidance_pair_has_the_prompt_first() -> None:
    """All channels are doubled, so that one call predicts both."""
    pair = guidance_pair(_batch(), {"text": "zero"})
    text = pair.conditional_dict["encoder_hidden_states"]
    assert text.equal(torch.cat([torch.ones(1, 2, 3), torch.zeros(1, 2, 3)]))
    assert pair.conditional_dict["encoder_attention_mask"].shape == (2, 2)
    with pytest.raises(ValueError, match="negative prompt"):
        guidance_pair(_batch(negative=False), None)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"text": "none"}, r"method\.cfg_uncond\.text"),
        ({"image": "negative_prompt"}, r"method\.cfg_uncond\.image"),
        ({"image": 3}, r"method\.cfg_uncond\.image"),
        ({"on_missing": "maybe"}, r"method\.cfg_uncond\.on_missing"),
        ("zero", r"method\.cfg_uncond must be a mapping"),
    ],
)
def test_invalid_values_name_their_channel(value: Any, where: str) -> None:
    """Values are checked when a run is built."""
    with pytest.raises(ConfigError, match=where):
        parse_unconditional_policy(value)


def test_parsing_keeps_all_channels() -> None:
    """The parsed policy can be looked at."""
    policy = parse_unconditional_policy({"text": "zero", "image": "drop", "on_missing": "ignore"})
    assert policy == UnconditionalPolicy("zero", {"image": "drop"}, "ignore")
    assert not policy.needs_negative_prompt
    assert parse_unconditional_policy(None).needs_negative_prompt
