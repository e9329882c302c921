"""What the tests on a CUDA device share: a look at the spans that were written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _device_ms(span: dict[str, Any]) -> float | None:
    for attribute in span.get("attributes", ()):
        if attribute["key"] == "fastvideo.device_duration_ms":
            return float(attribute["value"]["doubleValue"])
    return None


@pytest.fixture(scope="session")
def spans_in() -> Callable[[Path], list[tuple[str, float | None]]]:
    """Returns the name, and the milliseconds on the device, of every span of rank 0."""

    def read(directory: Path) -> list[tuple[str, float | None]]:
        lines = (directory / "spans_rank0.jsonl").read_text(encoding="utf-8").splitlines()
        return [
            (span["name"], _device_ms(span))
            for line in lines
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    return read
