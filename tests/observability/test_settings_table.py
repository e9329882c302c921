"""The table of settings says what the code reads, in both directions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import fastvideo.observability
from fastvideo.observability.config import KEYS, TelemetryConfig
from fastvideo.observability.identity import agree
from fastvideo.observability.settings_table import BY_NAME, SETTINGS, VARIABLES, Setting
from fastvideo.observability.tracing.settings import YAML_VARIABLES

PACKAGE = Path(fastvideo.observability.__file__).parent

# Read elsewhere: the first two by the program, the others by urllib when it connects.
READ_ELSEWHERE = {
    "FASTVIDEO_LOG_FORMAT",
    "FASTVIDEO_LOG_LEVEL",
    "GRPC_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
}


class ReadEnviron(Mapping[str, str]):
    """An environment that remembers which variables were asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values_given = values
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return self.values_given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_given)

    def __len__(self) -> int:
        return len(self.values_given)


def _declared() -> set[str]:
    return {name for setting in (*SETTINGS, *VARIABLES) for name in setting.all_variables}


def test_the_code_reads_the_variables_of_the_table_and_no_others() -> None:
    """With everything on, what is asked of the environment is what the table declares."""
    read: set[str] = set()
    for protocol in ("grpc", "http/protobuf"):
        environ = ReadEnviron(
            {
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_METRICS_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_TRACES_SAMPLER": "traceidratio",
            }
        )
        TelemetryConfig.from_sources(environ)
        agree(run_name="", ratio=1.0, environ=environ, broadcast=None)
        read |= environ.read
    assert read == _declared() - READ_ELSEWHERE


def _words(path: Path) -> set[str]:
    """Returns the names of variables in the code of a module: in texts, or as ``envs`` has them."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(re.findall(r"\b(?:OTEL|FASTVIDEO)_[A-Z0-9_]*[A-Z0-9]\b", node.value))
        if isinstance(node, ast.Attribute) and node.attr.startswith("FASTVIDEO_"):
            found.add(node.attr)
    return found


def test_no_module_names_a_variable_that_the_table_lacks() -> None:
    """A variable that a module reads by itself, at whatever time, is in the table as well."""
    prefixes = {"OTEL_EXPORTER_OTLP"}  # of variables
    named = {word for path in PACKAGE.rglob("*.py") for word in _words(path)}
    assert named - prefixes - _declared() == set()
    assert len(named) > 20


@pytest.mark.parametrize("setting", [*SETTINGS, *VARIABLES], ids=lambda setting: setting.name)
def test_every_row_is_complete(setting: Setting) -> None:
    """Variable, type, default and meaning are there; times have a unit, in name and table."""
    assert all((setting.name, setting.variables, setting.kind, setting.default, setting.meaning))
    assert (setting.unit == "ms") == setting.name.endswith("_ms")
    assert setting.name.endswith("_bytes") == (setting.unit == "bytes")
    assert not setting.meaning.endswith(".")


def test_names_are_given_once() -> None:
    """No setting and no variable has two rows."""
    names = [setting.name for setting in (*SETTINGS, *VARIABLES)]
    variables = [name for s in (*SETTINGS, *VARIABLES) for name in s.all_variables]
    assert sorted(set(names)) == sorted(names)
    assert sorted(set(variables)) == sorted(variables)


def test_keys_about_spans_stand_for_the_variables_that_spans_read() -> None:
    """The table and the reader of spans agree on what a key of the file means."""
    assert set(YAML_VARIABLES) <= KEYS
    assert {name: BY_NAME[name].variables[0] for name in YAML_VARIABLES} == YAML_VARIABLES
