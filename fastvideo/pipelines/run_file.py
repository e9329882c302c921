"""Run files of inference: YAML with ``generator``, ``request`` and ``observability``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError, did_you_mean, import_extra, yaml_mistake
from fastvideo.pipelines.typed_fields import expanded, fail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SECTIONS: Final = ("generator", "observability", "request")


def load_run_file(
    path: str | Path | None, overrides: Mapping[str, Any] | Sequence[str] = ()
) -> dict[str, Any]:
    """Reads a run file and applies overrides to it.

    Args:
        path: The file; None: there is none, and everything is in the overrides.
        overrides: Values by dotted path, such as ``{"request.sampling.seed": 7}``; or the words
            of a command line, ``--request.sampling.seed 7`` or ``--request.sampling.seed=7``.

    Returns:
        The sections of the file; a section that is missing is an empty mapping, except for
        ``observability``, which is then None.

    Raises:
        ConfigError: The file cannot be read, a section is unknown or no mapping, or an override
            cannot be understood.
    """
    raw = {} if path is None else _read(expanded(path, where="--config"))
    values = overrides if hasattr(overrides, "items") else read_overrides(overrides)
    for name, value in values.items():
        _set(raw, name, value)
    for name in raw:
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            fail(str(name), f"unknown section.{did_you_mean(str(name), SECTIONS)} Known: {known}")
    return {
        "generator": raw.get("generator") or {},
        "request": raw.get("request") or {},
        "observability": raw.get("observability"),
    }


def _read(file: Path) -> dict[str, Any]:
    yaml = import_extra("yaml", extra="train")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        message = f"--config {file}: there is no such file"
        raise ConfigError(message) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        message = f"--config {file} cannot be read as YAML: {yaml_mistake(error)}"
        raise ConfigError(message) from error
    if not isinstance(content, dict):
        message = f"--config {file}: expected a mapping with generator and request"
        raise ConfigError(message)
    return content


def read_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Reads the words of a command line.

    Args:
        words: ``--section.key value`` or ``--section.key=value``.

    Returns:
        Values by dotted path. Lists, mappings and null are read as YAML; anything else is text,
        which the fields cast.

    Raises:
        ConfigError: A word is no option, or has no value.
    """
    rest, values = iter(words), {}
    for word in rest:
        name, equals, value = word.partition("=")
        if not name.startswith("--") or not name.strip("-"):
            message = f"unexpected argument {word!r}: overrides are written --section.key value"
            raise ConfigError(message)
        if not equals:
            following = next(rest, None)
            if following is None or following.startswith("--"):
                message = f"{name} needs a value"
                raise ConfigError(message)
            value = following
        values[name.removeprefix("--").replace("-", "_")] = _cast(value, name)
    return values


def _cast(text: str, name: str) -> Any:  # noqa: ANN401 - whatever was typed
    """Reads lists, mappings and null; numbers and flags are cast by the fields they are for."""
    if text.strip().lower() in {"none", "null"}:
        return None
    if text.strip()[:1] not in {"[", "{"}:
        return text
    yaml = import_extra("yaml", extra="train")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        message = f"{name}: {text!r} cannot be read as YAML"
        raise ConfigError(message) from error


def _set(raw: dict[str, Any], path: str, value: object) -> None:
    *folders, last = path.split(".")
    if not folders:
        hint = did_you_mean(path, SECTIONS)
        written = "Keys of the run file are set with their section: --request.sampling.seed 7"
        fail(f"--{path.replace('_', '-')}", f"unknown option.{hint} {written}")
    for name in folders:
        if not isinstance(raw.get(name), dict):
            raw[name] = {}
        raw = raw[name]
    raw[last] = value
