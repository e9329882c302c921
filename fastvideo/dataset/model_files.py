"""Where a model's files are: local directories, the Hugging Face hub, and the tiny test model.

Everything here works on the diffusers layout: a directory with ``model_index.json`` and one
folder per component (``transformer``, ``vae``, ``text_encoder``, ``tokenizer``, ``scheduler``).
Only files are read; no weights are loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastvideo import envs
from fastvideo.errors import ConfigError, DataError, did_you_mean, import_extra
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = init_logger(__name__)

TINY_SCHEME = "tiny-random:"
"""Prefix of the names of models that are made up on this machine instead of downloaded."""

TINY_MODELS = ("wan2.1",)
"""Names that may follow :data:`TINY_SCHEME`."""

_HUB_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model")


def resolve_model_path(init_from: str, *, option: str = "init_from") -> Path:
    """Returns a local directory in diffusers layout for a model named in a config.

    Safe to call from all ranks at once: downloads are locked by the hub client, and the tiny
    model appears by one atomic rename.

    Args:
        init_from: A local directory, a Hugging Face id such as
            ``Wan-AI/Wan2.1-T2V-1.3B-Diffusers``, or ``tiny-random:wan2.1`` for a random model of
            about 0.6 MB that is made here and kept in the cache directory.
        option: What the name was given as, for messages: a key or a command-line option.

    Returns:
        The absolute path of the directory.

    Raises:
        ConfigError: The name is empty or unknown, or nothing can be found under it.
        DataError: A local directory is not in diffusers layout.
    """
    local = find_local_model(init_from, option=option)
    if local is not None:
        return local
    name = init_from.strip()
    if name.startswith(TINY_SCHEME):
        from fastvideo.dataset import tiny_assets  # noqa: PLC0415 - it imports this module

        return tiny_assets.cached_tiny_wan_model(cache_directory())
    return check_model_directory(_download(name, option))


def find_local_model(init_from: str, *, option: str = "init_from") -> Path | None:
    """Returns the directory of a model that is on this machine, without making or loading one.

    Args:
        init_from: As for :func:`resolve_model_path`.
        option: What the name was given as, for messages: a key or a command-line option.

    Returns:
        The absolute path of the directory; None for a name on the hub and for a tiny model.

    Raises:
        ConfigError: The name is empty, no known tiny model, or a path that is no directory.
        DataError: The directory is not in diffusers layout.
    """
    name = init_from.strip()
    if not name:
        message = f"{option} is empty; expected a model directory, a hub id or tiny-random:wan2.1"
        raise ConfigError(message)
    if name.startswith(TINY_SCHEME):
        known = [TINY_SCHEME + model for model in TINY_MODELS]
        if name not in known:
            hint = did_you_mean(name, known)
            message = f"unknown tiny model {name!r}; expected one of {', '.join(known)}.{hint}"
            raise ConfigError(message)
        return None
    local = Path(name).expanduser()
    if local.is_dir():
        return check_model_directory(local.resolve(), option=option)
    if _looks_like_path(name):
        message = (
            f"{option} {init_from!r} is not a directory (looked in {Path.cwd()}); expected a "
            "model directory in diffusers layout"
        )
        raise ConfigError(message)
    return None


def check_model_directory(directory: Path, *, option: str = "") -> Path:
    """Returns ``directory`` if it is in diffusers layout.

    Args:
        directory: A directory that should hold ``model_index.json``.
        option: What it was given as, for the message.

    Raises:
        DataError: ``model_index.json`` is missing.
    """
    if not (directory / "model_index.json").is_file():
        found = ", ".join(sorted(p.name for p in directory.iterdir())[:8]) or "nothing"
        message = (
            f"{option}: {directory}".removeprefix(": ")
            + f" holds no model_index.json (found: {found}); expected a model in diffusers layout "
            "with a folder per component, such as transformer/ and vae/"
        )
        raise DataError(message)
    return directory


def component_directory(model_dir: Path, component: str) -> Path:
    """Returns the folder of one component of a model.

    Args:
        model_dir: A model in diffusers layout.
        component: Folder name, such as ``"vae"``.

    Raises:
        DataError: The model has no such folder.
    """
    directory = Path(model_dir) / component
    if not directory.is_dir():
        message = f"model {model_dir} has no {component}/ folder, so its {component} cannot load"
        raise DataError(message)
    return directory


def read_component_config(model_dir: Path, component: str) -> dict[str, Any]:
    """Reads ``<component>/config.json`` of a model.

    Args:
        model_dir: A model in diffusers layout.
        component: Folder name, such as ``"vae"``.

    Raises:
        DataError: The folder or file is missing, or is not a JSON object.
    """
    path = component_directory(model_dir, component) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        message = f"{path} is missing; it describes the {component} of model {model_dir}"
        raise DataError(message) from error
    except ValueError as error:
        message = f"{path} is not valid JSON: {error}"
        raise DataError(message) from error
    if not isinstance(config, dict):
        message = f"{path} holds a JSON {type(config).__name__}; expected an object"
        raise DataError(message)
    return config


def weight_files(path: Path) -> list[Path]:
    """Returns the safetensors files that together hold one component's weights.

    An index (``*.safetensors.index.json``) wins: exactly the shards it lists are returned, and
    each must exist. Without one, the directory must hold a single safetensors file.

    Args:
        path: A component folder, or one safetensors file.

    Raises:
        DataError: Nothing is found, a shard is missing, or it is unclear which files to use.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        message = f"no weights at {path}: it is neither a file nor a directory"
        raise DataError(message)
    indices = sorted(path.glob("*.safetensors.index.json"))
    found = sorted(path.glob("*.safetensors"))
    if indices:
        return _indexed_shards(indices[0])
    if not found:
        others = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        message = f"{path} holds no *.safetensors file (found: {others})"
        raise DataError(message)
    if len(found) > 1:
        names = ", ".join(p.name for p in found[:4])
        message = (
            f"{path} holds {len(found)} safetensors files ({names}) and no index "
            "*.safetensors.index.json that says which belong together"
        )
        raise DataError(message)
    return found


