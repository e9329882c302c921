"""The dashboards there are, in the order in which a reader needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.dashboards.boards import (
    checkpoint_validation,
    data,
    device,
    inference,
    losses,
    overview,
    ranks,
    step,
    telemetry,
)

if TYPE_CHECKING:
    from fastvideo.dashboards.model import Dashboard

BOARDS: Final = (
    overview,
    step,
    data,
    ranks,
    device,
    checkpoint_validation,
    losses,
    inference,
    telemetry,
)
"""The modules of the dashboards; each has ``dashboard()``."""


def all_dashboards() -> tuple[Dashboard, ...]:
    """Returns all dashboards."""
    return tuple(board.dashboard() for board in BOARDS)
