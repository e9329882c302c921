"""`fastvideo dashboards draw`: pictures of the dashboards, from a live Prometheus."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from fastvideo.dashboards import Dashboard

_PREFIX: Final = "fastvideo-"


def add_draw(actions: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to those of `fastvideo dashboards`."""
    parser = actions.add_parser(
        "draw",
        help="draw them as pictures, without Grafana",
        description="Asks a Prometheus every query of the dashboards and draws them as Grafana "
        "shows them, one PNG each. Needs the extra dashboards.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run_draw)
    parser.add_argument(
        "--prometheus",
        default="http://127.0.0.1:9090",
        metavar="URL",
        help="where Prometheus is (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("outputs/dashboards"),
        metavar="DIR",
        help="where the pictures go (default: %(default)s)",
    )
    parser.add_argument("--run", dest="run_name", metavar="NAME", help="which run (default: last)")
    parser.add_argument(
        "--board",
        action="append",
        metavar="UID",
        help="which dashboard, with or without 'fastvideo-'; may be repeated (default: all)",
    )
    parser.add_argument(
        "--last",
        default="1h",
        metavar="DURATION",
        help="how long a time to show, up to now, such as 15m (default: %(default)s)",
    )


def run_draw(args: argparse.Namespace) -> int:
    """Draws the pictures and prints their names.

    Args:
        args: The parsed options.

    Raises:
        ConfigError: An option names something that does not exist.
        MissingExtraError: matplotlib is not installed.
        PrometheusError: Prometheus does not answer.
    """
    from fastvideo.dashboards import all_dashboards, to_json  # noqa: PLC0415 - only needed here
    from fastvideo.dashboards.draw import draw_dashboard  # noqa: PLC0415 - as above
    from fastvideo.dashboards.prometheus import Prometheus, parse_duration  # noqa: PLC0415
    from fastvideo.dashboards.substitute import Window  # noqa: PLC0415 - as above

    boards = _choose(all_dashboards(), args.board)
    prometheus = Prometheus(args.prometheus)
    end = time.time()
    window = Window(end - parse_duration(args.last), end, prometheus.scrape_interval_s())
    given = {"run": args.run_name} if args.run_name else {}
    for board in boards:
        path = args.output / f"{board.uid}.png"
        draw_dashboard(to_json(board), prometheus, path, window=window, given=given)
        sys.stdout.write(f"wrote {path}\n")
    return 0


def _choose(boards: Sequence[Dashboard], names: Sequence[str] | None) -> list[Dashboard]:
    by_uid = {board.uid: board for board in boards}
    chosen = []
    for name in names or by_uid:
        uid = name if name.startswith(_PREFIX) else _PREFIX + name
        if uid not in by_uid:
            message = f"there is no dashboard {name!r}.{did_you_mean(uid, by_uid)}"
            raise ConfigError(message)
        chosen.append(by_uid[uid])
    return chosen