def model_fingerprint(model_dir: Path, components: Sequence[str]) -> str:
    """Returns a short hash that changes when a component's config or weight files change.

    Configs count with their content; weight files with their names and sizes, because hashing
    many gigabytes takes minutes.

    Args:
        model_dir: A model in diffusers layout.
        components: Folder names, such as ``("vae", "text_encoder")``.

    Raises:
        DataError: A component, its config or its weights are missing.
    """
    digest = hashlib.sha256()
    for component in components:
        config = read_component_config(model_dir, component)
        digest.update(json.dumps([component, config], sort_keys=True).encode())
        for file in weight_files(model_dir / component):
            digest.update(f"{file.name}:{file.stat().st_size};".encode())
    return digest.hexdigest()[:16]


def cache_directory() -> Path:
    """Returns the directory for the package's caches: ``FASTVIDEO_CACHE_DIR`` or the user's."""
    chosen = str(envs.FASTVIDEO_CACHE_DIR)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "fastvideo"


def _indexed_shards(index: Path) -> list[Path]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{index} is not a safetensors index with a weight_map: {error}"
        raise DataError(message) from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        message = (
            f"{index} lists {len(names)} weight files, and {len(missing)} of them are missing: "
            f"{', '.join(missing[:4])}; download the model again"
        )
        raise DataError(message)
    return [index.parent / name for name in names]


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") != 1 or name.endswith("/")


def _download(repo_id: str, option: str) -> Path:
    hub = import_extra("huggingface_hub", extra="train")
    try:
        path = hub.snapshot_download(repo_id, allow_patterns=list(_HUB_PATTERNS))
    except (OSError, ValueError) as error:
        reason = (str(error).strip().partition("\n")[0] or type(error).__name__).rstrip(".") + "."
        message = (
            f"{option} {repo_id!r} is not a directory below {Path.cwd()}, and no model of that "
            f"name came from the Hugging Face hub or its cache: {reason} Where the hub cannot be "
            f"reached, download the model elsewhere and give its directory as {option}"
        )
        raise ConfigError(message) from error
    return Path(path)
