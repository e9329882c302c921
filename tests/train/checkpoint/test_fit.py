"""What is said of a checkpoint whose tensors are not those of the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.checkpoint.fit import check_fit
from fastvideo.train.checkpoint.origin import Origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

WEIGHT = "roles.student.transformer.proj.weight"
BIAS = "roles.student.transformer.proj.bias"
MEAN = "optimizers.student.state.proj.weight.exp_avg"
SQUARE = "optimizers.student.state.proj.weight.exp_avg_sq"
METHOD_EMA = "ema.student.proj.weight"
EMA = "callbacks.ema.student_ema.proj.weight"
EMA_BIAS = "callbacks.ema.student_ema.proj.bias"


def _tensors() -> dict[str, Tensor]:
    names = (WEIGHT, BIAS, MEAN, SQUARE, METHOD_EMA, EMA, EMA_BIAS)
    return {name: torch.zeros(2, 2) for name in names}


def _saved() -> dict[str, Any]:
    return {name: SimpleNamespace(size=torch.Size((2, 2))) for name in _tensors()}


def _check(saved: dict[str, Any], origin: Origin | None = None) -> list[str]:
    adam = torch.optim.AdamW(nn.Linear(1, 1).parameters())
    return check_fit(_tensors(), saved, optimizers={"student": adam}, origin=origin or Origin())


def test_a_checkpoint_of_the_run_fits() -> None:
    """Without a word."""
    assert _check(_saved()) == []
    assert _check(_saved(), Origin("a.B", ("student",), {"student": "AdamW"})) == []


def _without(*names: str) -> Callable[[dict[str, Any]], object]:
    return lambda saved: [saved.pop(name) for name in names]


def _with(name: str, *size: int) -> Callable[[dict[str, Any]], object]:
    return lambda saved: saved.update({name: SimpleNamespace(size=torch.Size(size))})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _with("roles.critic.transformer.w", 1),
            (
                r"it has the weights of the roles critic, student, as DMD2 saved them, and this "
                r"run keeps those of student"
            ),
        ),
        (
            _without(WEIGHT, BIAS),
            r"it has the weights of the roles none, .* keeps those of student",
        ),
        (
            _with(WEIGHT, 3, 2),
            (
                r"models\.student differs in 1 parameter: transformer\.proj\.weight is "
                r"\[3, 2\] in the checkpoint and \[2, 2\] in this run; the saved run had "
                r"models\.student\.init_from base"
            ),
        ),
        (_without(BIAS), r"proj\.bias is missing in the checkpoint and \[2, 2\] in this run"),
        (
            _with("roles.student.transformer.more", 5),
            r"transformer\.more is \[5\] in the checkpoint and not in this run",
        ),
        (
            _without(MEAN, SQUARE),
            (
                r"the optimizer of the role student kept none of each parameter, and this run's "
                r"\(AdamW\) keeps exp_avg, exp_avg_sq"
            ),
        ),
        (
            _with("optimizers.student.state.proj.bias.exp_avg", 2),
            r"the state of the optimizer of the role student differs in 1 tensor: proj\.bias",
        ),
        (_without(METHOD_EMA), r"it does not have the method's moving average \(ema\)"),
        (_with(METHOD_EMA, 1), r"moving average \(ema\) differs: ema\.student\.proj\.weight is"),
        (_without(EMA_BIAS), r"callbacks\.ema differs in 1 tensor: student_ema\.proj\.bias is mis"),
    ],
)
def test_misfits_name_role_parameters_and_shapes(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """Those of the checkpoint and of the run."""
    saved = _saved()
    change(saved)
    origin = Origin("a.DMD2", init_from={"student": "base"})
    with pytest.raises(CheckpointError, match=message):
        _check(saved, origin)


def test_another_kind_of_optimizer_is_named() -> None:
    """Also where it keeps the same values: its settings would be taken over."""
    with pytest.raises(CheckpointError, match="of the role student was Adam and is AdamW"):
        _check(_saved(), Origin("a.B", optimizers={"student": "Adam"}))


def test_three_differences_are_shown() -> None:
    """And the others counted."""
    saved = _saved()
    for number in range(5):
        _with(f"roles.student.transformer.{number}.w", 1)(saved)
    with pytest.raises(
        CheckpointError, match=r"in 5 parameters: transformer\.0\.w .*2\.w .*and 2 more"
    ):
        _check(saved)


def test_what_this_run_does_not_keep_is_noted() -> None:
    """An average that was turned off, and a callback that is gone; a new callback may start."""
    saved = _saved() | {"own.tensor": SimpleNamespace(size=())}
    _with("callbacks.other.a", 1)(saved)
    _without(EMA, EMA_BIAS)(saved)
    assert _check(saved) == [
        "it has own, which this run does not keep: it is left out",
        "it has the state of callbacks.other, which this run does not have: left out",
    ]
