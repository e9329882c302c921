"""This process's place among the ranks."""

from __future__ import annotations

import pytest

from fastvideo.profiler.ranks import current_rank, current_world_size


@pytest.mark.parametrize(
    ("rank", "world_size", "expected"),
    [(None, None, (0, 1)), ("3", "8", (3, 8)), (" 2 ", "4", (2, 4)), ("x", "", (0, 1))],
)
def test_the_launcher_says_the_rank(
    rank: str | None,
    world_size: str | None,
    expected: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RANK and WORLD_SIZE count; without them, or with nonsense in them, this is the only rank."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert (current_rank(), current_world_size()) == expected


def test_a_process_group_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is a process group, the environment no longer counts."""
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    assert (current_rank(), current_world_size()) == (1, 2)
