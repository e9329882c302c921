"""The dashboards there are, in the order in which a reader needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.dashboards.boards import overview

if TYPE_CHECKING:
    from fastvideo.dashboards.model import Dashboard

BOARDS: Final = (overview,)
"""The modules of the dashboards; each has ``dashboard()``."""


def all_dashboards() -> tuple[Dashboard, ...]:
    """Returns all dashboards."""
    return tuple(board.dashboard() for board in BOARDS)
