"""How a comparison of activations looks on a terminal, and as plain text where rich is missing."""

from __future__ import annotations

import importlib.util
import itertools
from typing import TYPE_CHECKING, Final

from fastvideo.cli.activation_table import HEADER, fold, layer_name, layer_rows, layer_table
from fastvideo.cli.help import make_console

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

    from rich.console import RenderableType

    from fastvideo.analysis import ActivationDiff, ActivationFile, Difference
    from fastvideo.analysis.activation_file import StepKey

_MAX_RANGES: Final = 6
_RTOL: Final = {"bfloat16": "1e-2", "float16": "2e-3"}
"""By the type that numbers were computed in, what fits those that have another type."""

_PANEL: Final = 4  # columns of its frame


def print_report(
    stream: IO[str],
    files: tuple[ActivationFile, ActivationFile],
    result: ActivationDiff,
    *,
    limit: int,
) -> None:
    """Prints what was compared, where it parts first, and what else differs.

    Args:
        stream: Where to.
        files: A and B.
        result: What came out.
        limit: Layers to show at most; 0: all.
    """
    layers = list(result.layers.values())
    shown = layers[:limit] if limit > 0 else layers
    notes = [*_notes(files, result)]
    if len(shown) < len(layers):
        notes.insert(0, f"and {len(layers) - len(shown)} more: --limit 0 shows all")
    body = [_verdict(result), *_detail(files, result)]
    rows = layer_rows(shown)
    if importlib.util.find_spec("rich") is None:
        table = [HEADER, *rows] if rows else []
        stream.write("\n".join([*_files(files), *body, *map("\t".join, table), *notes, ""]))
        return
    console = make_console(stream, widest=None)
    for line in _files(files):
        console.print(line, style="dim", soft_wrap=True, markup=False)
    body[0] = "\n".join(_folded(body[0], console.width - _PANEL))
    console.print(_panel(body, same=result.same))
    if rows:
        kinds = [layer.first.kind for layer in shown]
        console.print(layer_table(rows, kinds, width=console.width))
    for line in notes:
        console.print(line, style="dim", markup=False)


def _folded(verdict: str, width: int) -> list[str]:
    """Returns the first line of the panel, with the layer on lines of its own if it is long."""
    about, colon, layer = verdict.rpartition(": ")
    if len(verdict) <= width or not colon:
        return [verdict]
    return [about + colon.rstrip(), *fold(layer, width)]


def _panel(body: list[str], *, same: bool) -> RenderableType:
    from rich.panel import Panel  # noqa: PLC0415 - optional
    from rich.text import Text  # noqa: PLC0415 - optional

    colour = "green" if same else "red"
    lines = [Text(body[0], style=f"bold {colour}"), *map(Text, body[1:])]
    return Panel(Text("\n").join(lines), border_style=colour, expand=False)


def _files(files: Iterable[ActivationFile]) -> Iterator[str]:
    for name, file in zip("AB", files, strict=True):
        header = file.header
        versions = header.get("versions") or {}
        told = {str(one): None for filters in file.filters.values() for one in filters}
        only = " or ".join(filter(None, told))
        yield (
            f"{name}  {file.path}  (run {header.get('run_id')}, rank {header.get('rank')} of "
            f"{header.get('world_size')}, torch {versions.get('torch')}"
            f"{f'; only {only}' if only else ''})"
        )


def _verdict(result: ActivationDiff) -> str:
    if result.first is None:
        return (
            f"Same: {_count(result.compared, 'tensor')} of {_count(len(result.modules), 'layer')} "
            f"in {_count(len(result.steps), 'step')}"
        )
    key = result.first.key
    of = f" of {_role(result, key.role)}" if key.role else ""
    layer = layer_name(result.first, with_role=False)
    what = "First difference" if result.differing else f"First {result.first.kind}"
    return f"{what}: {key.step}, call {key.call}{of}: {layer}"


def _role(result: ActivationDiff, role: str) -> str:
    theirs = result.roles.get(role, role)
    return role if theirs == role else f"{role} (B: {theirs})"


