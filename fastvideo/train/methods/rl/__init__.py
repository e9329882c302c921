"""Learning from rewards."""

from __future__ import annotations

from fastvideo.train.methods.rl.diffusion_nft import DiffusionNFTMethod

__all__ = ["DiffusionNFTMethod"]
