"""Records real profiler sessions on CPU, with what key_averages says about each of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 10)
)
IMAGE = torch.randn(2, 3, 8, 8)
LEFT, RIGHT = torch.randn(4, 5, 6), torch.randn(4, 6, 7)


def train() -> None:
    """Runs forward and backward inside a region."""
    with record_function("fastvideo.region::training_forward"):
        loss = MODEL(IMAGE).sum()
    loss.backward()


def nest() -> None:
    """Opens regions in regions, some of the same name, one of them as the only child."""
    with record_function("outer"):
        with record_function("inner"):
            train()
        with record_function("same"), record_function("same"), record_function("same"):
            torch.relu(IMAGE)
        with record_function("outer"):
            torch.relu(IMAGE)


def compute() -> None:
    """Runs every operator that torch has a formula for, and some that it has none for."""
    torch.baddbmm(torch.randn(4, 5, 7), LEFT, RIGHT)
    torch.bmm(LEFT, RIGHT) * torch.bmm(LEFT, RIGHT) + 1
    torch.nn.functional.conv2d(IMAGE, torch.randn(6, 3, 3, 3), stride=2, padding=1)
    torch.nn.functional.conv2d(torch.randn(2, 4, 9, 7), torch.randn(4, 2, 3, 1), groups=2)
    torch.nn.functional.conv3d(torch.randn(1, 2, 4, 4, 4), torch.randn(2, 2, 2, 2, 2))
    query = torch.randn(1, 2, 8, 4)
    torch.nn.functional.scaled_dot_product_attention(query, query, query)
    torch.mm(LEFT[0], RIGHT[0])
    train()


def allocate() -> None:
    """Frees memory outside of every operator, and concatenates a list of tensors."""
    held = torch.cat([torch.randn(3, 4)] * 40)
    del held
    train()


def quote() -> None:
    """Uses region names that kineto writes without escaping them."""
    for name in ('say("a", "b")', 'x", "pid": 3', "back\\slash", "ünïcode ✓"):
        with record_function(name):
            torch.relu(IMAGE)


def record(folder: Path, name: str, work: Callable[[], None], **options: bool) -> dict[str, Any]:
    """Records one session."""
    with profile(activities=[ProfilerActivity.CPU], **options) as session:
        work()
    return describe(folder, name, session, options)


def record_steps(folder: Path) -> dict[str, Any]:
    """Records a session that is divided into steps."""
    plan = schedule(wait=0, warmup=0, active=3, repeat=1)
    found: list[dict[str, Any]] = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=lambda session: found.append(describe(folder, "steps", session, {})),
    ) as session:
        for _ in range(3):
            torch.relu(IMAGE)
            session.step()
    return found[0]


def describe(folder: Path, name: str, session: profile, options: dict[str, bool]) -> dict[str, Any]:
    """Writes the native trace of a session and returns it with its key_averages."""
    path = folder / f"{name}.json"
    session.export_chrome_trace(str(path))
    shapes = options.get("record_shapes", False)
    rows = [
        {
            "name": row.key,
            "shapes": row.input_shapes if shapes else [],
            "self_cpu_us": row.self_cpu_time_total,
            "cpu_us": row.cpu_time_total,
            "self_device_us": row.self_device_time_total,
            "device_us": row.device_time_total,
            "count": row.count,
            "flops": row.flops,
        }
        for row in session.key_averages(group_by_input_shape=shapes)
    ]
    return {"trace": str(path), "options": options, "rows": rows}


def main(folder: Path) -> None:
    """Records all sessions and writes ``sessions.json``."""
    nest()  # what runs for the first time is not typical
    everything = dict.fromkeys(
        ("record_shapes", "profile_memory", "with_stack", "with_flops"), True
    )
    sessions = {
        "backward": record(folder, "backward", train),
        "nested": record(folder, "nested", nest),
        "shapes": record(folder, "shapes", allocate, record_shapes=True),
        "memory": record(folder, "memory", allocate, profile_memory=True),
        "stack": record(folder, "stack", nest, with_stack=True),
        "flops": record(folder, "flops", compute, with_flops=True),
        "everything": record(folder, "everything", allocate, **everything),
        "empty": record(folder, "empty", lambda: None),
        "quotes": record(folder, "quotes", quote, record_shapes=True),
        "steps": record_steps(folder),
    }
    (folder / "sessions.json").write_text(json.dumps(sessions), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
