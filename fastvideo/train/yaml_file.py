"""Reading YAML the way people expect: numbers as in YAML 1.2, and no key twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, final

import yaml

from fastvideo.errors import ConfigError, FastVideoError, yaml_mistake
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from pathlib import Path

logger = init_logger(__name__)

# PyYAML follows YAML 1.1, where 1e-5 is text because it has no dot, 0123 is 83, and 1:30 is 90.
_INT_TAG, _FLOAT_TAG = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_INT = re.compile(r"^[-+]?[0-9][0-9_]*$|^0x[0-9a-fA-F]+$|^0o[0-7]+$")
_FLOAT = re.compile(
    r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)$"
    r"|^[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?$"
    r"|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$",
)
_LEADING_ZERO = re.compile(r"^[-+]?0[0-9_]")


@final
class _RunFileLoader(yaml.SafeLoader):
    """Safe YAML with the numbers of YAML 1.2, which refuses repeated keys."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Reads a whole number: decimal even with zeros before it, 0x or 0o."""
        text = node.value.replace("_", "")
        if _LEADING_ZERO.match(node.value):
            place = node.start_mark
            where = f"{place.name}, line {place.line + 1}"
            logger.warning("%s: %s is read as %d, no octal number", where, text, int(text))
        return int(text, 0 if text[:2] in {"0x", "0o"} else 10)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if isinstance(key, str) and key != "<<":
                if key in seen:
                    problem = f"the key {key!r} is repeated; leave one of them"
                    raise yaml.constructor.ConstructorError(
                        problem=problem, problem_mark=key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


@final
class _RunFileDumper(yaml.SafeDumper):
    """Puts text in quotes where the loader would take it for a number, and repeats no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Writes a value that occurs twice in full both times."""
        del data
        return True


_RunFileLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_INT_TAG, _FLOAT_TAG}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_RunFileLoader.add_constructor(_INT_TAG, _RunFileLoader.construct_yaml_int)
for _kind in (_RunFileLoader, _RunFileDumper):
    _kind.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+.0123456789"))
    _kind.add_implicit_resolver(_INT_TAG, _INT, list("-+0123456789"))


class MissingRunFileError(FastVideoError, FileNotFoundError):
    """A run file, or a file that it names, does not exist."""


def dump_yaml(content: Any) -> str:  # noqa: ANN401 - YAML holds anything
    """Returns plain values as YAML that :func:`parse_yaml` reads back as they are.

    Args:
        content: Mappings, lists, text, numbers, truth values and None.
    """
    return yaml.dump(content, Dumper=_RunFileDumper, sort_keys=False, allow_unicode=True)


def parse_yaml(text: str, *, where: str) -> Any:  # noqa: ANN401 - YAML holds anything
    """Parses a YAML text.

    Args:
        text: The text.
        where: What it is, for messages.

    Raises:
        ConfigError: The text is not YAML.
    """
    try:
        loader = _RunFileLoader(text)
        loader.name = where
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        message = f"{where} is not valid YAML: {yaml_mistake(error)}"
        raise ConfigError(message) from error


def read_yaml(path: Path) -> Any:  # noqa: ANN401 - YAML holds anything
    """Reads a YAML file.

    Raises:
        MissingRunFileError: There is no such file (a `FileNotFoundError`).
        ConfigError: The path is a directory, or the file is not YAML in UTF-8.
    """
    if path.is_dir():
        message = f"config {path} is a directory; give the path of a YAML file"
        raise ConfigError(message)
    if not path.exists():
        message = f"config {path} does not exist"
        raise MissingRunFileError(message)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        message = f"config {path} is not text in UTF-8: {error}"
        raise ConfigError(message) from error
    return parse_yaml(text, where=str(path))
