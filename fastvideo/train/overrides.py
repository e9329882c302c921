"""Command-line overrides: `--training.data.seed 7`, `--models.*.init_from tiny`.

An override is applied to the mapping that YAML gave, before anything is typed, so a checkpoint's
metadata and the tracker show exactly what ran. Paths in typed sections must exist; free sections
(`models`, `method`, `callbacks`, `pipeline`) accept any key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastvideo.errors import ConfigError, nearest
from fastvideo.train.yaml_file import parse_yaml

ALIASES = {
    "resume_from_checkpoint": "training.checkpoint.resume_from_checkpoint",
    "override_output_dir": "training.checkpoint.output_dir",
}
"""Flags of older launch scripts, and the path that each stands for."""

_PREFIX = "--"
_ANY = "*"


@dataclass(frozen=True, slots=True)
class Override:
    """One override as it was typed.

    Attributes:
        path: Segments of the dotted path, aliases resolved.
        text: The value, not yet cast.
        token: The option as typed, for messages.
    """

    path: tuple[str, ...]
    text: str
    token: str


def parse_overrides(tokens: Sequence[str]) -> list[Override]:
    """Reads `--a.b=v` and `--a.b v` into overrides, in order.

    Args:
        tokens: Command-line words that no flag of the program took.

    Raises:
        ConfigError: A word that is not an option stands where one should, an option has no value,
            or a path has an empty segment.
    """
    found: list[Override] = []
    words = iter(tokens)
    for word in words:
        if not word.startswith(_PREFIX):
            message = (
                f"unexpected argument {word!r}: overrides are written --section.key=value "
                f"or --section.key value"
            )
            raise ConfigError(message)
        option, equals, text = word.partition("=")
        if not equals:
            text = _value_after(option, words)
        found.append(Override(path=_segments(option), text=text, token=option))
    return found


def cast_value(text: str, *, where: str = "value") -> Any:  # noqa: ANN401 - that is its purpose
    """Turns the text of an override into the value YAML would have held.

    In this order: true/false, none/null, int, float (so `1e-3` is 0.001), `[...]` and `{...}` as
    YAML, and otherwise the text unchanged.

    Args:
        text: What was typed.
        where: Option it belongs to, for the message.

    Raises:
        ConfigError: A list or mapping is not valid YAML.
    """
    folded = text.strip().lower()
    if folded in {"true", "false"}:
        return folded == "true"
    if folded in {"none", "null"}:
        return None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    if folded[:1] + folded[-1:] in {"[]", "{}"}:
        return parse_yaml(text, where=f"the value of {where}")
    return text


def apply_overrides(
    raw: dict[str, Any],
    overrides: Sequence[Override],
    *,
    check_path: Callable[[tuple[str, ...]], bool],
) -> None:
    """Writes overrides into the mapping of a run file, in order; later ones win.

    Missing mappings on the way are created, a value that is no mapping is replaced by one, and a
    mapping at the end is replaced whole. A segment `*` stands for every mapping at that place.
    Dashes in a segment become underscores unless the mapping has that very key.

    Args:
        raw: What YAML gave; changed in place.
        overrides: What `parse_overrides` gave.
        check_path: Raises for a path that may not be set; otherwise tells whether the value at the
            path is text, which is then not cast to a number or truth value.

    Raises:
        ConfigError: A path is not known, a value cannot be cast, or `*` matches nothing.
    """
    for override in overrides:
        keep_text = check_path(tuple(segment.replace("-", "_") for segment in override.path))
        value = cast_value(override.text, where=override.token)
        if keep_text and isinstance(value, bool | int | float):
            value = override.text
        targets = list(_expand(raw, override.path))
        if not targets:
            message = f"{override.token}: there is nothing that '*' could stand for"
            raise ConfigError(message)
        for target in targets:
            _assign(raw, target, value)


def _value_after(option: str, words: Iterator[str]) -> str:
    value = next(words, None)
    if value is None or value.startswith(_PREFIX):
        got = "nothing follows it" if value is None else f"{value!r} follows it"
        message = (
            f"override {option} has no value: {got}. "
            f"Write {option} VALUE, or {option}=VALUE for a value that starts with dashes"
        )
        raise ConfigError(message)
    return value


def _segments(option: str) -> tuple[str, ...]:
    dotted = option.removeprefix(_PREFIX)
    dotted = ALIASES.get(dotted.replace("-", "_"), dotted)
    segments = tuple(dotted.split("."))
    if not all(segments):
        message = f"override {option!r} has an empty part; write --section.key"
        raise ConfigError(message)
    return segments


def _expand(node: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the concrete paths that `path` means in `node`."""
    if not path:
        yield ()
        return
    head, rest = path[0], path[1:]
    here = node if isinstance(node, Mapping) else {}
    if head == _ANY:
        names = [name for name, value in here.items() if isinstance(value, Mapping)]
    else:
        names = [head if head in here else head.replace("-", "_")]
    for name in names:
        for tail in _expand(here.get(name), rest):
            yield (name, *tail)


def _assign(raw: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    node = raw
    for segment in path[:-1]:
        child = node.get(segment)
        if not isinstance(child, dict):
            child = {}
            node[segment] = child
        node = child
    node[path[-1]] = value


def unknown_path(path: str, *, typed: Sequence[str], free: Sequence[str]) -> ConfigError:
    """Returns the error for an override of a path that does not exist.

    It suggests, in this order: the same path in a free section of a similar name, the nearest
    typed path, and the typed path with the same last part.

    Args:
        path: The dotted path, as typed.
        typed: Every dotted path that exists in typed sections.
        free: Names of the sections that accept any key.
    """
    root, _, rest = path.partition(".")
    leaf = path.rpartition(".")[2]
    section = nearest(root, [*free, "training"])
    if rest and section in free:
        suggestion: str | None = f"{section}.{rest}"
    else:
        same_leaf = {name.rpartition(".")[2]: name for name in typed}
        suggestion = same_leaf.get(leaf) or nearest(path, [*typed, *ALIASES])
    hint = f" Did you mean --{suggestion}?" if suggestion else ""
    message = f"unknown override --{path}: there is no such key.{hint}"
    return ConfigError(message)
