"""Run files of inference, and overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.errors import ConfigError
from fastvideo.pipelines.run_file import load_run_file

if TYPE_CHECKING:
    from pathlib import Path


def test_overrides_change_what_the_file_says(tmp_path: Path) -> None:
    """Both forms of the command line, lists, null and missing sections."""
    file = tmp_path / "run.yaml"
    file.write_text("generator:\n  model_path: m\nrequest:\n  prompt: a\n")
    words = [
        *("--request.sampling.seed", "7"),
        "--request.output.output-path=x=y",
        *("--generator.pipeline.dmd_denoising_steps", "[1000, 500]"),
        *("--request.negative_prompt", "none"),
    ]
    assert load_run_file(file, words) == {
        "generator": {"model_path": "m", "pipeline": {"dmd_denoising_steps": [1000, 500]}},
        "request": {
            "prompt": "a",
            "sampling": {"seed": "7"},
            "output": {"output_path": "x=y"},
            "negative_prompt": None,
        },
        "observability": None,
    }
    assert load_run_file(None, {"request.prompt": "b"})["request"] == {"prompt": "b"}


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("- a\n", [], "expected a mapping with generator and request"),
        ("a: [\n", [], "cannot be read as YAML"),
        ("generatr: {}\n", [], "generatr: unknown section. Did you mean 'generator'"),
        ("{}\n", ["stray"], "unexpected argument 'stray'"),
        ("{}\n", ["--request.seed"], "--request.seed needs a value"),
        ("{}\n", ["--request.seed", "--x"], "--request.seed needs a value"),
        (
            "{}\n",
            ["--sede", "1"],
            r"--sede: unknown option\. Keys of the run file are set with their section: --req",
        ),
        ("{}\n", ["--request.a", "[1"], "cannot be read as YAML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, words: list[Any], message: str) -> None:
    """In the file, and on the command line."""
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_run_file(file, words)


def test_a_missing_file_is_a_value_error(tmp_path: Path) -> None:
    """The message has the name."""
    with pytest.raises(ValueError, match=r"no\.yaml: there is no such file"):
        load_run_file(tmp_path / "no.yaml")
