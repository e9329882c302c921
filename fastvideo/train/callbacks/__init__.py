"""Callbacks: what happens beside the training steps."""

from __future__ import annotations

from fastvideo.train.callbacks.callback import Callback
from fastvideo.train.callbacks.callback_dict import CallbackDict

__all__ = ["Callback", "CallbackDict"]
