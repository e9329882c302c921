"""Reading what activation tracing has written, a line at a time."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from fastvideo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

T = TypeVar("T")

STATISTICS: Final = ("abs_mean", "std", "mean", "sum", "min", "max")
"""Numbers of a record that can be compared, the most telling first."""

_VERSION: Final = 1
_LONGEST_HEADER: Final = 1 << 20
_COMPRESSED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"BZh", b"\xfd7zXZ")
"""How files of gzip, zstd, zip, bzip2 and xz begin."""


class StepKey(NamedTuple):
    """One entry of one step.

    Attributes:
        loop: Name of the loop; empty for that of training.
        number: Of the step; None for what happened outside of steps.
        entry: How often it was entered before.
    """

    loop: str
    number: int | None
    entry: int

    def __str__(self) -> str:
        if self.number is None:
            return "outside of steps"
        name = f"{self.loop} step {self.number}" if self.loop else f"step {self.number}"
        return f"{name} (entered again, {self.entry + 1})" if self.entry else name


class RecordKey(NamedTuple):
    """What a record is about; a file has each of these once.

    Attributes:
        step: When it was.
        role: Role of the model.
        module: Name of the module in it.
        call: How often the module was called before in this step.
        tensor: Where the tensor is in its output.
        recompute: Whether a backward pass did it again.
    """

    step: StepKey
    role: str
    module: str
    call: int
    tensor: str
    recompute: bool


@dataclass(frozen=True, slots=True)
class ActivationRecord:
    """The statistics of one tensor.

    Attributes:
        key: What it is about.
        shape: Sizes of the tensor.
        dtype: Its type, such as ``torch.float32``.
        numel: Its number of elements.
        values: The numbers that were asked for; None where the elements have none.
        nonfinite: Number of elements that are ``nan``, ``+inf`` and ``-inf``; empty if none is.
        problem: Why it could not be read; empty if it could.
    """

    key: RecordKey
    shape: tuple[int, ...]
    dtype: str
    numel: int
    values: Mapping[str, float | None]
    nonfinite: Mapping[str, int]
    problem: str


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """What a trace was told to record of a model.

    Attributes:
        layers: Regular expression that is searched in the names of modules; empty: all.
        steps: Ranges of steps, both ends included; empty: all, and what is outside of steps.
    """

    layers: str
    steps: tuple[tuple[int, int], ...]

    def leaves_out(self, key: RecordKey) -> bool:
        """Tells whether a trace with this filter cannot have a record.

        Args:
            key: Of the record.
        """
        if self.layers and re.search(self.layers, key.module) is None:
            return True
        number = key.step.number
        return bool(self.steps) and not (
            number is not None and any(first <= number <= last for first, last in self.steps)
        )

    def __str__(self) -> str:
        ranges = (f"{a}-{b}" if a != b else str(a) for a, b in self.steps)
        layers = f"layers {self.layers}" if self.layers else ""
        steps = f"steps {','.join(ranges)}" if self.steps else ""
        return ", ".join(filter(None, (layers, steps)))


class ActivationFile:
    """A trace of activations.

    Args:
        path: The file.

    Attributes:
        path: The file.
        header: Its first line: run, rank, host, versions.
        modules: The names of the traced modules of each role, as far as the file has been read.
        filters: What was to be recorded of each role, likewise; several where models differ.
        torn: Whether it ends in the middle of a line, as that of a killed process does; known
            when it has been read.

    Raises:
        DataError: It is no such file, or of a version that is not known.
        FileNotFoundError: There is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: dict[str, frozenset[str]] = {}
        self.filters: dict[str, list[TraceFilter]] = {}
        self.torn = False
        if path.is_dir():
            message = f"{path} is a directory; expected a file of activations"
            raise DataError(message)
        if not path.exists():
            message = f"{path} does not exist"
            raise FileNotFoundError(message)
        if not path.is_file():
            message = f"{path} must be a regular file, since it is read more than once"
            raise DataError(message)
        try:
            with path.open("rb") as lines:
                first = lines.readline(_LONGEST_HEADER)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}"
            raise DataError(message) from error
        if not first:
            message = f"{path} is empty: no trace of activations was begun in it"
            raise DataError(message)
        self.header = _header(first, path)
        if not isinstance(self.header.get("versions"), dict):
            self.header["versions"] = {}
        if self.header.get("version") != _VERSION:
            message = (
                f"{path} is of version {self.header.get('version')}; this release reads "
                f"version {_VERSION}"
            )
            raise DataError(message)

    def records(self) -> Iterator[ActivationRecord]:
        """Yields the records in the order in which they were made.

        Raises:
            DataError: A line is damaged; the last may be torn.
        """
        with self.path.open("rb") as lines:
            next(lines)
            for number, line in enumerate(lines, start=2):
                if not line.endswith(b"\n"):
                    self.torn = True
                    return
                fields = _parse(line, self.path, number)
                try:
                    if fields.get("kind") == "model":
                        self._add_model(fields)
                        continue
                    record = _record(fields)
                except (KeyError, TypeError, ValueError, re.error) as error:
                    message = f"{self.path}, line {number}: no record: {error!r}"
                    raise DataError(message) from error
                yield record

    def leaves_out(self, key: RecordKey, role: str) -> bool:
        """Tells whether the filter that the file records says why it has no such record.

        Args:
            key: Of a record of another file.
            role: What this file calls the role of its model.
        """
        filters = self.filters.get(role, ())
        return bool(filters) and all(one.leaves_out(key) for one in filters)

    def _add_model(self, fields: dict[str, Any]) -> None:
        role, names = _checked(fields["role"], str), _checked(fields["modules"], list)
        layers, steps = _checked(fields.get("layers", ""), str), fields.get("steps", [])
        re.compile(layers)
        found = TraceFilter(layers, tuple((int(first), int(last)) for first, last in steps))
        filters = self.filters.setdefault(role, [])
        if found not in filters:
            filters.append(found)
        self.modules[role] = frozenset(names) | self.modules.get(role, frozenset())


