"""Content negotiation of the endpoint."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from fastvideo.observability.metrics.exposition import OPENMETRICS, TEXT, expose
from fastvideo.observability.metrics.text_format import TextRenderer

if TYPE_CHECKING:
    from fastvideo.observability.metrics.accumulators import Instruments

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (PROMETHEUS, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("Application/OpenMetrics-Text", OPENMETRICS),
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=nonsense", TEXT),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.5", TEXT),
        (",;;=,q", TEXT),
    ],
)
def test_openmetrics_is_for_those_who_name_it(
    instruments: Instruments, accept: str, expected: str
) -> None:
    """Only a client that prefers OpenMetrics by name gets it, whatever else its header says."""
    renderer = TextRenderer(instruments, {"rank": "0"})
    exposition = expose(renderer, accept=accept, accept_encoding="")
    assert exposition.content_type == expected
    assert exposition.body.endswith(b"# EOF\n") == (expected == OPENMETRICS)


@pytest.mark.parametrize(
    ("accept_encoding", "gzipped"),
    [
        ("gzip", True),
        ("GZIP;q=0.5, deflate", True),
        ("*", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("br", False),
    ],
)
def test_gzip_is_for_those_who_accept_it(
    instruments: Instruments, accept_encoding: str, *, gzipped: bool
) -> None:
    """A compressed body unpacks to the plain one, and is much smaller."""
    renderer = TextRenderer(instruments, {"rank": "0"})
    plain = expose(renderer, accept="", accept_encoding="")
    exposition = expose(renderer, accept="", accept_encoding=accept_encoding)
    assert exposition.gzipped == gzipped
    if gzipped:
        assert gzip.decompress(exposition.body) == plain.body
        assert len(exposition.body) < len(plain.body) / 5
    else:
        assert exposition.body == plain.body
