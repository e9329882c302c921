"""DiffusionNFT: it raises a reward, by the formulas; what it draws, keeps and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from fastvideo import observability
from fastvideo.distributed.collective_wait import CollectiveWait, set_collective_wait
from fastvideo.errors import ConfigError
from fastvideo.observability import TelemetryConfig
from fastvideo.profiler import RecordingSink, attach, detach, profiler_region
from fastvideo.train.methods.rl.diffusion_nft import DiffusionNFTMethod
from fastvideo.train.methods.rl.policy import (
    Velocities,
    blend_weights,
    copy_weights,
    optimality,
    policy_loss,
    prompt_advantages,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType


class Brightness:
    """Scores how bright a video is; remembers what it was shown."""

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain
        self.prompts: list[str] = []
        self.sizes: list[int] = []

    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        self.prompts += prompts
        self.sizes.append(len(videos))
        return self.gain * videos.flatten(1).mean(dim=1)


class NotAReward:
    """Has no score()."""


class NaNReward:
    """Scores nothing."""

    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        return videos.flatten(1).mean(dim=1) * float("nan")


class WrongShape:
    """Scores every frame."""

    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        return videos.mean(dim=(1, 3, 4))


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this file's rewards targets, though test folders are no packages."""
    import sys  # noqa: PLC0415

    module = type(sys)(__name__.rpartition(".")[2])
    for reward in (Brightness, NotAReward, NaNReward, WrongShape):
        setattr(module, reward.__name__, reward)
    monkeypatch.setitem(sys.modules, "nft_rewards", module)


def _section(**changes: Any) -> dict[str, Any]:
    section = {
        "sampling_steps": 4,
        "samples_per_prompt": 4,
        "kl_beta": 0.0,
        "rewards": {"bright": {"_target_": "nft_rewards.Brightness"}},
    }
    return section | changes


def _roles(toys: ModuleType, names: Sequence[str] = ("student", "old")) -> dict[str, Any]:
    return {
        name: toys.ToyModel(toys.LinearNet(0.9, -0.4, 0.0), trainable=name == "student")
        for name in names
    }


def _method(toys: ModuleType, roles: Any = None, **changes: Any) -> DiffusionNFTMethod:
    cfg = toys.run_config(_section(**changes), learning_rate=3e-2, betas=(0.9, 0.99))
    method = DiffusionNFTMethod(cfg=cfg, role_models=roles or _roles(toys))
    method.on_train_start()
    return method


def _stream(toys: ModuleType, batch: int = 4) -> Iterator[dict[str, Tensor]]:
    while True:
        yield toys.raw_batch(batch=batch)


def test_a_simple_reward_rises(toys: ModuleType) -> None:
    """Videos get brighter, from samples and scores alone."""
    method = _method(toys)
    stream = _stream(toys)
    history = [method.managed_train_step(stream, step)[2]["reward/avg"] for step in range(1, 41)]
    assert history[0] < 0.45
    assert history[-1] > 0.7
    assert sum(history[20:]) > sum(history[:20]) + 3


def test_a_reward_of_the_opposite_sign_falls(toys: ModuleType) -> None:
    """What rises is the reward and not a habit of the optimizer."""
    rewards = {"dark": {"_target_": "nft_rewards.Brightness", "gain": -1.0}}
    method = _method(toys, rewards=rewards)
    stream = _stream(toys)
    history = [method.managed_train_step(stream, step)[2]["reward/dark"] for step in range(1, 41)]
    assert history[-1] > history[0] + 0.15


