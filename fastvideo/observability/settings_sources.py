"""Where settings of telemetry come from: environment first, then the file, then a default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastvideo.observability.settings_table import BY_NAME, SETTINGS, SIGNALS, Setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SECTION: Final = "observability."
_REFUSED: Final = re.compile(r"([\w.]+)=.*: expected ", re.DOTALL)


class SettingsSources:
    """Looks settings up, each by the variables and the key that the table declares.

    Args:
        environ: The environment; what is empty is unset.
        yaml: The section ``observability`` of a configuration file.

    Attributes:
        section: That section, with mappings and lists written as the variables have them.
    """

    def __init__(self, environ: Mapping[str, str], yaml: Mapping[str, Any]) -> None:
        self._environ = environ
        self.section = {key: _plain(value) for key, value in yaml.items()}

    def text(self, name: str) -> str:
        """Returns a setting as text; empty when it is not set."""
        return self.find(name)[1]

    def find(self, name: str) -> tuple[str, str]:
        """Returns the variable or the key that decides about a setting, and its text.

        Args:
            name: Of the setting, in the table.

        Returns:
            Two empty texts when nothing sets it.
        """
        setting = BY_NAME[name]
        return self._find(setting, setting.variables)

    def as_variables(self) -> dict[str, str]:
        """Returns the section under the names of the variables that its keys stand for."""
        return {
            setting.variables[0]: str(self.section[setting.name])
            for setting in SETTINGS
            if setting.in_file and self.section.get(setting.name) is not None
        }

    def origins(self, problems: Iterable[str]) -> dict[str, str]:
        """Returns where every setting comes from that something sets, by its name in reports.

        Args:
            problems: The warnings; what they say was refused is told from what was taken.
        """
        matches = [_REFUSED.match(problem) for problem in problems]
        refused = {match[1] for match in matches if match is not None}
        found: dict[str, str] = {}
        for setting in SETTINGS:
            for name, variables in _signals(setting):
                origin, text = self._find(setting, variables)
                if not text:
                    continue
                # A value of the file is refused under the name of the variable it stands for.
                was_refused = not refused.isdisjoint({origin, *variables})
                found[name] = f"in place of {origin}" if was_refused else origin
        return found

    def _find(self, setting: Setting, variables: Sequence[str]) -> tuple[str, str]:
        for variable in variables:
            if text := self._environ.get(variable, "").strip():
                return variable, text
        value = self.section.get(setting.name) if setting.in_file else None
        if value is not None and str(value).strip():
            return _SECTION + setting.name, str(value).strip()
        for variable in setting.below:
            if text := self._environ.get(variable, "").strip():
                return variable, text
        return "", ""


def _signals(setting: Setting) -> list[tuple[str, Sequence[str]]]:
    """Returns the names that a setting has in reports, and the variables that count for each."""
    if not setting.per_signal:
        return [(setting.name, setting.variables)]
    return [(setting.name_of(s), setting.variables_of(s)) for s in SIGNALS]


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever YAML may hold
    """Returns mappings and lists as variables have them: percent-encoded, with commas."""
    if isinstance(value, dict):
        return ",".join(
            f"{quote(str(name), safe='')}={quote(str(text), safe='')}"
            for name, text in value.items()
        )
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return value
