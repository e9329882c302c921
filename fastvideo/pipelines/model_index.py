"""What ``model_index.json`` says of a model: the classes of its parts, and settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastvideo.dataset.model_files import check_model_directory
from fastvideo.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def read_model_index(model_dir: Path) -> dict[str, Any]:
    """Reads ``model_index.json``: the classes of a model's parts, and its own settings.

    Args:
        model_dir: A model in diffusers layout.

    Raises:
        DataError: The file is missing or no JSON object.
    """
    path = check_model_directory(model_dir) / "model_index.json"
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        message = f"{path} is not valid JSON: {error}"
        raise DataError(message) from error
    if not isinstance(index, dict):
        message = f"{path} holds a JSON {type(index).__name__}; expected an object"
        raise DataError(message)
    return index


def has_second_expert(index: dict[str, Any]) -> bool:
    """Tells whether a model has a transformer of its own for low noise."""
    return bool((index.get("transformer_2") or [None])[0])
