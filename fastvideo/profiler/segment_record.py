"""What the training thread hands over about one finished segment.

The helper process imports this module without fastvideo and without torch, so it and every module
that :mod:`export_worker` reaches use the standard library and relative imports only.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from .strict_json import dumps


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One recorded segment whose native trace waits to be exported. All fields are plain values.

    Attributes:
        raw_path: Native kineto JSON under its temporary name; removed once it is exported.
        directory: Absolute directory that receives the segment's files.
        stem: What the names of all files of the segment share, such as
            ``rank0_segment0003_training_forward``.
        rank: Global rank of the recording process.
        world_size: Number of ranks of the run.
        index: Number of the segment within its process, from 0.
        region: Short name of the region that opened the segment.
        step: Training step the segment belongs to, if it belongs to one.
        start_unix_ns: When recording began, in nanoseconds since the epoch.
        wall_ns: How long the region took, in nanoseconds.
        stall_ns: What starting, stopping and writing cost the training thread, in nanoseconds.
        thread: Name and native id of the recorded thread.
        attributes: Attributes of the region entry that opened the segment.
        options: torch.profiler options: ``record_shapes``, ``profile_memory``, ``with_stack``,
            ``with_flops``.
        device: ``"cuda"`` or ``"cpu"``; a ``"cuda"`` segment is expected to hold kernels.
        metadata: What else is written under ``"fastvideo"`` in the trace: run id, trace id,
            host, versions.
    """

    raw_path: Path
    directory: Path
    stem: str
    rank: int
    world_size: int
    index: int
    region: str
    step: int | None
    start_unix_ns: int
    wall_ns: int
    stall_ns: int
    thread: str
    attributes: dict[str, str | int | float | bool | None]
    options: dict[str, bool]
    device: str
    metadata: dict[str, Any]

    def to_json(self) -> bytes:
        """Returns the record as one line of strict JSON, without a newline."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dumps(fields)

    @classmethod
    def from_json(cls, line: bytes | str) -> SegmentRecord:
        """Reads what :meth:`to_json` wrote.

        Raises:
            ValueError: The line is not JSON.
            TypeError: A field is missing or unknown.
        """
        fields = json.loads(line)
        fields["raw_path"] = Path(fields["raw_path"])
        fields["directory"] = Path(fields["directory"])
        return cls(**fields)
