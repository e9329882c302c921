"""Device memory as a scrape sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.text_format import TextRenderer
from fastvideo.observability.telemetry import connect_sources

if TYPE_CHECKING:
    import pytest

UNUSED: dict[str, int] = {}
USED = {
    "allocated_bytes.all.current": 3,
    "reserved_bytes.all.current": 5,
    "allocated_bytes.all.peak": 4,
    "reserved_bytes.all.peak": 6,
}


def _scraped() -> dict[str, float]:
    source = cast(Any, SimpleNamespace(snapshot=dict))
    instruments = Instruments()
    connect_sources(instruments, source, source)
    lines = TextRenderer(instruments, {}).render(openmetrics=False).decode().splitlines()
    return {
        line.split('kind="')[1].split('"')[0]: float(line.split()[-1])
        for line in lines
        if line.startswith("fastvideo_device_memory_bytes{")
    }


def test_memory_is_that_of_all_devices_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a scrape has chosen no device; the trainer's is the second."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats", [UNUSED, USED].__getitem__)
    sizes = [SimpleNamespace(total_memory=7), SimpleNamespace(total_memory=9)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", sizes.__getitem__)
    assert _scraped() == {"allocated": 3, "reserved": 5, "peak": 4, "capacity": 9}


def test_a_process_without_a_device_has_no_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape does not make it use one either."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert _scraped() == {}
