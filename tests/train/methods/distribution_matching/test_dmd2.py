"""DMD2 against formulas written out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.distributed import RankGroup
from fastvideo.errors import ConfigError
from fastvideo.profiler import RecordingSink, attach, detach
from fastvideo.train.methods.distribution_matching import dmd2
from fastvideo.train.methods.distribution_matching.dmd2 import (
    DMD2Method,
    distribution_matching_loss,
)

if TYPE_CHECKING:
    from types import ModuleType

N = 1000


def _linear_method(toys: ModuleType, **section: Any) -> DMD2Method:
    """DMD2 over three linear models, seeded."""
    roles = {
        "student": toys.ToyModel(toys.LinearNet(0.3, -0.2, 0.1)),
        "teacher": toys.ToyModel(toys.LinearNet(0.6, 0.1, 0.4), trainable=False),
        "critic": toys.ToyModel(toys.LinearNet(-0.5, 0.2, -0.3)),
    }
    method = DMD2Method(cfg=toys.run_config(toys.dmd2_section(**section)), role_models=roles)
    method.on_train_start()
    return method


def _after_prepare_batch(seed: int, shape: torch.Size) -> torch.Generator:
    """A generator in the state that the toy's prepare_batch leaves, see its draws."""
    generator = torch.Generator().manual_seed(seed)
    torch.randn(shape, generator=generator)
    torch.rand(shape[0], generator=generator)
    return generator


def _x0(weights: tuple[float, float, float], x: torch.Tensor, t: float, *, cond: bool) -> Any:
    w, b, c = weights
    return x - t / N * (w * x + b + (c if cond else 0.0))


def test_the_gradient_of_the_generator_loss_is_the_normalised_score_difference(
    toys: ModuleType,
) -> None:
    """∂L/∂theta is the sum of g/numel times ∂x/∂theta, with g = (f - r) / mean|x - r|."""
    method = _linear_method(toys, dmd_denoising_steps=[1000])
    raw = toys.raw_batch()
    losses, outputs, _ = method.single_train_step(raw, 1)
    method.backward(losses, outputs)

    draws = _after_prepare_batch(7, raw["vae_latent"].shape)
    shape = method.student.prepare_batch(raw, generator=torch.Generator()).latents.shape
    torch.randint(1, (1,), generator=draws)
    start = torch.randn(shape, generator=draws)
    t = N * float(torch.rand(1, generator=draws))
    noise = torch.randn(shape, generator=draws)
    x = _x0((0.3, -0.2, 0.1), start, N, cond=True)
    noisy = (1 - t / N) * x + t / N * noise
    fake = _x0((-0.5, 0.2, -0.3), noisy, t, cond=True)
    real_c = _x0((0.6, 0.1, 0.4), noisy, t, cond=True)
    real_u = _x0((0.6, 0.1, 0.4), noisy, t, cond=False)
    real = real_u + 3.0 * (real_c - real_u)
    g = (fake - real) / (x - real).abs().mean()

    student = method.student.transformer
    torch.testing.assert_close(losses["generator_loss"], 0.5 * (g**2).mean())
    torch.testing.assert_close(student.weight.grad, (g / g.numel() * -start).sum())
    torch.testing.assert_close(student.bias.grad, (-g / g.numel()).sum())
    torch.testing.assert_close(student.prompt.grad, (-g / g.numel()).sum())


def test_the_critic_loss_and_its_gradient_follow_the_linear_formula(toys: ModuleType) -> None:
    """L = mean((v̂ - (ε - x))²) with ∂L/∂w = 2·mean((v̂ - (ε - x))·x_t), ∂L/∂b likewise."""
    method = _linear_method(toys, dmd_denoising_steps=[1000], generator_update_interval=5)
    raw = toys.raw_batch()
    losses, outputs, metrics = method.single_train_step(raw, 1)
    method.backward(losses, outputs)

    draws = _after_prepare_batch(7, raw["vae_latent"].shape)
    shape = method.student.prepare_batch(raw, generator=torch.Generator()).latents.shape
    torch.randint(1, (1,), generator=draws)
    x = _x0((0.3, -0.2, 0.1), torch.randn(shape, generator=draws), N, cond=True)
    t = N * float(torch.rand(1, generator=draws))
    noise = torch.randn(shape, generator=draws)
    noisy = (1 - t / N) * x + t / N * noise
    error = (-0.5 * noisy + 0.2 - 0.3) - (noise - x)

    critic = method.critic.transformer
    assert metrics == {"update_student": 0}
    torch.testing.assert_close(losses["fake_score_loss"], (error**2).mean())
    torch.testing.assert_close(losses["total_loss"], losses["fake_score_loss"])
    torch.testing.assert_close(critic.weight.grad, (2 * error * noisy).mean())
    torch.testing.assert_close(critic.bias.grad, (2 * error).mean())
    assert all(p.grad is None for p in method.student.transformer.parameters())


