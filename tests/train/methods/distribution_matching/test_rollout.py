"""The random part of a rollout."""

from __future__ import annotations

import torch

from fastvideo.distributed import RankGroup
from fastvideo.train.methods.distribution_matching.rollout import draw_rollout

ALONE = RankGroup(0, 0, (0,))


def test_targets_are_uniform_and_noises_are_those_drawn_in_order() -> None:
    """All K targets occur equally often; the initial latents are drawn before the noises."""
    counts = [0, 0, 0]
    generator = torch.Generator().manual_seed(0)
    for _ in range(900):
        plan = draw_rollout(torch.Size((1, 1, 1, 1, 1)), 3, generator=generator, group=ALONE)
        assert plan.num_prefix == plan.target
        assert len(plan.noises) == 2
        counts[plan.target] += 1
    assert all(240 < count < 360 for count in counts)

    plan = draw_rollout(torch.Size((2,)), 2, generator=generator.manual_seed(5), group=ALONE)
    expected = torch.Generator().manual_seed(5)
    torch.randint(2, (1,), generator=expected)
    assert torch.equal(plan.latents, torch.randn(2, generator=expected))
    assert torch.equal(plan.noises[0], torch.randn(2, generator=expected))