def test_a_second_run_is_identical(toys: ModuleType) -> None:
    """Every loss and metric agrees in every bit."""
    runs = []
    for _ in range(2):
        method, stream = _method(toys, ema_decay=0.9), _stream(toys)
        runs.append([_numbers(method.managed_train_step(stream, step)) for step in range(1, 4)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def _numbers(result: Any) -> dict[str, float]:
    losses, _, metrics = result
    return {name: float(value) for name, value in (losses | metrics).items()}


def test_losses_and_metrics_have_their_names(toys: ModuleType) -> None:
    """With a reference there is a distance to it, 0 as long as nothing has moved."""
    method = _method(toys, _roles(toys, ("student", "old", "reference")), kl_beta=0.5)
    losses, outputs, metrics = method.managed_train_step(_stream(toys), 1)
    assert list(losses) == ["total_loss", "policy_loss", "kl_loss"]
    assert outputs == {}
    assert sorted(metrics) == [
        "grad_norm/student",
        "old_decay",
        "reward/avg",
        "reward/bright",
        "reward_std",
    ]
    assert losses["kl_loss"] == 0
    assert method.managed_train_step(_stream(toys), 2)[0]["kl_loss"] > 0


def test_weights_and_batches_of_decoding(toys: ModuleType) -> None:
    """The mean is weighted; a reward sees as many videos as may be decoded at once."""
    rewards = {
        "one": {"_target_": "nft_rewards.Brightness"},
        "ten": {"_target_": "nft_rewards.Brightness", "gain": 10.0, "weight": 3},
    }
    method = _method(toys, rewards=rewards, decode_batch_size=3, num_batches_per_epoch=2)
    metrics = method.managed_train_step(_stream(toys), 1)[2]
    assert metrics["reward/ten"] == pytest.approx(10 * metrics["reward/one"])
    assert metrics["reward/avg"] == pytest.approx(31 / 4 * metrics["reward/one"])
    seen = method.rewards.rewards["one"]
    assert seen.sizes == [3, 1] * 4 * 2
    assert set(seen.prompts) == {f"batch {b}, row {r}" for b in (0, 1) for r in range(4)}


def test_advantages_compare_videos_of_one_prompt() -> None:
    """By mean and deviation of their own prompt; a prompt of equal rewards says nothing."""
    rewards = torch.tensor([1.0, 10.0, 3.0, 10.0, 5.0])
    advantages = prompt_advantages(rewards, ["a", "b", "a", "b", "a"])
    deviation = torch.tensor([1.0, 3.0, 5.0]).std(unbiased=False) + 1e-4
    expected = torch.tensor([-2.0, 0.0, 0.0, 0.0, 2.0]) / deviation
    torch.testing.assert_close(advantages, expected)
    good = optimality(torch.tensor([-9.0, -5.0, 0.0, 2.5, 9.0]), 5.0)
    assert good.tolist() == [0.0, 0.0, 0.5, 0.75, 1.0]


def test_the_policy_loss_follows_the_formula() -> None:
    """Against one sample worked out in float64, and only the student gets a gradient."""
    draws = torch.Generator().manual_seed(0)
    noisy, clean, student, old = torch.randn((4, 2, 3, 2, 2, 2), generator=draws)
    student.requires_grad_()
    sigma = torch.tensor([0.5, 0.8]).reshape(-1, 1, 1, 1, 1)
    good, beta = torch.tensor([0.9, 0.2]), 0.6
    loss = policy_loss(Velocities(student, old), noisy, clean, sigma, good, beta=beta)
    loss.sum().backward()
    for i, (r, s) in enumerate(((0.9, 0.5), (0.2, 0.8))):
        x, x0, vs, vo = (t[i].detach().double() for t in (noisy, clean, student, old))
        plus = x - s * (beta * vs + (1 - beta) * vo) - x0
        minus = x - s * ((1 + beta) * vo - beta * vs) - x0
        terms = [(error**2).mean() / error.abs().mean() for error in (plus, minus)]
        expected = (r * terms[0] + (1 - r) * terms[1]) / beta
        torch.testing.assert_close(loss[i].detach().double(), expected, rtol=1e-5, atol=1e-6)
        towards = [-s * beta * plus / plus.abs().mean(), s * beta * minus / minus.abs().mean()]
        gradient = 2 / plus.numel() * (r * towards[0] + (1 - r) * towards[1]) / beta
        assert student.grad is not None
        torch.testing.assert_close(student.grad[i].double(), gradient, rtol=1e-4, atol=1e-6)


def test_the_old_policy_starts_as_the_student_and_follows(toys: ModuleType) -> None:
    """It keeps a part of itself that grows with the steps, up to a bound."""
    roles = _roles(toys)
    with torch.no_grad():
        roles["old"].transformer.weight.fill_(7.0)
    method = _method(toys, roles, old_decay_rate=0.3, old_decay_max=0.5, ema_decay=0.5)
    old, student = method.old.transformer.weight, method.student.transformer.weight
    assert torch.equal(old, student)
    average = student.detach().clone()
    stream = _stream(toys)
    for step, decay in ((1, 0.3), (2, 0.5), (3, 0.5)):
        before = old.detach().clone()
        metrics = method.managed_train_step(stream, step)[2]
        assert metrics["old_decay"] == decay
        torch.testing.assert_close(old, decay * before + (1 - decay) * student.detach())
        average = 0.5 * average + 0.5 * student.detach()
        assert method.student_ema is not None
        torch.testing.assert_close(method.student_ema.shadow["weight"], average)
    assert not old.requires_grad


def test_inner_epochs_are_updates(toys: ModuleType) -> None:
    """Each clips and steps by itself, with other noise; the schedule counts them."""
    method = _method(toys, num_inner_epochs=3, max_grad_norm=1e-3)
    method.managed_train_step(_stream(toys), 1)
    optimizer = method.get_optimizers(1)[0]
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}
    assert method.get_lr_schedulers(1)[0].last_epoch == 3
    assert method.student.transformer.weight.grad is None


def test_a_checkpoint_has_the_old_policy_and_the_average(toys: ModuleType) -> None:
    """Besides what every method keeps; the reference never changes and is not kept."""
    method = _method(toys, _roles(toys, ("student", "old", "reference")), ema_decay=0.5, kl_beta=1)
    names = list(method.checkpoint_state())
    assert names[:4] == [
        "roles.student.transformer",
        "optimizers.student",
        "schedulers.student",
        "roles.old.transformer",
    ]
    assert names[4:] == ["ema.student.weight", "ema.student.bias", "ema.student.prompt"]


def test_regions_come_one_after_the_other(toys: ModuleType) -> None:
    """Prompts and rollouts of each batch, rewards of each repeat, updates of each inner epoch."""
    method = _method(
        toys,
        num_batches_per_epoch=2,
        samples_per_prompt=2,
        num_inner_epochs=2,
        decode_batch_size=2,
    )
    sink = RecordingSink()
    attach(sink)
    try:
        method.managed_train_step(_stream(toys), 1)
    finally:
        detach(sink)

    def region(name: str, *inside: str) -> list[str]:
        return [f"+{name}", *inside, f"-{name}"]

    decoding = region("nft_decoding")
    assert [{"enter": "+", "exit": "-"}[event[0]] + event[1] for event in sink.events] == [
        *(region("nft_prompts") + region("nft_rollout")) * 2,
        *region("nft_reward", *decoding, *decoding) * 4,
        *region("nft_advantages"),
        *region("nft_update") * 2,
        *region("nft_old_policy"),
    ]


def test_regions_and_the_rest_are_the_step(toys: ModuleType) -> None:
    """What lies in no region of the step is its unattributed rest."""
    method, stream = _method(toys), _stream(toys)
    config = TelemetryConfig.from_sources({"FASTVIDEO_METRICS": "0"})
    telemetry = observability.start(config)
    try:
        for step in range(1, 4):
            with profiler_region("training_train_one_step", step=step):
                method.managed_train_step(stream, step)
        served = {snapshot.family.name: snapshot for snapshot in telemetry.instruments.snapshot()}
    finally:
        telemetry.shutdown()
    regions = served["fastvideo_region_duration_seconds"].series
    (steps,) = served["fastvideo_training_step_duration_seconds"].series.values()
    (rest,) = served["fastvideo_training_unattributed_seconds_total"].series.values()
    parts = ("prompts", "rollout", "reward", "advantages", "update", "old_policy")
    inside = [regions[f"nft_{part}",] for part in parts]
    assert sum(value.total for value in inside) + rest == pytest.approx(steps.total, rel=1e-6)
    assert [value.count for value in inside] == [3, 3, 12, 3, 3, 3]


def test_the_exchange_of_rewards_is_time_in_a_collective(toys: ModuleType) -> None:
    """A rank that scores faster than the others waits there, which is no work of its own."""
    waits: list[str] = []
    set_collective_wait(CollectiveWait(lambda name, _seconds: waits.append(name)))
    try:
        _method(toys).managed_train_step(_stream(toys), 1)
    finally:
        set_collective_wait(None)
    assert waits.count("rewards") == 1


def test_the_trainers_own_step_is_refused(toys: ModuleType) -> None:
    """The method says which one to call."""
    method = _method(toys)
    assert method.manages_optimization()
    with pytest.raises(RuntimeError, match="call managed_train_step"):
        method.single_train_step({}, 1)


def test_scores_that_cannot_be_used_are_named(toys: ModuleType) -> None:
    """NaN, and one score for each frame."""
    for name, message in (
        ("NaNReward", r"method\.rewards\.odd returned a score that is not finite"),
        ("WrongShape", r"method\.rewards\.odd returned scores of shape \[1, 3\] for 1 videos"),
    ):
        method = _method(toys, rewards={"odd": {"_target_": f"nft_rewards.{name}"}})
        with pytest.raises(ValueError, match=message):
            method.managed_train_step(_stream(toys), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples_per_prompt": 1}, r"method\.samples_per_prompt is 1; it must be at least 2"),
        ({"timestep_fraction": 0}, r"method\.timestep_fraction"),
        ({"beta": 0}, r"method\.beta is 0\.0; it must be above 0"),
        ({"old_decay_max": 1.0}, r"method\.old_decay_max"),
        ({"ema_decay": 1.0}, r"method\.ema_decay"),
        ({"rewards": {}}, r"method\.rewards must name at least one reward"),
        ({"rewards": {"a": {"_target_": "nft_rewards.Brightness", "weight": 0}}}, "weight above 0"),
        ({"rewards": {"a": {}}}, r"method\.rewards\.a: _target_ is missing"),
        ({"rewards": {"avg": {"_target_": "x.y"}}}, "the name 'avg' is taken"),
        ({"rewards": {"a": {"_target_": "nft_rewards.NotAReward"}}}, r"which has no score\(\)"),
        ({"kl_beta": 0.1}, r"models\.reference is missing.*method\.kl_beta to 0"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    toys: ModuleType, changes: dict[str, Any], message: str
) -> None:
    """Before anything is sampled."""
    with pytest.raises(ConfigError, match=message):
        _method(toys, **changes)


def test_roles_are_checked(toys: ModuleType) -> None:
    """Each has to be there, and only the student is trained."""
    cfg = toys.run_config(_section())
    roles = _roles(toys)
    with pytest.raises(ConfigError, match=r"models\.old is missing"):
        DiffusionNFTMethod(cfg=cfg, role_models={"student": roles["student"]})
    roles["old"]._trainable = True
    with pytest.raises(ConfigError, match=r"models\.old\.trainable must be false"):
        DiffusionNFTMethod(cfg=cfg, role_models=roles)


def test_weights_are_copied_and_blended() -> None:
    """Exactly for a decay of 0; other architectures are an error that says where."""
    target, source = nn.Linear(2, 2), nn.Linear(2, 2)
    copy_weights(target, source, names=("a", "b"))
    assert torch.equal(target.weight, source.weight)
    before = target.weight.detach().clone()
    with torch.no_grad():
        source.weight.add_(1.0)
    blend_weights(target, source, decay=0.75)
    torch.testing.assert_close(target.weight.detach(), before + 0.25)
    with pytest.raises(ConfigError, match=r"a and b must be the same architecture.*'weight'"):
        copy_weights(target, nn.Linear(3, 2), names=("a", "b"))