def test_the_gradients_equal_those_of_autograd_on_the_whole_formula(toys: ModuleType) -> None:
    """With four steps, only the last student call has a graph, and the critic sees no student."""
    method = _linear_method(toys)
    raw = toys.raw_batch()
    losses, outputs, _ = method.single_train_step(raw, 1)
    method.backward(losses, outputs, grad_accum_rounds=2)

    draws = _after_prepare_batch(7, raw["vae_latent"].shape)
    student = torch.tensor([0.3, -0.2, 0.1], requires_grad=True)
    critic = torch.tensor([-0.5, 0.2, -0.3], requires_grad=True)
    shape = torch.Size((2, 3, 2, 2, 2))
    x = _written_rollout(student, shape, draws)
    t, noise = N * float(torch.rand(1, generator=draws)), torch.randn(shape, generator=draws)
    noisy = (1 - t / N) * x.detach() + t / N * noise
    fake = _x0(tuple(critic.tolist()), noisy, t, cond=True)
    unconditional = _x0((0.6, 0.1, 0.4), noisy, t, cond=False)
    real = unconditional + 3.0 * (_x0((0.6, 0.1, 0.4), noisy, t, cond=True) - unconditional)
    g = (fake - real) / (x.detach() - real).abs().mean()
    (x * g / g.numel() / 2).sum().backward()

    samples = _written_rollout(student, shape, draws).detach()
    t, noise = N * float(torch.rand(1, generator=draws)), torch.randn(shape, generator=draws)
    noisy = (1 - t / N) * samples + t / N * noise
    velocity = critic[0] * noisy + critic[1] + critic[2]
    (((velocity - (noise - samples)) ** 2).mean() / 2).backward()  # type: ignore[no-untyped-call]

    for net, expected in ((method.student, student.grad), (method.critic, critic.grad)):
        parameters = net.transformer.parameters()
        torch.testing.assert_close(torch.stack([p.grad for p in parameters]), expected)


def _written_rollout(
    weights: torch.Tensor, shape: torch.Size, draws: torch.Generator
) -> torch.Tensor:
    steps = (1000, 750, 500, 250)
    k = int(torch.randint(4, (1,), generator=draws))
    noises = [torch.randn(shape, generator=draws) for _ in range(4)]
    x = noises[0]
    for i in range(k):
        clean = _x0(tuple(weights.tolist()), x, steps[i], cond=True)
        x = (1 - steps[i + 1] / N) * clean + steps[i + 1] / N * noises[i + 1]
    return x - steps[k] / N * (weights[0] * x + weights[1] + weights[2])


def test_a_rollout_leaves_the_generator_in_one_state_whatever_its_length(toys: ModuleType) -> None:
    """There are k + 1 student calls and k add_noise calls, and always 1 + K draws."""
    method = _linear_method(toys)
    batch = method.student.prepare_batch(toys.raw_batch(), generator=torch.Generator())
    lengths = set()
    for seed in range(24):
        method.generator.manual_seed(seed)
        method.student.calls.clear()
        method._rollout(batch, with_grad=False)

        expected = torch.Generator().manual_seed(seed)
        k = int(torch.randint(4, (1,), generator=expected))
        for _ in range(4):
            torch.randn(batch.latents.shape, generator=expected)
        assert torch.equal(method.generator.get_state(), expected.get_state())
        assert method.student.calls.count("conditional") == k + 1
        assert method.student.calls.count("add_noise") == k
        lengths.add(k)
    assert lengths == {0, 1, 2, 3}