def _detail(files: tuple[ActivationFile, ActivationFile], result: ActivationDiff) -> Iterator[str]:
    """Yields what is different where the traces part."""
    first = result.first
    if first is None:
        return
    if first.key.recompute:
        yield "in what was recomputed in the backward pass"
    if first.kind in {"only in A", "only in B"}:
        yield _absence(files, result, first)
        if not result.differing:
            yield f"no difference in the {_count(result.compared, 'tensor')} that both have"
        return
    name = first.statistic or first.kind
    yield f"{name}: {first.in_a or 'readable'} in A, {first.in_b or 'readable'} in B"
    if first.off_by is not None:
        yield f"off by {first.off_by:.1e} of the magnitude; {first.allowed:.1e} is allowed"


def _absence(
    files: tuple[ActivationFile, ActivationFile], result: ActivationDiff, first: Difference
) -> str:
    """Returns why one side has no such record."""
    missing, file, steps = (
        ("B", files[1], result.steps_only_in_a)
        if first.kind == "only in A"
        else ("A", files[0], result.steps_only_in_b)
    )
    key = first.key
    if key.step in steps:
        return f"{missing} has nothing of this step"
    role = result.roles.get(key.role, key.role) if missing == "B" else key.role
    if role not in file.modules:
        return f"{missing} traces no model of that role"
    if key.module not in file.modules[role]:
        return f"{missing} does not trace this layer: its model has none"
    if file.torn:
        return f"{missing} ends in the middle of this step"
    return f"{missing} traces this layer too, but it was not called, or returned no such tensor"


def _notes(files: tuple[ActivationFile, ActivationFile], result: ActivationDiff) -> Iterator[str]:
    """Yields what else there is to know."""
    if not result.same:
        if result.differing:
            yield f"{result.differing} of {_count(result.compared, 'tensor')} differ"
        for kind in ("only in A", "only in B"):
            alone = sum(layer.first.kind == kind for layer in result.layers.values())
            if alone:
                yield f"{_count(alone, 'layer')} {kind}"
    elif result.largest:
        yield f"largest difference: {result.largest:.1e} of the magnitude, within the tolerance"
    for side, steps in (("A", result.steps_only_in_a), ("B", result.steps_only_in_b)):
        if steps:
            yield f"only in {side}: {_ranges(steps)} ({_count(sum(steps.values()), 'tensor')})"
    yield from _circumstances(files, result)


def _circumstances(
    files: tuple[ActivationFile, ActivationFile], result: ActivationDiff
) -> Iterator[str]:
    """Yields what is no difference, but may explain one."""
    if result.dtypes_changed:
        yield (
            f"another type in B: {_count(result.dtypes_changed, 'tensor')}, for which the looser "
            f"tolerance counts{_advice(result)}"
        )
    if result.nonfinite_in_both:
        yield f"not finite, alike in A and B: {_count(result.nonfinite_in_both, 'tensor')}"
    if result.of_other_roles:
        pairs = ", ".join(f"{ours}={theirs}" for ours, theirs in result.roles.items())
        yield f"{result.of_other_roles} records of other roles are left out (--map {pairs})"
    for has, lacks, left_out in (
        ("A", "B", result.filtered_only_in_a),
        ("B", "A", result.filtered_only_in_b),
    ):
        if left_out:
            yield (
                f"not compared: {_count(left_out, 'tensor')} of {has} that the filter of {lacks} "
                "leaves out"
            )
    if result.recomputed:
        yield f"{result.recomputed} records of recomputation are left out (--recompute)"
    for name, file in zip("AB", files, strict=True):
        if file.torn:
            yield (
                f"{name} ends in the middle of a line: its process was killed, or its disk was full"
            )


def _advice(result: ActivationDiff) -> str:
    """Returns what may make the others the same, where a type that rounds more is among them."""
    for name, rtol in _RTOL.items():
        if result.differing and f"torch.{name}" in result.dtypes:
            return f"; --rtol {rtol} fits what has the same type but was computed from {name}"
    return ""


def _ranges(steps: Iterable[StepKey]) -> str:
    """Returns the names of steps, those that follow each other as one range."""
    names = []
    ordered = sorted(steps, key=lambda step: (step.loop, step.entry, step.number or 0))
    for _, same in itertools.groupby(
        enumerate(ordered),
        key=lambda item: (item[1].loop, item[1].entry, (item[1].number or 0) - item[0]),
    ):
        first, *others = [step for _, step in same]
        name = str(first)
        if others:
            name = name.replace(
                f"step {first.number}", f"steps {first.number} to {others[-1].number}"
            )
        names.append(name)
    more = len(names) - _MAX_RANGES
    return ", ".join(names[:_MAX_RANGES]) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
