"""Who a trace belongs to: run, host, versions, and the distributed trace of its step."""

from __future__ import annotations

import itertools
import os
import platform
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from fastvideo import __version__, envs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class TraceMetadata:
    """What other parts of a program add to every trace.

    Attributes:
        run_id: Identifier of the run, the same on all ranks; None: as the environment says.
        trace_id_of_step: Gives the distributed trace that belongs to a step, as hexadecimal text,
            or None if there is none. Called on the training thread, once per segment.
        extra: Further values; they win over the built-in ones.
    """

    run_id: str | None = None
    trace_id_of_step: Callable[[int | None], str | None] | None = None
    extra: Mapping[str, Plain] | None = None


_metadata = TraceMetadata()


def set_trace_metadata(**changes: Any) -> None:  # noqa: ANN401 - the fields of TraceMetadata
    """Changes what is written into the traces that end from now on.

    Args:
        **changes: Fields of :class:`TraceMetadata` to replace; the others keep their value.

    Raises:
        TypeError: A name is not a field of :class:`TraceMetadata`.
    """
    global _metadata  # noqa: PLW0603 - the seam to floors above, which this one cannot import
    _metadata = replace(_metadata, **changes)


def trace_metadata(step: int | None) -> dict[str, Plain]:
    """Returns the run's identity and the versions, as they are written into a trace.

    Args:
        step: The step whose distributed trace is named, or None.
    """
    current = _metadata
    of_step = current.trace_id_of_step
    found: dict[str, object] = {
        "run_id": current.run_id or default_run_id(),
        "trace_id": of_step(step) if of_step is not None else None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "fastvideo": __version__,
        **(current.extra or {}),
    }
    return plain_attributes(found)


def default_run_id() -> str | None:
    """Returns the run's name as a launcher gave it to all ranks, or None."""
    launcher = os.environ.get("TORCHELASTIC_RUN_ID", "")
    named: str = envs.FASTVIDEO_RUN_ID
    return named or (launcher if launcher not in {"", "none"} else None)


def plain_attributes(attributes: Mapping[str, object]) -> dict[str, Plain]:
    """Returns attributes as plain values of bounded size.

    Of values of other types, tensors among them, only the type's name is kept; of numbers with
    more than :data:`MAX_BITS` bits, their size; of text, :data:`MAX_TEXT` characters. Attributes
    behind the first :data:`MAX_ATTRIBUTES` are left out.
    """
    first = itertools.islice(attributes.items(), MAX_ATTRIBUTES)
    return {_short(str(name)): plain(value) for name, value in first}


MAX_ATTRIBUTES: Final = 100
MAX_TEXT: Final = 1000
MAX_BITS: Final = 64


def plain(value: object) -> Plain:
    """Returns one value as :func:`plain_attributes` does."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _short(str.__str__(value))
    if isinstance(value, int):
        number = int.__index__(value)
        bits = number.bit_length()
        return number if bits <= MAX_BITS else f"<{type(value).__name__} of {bits} bits>"
    if isinstance(value, float):
        return float.__float__(value)
    return f"<{type(value).__name__}>"


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