class _Company(RankGroup):
    """A group in which another rank drew the longest rollout."""

    __slots__ = ()

    def all_reduce_max(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(3)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        return tensor.fill_(2)


def test_running_along_with_a_longer_rollout_changes_no_output(
    toys: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank calls the student 3 + 1 times; the local output and the draws stay the same."""
    method = _linear_method(toys)
    batch = method.student.prepare_batch(toys.raw_batch(), generator=torch.Generator())
    for seed in range(8):
        method.generator.manual_seed(seed)
        alone = method._rollout(batch, with_grad=False)
        state = method.generator.get_state()
        method.generator.manual_seed(seed)
        method.student.calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(dmd2, "get_world_group", lambda: _Company(0, 0, (0, 1)))
            together = method._rollout(batch, with_grad=False)
        assert torch.equal(together, alone)
        assert torch.equal(method.generator.get_state(), state)
        assert method.student.calls.count("conditional") == 4


def test_a_synchronised_target_is_that_of_the_first_rank(
    toys: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sync_rollout_target nobody runs further than the shared step."""
    method = _linear_method(toys, sync_rollout_target=True)
    batch = method.student.prepare_batch(toys.raw_batch(), generator=torch.Generator())
    monkeypatch.setattr(dmd2, "get_world_group", lambda: _Company(1, 1, (0, 1)))
    for seed in range(4):
        method.generator.manual_seed(seed)
        method.student.calls.clear()
        method._rollout(batch, with_grad=False)
        assert method.student.calls.count("conditional") == 3
        assert method.student.calls.count("add_noise") == 2


def test_data_latents_are_noised_to_one_of_the_denoising_steps(toys: ModuleType) -> None:
    """Draws: the index, then the noise; one student call at that timestep."""
    method = _linear_method(toys, rollout_mode="vae_latent")
    batch = method.student.prepare_batch(toys.raw_batch(), generator=torch.Generator())
    method.generator.manual_seed(3)
    out = method._rollout(batch, with_grad=False)

    draws = torch.Generator().manual_seed(3)
    t = (1000, 750, 500, 250)[int(torch.randint(4, (1,), generator=draws))]
    noise = torch.randn(batch.latents.shape, generator=draws)
    noisy = (1 - t / N) * batch.latents + t / N * noise
    torch.testing.assert_close(out, _x0((0.3, -0.2, 0.1), noisy, t, cond=True))


def test_score_timesteps_fill_their_bounds_without_atoms(toys: ModuleType) -> None:
    """With shift 8 and ratios 0.02 and 0.98 no draw lies on a bound, and the law is the shift's."""
    method = _linear_method(toys, min_timestep_ratio=0.02, max_timestep_ratio=0.98)
    method.student.timestep_shift = 8.0
    drawn = torch.cat([method._score_timestep() for _ in range(4000)])
    assert drawn.min() >= 20
    assert drawn.max() <= 980
    assert drawn.unique().numel() > 3900
    level = drawn / N
    uniform = level / (8 - 7 * level)
    low, high = 0.02 / (8 - 0.14), 0.98 / (8 - 6.86)
    quantiles = torch.quantile((uniform - low) / (high - low), torch.tensor([0.1, 0.5, 0.9]))
    torch.testing.assert_close(quantiles, torch.tensor([0.1, 0.5, 0.9]), atol=0.03, rtol=0)


def test_the_loss_stays_finite_where_student_and_teacher_agree() -> None:
    """A denominator of 0 is clamped before the division, and NaN counts as no gradient."""
    samples = torch.ones(2, 3, requires_grad=True)
    loss = distribution_matching_loss(samples, fake=torch.ones(2, 3), real=torch.ones(2, 3))
    assert loss.item() == 0.0
    loss = distribution_matching_loss(samples, fake=torch.full((2, 3), 2.0), real=torch.ones(2, 3))
    assert torch.isfinite(loss)
    fake = torch.tensor([[float("nan"), 1.0, 1.0]] * 2)
    loss = distribution_matching_loss(samples, fake=fake, real=torch.zeros(2, 3))
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.equal(samples.grad[:, 0], torch.zeros(2))
    assert torch.equal(samples.grad[:, 1], torch.full((2,), 1 / 6))


def test_half_precision_samples_give_a_float32_loss() -> None:
    """The arithmetic of the loss is float32 whatever the models compute in."""
    samples = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    zeros = torch.zeros(4, dtype=torch.bfloat16)
    loss = distribution_matching_loss(samples, fake=samples.detach(), real=zeros)
    assert loss.dtype == torch.float32


def test_optimizers_schedules_and_clipping_follow_the_update_interval(toys: ModuleType) -> None:
    """The student's turn comes every fifth step; the critic's every step."""
    method = _linear_method(toys, generator_update_interval=5)
    student, critic = method._optimizer_dict["student"], method._optimizer_dict["critic"]
    assert [method.did_update_role("student", i) for i in range(1, 11)] == [
        False, False, False, False, True, False, False, False, False, True,
    ]  # fmt: skip
    assert method.get_optimizers(4) == [critic]
    assert method.get_optimizers(5) == [student, critic]
    assert list(method.get_grad_clip_targets(4)) == ["critic"]
    assert set(method.get_grad_clip_targets(5)) == {"student", "critic"}
    assert method.did_update_role("critic", 4)
    assert not method.did_update_role("teacher", 5)
    assert [method.step_kind(i) for i in (4, 5)] == ["critic", "generator"]
    for iteration in range(1, 11):
        losses, outputs, _ = method.single_train_step(toys.raw_batch(), iteration)
        method.backward(losses, outputs)
        method.optimizers_schedulers_step(iteration)
        method.optimizers_zero_grad(iteration)
    assert method._lr_scheduler_dict["student"].last_epoch == 2
    assert method._lr_scheduler_dict["critic"].last_epoch == 10


def test_a_decaying_schedule_of_the_student_ends_with_the_run(toys: ModuleType) -> None:
    """Twenty updates in a hundred steps bring a linear schedule to 0."""
    cfg = toys.run_config(toys.dmd2_section(generator_update_interval=5), lr_scheduler="linear")
    roles = _linear_method(toys)._role_models
    method = DMD2Method(cfg=cfg, role_models=roles)
    scheduler = method._lr_scheduler_dict["student"]
    for _ in range(20):
        method._optimizer_dict["student"].step()
        scheduler.step()
    assert scheduler.get_last_lr() == [0.0]


def test_reusing_the_rollout_saves_student_calls(toys: ModuleType) -> None:
    """On an update step the critic learns from the student's samples, detached."""
    method = _linear_method(toys, dmd_denoising_steps=[1000], reuse_generator_rollout=True)
    losses, outputs, _ = method.single_train_step(toys.raw_batch(), 1)
    method.backward(losses, outputs)
    assert method.student.calls.count("conditional") == 1
    method.student.calls.clear()
    method.config = _linear_method(toys, dmd_denoising_steps=[1000]).config
    method.single_train_step(toys.raw_batch(), 1)
    assert method.student.calls.count("conditional") == 2


def test_guidance_of_one_needs_no_unconditional_prediction(toys: ModuleType) -> None:
    """With scale 1 the unconditional prediction has no weight, nor has the negative prompt."""
    method = _linear_method(toys, real_score_guidance_scale=1.0)
    method.single_train_step(toys.raw_batch(), 1)
    assert method.teacher.calls == ["conditional"]
    assert method.student.needs_negative is False
    method = _linear_method(toys)
    method.single_train_step(toys.raw_batch(), 1)
    assert method.teacher.calls == ["conditional", "unconditional"]
    assert method.student.needs_negative is True


def test_regions_nest_as_specified(toys: ModuleType) -> None:
    """An update step shows its rollouts, predictions and losses under their regions."""
    method = _linear_method(toys, dmd_denoising_steps=[1000])
    sink = RecordingSink()
    attach(sink)
    try:
        method.single_train_step(toys.raw_batch(), 1)
        method.optimizers_schedulers_step(1)
    finally:
        detach(sink)
    rollout = [
        "+dmd2_student_rollout",
        "+distillation_student_forward",
        "-distillation_student_forward",
        "-dmd2_student_rollout",
    ]
    teacher = ["+distillation_teacher_forward", "-distillation_teacher_forward"]
    loss = ["+distillation_loss", "-distillation_loss"]
    expected = [
        "+dmd2_generator_loss", *rollout, *teacher, *teacher, *loss, "-dmd2_generator_loss",
        "+dmd2_critic_loss", *rollout, *loss, "-dmd2_critic_loss",
        "+distillation_update", "-distillation_update",
    ]  # fmt: skip
    assert _events(sink) == expected


def _events(sink: RecordingSink) -> list[str]:
    signs = {"enter": "+", "exit": "-"}
    return [signs[event[0]] + event[1] for event in sink.events]


def test_the_same_seed_gives_the_same_losses_and_weights(toys: ModuleType) -> None:
    """Two runs of six steps agree in every bit."""
    runs = []
    for _ in range(2):
        method = _linear_method(toys, generator_update_interval=2)
        values = []
        for iteration in range(1, 7):
            losses, outputs, _ = method.single_train_step(toys.raw_batch(), iteration)
            method.backward(losses, outputs)
            method.optimizers_schedulers_step(iteration)
            method.optimizers_zero_grad(iteration)
            values += [loss.item() for loss in losses.values()]
        values += [p.item() for p in method.parameters()]
        runs.append(values)
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("role", "change"),
    [("teacher", "missing"), ("critic", "missing"), ("teacher", True), ("critic", False)],
)
def test_wrong_roles_are_named(toys: ModuleType, role: str, change: object) -> None:
    """A missing role, a trainable teacher and a frozen critic are errors that name the role."""
    roles = dict(_linear_method(toys)._role_models)
    if change == "missing":
        del roles[role]
    else:
        roles[role] = toys.ToyModel(toys.LinearNet(0.0, 0.0, 0.0), trainable=change)
    with pytest.raises(ConfigError, match=rf"models\.{role}"):
        DMD2Method(cfg=toys.run_config(toys.dmd2_section()), role_models=roles)


def test_text_only_data_needs_a_simulated_rollout(toys: ModuleType) -> None:
    """There are no latents to start from."""
    roles = _linear_method(toys)._role_models
    cfg = toys.run_config(toys.dmd2_section(rollout_mode="data"))
    cfg.training.data.preprocessed_data_type = "text_only"
    with pytest.raises(ConfigError, match=r"text_only.*simulate"):
        DMD2Method(cfg=cfg, role_models=roles)
