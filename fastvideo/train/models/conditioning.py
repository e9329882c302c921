"""What conditions a prediction: the prompt, or what stands in for "no prompt".

The unconditional input of classifier-free guidance is a choice of the run, `method.cfg_uncond`:
the embedding of a negative prompt (the default), zeros, or the prompt itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.train.models.batch import Conditioning, TrainingBatch

_ON_MISSING = ("error", "ignore")
_CHANNEL_POLICIES = ("keep", "zero", "drop")
_TEXT_POLICIES = ("negative_prompt", *_CHANNEL_POLICIES)


@dataclass(frozen=True, slots=True)
class UnconditionalPolicy:
    """A checked `cfg_uncond`.

    Attributes:
        text: Stands for the prompt: a negative prompt, the prompt itself, zeros, or no input.
        channels: The same for another input, such as `image`.
        on_missing: Whether a policy for an input that the model lacks is an error or ignored.
    """

    text: str = field(default="negative_prompt", metadata={"allowed": _TEXT_POLICIES})
    channels: dict[str, str] = field(
        default_factory=dict,
        metadata={"type": "text", "allowed": _CHANNEL_POLICIES, "default": "`keep`"},
    )
    on_missing: str = field(default="error", metadata={"allowed": _ON_MISSING})

    @property
    def needs_negative_prompt(self) -> bool:
        """Whether the embedding of a negative prompt must be in the batch."""
        return self.text == "negative_prompt"


def parse_unconditional_policy(
    cfg_uncond: Mapping[str, Any] | None, *, where: str = "method.cfg_uncond"
) -> UnconditionalPolicy:
    """Checks `cfg_uncond`.

    Args:
        cfg_uncond: `{on_missing: error|ignore, text: …, <channel>: keep|zero|drop}`; None and an
            unset text mean the negative prompt.
        where: Setting it comes from, for messages.

    Raises:
        ConfigError: A value is none of those allowed; the message names the channel.
    """
    if cfg_uncond is None:
        return UnconditionalPolicy()
    if not hasattr(cfg_uncond, "items"):
        message = f"{where} must be a mapping from channel to policy, got {cfg_uncond!r}"
        raise ConfigError(message)
    values = {str(key): value for key, value in cfg_uncond.items() if value is not None}
    on_missing = _choice(values.pop("on_missing", "error"), _ON_MISSING, f"{where}.on_missing")
    text = _choice(values.pop("text", "negative_prompt"), _TEXT_POLICIES, f"{where}.text")
    channels = {
        name: _choice(value, _CHANNEL_POLICIES, f"{where}.{name}") for name, value in values.items()
    }
    return UnconditionalPolicy(text, channels, on_missing)


def _choice(value: object, allowed: tuple[str, ...], where: str) -> str:
    name = str(value).strip().lower()
    if not isinstance(value, str) or name not in allowed:
        message = (
            f"{where} is {value!r}; expected one of {', '.join(allowed)}."
            f"{did_you_mean(name, allowed)}"
        )
        raise ConfigError(message)
    return name


def text_conditioning(
    batch: TrainingBatch, *, conditional: bool, cfg_uncond: Mapping[str, Any] | None
) -> Conditioning:
    """Returns the text input of a model that has no other channel.

    Args:
        batch: Holds the prompt's and perhaps the negative prompt's conditioning.
        conditional: Whether the prompt conditions.
        cfg_uncond: Policy of the unconditional input.

    Raises:
        ValueError: The policy cannot be followed: text is dropped, another channel is changed
            although the model has none, or the batch carries no negative prompt.
    """
    if conditional:
        return batch.conditional_dict
    policy = parse_unconditional_policy(cfg_uncond)
    _check_text_only(policy)
    if policy.text == "keep":
        return batch.conditional_dict
    if policy.text == "zero":
        zeros = torch.zeros_like(batch.conditional_dict["encoder_hidden_states"])
        return {**batch.conditional_dict, "encoder_hidden_states": zeros}
    if batch.unconditional_dict is None:
        message = (
            "the batch carries no negative prompt; call set_requires_negative_conditioning(True) "
            "on the student before training, or set method.cfg_uncond.text to zero or keep"
        )
        raise ValueError(message)
    return batch.unconditional_dict


def guidance_pair(batch: TrainingBatch, cfg_uncond: Mapping[str, Any] | None) -> TrainingBatch:
    """Returns a batch of 2·B samples for guidance in one call: with the prompt, then without.

    Only the conditioning is doubled; latents are those of ``batch``.

    Raises:
        ValueError: The policy cannot be followed, as in :func:`text_conditioning`.
    """
    unconditional = text_conditioning(batch, conditional=False, cfg_uncond=cfg_uncond)
    doubled = {
        name: torch.cat([tensor, unconditional[name]])
        for name, tensor in batch.conditional_dict.items()
    }
    return replace(batch, conditional_dict=doubled, unconditional_dict=None)


def _check_text_only(policy: UnconditionalPolicy) -> None:
    if policy.text == "drop":
        message = (
            "method.cfg_uncond.text is 'drop', but this model always attends to text; use zero, "
            "keep or negative_prompt"
        )
        raise ConfigError(message)
    changed = [name for name, value in policy.channels.items() if value != "keep"]
    if changed and policy.on_missing == "error":
        message = (
            f"method.cfg_uncond.{changed[0]} is {policy.channels[changed[0]]!r}, but this model "
            "has no such channel; remove it, or set method.cfg_uncond.on_missing to ignore"
        )
        raise ConfigError(message)