def _header(line: bytes, path: Path) -> dict[str, Any]:
    """Returns the header of a file.

    Raises:
        DataError: The file is of another kind.
    """
    if line.startswith(_COMPRESSED):
        message = f"{path} is compressed: unpack it first"
        raise DataError(message)
    try:
        fields = _parse(line, path, 1)
    except DataError:
        fields = {}
    if fields.get("kind") != "header":
        message = (
            f"{path} is no trace of activations: its first line is no header. "
            "FASTVIDEO_TRACE_ACTIVATIONS=1 writes one."
        )
        raise DataError(message)
    return fields


def _record(fields: dict[str, Any]) -> ActivationRecord:
    step = fields["step"]
    return ActivationRecord(
        key=RecordKey(
            StepKey(
                _checked(fields.get("loop", ""), str),
                step if step is None else _checked(step, int),
                _checked(fields.get("entry", 0), int),
            ),
            _checked(fields["role"], str),
            _checked(fields["module"], str),
            _checked(fields["call"], int),
            _checked(fields["tensor"], str),
            _checked(fields.get("recompute", False), bool),
        ),
        shape=tuple(_checked(fields["shape"], list)),
        dtype=_checked(fields["dtype"], str),
        numel=_checked(fields["numel"], int),
        values={name: _number(fields[name]) for name in STATISTICS if name in fields},
        nonfinite=_checked(fields.get("nonfinite", {}), dict),
        problem=_checked(fields.get("problem", ""), str),
    )


def _checked(value: Any, kind: type[T]) -> T:  # noqa: ANN401 - whatever the file holds
    if isinstance(value, kind):
        return value
    message = f"expected {kind.__name__}, got {value!r}"
    raise TypeError(message)


def _number(value: Any) -> float | None:  # noqa: ANN401 - whatever the file holds
    if value is not None and not math.isfinite(value):
        message = f"{value!r} is out of range"
        raise ValueError(message)
    return value  # type: ignore[no-any-return]


def _refuse(token: str) -> NoReturn:
    message = f"{token} is not JSON"
    raise ValueError(message)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        fields = _DECODER.decode(line.decode("utf-8").strip())
    except ValueError as error:
        message = f"{path}, line {number} is damaged: {error}"
        raise DataError(message) from error
    if not isinstance(fields, dict):
        message = f"{path}, line {number} is no object of JSON"
        raise DataError(message)
    return fields
