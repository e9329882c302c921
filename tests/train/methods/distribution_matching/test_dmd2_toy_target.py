"""DMD2 where the answer is known: a Gaussian teacher, an affine student, a Gaussian critic.

The teacher's score is exact and the critic can represent what the student makes of noise, so the
student's samples must end up with the teacher's mean and standard deviation. With several steps it
is the mixture over the steps at which rollouts end that is matched: the critic sees nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fastvideo.train.methods.distribution_matching.dmd2 import DMD2Method

if TYPE_CHECKING:
    from types import ModuleType

TEACHER_MEAN, TEACHER_STD = 1.5, 0.5


def _method(toys: ModuleType, steps: list[float], **section: object) -> DMD2Method:
    roles = {
        "student": toys.ToyModel(toys.AffineSamplerNet(steps, -1.0, 1.2)),
        "teacher": toys.ToyModel(toys.GaussianNet(TEACHER_MEAN, TEACHER_STD), trainable=False),
        "critic": toys.ToyModel(toys.GaussianNet(-1.0, 1.2)),
    }
    cfg = toys.run_config(
        toys.dmd2_section(
            dmd_denoising_steps=steps,
            real_score_guidance_scale=1.0,
            generator_update_interval=5,
            fake_score_learning_rate=0.05,
            min_timestep_ratio=0.02,
            max_timestep_ratio=0.98,
            **section,
        ),
        learning_rate=0.04,
        betas=(0.0, 0.9),
        lr_scheduler="linear",
    )
    cfg.training.loop.max_train_steps = 1500
    method = DMD2Method(cfg=cfg, role_models=roles)
    method.on_train_start()
    return method


def _train(method: DMD2Method, raw: dict[str, torch.Tensor]) -> None:
    for iteration in range(1, 1501):
        losses, outputs, _ = method.single_train_step(raw, iteration)
        method.backward(losses, outputs)
        method.optimizers_schedulers_step(iteration)
        method.optimizers_zero_grad(iteration)


@pytest.mark.parametrize("steps", [[1000.0], [1000.0, 500.0]])
def test_the_student_takes_on_the_teachers_distribution(
    toys: ModuleType, steps: list[float]
) -> None:
    """From mean -1 and std 1.2 the samples move to the teacher's 1.5 and 0.5."""
    method = _method(toys, steps)
    raw = {"vae_latent": torch.zeros(128, 1, 1, 2, 2)}
    _train(method, raw)
    batch = method.student.prepare_batch(
        {"vae_latent": torch.zeros(256, 1, 1, 2, 2)}, generator=method.generator
    )
    samples = torch.cat([method._rollout(batch, with_grad=False) for _ in range(64)])
    assert samples.mean().item() == pytest.approx(TEACHER_MEAN, abs=0.1)
    assert samples.std().item() == pytest.approx(TEACHER_STD, abs=0.1)


def test_the_teacher_is_left_alone(toys: ModuleType) -> None:
    """The frozen role has no gradients and no optimizer, and keeps its weights."""
    method = _method(toys, [1000.0])
    before = [p.clone() for p in method.teacher.transformer.parameters()]
    raw = {"vae_latent": torch.zeros(4, 1, 1, 2, 2)}
    for iteration in range(1, 6):
        losses, outputs, _ = method.single_train_step(raw, iteration)
        method.backward(losses, outputs)
        method.optimizers_schedulers_step(iteration)
    assert set(method._optimizer_dict) == {"student", "critic"}
    for old, new in zip(before, method.teacher.transformer.parameters(), strict=True):
        assert new.grad is None
        assert torch.equal(old, new)
