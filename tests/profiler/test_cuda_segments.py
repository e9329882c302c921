"""Segments on a CUDA device: the kernels are there, in every segment."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import sys
import torch
from torch.profiler import ProfilerActivity
from fastvideo.profiler import TorchProfilerConfig, TorchProfilerController, profiler_region

controller = TorchProfilerController(
    None,
    [ProfilerActivity.CPU, ProfilerActivity.CUDA],
    TorchProfilerConfig({"training_train_one_step", "training_forward"}),
    trace_dir=sys.argv[1],
)
x = torch.randn(2048, 2048, device="cuda")
controller.start()
for step in range(5):
    with profiler_region("training_train_one_step", step=step):
        with profiler_region("training_forward"):
            for _ in range(20):
                x = torch.mm(x, x).tanh()
    (x + 1).sum()
controller.stop()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_segment_holds_the_kernels_of_its_region(tmp_path: Path) -> None:
    """Five segments, each with all kernels its region launched, and with none from outside."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "segments_rank0.jsonl").read_text(encoding="utf-8").splitlines()
    index = [json.loads(line) for line in lines]
    assert [(line["status"], line["step"]) for line in index] == [("ok", step) for step in range(5)]
    for path in sorted(tmp_path.glob("trace_*.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        kernels = [event["name"].lower() for event in events if event.get("cat") == "kernel"]
        assert sum("tanh" in name for name in kernels) == 20
        assert not any("reduce" in name for name in kernels)
        assert len(kernels) >= 40
