"""The trainer's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastvideo.train.entrypoint.arguments import TrainArguments, parse_arguments


def test_options_and_overrides_are_told_apart() -> None:
    """The trainer's own options are taken wherever they stand, the rest keeps its order."""
    words = ["--a.b", "1", "--config", "run.yaml", "--c.d=-5", "--dry-run", "--e.f", "[1, 2]"]
    assert parse_arguments(words) == TrainArguments(
        config=Path("run.yaml"),
        dry_run=True,
        overrides=("--a.b", "1", "--c.d=-5", "--e.f", "[1, 2]"),
    )


def test_negative_values_stay_with_their_option() -> None:
    """A value that starts with one dash is not taken for an option."""
    words = ["--config", "r.yaml", "--a.b", "-5", "--c.d", "-1e-3"]
    assert parse_arguments(words).overrides == ("--a.b", "-5", "--c.d", "-1e-3")


def test_aliases_become_overrides() -> None:
    """The flags of older launch scripts set typed keys."""
    words = ["--config=r.yaml", "--resume-from-checkpoint", "latest", "--override-output-dir", "o"]
    assert parse_arguments(words).overrides == (
        "--training.checkpoint.resume_from_checkpoint=latest",
        "--training.checkpoint.output_dir=o",
    )


def test_options_are_not_abbreviated() -> None:
    """`--conf` is no option of the trainer, so it cannot swallow an override."""
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--conf", "run.yaml"])
    assert caught.value.code == 2


def test_help_explains_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    """The help shows how a key is overridden."""
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--help"], prog="train")
    assert caught.value.code == 0
    assert "--models.*.init_from" in capsys.readouterr().out
