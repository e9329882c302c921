"""A comparison of activations as JSON, for programs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import Counter

    from fastvideo.analysis import ActivationDiff, ActivationFile, Difference
    from fastvideo.analysis.activation_file import StepKey


def json_report(files: tuple[ActivationFile, ActivationFile], result: ActivationDiff) -> str:
    """Returns what was compared and what differs as an object of strict JSON, with a line feed.

    Args:
        files: A and B.
        result: What came out.
    """
    report = {
        "same": result.same,
        "a": _file(files[0]),
        "b": _file(files[1]),
        "roles": dict(result.roles) or None,
        "compared": {
            "tensors": result.compared,
            "layers": len(result.modules),
            "steps": len(result.steps),
        },
        "differing": result.differing,
        "first": None if result.first is None else _difference(result.first),
        "layers": [
            {
                "role": role,
                "module": module,
                "kind": kind,
                "count": layer.count,
                "worst": _finite(layer.worst),
                "first": _difference(layer.first),
            }
            for (role, module, kind), layer in result.layers.items()
        ],
        "steps_only_in_a": _steps(result.steps_only_in_a),
        "steps_only_in_b": _steps(result.steps_only_in_b),
        "largest_within_tolerance": _finite(result.largest),
        "dtypes_changed": result.dtypes_changed,
        "nonfinite_in_both": result.nonfinite_in_both,
        "left_out": {
            "recompute": result.recomputed,
            "other_roles": result.of_other_roles,
            "filtered_only_in_a": result.filtered_only_in_a,
            "filtered_only_in_b": result.filtered_only_in_b,
        },
    }
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def _file(file: ActivationFile) -> dict[str, Any]:
    header = file.header
    return {
        "path": str(file.path).encode("utf-8", "replace").decode(),
        "run_id": header.get("run_id"),
        "rank": header.get("rank"),
        "world_size": header.get("world_size"),
        "versions": header.get("versions") or {},
        "roles": sorted(file.modules),
        "filters": {
            role: [{"layers": one.layers or None, "steps": one.steps} for one in filters]
            for role, filters in file.filters.items()
            if any(map(str, filters))
        },
        "torn": file.torn,
    }


def _difference(difference: Difference) -> dict[str, Any]:
    key = difference.key
    is_value = difference.kind == "value"
    return {
        **_step(key.step),
        "call": key.call,
        "role": key.role,
        "module": key.module,
        "tensor": key.tensor,
        "recompute": key.recompute,
        "kind": difference.kind,
        "statistic": difference.statistic or None,
        "a": _finite(difference.value_a) if is_value else difference.in_a or None,
        "b": _finite(difference.value_b) if is_value else difference.in_b or None,
        "off_by": _finite(difference.off_by),
        "allowed": _finite(difference.allowed),
    }


def _step(step: StepKey) -> dict[str, Any]:
    return {"loop": step.loop, "step": step.number, "entry": step.entry}


def _steps(steps: Counter[StepKey]) -> list[dict[str, Any]]:
    return [{**_step(step), "tensors": count} for step, count in steps.items()]


def _finite(value: float | None) -> float | None:
    """Returns a number that JSON has; a quotient may be too large to be one."""
    return value if value is not None and math.isfinite(value) else None
