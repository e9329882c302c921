"""The page on inference: its programs and its run file do what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo.cli import main as cli

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).parents[2] / "docs" / "inference.md"


def block(language: str) -> str:
    """Returns the page's first block of code in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints the file of the one video, and what is wrong with the empty prompt."""
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python"), PAGE.name, "exec"), {})  # noqa: S102 - our own page
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("outputs/a red ball.mp4 (64, 64, 9) ")
    assert second == "[None, \"ConfigError: prompt: expected text, got ''\"]"


def test_the_run_file_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two videos of each prompt, and telemetry because its section is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fastvideo.logger.configure_logging", lambda *args, **kwargs: None)
    Path("run.yaml").write_text(block("yaml"))
    words = ["--request.sampling.seed", "7", "--num-inference-steps", "1"]
    assert cli.main(["generate", "--config", "run.yaml", *words]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"outputs/{name}.mp4" for name in ("a red ball", "a red ball_1", "snow", "snow_1")
    ]
