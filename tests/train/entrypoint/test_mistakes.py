"""Mistakes of the user: who says them, and what the launcher learns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.entrypoint.mistakes import recorded_failure, tell_mistake

if TYPE_CHECKING:
    from pathlib import Path


def _mistake() -> ConfigError:
    error = ConfigError("x: wrong")
    error.add_note("while building y")
    return error


@pytest.mark.parametrize("rank", [0, 3])
def test_rank_zero_says_it_and_all_record_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    rank: int,
) -> None:
    """Notes of the error are part of the line; the launcher knows whether it was said."""
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    tell_mistake(_mistake(), rank=rank)
    assert caplog.messages == (["x: wrong; while building y"] if rank == 0 else [])
    record = json.loads(file.read_text(encoding="utf-8"))
    assert recorded_failure(record) == ("ConfigError: x: wrong; while building y", rank == 0)


def test_without_an_error_file_every_rank_says_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else would."""
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    tell_mistake(_mistake(), rank=3)
    assert caplog.messages == ["x: wrong; while building y"]


@pytest.mark.parametrize("record", [{}, {"message": "<NONE>"}, {"message": {"message": None}}])
def test_ranks_that_recorded_nothing(record: dict[str, object]) -> None:
    """A killed rank leaves no message, which is no error here."""
    assert recorded_failure(record)[1] is False
