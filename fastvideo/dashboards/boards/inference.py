"""How long videos take to make, and where the time goes."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES
from fastvideo.dashboards.model import Dashboard, Panel, Row, Target
from fastvideo.dashboards.panels import (
    ANY_IS_BAD,
    NONE_IS_GOOD,
    PLAIN,
    SMOOTH,
    heat,
    lines,
    stat,
)

_UID: Final = "fastvideo-inference"
_REQUEST: Final = "fastvideo_inference_request_duration_seconds"
_DENOISING: Final = "fastvideo_inference_denoising_step_duration_seconds"
_ERRORS: Final = "fastvideo_inference_errors_total"
_PARTS: Final = "inference_(text_encoding|denoising|decoding)"
_IDLE: Final = "no video was asked for"
_NONE_NOW: Final = "none in 30 minutes"


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="How long do requests for videos take, and where does the time go? Processes "
        "that only train have nothing here.",
        rows=(
            Row("Requests", (*_now(), *_requests())),
            Row("Where a request goes", _inside()),
        ),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
    )


def _rate(metric: str) -> str:
    return queries.rate(metric, by="run", where=queries.RANKS)


def _target(expr: str) -> Target:
    return Target(expr, "{{run}}", min_interval="30m", may_be_empty=_IDLE)


def _now() -> tuple[Panel, ...]:
    return (
        stat(
            "Requests per minute, last 30 minutes",
            f"How much is asked for? {_REQUEST}_count over 30 minutes, of the chosen ranks. 0 "
            "where clients wait: nothing is finished.",
            _target("60 * " + _rate(f"{_REQUEST}_count")),
            unit="short",
            decimals=1,
            no_value=_NONE_NOW,
            thresholds=PLAIN,
            width=6,
        ),
        stat(
            "Mean request, last 30 minutes",
            f"How long does a video take? Mean of {_REQUEST} over 30 minutes. It depends on what "
            "is asked for: compare like with like.",
            _target(queries.mean(_REQUEST, by="run", where=queries.RANKS)),
            unit="s",
            no_value=_NONE_NOW,
            thresholds=PLAIN,
            width=6,
        ),
        stat(
            "In flight on average, last 30 minutes",
            f"How busy is it? Seconds per second of {_REQUEST}, counted when a request ends. As "
            "many as there are ranks: all are busy, and new requests wait.",
            _target(_rate(f"{_REQUEST}_sum")),
            unit="short",
            decimals=2,
            no_value=_NONE_NOW,
            thresholds=PLAIN,
            width=6,
        ),
        stat(
            "Failed requests",
            f"Did requests fail? {_ERRORS} since the start, of the chosen ranks and of all types "
            "of exceptions. The log names each prompt and what is wrong with it.",
            Target(f"sum by (run) ({_ERRORS}{{{queries.RANKS}}})", "{{run}}"),
            unit="short",
            no_value=_IDLE,
            thresholds=ANY_IS_BAD,
            words=NONE_IS_GOOD,
            width=6,
        ),
    )


def _requests() -> tuple[Panel, ...]:
    return (
        lines(
            "Mean request, by rank",
            f"Is one process slower? Mean of {_REQUEST} for each chosen rank. A line above the "
            "others: its device, or larger requests.",
            Target(
                queries.mean(_REQUEST, by="run, rank", where=queries.RANKS),
                "rank {{rank}} · {{run}}",
                min_interval=SMOOTH,
                may_be_empty=_IDLE,
            ),
            unit="s",
            minimum=0,
            no_value=_IDLE,
            width=8,
        ),
        heat(
            "Durations of requests",
            f"Are requests alike? {_REQUEST}_bucket; a click on a dot opens its trace. A second "
            "band: another size of video, or requests that waited.",
            _REQUEST,
            may_be_empty=_IDLE,
            no_value=_IDLE,
            width=8,
        ),
        lines(
            "Median and 95th percentile request (bucketed)",
            f"What do people wait for? {_REQUEST}_bucket over the chosen ranks; bounds of buckets "
            "lie 40 % apart, and so does the answer. Lines far apart: some requests are much "
            "slower.",
            *(
                Target(
                    queries.quantile(which, _REQUEST, by="run", where=queries.RANKS),
                    f"{name} · {{{{run}}}}",
                    exemplar=True,
                    min_interval=SMOOTH,
                    may_be_empty=_IDLE,
                )
                for which, name in ((0.5, "median"), (0.95, "95th percentile"))
            ),
            unit="s",
            minimum=0,
            no_value=_IDLE,
            width=8,
        ),
    )


def _inside() -> tuple[Panel, ...]:
    regions = f'{queries.RANKS},region=~"{_PARTS}"'
    return (
        lines(
            "Parts of a request, per entry",
            "Which part is long? Mean of fastvideo_region_duration_seconds of the regions of "
            "inference: encoding the prompt, denoising, decoding. Denoising should have most of "
            "it.",
            Target(
                queries.mean(queries.REGION, by="run, region", where=regions),
                "{{region}} · {{run}}",
                min_interval=SMOOTH,
                may_be_empty=_IDLE,
            ),
            unit="s",
            minimum=0,
            no_value=_IDLE,
            width=8,
        ),
        lines(
            "Mean denoising step",
            f"How fast is the model? Mean of {_DENOISING}. A rise at the same size of video: the "
            "device, or other programs on it.",
            Target(
                queries.mean(_DENOISING, by="run", where=queries.RANKS),
                "{{run}}",
                min_interval=SMOOTH,
                may_be_empty=_IDLE,
            ),
            unit="s",
            minimum=0,
            no_value=_IDLE,
            width=8,
        ),
        heat(
            "Durations of denoising steps",
            f"Are denoising steps alike? {_DENOISING}_bucket. The first step after a start is "
            "slower, as it compiles; a second band later: other sizes, or a shared device.",
            _DENOISING,
            may_be_empty=_IDLE,
            no_value=_IDLE,
            width=8,
        ),
    )
