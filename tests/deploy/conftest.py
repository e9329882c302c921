"""Compose files as Docker Compose reads them: variables filled in, overrides merged."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEPLOY = Path(__file__).parents[2] / "deploy"

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?P<how>:-|:\?)(?P<rest>[^}]*)\}")


class Reset:
    """What ``!reset`` stands before: the key goes away."""


class Override:
    """What ``!override`` stands before: it replaces, and is not merged.

    Args:
        value: The new value.
    """

    def __init__(self, value: object) -> None:
        self.value = value


class _Loader(yaml.SafeLoader):
    """Knows the tags of Docker Compose."""


_Loader.add_constructor("!reset", lambda _loader, _node: Reset())


def _override(loader: yaml.SafeLoader, node: yaml.Node) -> Override:
    assert isinstance(node, yaml.SequenceNode)
    return Override(loader.construct_sequence(node, deep=True))


_Loader.add_constructor("!override", _override)


def load(name: str) -> dict[str, Any]:
    """Reads one file below deploy/, with its variables as they stand."""
    content: dict[str, Any] = yaml.load((DEPLOY / name).read_text(), _Loader)  # noqa: S506
    return content


def fill_in(value: Any, variables: Mapping[str, str]) -> Any:
    """Replaces ``${NAME:-default}`` and ``${NAME:?message}`` in every text.

    Raises:
        LookupError: A variable that is required is missing or empty; with the message.
    """

    def one(match: re.Match[str]) -> str:
        given = variables.get(match["name"], "")
        if not given and match["how"] == ":?":
            raise LookupError(match["rest"])
        return given or match["rest"]

    if isinstance(value, str):
        return _VARIABLE.sub(one, value)
    if isinstance(value, list):
        return [fill_in(each, variables) for each in value]
    if isinstance(value, dict):
        return {key: fill_in(each, variables) for key, each in value.items()}
    return value


def merge(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merges an override as Docker Compose does.

    Mappings are merged, sequences appended, but a command or an entrypoint is replaced.
    """
    result = deepcopy(base)
    for key, value in more.items():
        before = result.get(key)
        if isinstance(value, Reset):
            result.pop(key, None)
        elif isinstance(value, Override):
            result[key] = value.value
        elif isinstance(value, dict) and isinstance(before, dict):
            result[key] = merge(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            replaced = key in {"command", "entrypoint"}
            result[key] = value if replaced else [*before, *value]
        else:
            result[key] = value
    return result


@pytest.fixture(scope="session")
def compose() -> Callable[..., dict[str, Any]]:
    """Gives what compose.yaml and the named overrides come to, with variables filled in."""

    def read(*overrides: str, **variables: str) -> dict[str, Any]:
        content = load("compose.yaml")
        for name in overrides:
            content = merge(content, load(name))
        filled: dict[str, Any] = fill_in(
            content, {"GF_SECURITY_ADMIN_PASSWORD": "of-a-test", **variables}
        )
        return filled

    return read
