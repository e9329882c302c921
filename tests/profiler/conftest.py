"""Traces to test with: synthetic ones laid out as kineto writes them, and real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastvideo.profiler.segment_record import SegmentRecord

BASE_US = 5_113_853_529_000.0
PID = 4242


class TraceBuilder:
    """Builds a trace slice by slice. Times are in microseconds after the start of the trace."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.header: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
            "trace_id": "0123456789ABCDEF",
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1790857026000000000,
        }
        self._last_id = 0

    def slice(
        self, category: str, name: str, ts: float, dur: float, *, tid: Any = 7, **args: Any
    ) -> dict[str, Any]:
        """Adds a slice on a CPU thread, or on a stream of device 0."""
        on_device = category in {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 0 if on_device else PID,
            "tid": tid,
            "ts": BASE_US + ts,
            "dur": dur,
            "args": args,
        }
        self.events.append(event)
        return event

    def op(self, name: str, ts: float, dur: float, **args: Any) -> int:
        """Adds an operator; returns its external id."""
        self._last_id += 1
        self.slice("cpu_op", name, ts, dur, tid=PID, **{"External id": self._last_id, **args})
        return self._last_id

    def launch(
        self,
        ts: float,
        *,
        op: int = 0,
        kernel: str = "gemm",
        start: float,
        dur: float,
        tid: int = 7,
    ) -> int:
        """Adds a launch and the kernel it launches; returns their correlation."""
        correlation = 1000 + len(self.events)
        self.runtime(ts, op=op, correlation=correlation)
        self.kernel(kernel, start, dur, op=op, correlation=correlation, tid=tid)
        return correlation

    def runtime(
        self, ts: float, *, op: int = 0, correlation: int = 0, name: str = "cudaLaunchKernel"
    ) -> None:
        """Adds a call into the CUDA runtime that takes 2 us."""
        args = {"External id": op, "cbid": 211, "correlation": correlation}
        self.slice("cuda_runtime", name, ts, 2.0, tid=PID, **args)

    def kernel(
        self, name: str, ts: float, dur: float, *, op: int = 0, correlation: int = 0, tid: int = 7
    ) -> None:
        """Adds a kernel on a stream."""
        args = {
            "External id": op,
            "queued": 0,
            "device": 0,
            "context": 1,
            "stream": tid,
            "correlation": correlation,
            "registers per thread": 32,
            "shared memory": 0,
            "blocks per SM": 1.5,
            "warps per SM": 6.0,
            "grid": [198, 1, 1],
            "block": [128, 1, 1],
            "est. achieved occupancy %": 9,
        }
        self.slice("kernel", name, ts, dur, tid=tid, **args)

    def write(self, path: Path) -> Path:
        """Writes the trace the way kineto lays it out."""
        path.write_text(native_layout(self.header, self.events), encoding="utf-8")
        return path


def native_layout(header: dict[str, Any], events: list[dict[str, Any]]) -> str:
    """Returns a document with one field per line, as kineto writes it."""
    head = "".join(f'    "{key}": {json.dumps(value)},\n' for key, value in header.items())
    blocks = []
    for event in events:
        fields = [f'    "{k}": {json.dumps(v)}' for k, v in event.items() if k != "args"]
        args = ",".join(f'"{k}": {json.dumps(v)}' for k, v in event.get("args", {}).items())
        fields.append(f'    "args": {{\n      {args}\n    }}')
        blocks.append("  {\n" + ",\n".join(fields) + "\n  }")
    body = ",\n".join(blocks)
    return (
        f' {{\n{head}    "traceEvents": [\n    \n{body}\n  ],"traceName": "/somewhere/raw.json" }}'
    )


def training_step(*, ranks_apart_us: float = 0.0) -> TraceBuilder:
    """Returns a CUDA step: two operators, copies, a collective on a second stream, a region."""
    builder = TraceBuilder()
    late = ranks_apart_us
    region = {"External id": 900}
    builder.slice(
        "user_annotation", "fastvideo.region::training_forward", 0, 400, tid=PID, **region
    )
    linear = builder.op("aten::linear", 10, 60)
    addmm = builder.op("aten::addmm", 15, 40)
    builder.launch(20, op=addmm, kernel="gemm_bf16", start=30 + late, dur=100)
    builder.runtime(60, op=linear, correlation=7001, name="cudaMemcpyAsync")
    copy = {"External id": linear, "correlation": 7001, "stream": 7, "device": 0, "bytes": 1024}
    builder.slice("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 135 + late, 10, **copy)
    reduce = builder.op("c10d::allreduce_", 80, 20)
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    builder.launch(85, op=reduce, kernel=nccl, start=100 + late, dur=120, tid=20)
    gelu = builder.op("aten::gelu", 110, 20)
    builder.launch(115, op=gelu, kernel="vectorized_elementwise_kernel", start=160 + late, dur=40)
    builder.slice(
        "gpu_user_annotation", "fastvideo.region::training_forward", 30 + late, 190, **region
    )
    builder.runtime(300, correlation=0, name="cudaDeviceSynchronize")
    return builder


@pytest.fixture
def builder() -> TraceBuilder:
    """Gives an empty trace."""
    return TraceBuilder()


@pytest.fixture
def cuda_step() -> TraceBuilder:
    """Gives a synthetic CUDA training step."""
    return training_step()


@pytest.fixture
def make_step() -> Any:
    """Gives the function that builds synthetic CUDA training steps."""
    return training_step


@pytest.fixture
def make_record(tmp_path: Path) -> Any:
    """Gives a function that makes the record of a segment in ``tmp_path``."""

    def make(raw_path: Path, **fields: Any) -> SegmentRecord:
        index = fields.get("index", 0)
        rank = fields.get("rank", 0)
        values: dict[str, Any] = {
            "raw_path": raw_path,
            "directory": tmp_path,
            "stem": f"rank{rank}_segment{index:04d}_training_forward",
            "rank": rank,
            "world_size": 2,
            "index": index,
            "region": "training_forward",
            "step": 12,
            "start_unix_ns": 1_790_857_026_000_000_123,
            "wall_ns": 400_000,
            "stall_ns": 50_000_000,
            "thread": "MainThread (4242)",
            "attributes": {"step_kind": "generator"},
            "options": {},
            "device": "cpu",
            "metadata": {"run_id": "run-1", "trace_id": "ab" * 16},
        }
        return SegmentRecord(**(values | fields))

    return make


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Gives real sessions of torch's profiler on CPU, recorded in a child process.

    Each has ``trace`` (path of the native trace), ``options``, and ``rows``, which is what
    key_averages said about the same session.
    """
    folder = tmp_path_factory.mktemp("sessions")
    script = Path(__file__).with_name("record_sessions.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads((folder / "sessions.json").read_text("utf-8"))
    return found
