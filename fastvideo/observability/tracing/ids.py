"""Trace and span ids: hashes where ranks must agree without talking, random where they need not.

Ratio samplers, here and in collectors, read the low 64 bits of a trace id and take them for
random. A counter in those bits would be sampled all or nothing, so every trace id is a real hash.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
from typing import Final

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8

_LOW_64_BITS: Final = (1 << 64) - 1


def step_trace_id(run_id: str, attempt: str, step: int) -> int:
    """Returns the id of the trace of one training step, 128 bits and never 0.

    Every rank computes the same one; another attempt of the same run, or another step, gives
    another one.

    Args:
        run_id: Identifier of the run, the same on every rank.
        attempt: What tells the restarts of a run apart.
        step: Number of the optimizer step.
    """
    return _hash("step", run_id, attempt, str(step), size=TRACE_ID_BYTES)


def event_trace_id(run_id: str, attempt: str, event: str, step: int = 0) -> int:
    """Returns the id of the trace of something that is no step, 128 bits and never 0.

    Args:
        run_id: Identifier of the run, the same on every rank.
        attempt: What tells the restarts of a run apart.
        event: What it is, such as ``"run_start"`` or ``"training_validation"``.
        step: Which one it is, for what happens more than once; the same on every rank.
    """
    return _hash("event", run_id, attempt, event, str(step), size=TRACE_ID_BYTES)


def step_root_span_id(trace_id: int) -> int:
    """Returns the id of the root span of a trace, 64 bits and never 0.

    It is derived, so ranks can name rank 0's root span as the parent of theirs.

    Args:
        trace_id: From :func:`step_trace_id` or :func:`event_trace_id`.
    """
    return _hash("root", str(trace_id), size=SPAN_ID_BYTES)


def is_sampled(trace_id: int, ratio: float) -> bool:
    """Tells whether a trace is in the sample, by the arithmetic of OTel's ``TraceIdRatioBased``.

    Args:
        trace_id: Of the trace; only its low 64 bits count.
        ratio: Share of traces to keep, 0 to 1.
    """
    return trace_id & _LOW_64_BITS < round(ratio * (_LOW_64_BITS + 1))


def draw_span_id() -> int:
    """Returns a random span id, 64 bits and never 0.

    The generator is this module's own: Python's global one belongs to the program that is
    observed, whose numbers must not change because somebody watches.
    """
    while True:
        drawn = _random.getrandbits(64)
        if drawn:
            return drawn


def draw_span_ids(number: int) -> tuple[int, ...]:
    """Returns so many ids as :func:`draw_span_id` does, for the price of one."""
    drawn = struct.unpack(f"<{number}Q", os.urandom(SPAN_ID_BYTES * number))
    return drawn if all(drawn) else tuple([each or draw_span_id() for each in drawn])


def _hash(*parts: str, size: int) -> int:
    """Hashes parts so that no two lists of parts give the same input."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()
    return int.from_bytes(digest, "big") or 1


_random: Final = random.SystemRandom()
