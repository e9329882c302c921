"""Comparing two traces of activations: where do two runs part?

Files are read side by side, and only what has no counterpart yet is kept in memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from fastvideo.analysis.activation_file import STATISTICS
from fastvideo.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fastvideo.analysis.activation_file import (
        ActivationFile,
        ActivationRecord,
        RecordKey,
        StepKey,
    )
    from fastvideo.analysis.tolerances import Tolerances

Kind = Literal["value", "shape", "non-finite", "unreadable", "only in A", "only in B"]

_WINDOW: Final = 50_000
"""Records after which a counterpart is no longer waited for."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two records are not the same.

    Attributes:
        order: Position of the record in the trace.
        key: What it is about.
        kind: What is different. ``only in A``: B has no such record.
        statistic: Which number is furthest off, for kind ``value``.
        in_a: What A has there, for people.
        in_b: What B has.
        off_by: How far the numbers are apart in units of the tensor's magnitude, for ``value``.
        allowed: The tolerance in the same units.
        value_a: What A has there as a number, for ``value``.
        value_b: What B has.
    """

    order: int
    key: RecordKey
    kind: Kind
    statistic: str = ""
    in_a: str = ""
    in_b: str = ""
    off_by: float | None = None
    allowed: float | None = None
    value_a: float | None = None
    value_b: float | None = None


@dataclass(slots=True)
class LayerDifferences:
    """The differences of one layer.

    Attributes:
        first: The first one.
        worst: The value that is furthest off, or None.
        count: How many records differ.
    """

    first: Difference
    worst: float | None = None
    count: int = 0


@dataclass(slots=True)
class ActivationDiff:
    """What came out of a comparison.

    Attributes:
        first: The first difference; None if all is the same.
        layers: The differences by role, module and kind, in the order of their first ones.
        steps_only_in_a: Steps of which B has nothing, and how many records they have.
        steps_only_in_b: The other way around.
        compared: Number of records that have a counterpart.
        modules: Layers that were compared.
        steps: Steps that were compared.
        largest: The largest difference within the tolerance, in units of magnitude.
        dtypes_changed: Records that have another type in B; the looser tolerance counts.
        nonfinite_in_both: Records that have the same numbers of NaN and infinities in both.
        recomputed: Records of recomputation that were left out.
        roles: Where roles were compared with others: those of A, and what B has for each.
        of_other_roles: Records of all other roles, which were left out then.
        filtered_only_in_a: Records of A that the filter of B leaves out, which is no difference.
        filtered_only_in_b: The other way around.
        dtypes: The types that records have where those of A and B are not the same.
        without_numbers: Records that have no statistic in common with their counterpart.
    """

    first: Difference | None = None
    layers: dict[tuple[str, str, Kind], LayerDifferences] = field(default_factory=dict)
    steps_only_in_a: Counter[StepKey] = field(default_factory=Counter)
    steps_only_in_b: Counter[StepKey] = field(default_factory=Counter)
    compared: int = 0
    modules: set[tuple[str, str]] = field(default_factory=set)
    steps: set[StepKey] = field(default_factory=set)
    largest: float = 0.0
    dtypes_changed: int = 0
    nonfinite_in_both: int = 0
    recomputed: int = 0
    roles: Mapping[str, str] = field(default_factory=dict)
    of_other_roles: int = 0
    without_numbers: int = 0
    filtered_only_in_a: int = 0
    filtered_only_in_b: int = 0
    dtypes: set[str] = field(default_factory=set)

    @property
    def same(self) -> bool:
        """Whether there is no difference."""
        return self.first is None

    @property
    def differing(self) -> int:
        """Number of records that have a counterpart that differs."""
        one_sided = ("only in A", "only in B")
        return sum(
            layer.count for (*_, kind), layer in self.layers.items() if kind not in one_sided
        )

    def add(self, difference: Difference) -> None:
        """Counts a difference.

        Args:
            difference: In any order.
        """
        self._consider(difference)
        key = difference.key
        layer = self.layers.setdefault(
            (key.role, key.module, difference.kind), LayerDifferences(difference)
        )
        layer.count += 1
        if difference.order < layer.first.order:
            layer.first = difference
        if difference.off_by is not None:
            layer.worst = max(layer.worst or 0.0, difference.off_by)

    def add_missing_step(self, difference: Difference) -> None:
        """Counts a record of a step that the other side does not have.

        Args:
            difference: Of kind ``only in A`` or ``only in B``.
        """
        self._consider(difference)
        steps = self.steps_only_in_a if difference.kind == "only in A" else self.steps_only_in_b
        steps[difference.key.step] += 1

    def _consider(self, difference: Difference) -> None:
        if self.first is None or difference.order < self.first.order:
            self.first = difference


def diff_activations(
    a: ActivationFile,
    b: ActivationFile,
    tolerances: Tolerances,
    *,
    with_recompute: bool = False,
    roles: Mapping[str, str] | None = None,
) -> ActivationDiff:
    """Compares two traces.

    Args:
        a: What is expected.
        b: What is compared with it.
        tolerances: How far numbers may be apart.
        with_recompute: Compare what checkpointing did again in the backward pass, too.
        roles: Roles of A, each with the role of B that it is compared with, and no other roles;
            None: each with that of the same name. Differences are reported under A's role.

    Raises:
        DataError: A file is damaged, or they have nothing that could be compared.
    """
    comparison = _Comparison(a, b, tolerances)
    result = comparison.result
    result.roles = dict(roles or {})
    names_a = {role: role for role in result.roles}
    names_b = {theirs: ours for ours, theirs in result.roles.items()}
    left = _Reader(a, result, names_a, with_recompute=with_recompute)
    right = _Reader(b, result, names_b, with_recompute=with_recompute)
    while left.head is not None or right.head is not None:
        if left.head is not None and right.head is not None and left.head.key == right.head.key:
            comparison.pair(left.order, left.head, right.head)
            left.advance()
            right.advance()
            continue
        behind = _behind(left.head, right.head)
        if left.head is not None and behind != "B":
            comparison.offer_a(left.order, left.head)
            left.advance()
        if right.head is not None and behind != "A":
            comparison.offer_b(left.order, right.head)
            right.advance()
    comparison.finish()
    _refuse_strangers(a, b, result)
    return result


class _Reader:
    """One file, of which one record is looked at."""

    def __init__(
        self,
        file: ActivationFile,
        result: ActivationDiff,
        roles: Mapping[str, str],
        *,
        with_recompute: bool,
    ) -> None:
        self._records = self._wanted(file, result, roles, with_recompute=with_recompute)
        self.order = -1
        self.head: ActivationRecord | None = None
        self.advance()

    def advance(self) -> None:
        """Goes on to the next record; to None at the end."""
        self.head = next(self._records, None)
        self.order += 1

    @staticmethod
    def _wanted(
        file: ActivationFile,
        result: ActivationDiff,
        roles: Mapping[str, str],
        *,
        with_recompute: bool,
    ) -> Iterator[ActivationRecord]:
        for record in file.records():
            key = record.key
            if roles and key.role not in roles:
                result.of_other_roles += 1
            elif key.recompute and not with_recompute:
                result.recomputed += 1
            elif roles and key.role != roles[key.role]:
                yield replace(record, key=key._replace(role=roles[key.role]))
            else:
                yield record


def _behind(a: ActivationRecord | None, b: ActivationRecord | None) -> Literal["A", "B", ""]:
    """Tells which side has to catch up: the one whose step is the earlier one."""
    if a is None or b is None:
        return ""
    first, second = a.key.step, b.key.step
    if first.loop != second.loop or first.entry != second.entry:
        return ""
    if first.number is None or second.number is None or first.number == second.number:
        return ""
    return "A" if first.number < second.number else "B"


class _Comparison:
    """Finds counterparts, and compares."""

    def __init__(self, a: ActivationFile, b: ActivationFile, tolerances: Tolerances) -> None:
        self.result = ActivationDiff()
        self._file_a, self._file_b = a, b
        self._tolerances = tolerances
        self._a: dict[RecordKey, tuple[int, ActivationRecord]] = {}
        self._b: dict[RecordKey, tuple[int, ActivationRecord]] = {}
        self._steps_of_a: set[StepKey] = set()
        self._steps_of_b: set[StepKey] = set()

    def offer_a(self, order: int, record: ActivationRecord) -> None:
        """Takes a record of A."""
        self._steps_of_a.add(record.key.step)
        found = self._b.pop(record.key, None)
        if found is not None:
            self.pair(order, record, found[1])
            return
        self._a[record.key] = (order, record)
        if len(self._a) > _WINDOW:
            self._give_up_a(next(iter(self._a)))

    def offer_b(self, order: int, record: ActivationRecord) -> None:
        """Takes a record of B."""
        self._steps_of_b.add(record.key.step)
        found = self._a.pop(record.key, None)
        if found is not None:
            self.pair(found[0], found[1], record)
            return
        self._b[record.key] = (order, record)
        if len(self._b) > _WINDOW:
            self._give_up_b(next(iter(self._b)))

    def finish(self) -> None:
        """Gives up on what has found no counterpart."""
        for key in tuple(self._a):
            self._give_up_a(key)
        for key in tuple(self._b):
            self._give_up_b(key)
        self.result.layers = dict(
            sorted(self.result.layers.items(), key=lambda item: item[1].first.order)
        )

    def _give_up_a(self, key: RecordKey) -> None:
        order, record = self._a.pop(key)
        if self._file_b.leaves_out(key, self.result.roles.get(key.role, key.role)):
            self.result.filtered_only_in_a += 1
            return
        difference = Difference(order, key, "only in A", in_a=_shape(record))
        known = key.step in self._steps_of_b
        (self.result.add if known else self.result.add_missing_step)(difference)

    def _give_up_b(self, key: RecordKey) -> None:
        order, record = self._b.pop(key)
        if self._file_a.leaves_out(key, key.role):
            self.result.filtered_only_in_b += 1
            return
        difference = Difference(order, key, "only in B", in_b=_shape(record))
        known = key.step in self._steps_of_a
        (self.result.add if known else self.result.add_missing_step)(difference)

    def pair(self, order: int, a: ActivationRecord, b: ActivationRecord) -> None:
        """Compares two records of the same key."""
        result = self.result
        self._steps_of_a.add(a.key.step)
        self._steps_of_b.add(a.key.step)
        result.compared += 1
        result.steps.add(a.key.step)
        result.modules.add((a.key.role, a.key.module))
        if a.dtype != b.dtype:
            result.dtypes_changed += 1
            result.dtypes |= {a.dtype, b.dtype}
        result.without_numbers += not (a.values.keys() & b.values.keys())
        difference = _compare(order, a, b, self._tolerances)
        if difference is None:
            result.nonfinite_in_both += bool(a.nonfinite)
        elif difference.allowed is not None and _within(difference):
            result.largest = max(result.largest, difference.off_by or 0.0)
        else:
            result.add(difference)


def _within(difference: Difference) -> bool:
    return difference.off_by is not None and difference.off_by <= (difference.allowed or 0.0)


def _compare(
    order: int, a: ActivationRecord, b: ActivationRecord, tolerances: Tolerances
) -> Difference | None:
    """Returns how two records differ: what is worst, and None if every number is equal."""
    key = a.key
    if a.shape != b.shape:
        return Difference(order, key, "shape", in_a=_shape(a), in_b=_shape(b))
    if a.problem or b.problem:
        if bool(a.problem) == bool(b.problem):
            return None
        return Difference(order, key, "unreadable", in_a=a.problem, in_b=b.problem)
    if dict(a.nonfinite) != dict(b.nonfinite):
        in_a, in_b = _counts(a), _counts(b)
        return Difference(order, key, "non-finite", in_a=in_a, in_b=in_b)
    return _compare_values(order, a, b, tolerances)


def _compare_values(
    order: int, a: ActivationRecord, b: ActivationRecord, tolerances: Tolerances
) -> Difference | None:
    rtol, atol = tolerances.of(a.dtype, b.dtype)
    worst: Difference | None = None
    excess = float("-inf")
    for name in STATISTICS:
        if name not in a.values or name not in b.values:
            continue
        first, second = a.values[name], b.values[name]
        if first == second:
            continue
        if first is None or second is None:
            texts = _text(first), _text(second)
            return Difference(order, a.key, "value", name, *texts, None, None, first, second)
        scale = max(_scale(a, name), _scale(b, name)) or 1.0
        size = a.numel if name == "sum" else 1
        off_by, allowed = abs(first - second) / scale, rtol + atol * size / scale
        if off_by - allowed > excess:
            excess = off_by - allowed
            texts = _text(first), _text(second)
            worst = Difference(order, a.key, "value", name, *texts, off_by, allowed, first, second)
    return worst


def _scale(record: ActivationRecord, name: str) -> float:
    """Returns what a difference of a statistic is measured by: the elements' magnitude.

    Sums and means can cancel to nothing, so their own size says nothing about how exact they are.
    """
    values = {key: abs(value) for key, value in record.values.items() if value is not None}
    extreme = max(values.get("min", 0.0), values.get("max", 0.0))
    if name in {"min", "max"}:
        return extreme
    typical = max(values.get("abs_mean", 0.0), values.get("std", 0.0)) or extreme
    typical = typical or values.get("mean", 0.0)
    if name == "sum":
        return typical * record.numel or values.get("sum", 0.0)
    return typical or values.get(name, 0.0)


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _shape(record: ActivationRecord) -> str:
    return f"[{','.join(map(str, record.shape))}]"


def _counts(record: ActivationRecord) -> str:
    found = ", ".join(f"{count} {name}" for name, count in record.nonfinite.items() if count)
    return found or "all finite"


def _refuse_strangers(a: ActivationFile, b: ActivationFile, result: ActivationDiff) -> None:
    """Tells files apart that cannot be compared from those that differ.

    Raises:
        DataError: A role that was asked for is not there, or no layer, no step, or no statistic,
            is in both.
    """
    _refuse_missing_roles(a, result.roles.keys())
    _refuse_missing_roles(b, result.roles.values())
    pairs = result.roles or {role: role for role in a.modules}
    shared = any(a.modules[ours] & b.modules.get(pairs[ours], frozenset()) for ours in pairs)
    if not shared:
        message = (
            f"{a.path} and {b.path} have no layer in common (their roles are {sorted(a.modules)} "
            f"and {sorted(b.modules)}): {_why_strangers(a, b, result)}"
        )
        raise DataError(message)
    if not result.compared and not result.layers:
        _refuse_other_steps(a, b, result)
    if result.compared and result.without_numbers == result.compared:
        message = (
            f"{a.path} and {b.path} have no statistic in common: trace both with the same "
            "FASTVIDEO_TRACE_STATS"
        )
        raise DataError(message)


def _refuse_missing_roles(file: ActivationFile, asked: Iterable[str]) -> None:
    for role in asked:
        if role not in file.modules:
            message = (
                f"{file.path} traces no model of role {role!r}; its roles are "
                f"{sorted(file.modules)}.{did_you_mean(role, file.modules)}"
            )
            raise DataError(message)


def _refuse_other_steps(a: ActivationFile, b: ActivationFile, result: ActivationDiff) -> None:
    if result.same and (result.filtered_only_in_a or result.filtered_only_in_b):
        message = (
            f"{a.path} and {b.path} have no tensor in common: the filter of one leaves out what "
            "the other has. Trace both with the same FASTVIDEO_TRACE_LAYERS and _STEPS"
        )
        raise DataError(message)
    if result.same:
        what = (
            "no tensor but those of recomputation: compare these with --recompute"
            if result.recomputed
            else "no tensor: the models were not called, or in no step of FASTVIDEO_TRACE_STEPS"
        )
        message = f"{a.path} and {b.path} have {what}"
        raise DataError(message)
    if result.steps_only_in_a and result.steps_only_in_b:
        first, second = next(iter(result.steps_only_in_a)), next(iter(result.steps_only_in_b))
        message = (
            f"{a.path} and {b.path} have no step in common: the first begins with "
            f"{str(first)!r}, the second with {str(second)!r}; only steps of the same loop are "
            "compared, such as those of two pipelines, or of a pipeline and of validation"
        )
        raise DataError(message)


def _why_strangers(a: ActivationFile, b: ActivationFile, result: ActivationDiff) -> str:
    """Returns what to do about files without a common layer."""
    if not result.roles:
        for ours, layers in a.modules.items():
            for theirs in b.modules:
                if layers & b.modules[theirs]:
                    return f"--map {ours}={theirs} compares models of different roles"
    return "other models, or another FASTVIDEO_TRACE_LAYERS"
