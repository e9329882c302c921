"""Samplers as one ratio."""

from __future__ import annotations

import pytest

from fastvideo.observability.tracing.sampling import Sampler


@pytest.mark.parametrize(
    ("name", "alone", "below_sampled", "below_unsampled"),
    [
        ("always_on", 1.0, 1.0, 1.0),
        ("always_off", 0.0, 0.0, 0.0),
        ("traceidratio", 0.25, 0.25, 0.25),
        ("parentbased_always_on", 1.0, 1.0, 0.0),
        ("parentbased_always_off", 0.0, 1.0, 0.0),
        ("parentbased_traceidratio", 0.25, 0.25, 0.0),
    ],
)
def test_ratio(name: str, alone: float, below_sampled: float, below_unsampled: float) -> None:
    """Each sampler of the specification comes down to a ratio, with and without a parent."""
    sampler = Sampler(name, 0.25)
    assert sampler.ratio() == alone
    assert sampler.ratio(parent_sampled=True) == below_sampled
    assert sampler.ratio(parent_sampled=False) == below_unsampled
