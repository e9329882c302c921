"""The prepared batch that models and methods hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Conditioning = dict[str, "Tensor"]
"""Channel inputs of one transformer call: ``encoder_hidden_states``, ``encoder_attention_mask``."""


@dataclass(slots=True)
class TrainingBatch:
    """One batch, normalised, noised and conditioned.

    Latents are normalised and float32. B samples, T latent frames, C channels, HxW latent pixels.

    Attributes:
        latents: Clean latents [B, T, C, H, W], or zeros where the method needs none.
        noise: The noise ε of `noisy_model_input`, [B, C, T, H, W].
        noisy_model_input: (1 - sigma)·latents + sigma·noise, [B, C, T, H, W].
        timesteps: Timesteps [B] in (0, N], float32.
        sigmas: timesteps / N, [B, 1, 1, 1, 1].
        raw_latent_shape: Shape of the latents as the loader gave them, [B, C, T, H, W].
        encoder_hidden_states: Text embedding [B, L, D], zero-padded.
        encoder_attention_mask: 1 at real tokens and 0 at padding, [B, L].
        conditional_dict: Conditioning of the prompt.
        unconditional_dict: Conditioning of the negative prompt, if the method asked for it.
        infos: Scalar columns of each sample, such as its caption.
        attn_metadata: Metadata of dense attention, if the model needs some.
        attn_metadata_vsa: Metadata of sparse attention, if the model needs some.
        dmd_latent_vis_dict: Latents a method wants to be looked at, by name.
    """

    latents: Tensor
    noise: Tensor
    noisy_model_input: Tensor
    timesteps: Tensor
    sigmas: Tensor
    raw_latent_shape: torch.Size
    encoder_hidden_states: Tensor | None = None
    encoder_attention_mask: Tensor | None = None
    conditional_dict: Conditioning = field(default_factory=dict)
    unconditional_dict: Conditioning | None = None
    infos: list[dict[str, Any]] = field(default_factory=list)
    attn_metadata: Any = None
    attn_metadata_vsa: Any = None
    dmd_latent_vis_dict: dict[str, Tensor] = field(default_factory=dict)
