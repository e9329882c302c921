"""What the benchmarks share: interleaved rounds, ratios with their spread, and a JSON report.

Every figure is a ratio of two things measured in the same round, because a machine's speed changes
from minute to minute and from one machine to the next, and the ratio does much less.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_REPOSITORY = Path(__file__).resolve().parent.parent
_PACKAGES = ("torch", "opentelemetry-api", "opentelemetry-sdk", "tensorboard")


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """How one case compares with another one of the same rounds.

    Attributes:
        case: What was measured.
        unit: What it is compared with.
        median: Median of the ratios of the rounds.
        low: Their first quartile.
        high: Their third quartile.
        goal: What the median should not exceed; None: nothing is claimed.
    """

    case: str
    unit: str
    median: float
    low: float
    high: float
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        return None if self.goal is None else self.median <= self.goal


def measure(
    cases: Mapping[str, Callable[[], float]], *, rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Measures cases in turn, each once a round, starting each round with another one.

    Args:
        cases: Functions that do the work once and return what it took, in seconds: of a thread's
            time (``time.thread_time``) where only its own work counts, so that a busy machine
            disturbs less.
        rounds: How often each is measured.
        warm_up: Rounds before those, which are not counted.

    Returns:
        For each case its measurements, in the order of the rounds.
    """
    names = list(cases)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            gc.disable()
            try:
                seconds = cases[name]()
            finally:
                gc.enable()
            if number >= 0:
                measured[name].append(seconds)
    return measured


def ratio(
    measured: Mapping[str, Sequence[float]], case: str, unit: str, goal: float | None = None
) -> Ratio:
    """Compares two cases round by round."""
    values = [a / b for a, b in zip(measured[case], measured[unit], strict=True)]
    low, median, high = (
        statistics.quantiles(values, n=4, method="inclusive")
        if len(values) > 1
        else (values[0], values[0], values[0])
    )
    return Ratio(case, unit, median, low, high, goal)


def table(ratios: Sequence[Ratio]) -> str:
    """Returns the ratios as text: median, quartiles, goal, and whether it is met."""
    width = max(len(r.case) for r in ratios)
    lines = [f"{'':{width}}   median   quartiles        goal"]
    for r in ratios:
        goal = "" if r.goal is None else f"<= {r.goal:g}  {'met' if r.met else 'MISSED'}"
        line = f"{r.case:{width}} {r.median:8.3f}   {r.low:.3f}..{r.high:.3f}".ljust(width + 29)
        lines.append((line + goal).rstrip())
    return "\n".join(lines)


def environment() -> dict[str, Any]:
    """Returns what a figure depends on: versions, commit, machine, and how busy it was."""
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": len(_git("status", "--porcelain", "--untracked-files=no").splitlines()),
        "python": platform.python_version(),
        "versions": versions,
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def parse_arguments(description: str, *, rounds: int, device: bool = False) -> argparse.Namespace:
    """Parses what every benchmark takes: ``--rounds`` and ``--json``.

    Args:
        description: What is measured.
        rounds: How often, unless somebody says otherwise.
        device: Whether it is asked for, too.
    """
    parser = argparse.ArgumentParser(description=description)
    if device:
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each case runs")
    parser.add_argument("--json", type=Path, help="file that receives the results")
    return parser.parse_args()


def device_name(device: str) -> str:
    """Returns what people call a device."""
    if device == "cpu":
        return "a CPU"
    import torch  # noqa: PLC0415 - not every benchmark needs it

    return torch.cuda.get_device_name()


def report(
    title: str,
    ratios: Sequence[Ratio],
    *,
    seconds: Mapping[str, Sequence[float]],
    json_path: Path | None,
    **more: object,
) -> None:
    """Prints the ratios, and writes them with all that they depend on to ``json_path``.

    Args:
        title: What was measured.
        ratios: The figures.
        seconds: The measurements behind them.
        json_path: File that receives them; None: none does.
        more: Further results for the file.
    """
    about = environment()
    print(title)
    print(table(ratios))
    commit = about["commit"][:12] or "unknown"
    print(
        f"torch {about['versions']['torch']}, Python {about['python']}, commit {commit}, "
        f"{about['cores']} cores, load {about['load_average']:.1f}"
    )
    if json_path is None:
        return
    results = {
        "title": title,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "environment": about,
        "ratios": [dataclasses.asdict(r) | {"met": r.met} for r in ratios],
        "seconds": {name: list(values) for name, values in seconds.items()},
        **more,
    }
    json_path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(_REPOSITORY), *arguments],  # noqa: S607 - whichever git there is
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
