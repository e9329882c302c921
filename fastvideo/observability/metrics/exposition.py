"""What a scrape is answered with: the text format or OpenMetrics, plain or gzipped."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastvideo.observability.metrics.text_format import TextRenderer

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_GZIP_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Exposition:
    """A rendered scrape.

    Attributes:
        body: The text, in UTF-8, compressed if ``gzipped``.
        content_type: Value of the header of that name.
        gzipped: Whether the body is compressed.
    """

    body: bytes
    content_type: str
    gzipped: bool


def expose(renderer: TextRenderer, *, accept: str, accept_encoding: str) -> Exposition:
    """Renders all metrics in the form that a client asked for.

    Args:
        renderer: The metrics.
        accept: The request's header. OpenMetrics, with exemplars, is for clients that name it.
        accept_encoding: The request's header.
    """
    openmetrics = _prefers_openmetrics(accept)
    body = renderer.render(openmetrics=openmetrics)
    gzipped = _weight(accept_encoding, "gzip", wildcard="*") > 0
    if gzipped:
        body = gzip.compress(body, compresslevel=_GZIP_LEVEL, mtime=0)
    return Exposition(body, OPENMETRICS if openmetrics else TEXT, gzipped)


def _prefers_openmetrics(accept: str) -> bool:
    openmetrics = _weight(accept, "application/openmetrics-text", wildcard=None)
    text = _weight(accept, "text/plain", wildcard=None)
    return openmetrics > 0 and openmetrics >= text


def _weight(header: str, wanted: str, *, wildcard: str | None) -> float:
    """Returns the highest weight a header of alternatives gives to ``wanted``, 0 for none."""
    weights: dict[str, float] = {}
    for name, weight in _alternatives(header):
        weights[name] = max(weight, weights.get(name, 0.0))
    if wanted in weights or wildcard is None:
        return weights.get(wanted, 0.0)
    return weights.get(wildcard, 0.0)


def _alternatives(header: str) -> Iterator[tuple[str, float]]:
    for part in header.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, text = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = float(text)
                except ValueError:
                    weight = 0.0
        yield name, weight
