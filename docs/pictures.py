"""Draws docs/images/dashboards/ anew: ``python docs/pictures.py`` (about a quarter of an hour).

Three real two-rank DMD2 runs of the tiny model, one after the other, before a real Prometheus with
the shipped rules: one goes well, one waits for data from its second minute on, and in one a rank
becomes slow then. Time passes 15 times as fast: a scrape each second stands for one each 15 s, four
minutes for an hour, and windows of rules and dashboards shrink alike. What no CPU can show (device
time, checkpoints, validation, inference) is drawn from made-up numbers of a run called wan-14b.
Needs the extra dev, and prometheus of Debian.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

DOCS: Final = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "integration" / "stack"))

from live_stack import RULES, LivePrometheus, scale_dashboard, scale_rules  # noqa: E402
from observed_run import ObservedRun, tiny_assets  # noqa: E402
from PIL import Image, ImageColor  # noqa: E402
from recorded_run import NAME as RECORDED  # noqa: E402
from recorded_run import RecordedRun  # noqa: E402
from scenario import SECONDS  # noqa: E402

from fastvideo.dashboards import all_dashboards, to_json  # noqa: E402
from fastvideo.dashboards.draw import draw_dashboard  # noqa: E402
from fastvideo.dashboards.palette import ACCENT, CLASSIC, FAINT, TEXT, color  # noqa: E402
from fastvideo.dashboards.substitute import Window  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable

FACTOR: Final = 15.0
GOOD_S: Final = 80.0
SHOWN_S: Final = 240.0
PACE: Final = {"forward_s": 0.3}
MADE_UP: Final = ("device", "checkpoint-validation", "inference")
COLOURS: Final = 256
MARKED: Final = (
    ACCENT,
    FAINT,
    TEXT,
    *map(color, ("green", "yellow", "orange", "red", "blue", "purple")),
)

RUNS: Final[dict[str, tuple[str, dict[str, Any], tuple[str, ...]]]] = {
    "healthy": ("a", {}, ("overview", "step", "data", "ranks", "losses", "telemetry")),
    "data-bound": ("b", {"all": {**PACE, "dataloader_s": 0.35}}, ("overview", "data")),
    "straggler": ("c", {"1": {"backward_s": 0.5}}, ("overview", "ranks")),
}
"""What is wrong with each run, the end of its name, which does not say so, its faults, and the
dashboards that are drawn of it."""


def draw(prometheus: LivePrometheus, run: str, boards: Iterable[str], directory: Path) -> None:
    """Draws dashboards of one run, as they are now."""
    now = time.time()
    window = Window(now - SHOWN_S, now, prometheus.interval_s)
    for board in all_dashboards():
        name = board.uid.removeprefix("fastvideo-")
        if name not in boards:
            continue
        path = directory / f"{name}.png"
        dashboard = scale_dashboard(to_json(board), FACTOR)
        draw_dashboard(dashboard, prometheus.client, path, window=window, given={"run": run})
        shrink(path)
        sys.stdout.write(f"wrote {path}\n")


def shrink(path: Path) -> None:
    """Keeps the colours that mean something and, of the others, those that are used most."""
    with Image.open(path) as picture:
        full = picture.convert("RGB")
    used = sorted(full.getcolors(full.width * full.height) or [], reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    meant = [ImageColor.getrgb(code) for code in (*CLASSIC, *MARKED)]
    kept = dict.fromkeys([*meant, *(shade for _, shade in used)])
    palette.putpalette([part for shade in list(kept)[:COLOURS] for part in shade])
    full.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


def watch(prometheus: LivePrometheus, name: str, work: Path, out: Path) -> None:
    """Lets one run go on for as long as a picture shows, and draws it."""
    letter, faults, boards = RUNS[name]
    run = ObservedRun(
        work / name,
        work / "assets",
        prometheus.targets,
        name=f"wan-dmd2-{letter}",
        faults={"all": PACE},
        env={"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.2"},
    )
    try:
        began = time.time()
        time.sleep(GOOD_S)
        run.set({"all": PACE, **faults})
        time.sleep(max(0.0, began + SHOWN_S - time.time()))
        if run.process.poll() is not None:
            sys.exit(f"the run {run.name} has ended by itself:\n{run.output()[-3000:]}")
        draw(prometheus, run.name, boards, out / name)
    finally:
        run.close()


def main() -> None:
    """Draws all pictures, or those of some runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=DOCS / "images" / "dashboards")
    parser.add_argument("--run", action="append", choices=[*RUNS, "made-up"])
    args = parser.parse_args()
    chosen = args.run or [*RUNS, "made-up"]
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        tiny_assets(work)
        scale_rules(RULES, work / "rules", FACTOR, interval="1s", seconds=SECONDS)
        prometheus = LivePrometheus(work / "prometheus", interval="1s", rules=work / "rules")
        try:
            recorded = RecordedRun(prometheus, rarely=5)
            began = time.time()
            try:
                for name in RUNS:
                    if name in chosen:
                        watch(prometheus, name, work, args.out)
                if "made-up" in chosen:
                    time.sleep(max(0.0, began + SHOWN_S - time.time()))
                    draw(prometheus, RECORDED, MADE_UP, args.out / "made-up")
            finally:
                recorded.close()
        finally:
            prometheus.server.close()


if __name__ == "__main__":
    main()
