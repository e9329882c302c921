"""Does the run learn, and does anything raise."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Panel, Row, Target
from fastvideo.dashboards.panels import ANY_IS_BAD, NONE_IS_GOOD, PLAIN, lines, stat

_UID: Final = "fastvideo-losses"
_LOSS: Final = "fastvideo_training_loss"
_SCALAR: Final = "fastvideo_training_metric"
_NONFINITE: Final = "fastvideo_training_nonfinite_loss_total"
_ERRORS: Final = "fastvideo_training_errors_total"
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
        variables=VARIABLES,
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
    return (
        lines(
            "Loss terms, mean over ranks",
            f"Does it learn? {_LOSS} of the last step, each term's mean over the chosen ranks. A "
            "jump, or one that grows, is bad; NaN is not drawn, so a line that ends is too.",
            Target(f"avg by (run, loss) ({_LOSS}{{{queries.RANKS}}})", "{{run}} {{loss}}"),
            height=10,
        ),
        lines(
            "Spread of the loss over ranks",
            f"Do ranks see alike data? The highest less the lowest {_LOSS} of the chosen ranks. "
            "Ranks have different samples, so it is not zero; one that grows while the mean does "
            "not: a rank has bad data, or has come apart from the others.",
            Target(
                f"max by (run, loss) ({_LOSS}{{{queries.RANKS}}}) - "
                f"min by (run, loss) ({_LOSS}{{{queries.RANKS}}})",
                "{{run}} {{loss}}",
            ),
            minimum=0,
            height=10,
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
                "{{run}} {{name}}",
                may_be_empty="gradients are not clipped",
            ),
            no_value="gradients are not clipped",
            minimum=0,
            width=8,
        ),
        lines(
            "Learning rate",
            f"Does the schedule do what it should? {_SCALAR} of the names lr/…. A jump in the "
            "loss at the end of the warm-up: the rate is too high.",
            Target(named('=~"lr/.*"'), "{{run}} {{name}}"),
            minimum=0,
            width=8,
        ),
        lines(
            "Other scalars",
            f"What else does the method say? {_SCALAR} of all other names, mean over ranks, as "
            "the tracker has them. What is bad depends on the method.",
            Target(
                named('!~"grad_norm/.*|lr/.*"'),
                "{{run}} {{name}}",
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
            f"Which rank had it first? {_NONFINITE} of each chosen rank. One rank alone: its data "
            "or device. All at once: the weights.",
            Target(
                f"max by (run, rank) ({_NONFINITE}{{{queries.RANKS}}})", "{{run}} rank {{rank}}"
            ),
            minimum=0,
            decimals=0,
            links=(_TO_RANK,),
        ),
        lines(
            "Errors, by type",
            f"What was raised? {_ERRORS} by type, over the chosen ranks. OutOfMemoryError: see the "
            "memory of the device. DistBackendError: a rank was lost before.",
            Target(
                f"sum by (run, error_type) ({_ERRORS}{{{queries.RANKS}}})",
                "{{run}} {{error_type}}",
            ),
            minimum=0,
            decimals=0,
            links=(link_to("fastvideo-device", choose=("run",)),),
        ),
    )
