"""The table of environment variables."""

from __future__ import annotations

import pytest

from fastvideo import envs


def test_variables_are_read_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the environment is seen at the next read, with the declared type."""
    monkeypatch.delenv("FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS", raising=False)
    before = envs.FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS", "7")
    assert (before, envs.FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS) == (200, 7)


def test_empty_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set to nothing has its default."""
    monkeypatch.setenv("FASTVIDEO_NVTX_PROFILE", "")
    assert envs.FASTVIDEO_NVTX_PROFILE is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FASTVIDEO_NVTX_PROFILE", "maybe"),
        ("FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS", "-1"),
        ("FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS", "many"),
    ],
)
def test_a_bad_value_names_variable_and_value(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which variable has which value."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}='{value}'"):
        envs.VARIABLES[name].read()


def test_unknown_attribute_is_an_attribute_error() -> None:
    """The module behaves like any other for names it does not declare."""
    with pytest.raises(AttributeError, match="FASTVIDEO_NO_SUCH"):
        _ = envs.FASTVIDEO_NO_SUCH


def test_every_variable_is_documented_by_one_line() -> None:
    """Names have the prefix, help is one line, and kinds have parsers."""
    for name, variable in envs.VARIABLES.items():
        assert name == variable.name
        assert name.startswith("FASTVIDEO_")
        assert variable.help
        assert "\n" not in variable.help
        assert variable.kind in envs._PARSERS


def test_misspelled_names_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are almost those of variables; others may be another program's."""
    assert envs.misspelled_variables() == {}
    for name in ("FASTVIDEO_TRACE_ACTIVATION", "FASTVIDEO_metrics", "FASTVIDEO_SOME_OTHER"):
        monkeypatch.setenv(name, "1")
    assert envs.misspelled_variables() == {
        "FASTVIDEO_TRACE_ACTIVATION": "FASTVIDEO_TRACE_ACTIVATIONS",
        "FASTVIDEO_metrics": "FASTVIDEO_METRICS",
    }
