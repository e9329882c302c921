"""What tracing activations costs: against one read per statistic and tensor, and turned off.

The model is a stack of linear layers without arithmetic worth mentioning, so that what is timed is
the tracing; the cost of a case is its forward less that of the model without hooks. The peer is the
plain way: a forward hook that makes a float32 copy, reads every statistic with ``.item()``, and
writes a line of JSON per tensor to a line-buffered file. All numeric statistics are asked for,
without bad values, which our pass counts as well. Timed is the thread of the model; the thread that
writes is in the figures over both threads, which have no goal.

Small tensors are what the tiny model has, where Python is what costs; large ones are a layer of a
real one, where memory is. With ``--device cuda`` what is timed is the clock, until the device has
done everything; there a read also waits for all that was launched before.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from _harness import Ratio, device_name, measure, parse_arguments, ratio, report
from torch import nn

from fastvideo.hooks import attach_activation_trace, detach_activation_trace, trace_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

_STATISTICS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "abs_mean": lambda x: x.abs().mean(),
    "sum": torch.sum,
    "min": torch.min,
    "max": torch.max,
    "mean": torch.mean,
    "std": torch.std,
}
_SHAPES: Final = {"small": (1, 48, 32), "large": (1, 1024, 1536)}
_LAYERS: Final = {"small": 60, "large": 8}
_STEPS: Final = {"small": 40, "large": 3}
_STEPS_OFF: Final = 400
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_GOAL: Final = 0.2


class Identity(nn.Module):
    """Returns its input, which costs next to nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns ``x``."""
        return x


class Plain:
    """The plain way: a hook that reads every statistic at once.

    Args:
        file: Where lines go.
        names: The statistics.
    """

    def __init__(self, file: TextIO, names: tuple[str, ...]) -> None:
        self._file = file
        self._functions = {name: _STATISTICS[name] for name in names}
        self.step = 0

    def hook(self, name: str) -> Callable[..., None]:
        """Returns the hook of one module."""

        def record(module: nn.Module, args: object, output: torch.Tensor) -> None:
            del module, args
            values = output.detach().float()
            found = {key: function(values).item() for key, function in self._functions.items()}
            line = {"module": name, "tensor": "out", "step": self.step, **found}
            self._file.write(json.dumps(line) + "\n")

        return record


def model_of(size: str) -> nn.Sequential:
    """Returns layers that do nothing."""
    return nn.Sequential(*(Identity() for _ in range(_LAYERS[size])))


def timed(model: nn.Module, x: torch.Tensor, steps: int) -> float:
    """Returns the seconds of this thread for some steps; on a device, those of the clock."""
    clock = time.perf_counter if x.is_cuda else time.thread_time
    if x.is_cuda:
        torch.cuda.synchronize()
    began = clock()
    with torch.no_grad():
        for step in range(steps):
            with trace_step(step):
                model(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return clock() - began


class Cases:
    """What is measured of one size and type.

    Args:
        size: Of the tensors.
        dtype: Their type.
        names: The statistics.
        folder: Where files go.
        device: Where tensors are.

    Attributes:
        kind: What all of it is called.
        both: The seconds of both threads, for each case that has any, as often as it ran.
    """

    def __init__(
        self, size: str, dtype: str, names: tuple[str, ...], folder: Path, device: str
    ) -> None:
        torch.manual_seed(0)
        self.kind = f"{size} {dtype}, {len(names)} statistics"
        self.both: dict[str, list[float]] = {"bare": [], "one read each": [], "traced": []}
        self._x = torch.randn(_SHAPES[size]).to(device, _DTYPES[dtype])
        self._size, self._names, self._folder = size, names, folder

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """Returns the seconds of every case, in the order of the rounds."""
        cases = {"bare": self.bare, "one read each": self.plain, "traced": self.ours}
        found = measure(cases, rounds=rounds)
        both = {f"{name}, both threads": values[-rounds:] for name, values in self.both.items()}
        return {f"{self.kind}: {name}": values for name, values in (found | both).items()}

    def bare(self) -> float:
        """Times the model without hooks."""
        return self._time("bare", model_of(self._size))

    def plain(self) -> float:
        """Times the plain way."""
        model = model_of(self._size)
        path = self._folder / "plain.jsonl"
        with path.open("w", buffering=1, encoding="utf-8") as file:
            peer = Plain(file, self._names)
            for name, module in model.named_children():
                module.register_forward_hook(peer.hook(name))
            return self._time("one read each", model)

    def ours(self) -> float:
        """Times tracing; both threads until everything is written."""
        os.environ |= {
            "FASTVIDEO_TRACE_ACTIVATIONS": "1",
            "FASTVIDEO_TRACE_STATS": ",".join(self._names),
            "FASTVIDEO_TRACE_OUTPUT": str(self._folder / "ours.jsonl"),
        }
        model = model_of(self._size)
        trace = attach_activation_trace(model)
        began = time.process_time()
        seconds = timed(model, self._x, _STEPS[self._size])
        detach_activation_trace(trace)
        self.both["traced"].append(time.process_time() - began)
        return seconds

    def _time(self, name: str, model: nn.Module) -> float:
        began = time.process_time()
        seconds = timed(model, self._x, _STEPS[self._size])
        self.both[name].append(time.process_time() - began)
        return seconds


def measure_off(rounds: int) -> dict[str, list[float]]:
    """Measures a model that is attached while tracing is off, and one that never was."""
    x = torch.ones(1)
    model, other = model_of("small"), model_of("small")

    def off() -> float:
        os.environ.pop("FASTVIDEO_TRACE_ACTIVATIONS", None)
        assert attach_activation_trace(model) is None  # noqa: S101 - it is off
        return timed(model, x, _STEPS_OFF)

    cases = {"never attached": lambda: timed(other, x, _STEPS_OFF), "off": off}
    return measure(cases, rounds=rounds, warm_up=3)


def ratios_of(seconds: dict[str, list[float]], kind: str, *, goal: float | None) -> list[Ratio]:
    """Returns what one size and type costs."""
    for end in ("", ", both threads"):
        for case in ("traced", "one read each"):
            seconds[f"{kind}: cost of {case}{end}"] = [
                whole - bare
                for whole, bare in zip(
                    seconds[f"{kind}: {case}{end}"], seconds[f"{kind}: bare{end}"], strict=True
                )
            ]
    peer = f"{kind}: cost of one read each"
    return [
        ratio(seconds, f"{kind}: cost of traced", peer, goal),
        ratio(seconds, f"{kind}: cost of traced, both threads", f"{peer}, both threads"),
    ]


def main() -> int:
    """Measures and reports; returns 1 if a goal is missed."""
    arguments = parse_arguments(__doc__ or "", rounds=15, device=True)
    torch.set_num_threads(1)
    every = tuple(_STATISTICS)
    asked = [(size, dtype, every) for size in _SHAPES for dtype in _DTYPES]
    usual = [(size, "bfloat16", every[:2]) for size in _SHAPES]
    seconds = measure_off(2 * arguments.rounds)
    ratios = [ratio(seconds, "off", "never attached")]
    with tempfile.TemporaryDirectory() as folder:
        for size, dtype, names in [*asked, *usual]:
            cases = Cases(size, dtype, names, Path(folder), arguments.device)
            seconds |= cases.measure(arguments.rounds)
            goal = _GOAL if names == every else None
            ratios += ratios_of(seconds, cases.kind, goal=goal)
    report(
        f"cost of tracing activations on {device_name(arguments.device)}, in units of one read per "
        "statistic and tensor",
        ratios,
        seconds=seconds,
        json_path=arguments.json,
        shapes={name: list(shape) for name, shape in _SHAPES.items()},
    )
    return 0 if all(r.met is not False for r in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
