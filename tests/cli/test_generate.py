"""`fastvideo generate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastvideo.cli import main as cli
from fastvideo.dataset.tiny_assets import write_tiny_wan_model

if TYPE_CHECKING:
    from collections.abc import Sequence

ASKED = ["--model-path", "m", "--prompt", "a"]
SMALL = ["--height", "16", "--width", "32", "--num-frames", "1", "--num-inference-steps", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random model."""
    return str(write_tiny_wan_model(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(autouse=True)
def _untouched_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastvideo.logger.configure_logging", lambda *args, **kwargs: None)


def test_prompts_on_the_command_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are named on standard output, one a line."""
    words = ["--model-path", model, "--prompt", "a", "--prompt", "b, c", *SMALL]
    assert cli.main(["generate", *words, "--output-path", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [str(tmp_path / "a.mp4"), str(tmp_path / "b, c.mp4")]
    assert all(Path(path).is_file() for path in printed)


def test_a_run_file_with_overrides(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is on the command line counts."""
    run = tmp_path / "run.yaml"
    run.write_text(
        f"generator: {{model_path: {model}}}\n"
        "request:\n"
        "  prompt: a red ball\n"
        f"  output: {{output_path: {tmp_path / 'x.mp4'}}}\n"
    )
    words = ["--request.sampling.seed", "7", "--generator.pipeline.flow_shift=5", *SMALL]
    assert cli.main(["generate", "--config", str(run), *words]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'x.mp4'}\n"


def test_some_prompts_of_a_file_are_no_good(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The good ones are made, the bad one is named, and the status says so."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n\n{"prompt": "b", "height": 50}\n{"prompt": "c"}\n')
    words = ["--model-path", model, "--prompt-path", str(prompts), *SMALL]
    assert cli.main(["generate", *words, "--output-path", str(tmp_path / "out")]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert "prompt 2 of 3, 'b': ConfigError: height: expected a multiple of 16" in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a run file with --config FILE, or a model with --model-path PATH"),
        (["--config", "no.yaml"], "--config no.yaml: there is no such file"),
        (["--model-path", "no/model", "--prompt", "a"], "model_path 'no/model' is not a directory"),
        (["--model-path", "m"], "request.prompt: missing required field"),
        ([*ASKED, "--height", "x"], "request.sampling.height: expected a whole number"),
        ([*ASKED, "--height", "50"], "request.sampling.height: expected a multiple of 16"),
        ([*ASKED, "--num-frames", "4"], "request.sampling.num_frames: expected 4k + 1"),
        ([*ASKED, "--request.sampling.sede", "4"], "Did you mean 'seed'?"),
        ([*ASKED, "--generator.engine.bogus", "4"], "generator.engine.bogus: unknown field"),
        (
            [*ASKED, "--generator.engine.num_gpus", "4"],
            "generator.engine.num_gpus: only 1 is offered, got 4",
        ),
        ([*ASKED, "--sede", "4"], "--sede: unknown option"),
        (
            [*ASKED, "--output-path", "a.avi"],
            "request.output.output_path: expected a folder, or a file that ends in .mp4, got 'a.a",
        ),
        (
            ["--prompt-path", "no.txt", "--model-path", "m"],
            "request.prompt_path: no.txt cannot be read",
        ),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], message: str
) -> None:
    """Before anything is loaded, with the path of what is wrong."""
    assert cli.main(["generate", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1
