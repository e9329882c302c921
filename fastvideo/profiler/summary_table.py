"""The summary of a segment as text for people."""

from __future__ import annotations

import dataclasses
import datetime as dt
import textwrap
from typing import TYPE_CHECKING, Final

from .summary import OperatorTotal, Summary, is_operator, is_region
from .trace_words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .segment_record import SegmentRecord
    from .trace_checks import TraceChecks

_MAX_ROWS: Final = 200
_MAX_NAME: Final = 60
_MAX_SHAPES: Final = 60
_MAX_LINE: Final = 110
_HANDED_TO_PYTHON: Final = {"PythonDispatchMode", "PythonSubclass"}
_NS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3}


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cell: Callable[[OperatorTotal], str]
    left: bool = False


def render(
    record: SegmentRecord,
    summary: Summary,
    checks: TraceChecks,
    warnings: Sequence[str],
    trace: str,
) -> str:
    """Returns the text of ``summary_<stem>.txt``.

    Args:
        record: The segment.
        summary: Its operator totals.
        checks: The counts of its checks.
        warnings: What is wrong with it.
        trace: One line about the trace file.
    """
    operators = [total for total in summary.totals if is_operator(total)]
    kernels = [total for total in summary.totals if not is_operator(total)]
    lines = [
        *_heading(record, summary, checks, trace),
        *(_flops_line(summary, operators) if record.options.get("with_flops") else ()),
        *(line for warning in warnings for line in _field("WARNING", warning)),
        "",
    ]
    lines += _table("Operators", operators, _operator_columns(record, operators))
    lines += _footnote(operators[:_MAX_ROWS])
    if kernels:
        lines += ["", *_table("On the device", kernels, _kernel_columns(kernels))]
    return "\n".join(lines) + "\n"


def _heading(record: SegmentRecord, summary: Summary, checks: TraceChecks, trace: str) -> list[str]:
    began = dt.datetime.fromtimestamp(record.start_unix_ns / 1e9, dt.UTC)
    step = "" if record.step is None else f", step {record.step}"
    options = ", ".join(name for name, on in sorted(record.options.items()) if on) or "none"
    lines = [
        (
            f"Segment {record.index} of rank {record.rank} (of {record.world_size}): region "
            f"{record.region}{step}"
        ),
        "",
        *_field("trace", trace),
        *_field("started", f"{began:%Y-%m-%d %H:%M:%S.%f} UTC (unix {record.start_unix_ns} ns)"),
        *_field(
            "wall time",
            f"{_time(record.wall_ns)}, and {_time(record.stall_ns)} for profiling itself",
        ),
        *_field(
            "recorded",
            f"thread {record.thread} and the autograd threads that work for it "
            f"({counted(summary.threads, 'thread')} ran operators); operators of other threads "
            "are not in the segment",
        ),
        *_field("options", options),
    ]
    if record.device == "cuda" or checks.kernels:
        launches = f"{checks.launches} launch{'' if checks.launches == 1 else 'es'}"
        lines += _field(
            "device",
            f"{counted(checks.kernels, 'kernel')}, {launches}; busy for "
            f"{_time(summary.device_busy_ns)}{_of(summary.device_busy_ns, record.wall_ns)}",
        )
    return lines


def _flops_line(summary: Summary, operators: list[OperatorTotal]) -> list[str]:
    """Says what was counted, and what share of the time the counted operators take."""
    total = sum(operator.flops for operator in operators)
    share = 100 * summary.counted_ns / summary.operator_ns if summary.operator_ns else 0.0
    lines = _field(
        "FLOPs",
        f"{total / 1e9:.3f} G counted; torch has formulas for operators that take "
        f"{share:.0f} % of the operators' time",
    )
    missing = [f"{name} {_time(ns)}" for name, ns in summary.uncounted[:3] if ns > 0]
    if missing:
        lines += _field("", f"not counted, longest first: {', '.join(missing)}")
    return lines


def _field(label: str, text: str) -> list[str]:
    """Returns one entry of the heading, on as many lines as it needs."""
    return textwrap.wrap(
        text,
        _MAX_LINE,
        initial_indent=f"{label:<12}",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _footnote(shown: Sequence[OperatorTotal]) -> list[str]:
    """Explains rows that torch writes under names of its own."""
    names = sorted({total.name for total in shown} & _HANDED_TO_PYTHON)
    if not names:
        return []
    what = "operators handed to Python code, of modes or tensor subclasses (DTensor)"
    return [f"{', '.join(names)}: {what}"]


def _operator_columns(record: SegmentRecord, operators: list[OperatorTotal]) -> list[_Column]:
    cpu_ns = sum(total.self_cpu_ns for total in operators)
    device_ns = sum(total.self_device_ns for total in operators)
    columns = [_Column("name", lambda t: _cut(t.name, _MAX_NAME), left=True)]
    if record.device == "cuda" or device_ns:
        columns += [
            _Column("self device", lambda t: _time(t.self_device_ns)),
            _Column("%", lambda t: _share(t.self_device_ns, device_ns)),
            _Column("device", lambda t: _time(t.device_ns)),
        ]
    columns += [
        _Column("self CPU", lambda t: _time(t.self_cpu_ns)),
        _Column("%", lambda t: _share(t.self_cpu_ns, cpu_ns)),
        _Column("CPU", lambda t: _time(t.cpu_ns)),
        _Column("CPU each", lambda t: _time(t.cpu_ns / max(1, t.count))),
        _Column("calls", lambda t: str(t.count)),
    ]
    if record.options.get("with_flops"):
        columns.append(_Column("MFLOPs", lambda t: f"{t.flops / 1e6:.3f}" if t.flops else "-"))
    if record.options.get("record_shapes"):
        columns.append(
            _Column("input shapes", lambda t: _cut(str(t.shapes), _MAX_SHAPES), left=True)
        )
    return columns


def _kernel_columns(kernels: list[OperatorTotal]) -> list[_Column]:
    device_ns = sum(total.self_device_ns for total in kernels if not is_region(total))
    return [
        _Column("name", lambda t: _cut(t.name, _MAX_NAME), left=True),
        _Column("device", lambda t: _time(t.device_ns)),
        _Column("%", lambda t: "region" if is_region(t) else _share(t.device_ns, device_ns)),
        _Column("each", lambda t: _time(t.device_ns / max(1, t.count))),
        _Column("runs", lambda t: str(t.count)),
    ]


def _table(title: str, totals: list[OperatorTotal], columns: list[_Column]) -> list[str]:
    shown = totals[:_MAX_ROWS]
    cells = [[column.title for column in columns]]
    cells += [[column.cell(total) for column in columns] for total in shown]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = [
        "  ".join(
            text.ljust(width) if column.left else text.rjust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in cells
    ]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    if not shown:
        return [title, rule, "nothing ran"]
    more = len(totals) - len(shown)
    rest = [f"and {more} more; the .json beside this file holds all"] if more else []
    return [title, rule, lines[0], rule, *lines[1:], rule, *rest]


def _time(ns: float) -> str:
    for unit, size in _NS.items():
        if abs(ns) >= size:
            return f"{ns / size:.3f} {unit}"
    return f"{ns / 1e3:.3f} us"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def _of(part: float, whole: float) -> str:
    return f" ({100 * part / whole:.0f} % of the wall time)" if whole else ""


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
