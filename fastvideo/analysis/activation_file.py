"""Reading what activation tracing has written, a line at a time."""

from __future__ import annotations

import json
import math
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


class ActivationFile:
    """A trace of activations.

    Args:
        path: The file.

    Attributes:
        path: The file.
        header: Its first line: run, rank, host, versions.
        modules: The names of the traced modules of each role, as far as the file has been read.
        torn: Whether it ends in the middle of a line, as that of a killed process does; known
            when it has been read.

    Raises:
        DataError: It is no such file, or of a version that is not known.
        FileNotFoundError: There is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: dict[str, frozenset[str]] = {}
        self.torn = False
        if path.is_dir():
            message = f"{path} is a directory; expected a file of activations"
            raise DataError(message)
        if not path.exists():
            message = f"{path} does not exist"
            raise FileNotFoundError(message)
        try:
            with path.open("rb") as lines:
                first = lines.readline(_LONGEST_HEADER)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}"
            raise DataError(message) from error
        if not first:
            message = f"{path} is empty: no trace of activations was begun in it"
            raise DataError(message)
        self.header = _parse(first, path, 1)
        if not isinstance(self.header.get("versions"), dict):
            self.header["versions"] = {}
        if self.header.get("kind") != "header":
            message = (
                f"{path} is no trace of activations: its first line is no header. "
                "FASTVIDEO_TRACE_ACTIVATIONS=1 writes one."
            )
            raise DataError(message)
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
                except (KeyError, TypeError, ValueError) as error:
                    message = f"{self.path}, line {number}: no record: {error!r}"
                    raise DataError(message) from error
                yield record

    def _add_model(self, fields: dict[str, Any]) -> None:
        role, names = _checked(fields["role"], str), _checked(fields["modules"], list)
        self.modules[role] = frozenset(names) | self.modules.get(role, frozenset())


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
