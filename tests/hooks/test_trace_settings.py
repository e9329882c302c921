"""The variables of activation tracing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from fastvideo.errors import ConfigError
from fastvideo.hooks.trace_settings import TraceSettings, _warn_of_idle, check_trace_variables


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAYERS", "STATS", "OUTPUT", "STEPS"):
        monkeypatch.delenv(f"FASTVIDEO_TRACE_{name}", raising=False)
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "1")


def test_defaults() -> None:
    """All modules and steps, two statistics, and a file of this process."""
    settings = TraceSettings.from_env()
    assert settings is not None
    assert settings.statistics == ("abs_mean", "sum")
    assert settings.selects_module("blocks.0")
    assert not settings.selects_module("")
    assert settings.selects_step(None)
    assert settings.path.parent == Path(tempfile.gettempdir())
    assert settings.path.name.startswith("fv_trace_")


def test_unknown_statistics_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning and the nearest name; with none left, nothing is traced."""
    monkeypatch.setenv("FASTVIDEO_TRACE_STATS", "maxx, std ,sum")
    settings = TraceSettings.from_env()
    assert settings is not None
    assert settings.statistics == ("sum", "std")
    assert "'maxx', which is left out" in caplog.text
    assert "Did you mean 'max'?" in caplog.text
    monkeypatch.setenv("FASTVIDEO_TRACE_STATS", "median")
    assert TraceSettings.from_env() is None
    assert "activations are not traced" in caplog.text


def test_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers and ranges; what is outside of steps is not among them."""
    monkeypatch.setenv("FASTVIDEO_TRACE_STEPS", "3, 10-12")
    settings = TraceSettings.from_env()
    assert settings is not None
    selected = [step for step in range(20) if settings.selects_step(step)]
    assert selected == [3, 10, 11, 12]
    assert not settings.selects_step(None)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ACTIVATIONS", "maybe", "FASTVIDEO_TRACE_ACTIVATIONS='maybe' cannot be used"),
        ("LAYERS", "(", r"FASTVIDEO_TRACE_LAYERS='\(' is no regular expression"),
        ("STEPS", "1,two", "FASTVIDEO_TRACE_STEPS='1,two': expected steps .* got 'two'"),
        ("STEPS", "5-2", "FASTVIDEO_TRACE_STEPS='5-2': expected steps .* got '5-2'"),
        ("OUTPUT", "~no such user/t", "FASTVIDEO_TRACE_OUTPUT='~no such user/t': there is no such"),
        ("STEPS", "-3", "got '-3'"),
    ],
)
def test_values_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    """The message names the variable."""
    monkeypatch.setenv(f"FASTVIDEO_TRACE_{name}", value)
    with pytest.raises(ConfigError, match=message):
        TraceSettings.from_env()
    with pytest.raises(ConfigError, match=message):
        check_trace_variables()


def test_files_that_cannot_be_written_are_found_beforehand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A directory, behind a file, and where the system has no files; asking makes nothing."""
    (tmp_path / "file").touch()
    for output, reason in (
        (str(tmp_path), "is a directory"),
        (str(tmp_path / "file" / "t.jsonl"), "file is no directory"),
        ("/proc/new.jsonl", "/proc cannot be written to"),
    ):
        monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", output)
        with pytest.raises(ConfigError, match=f"^environment variable .*{output}.*{reason}"):
            check_trace_variables()
    monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", str(tmp_path / "new" / "t.jsonl"))
    check_trace_variables()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", str(tmp_path))
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "0")
    check_trace_variables()


def test_settings_without_the_switch_are_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it is turned off on purpose."""
    _warn_of_idle.cache_clear()
    monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", "t.jsonl")
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "0")
    assert TraceSettings.from_env() is None
    assert not caplog.records
    monkeypatch.delenv("FASTVIDEO_TRACE_ACTIVATIONS")
    assert TraceSettings.from_env() is None
    assert TraceSettings.from_env() is None
    (record,) = caplog.records
    assert record.getMessage() == (
        "FASTVIDEO_TRACE_OUTPUT: set, but no activations are traced without "
        "FASTVIDEO_TRACE_ACTIVATIONS=1; set that to 0 if it is meant so"
    )
