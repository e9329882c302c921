"""Collecting a step's scalars and reading them from the device at once."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from fastvideo.train import metrics
from fastvideo.train.metrics import Deferred, StepScalars, learning_rates, to_host

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_means_are_over_the_rounds_in_which_a_scalar_appeared() -> None:
    """A metric of one round only is not diluted by the others."""
    scalars = StepScalars()
    scalars.add_round({"total_loss": torch.tensor(1.0)}, {"rare": 6})
    scalars.add_round({"total_loss": torch.tensor(4.0)}, None)
    scalars.fetch()
    assert scalars.means() == {"total_loss": 2.5, "rare": 6.0}


def test_values_of_all_kinds_become_floats() -> None:
    """Numbers, truth values and tensors of any type and shape with one element are accepted."""
    scalars = StepScalars()
    scalars.add_round(
        {"bf16": torch.tensor([0.5], dtype=torch.bfloat16), "f64": torch.tensor(1e-300).double()},
        {"flag": True, "count": torch.tensor(2**40), "whole": 7, "deep": torch.ones(1, 1, 1)},
    )
    scalars.fetch()
    means = scalars.means()
    assert means == {
        "bf16": 0.5,
        "f64": float(torch.tensor(1e-300).double()),
        "flag": 1.0,
        "count": float(2**40),
        "whole": 7.0,
        "deep": 1.0,
    }
    assert {type(value) for value in means.values()} == {float}


def test_deferred_scalars_join_and_zeros_may_be_dropped() -> None:
    """A norm of exactly 0 is left out where asked, and kept otherwise."""
    scalars = StepScalars()
    scalars.fetch(
        [
            Deferred("norm", torch.tensor(0.0), drop_zero=True),
            Deferred("nan_norm", torch.tensor(math.nan), drop_zero=True),
            Deferred("zero", torch.tensor(0.0)),
        ]
    )
    means = scalars.means()
    assert math.isnan(means.pop("nan_norm"))
    assert means == {"zero": 0.0}


def test_a_second_fetch_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the host already is not read again."""
    reads: list[int] = []
    original = metrics._read

    def counting(tensors: Sequence[torch.Tensor]) -> list[float]:
        reads.append(len(tensors))
        return original(tensors)

    monkeypatch.setattr(metrics, "_read", counting)
    scalars = StepScalars()
    scalars.add_round({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, {})
    scalars.fetch()
    scalars.add("late", torch.tensor(3.0))
    scalars.fetch()
    scalars.fetch()
    assert reads == [2, 1]
    assert scalars.means() == {"a": 1.0, "b": 2.0, "late": 3.0}


def test_losses_are_kept_without_their_graph() -> None:
    """Collected losses do not keep the graph of a backward alive."""
    scalars = StepScalars()
    weight = torch.ones((), requires_grad=True)
    scalars.add_round({"total_loss": weight * 2}, {"also": weight * 3})
    (loss,) = scalars.losses["total_loss"]
    assert isinstance(loss, torch.Tensor)
    assert loss.grad_fn is None


def test_scalars_of_the_trainer_may_not_hide_those_of_the_method() -> None:
    """Adding a scalar under the name of a metric is an error with that name."""
    scalars = StepScalars()
    scalars.add_round({}, {"lr/student": 1.0})
    with pytest.raises(ValueError, match="'lr/student' is the name of a scalar that the trainer"):
        scalars.add("lr/student", 0.1)


def test_mixed_types_are_read_in_order() -> None:
    """Tensors of several types come back in the order given, without losing whole numbers."""
    mixed = [torch.tensor(2**53 - 1), torch.tensor(0.25), torch.tensor([3], dtype=torch.int8)]
    assert to_host(mixed) == [float(2**53 - 1), 0.25, 3.0]
    assert to_host([]) == []


def test_learning_rates_come_from_every_optimizer() -> None:
    """Each role has a rate, taken from its first group; methods without optimizers have none."""
    weight = torch.nn.Parameter(torch.ones(1))
    roles = {
        "student": torch.optim.SGD([weight], lr=0.5),
        "critic": torch.optim.SGD([{"params": [weight], "lr": 0.25}], lr=0.5),
    }
    method = SimpleNamespace(_optimizer_dict=roles)
    assert learning_rates(method) == {"lr/student": 0.5, "lr/critic": 0.25}
    assert learning_rates(object()) == {}
