"""Does the run learn, and does anything raise."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Override, Panel, Row, Target, Variable
from fastvideo.dashboards.panels import ANY_IS_BAD, DASHED, NONE_IS_GOOD, PLAIN, lines, stat

_UID: Final = "fastvideo-losses"
_LOSS: Final = "fastvideo_training_loss"
_SCALAR: Final = "fastvideo_training_metric"
_NONFINITE: Final = "fastvideo_training_nonfinite_loss_total"
_ERRORS: Final = "fastvideo_training_errors_total"
_TERMS: Final = Variable(
    "loss",
    "Loss",
    "query",
    f'label_values({_LOSS}{{run=~"$run"}}, loss)',
    multi=True,
    all=True,
)
_ALL_FINITE: Final = "all losses are finite"
_FAINT: Final = (("color", {"mode": "fixed", "fixedColor": "#6e7079"}),)
_TO_RANK: Final = link_to("fastvideo-ranks", choose=("run", "rank"))


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="Does the run learn, and does anything raise? What is here are the values of the "
        "last step at each scrape; every step is in the tracker.",
        rows=(
            Row("Is anything wrong?", _now()),
            Row("Losses", _losses()),
            Row("What moves them", _scalars()),
            Row("Errors", _errors()),
        ),
        variables=(*VARIABLES, _TERMS),
        annotations=ANNOTATIONS,
    )


def _now() -> tuple[Panel, ...]:
    return (
        stat(
            "Non-finite losses",
            f"Was a loss NaN or infinite? {_NONFINITE} of the rank with the most, since its "
            "process began. Any is bad: see the gradient norm before it.",
            Target(f"max by (run) ({_NONFINITE}{{{queries.RANKS}}})", "{{run}}"),
            no_value="not scraped",
            thresholds=ANY_IS_BAD,
            words=NONE_IS_GOOD,
            width=8,
        ),
        stat(
            "Errors in steps",
            f"Did exceptions leave steps? {_ERRORS} over types and chosen ranks, since their "
            "processes began. Any is bad: the log of that rank has the traceback.",
            Target(f"sum by (run) ({_ERRORS}{{{queries.RANKS}}})", "{{run}}"),
            no_value="not scraped",
            thresholds=ANY_IS_BAD,
            words=NONE_IS_GOOD,
            width=8,
        ),
        stat(
            "Step",
            "How far is the run? fastvideo_training_step of the furthest rank. It is where to "
            "look in the tracker. One that does not move: the run stalls.",
            Target(f"max by (run) (fastvideo_training_step{{{queries.RANKS}}})", "{{run}}"),
            no_value="not scraped",
            thresholds=PLAIN,
            width=8,
        ),
    )


def _losses() -> tuple[Panel, ...]:
    of_term = f'{_LOSS}{{{queries.RANKS},loss=~"$loss"}}'
    return (
        lines(
            "$loss",
            f"Does it learn, and do ranks see alike data? {_LOSS} of one term, of the last step: "
            "the mean over the chosen ranks, and the highest and lowest rank. A jump, or a mean "
            "that grows, is bad; NaN is not drawn, so a line that ends is too. Ranks have "
            "different samples, so they differ; if they come apart while the mean stays, a rank "
            "has bad data or is no longer in step with the others.",
            Target(f"max by (run, loss) ({of_term})", "highest rank · {{run}}"),
            Target(f"min by (run, loss) ({of_term})", "lowest rank · {{run}}"),
            Target(f"avg by (run, loss) ({of_term})", "mean · {{run}}"),
            width=24,
            height=9,
            overrides=(Override("/^(highest|lowest)/", _FAINT, is_pattern=True),),
            repeat="loss",
            per_row=3,
        ),
    )


def _scalars() -> tuple[Panel, ...]:
    def named(matcher: str) -> str:
        return f"avg by (run, name) ({_SCALAR}{{{queries.RANKS},name{matcher}}})"

    return (
        lines(
            "Gradient norm before clipping",
            f"Are gradients sound? {_SCALAR} of the names grad_norm/…, mean over ranks. It rises "
            "before a loss becomes NaN; 0 is bad too: nothing is learned.",
            Target(
                named('=~"grad_norm/.*"'),
                "{{name}} · {{run}}",
                may_be_empty="gradients are not clipped",
            ),
            no_value="gradients are not clipped",
            minimum=0,
            width=8,
        ),
        lines(
            "Learning rate",
            f"Does the schedule do what it should? {_SCALAR} of the names lr/…; the student's is "
            "dashed, as it often lies upon others. A jump in the loss at the end of the warm-up: "
            "the rate is too high.",
            Target(named('=~"lr/.*"'), "{{name}} · {{run}}"),
            unit="sci",
            minimum=0,
            overrides=(Override("/^lr.student/", DASHED, is_pattern=True),),
            width=8,
        ),
        lines(
            "Other scalars",
            f"What else does the method say? {_SCALAR} of all other names, mean over ranks, as "
            "the tracker has them; but for update_student, which the kind of a step says too. "
            "What is bad depends on the method.",
            Target(
                named('!~"grad_norm/.*|lr/.*|update_student"'),
                "{{name}} · {{run}}",
                may_be_empty="the method logs nothing else",
            ),
            no_value="the method logs nothing else",
            width=8,
        ),
    )


def _errors() -> tuple[Panel, ...]:
    return (
        lines(
            "Non-finite losses, by rank",
            f"Which rank had it first? {_NONFINITE} of each chosen rank that had any. One rank "
            "alone: its data or device. All at once: the weights.",
            Target(
                f"max by (run, rank) ({_NONFINITE}{{{queries.RANKS}}}) > 0",
                "rank {{rank}} · {{run}}",
                may_be_empty=_ALL_FINITE,
            ),
            minimum=0,
            decimals=0,
            height=6,
            no_value="none",
            links=(_TO_RANK,),
        ),
        lines(
            "Errors, by type",
            f"What was raised? {_ERRORS} by type, over the chosen ranks. OutOfMemoryError: see the "
            "memory of the device. DistBackendError: a rank was lost before.",
            Target(
                f"sum by (run, error_type) ({_ERRORS}{{{queries.RANKS}}})",
                "{{error_type}} · {{run}}",
            ),
            minimum=0,
            decimals=0,
            height=6,
            links=(link_to("fastvideo-device", choose=("run",)),),
        ),
    )
