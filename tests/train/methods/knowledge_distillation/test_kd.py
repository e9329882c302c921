"""Knowledge distillation: the teacher's trajectories, the student's loss, and their errors."""

from __future__ import annotations

import gc
import logging
import weakref
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.errors import ConfigError, DataError
from fastvideo.profiler import attach, detach
from fastvideo.train.methods.knowledge_distillation import generation
from fastvideo.train.methods.knowledge_distillation.kd import KDMethod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

GRID = [1000.0, 750.0, 500.0, 250.0]


class Rows:
    """A data set of four rows, asked for one at a time; it counts how often."""

    def __init__(self, toys: ModuleType) -> None:
        self.raw = toys.raw_batch(batch=4)["vae_latent"]
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.asked.append(index)
        return {"vae_latent": self.raw[index : index + 1], "caption_text": [f"row {index}"]}


def _section(cache: Path, **changes: Any) -> dict[str, Any]:
    section = {
        "t_list": [999, 500, 0],
        "teacher_path_cache": str(cache),
        "teacher_inference_steps": 4,
        "teacher_guidance_scale": 3.0,
    }
    return {key: value for key, value in (section | changes).items() if value is not None}


def _method(
    toys: ModuleType,
    cache: Path,
    *,
    teacher: bool = True,
    models: dict[str, Any] | None = None,
    **changes: Any,
) -> KDMethod:
    student = toys.ToyModel(toys.LinearNet(0.1, 0.2, 0.0))
    rows = Rows(toys)
    student.init_preprocessors = lambda config: setattr(
        student, "dataloader", SimpleNamespace(dataset=rows)
    )
    roles = {"student": student}
    if teacher:
        roles["teacher"] = toys.ToyModel(toys.LinearNet(0.3, -0.2, 0.5), trainable=False)
    cfg = toys.run_config(_section(cache, **changes))
    cfg.models = {"teacher": models or {"init_from": "a teacher"}}
    return KDMethod(cfg=cfg, role_models=roles)


def _step_by_step(noise: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The teacher's path as it is written in the literature, in float64; LinearNet by hand."""
    sigmas = [1.0, 0.75, 0.5, 0.25, 0.0]
    x = noise.double()
    states = []
    for sigma, following in pairwise(sigmas):
        states.append(x)
        conditional = 0.3 * x - 0.2 + 0.5
        unconditional = 0.3 * x - 0.2
        v = unconditional + scale * (conditional - unconditional)
        clean = x - sigma * v
        epsilon = (x - (1 - sigma) * clean) / sigma
        x = (1 - following) * clean + following * epsilon
    return torch.cat(states), x[0]


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_teachers_trajectory_is_that_of_a_step_by_step_reference(
    toys: ModuleType, tmp_path: Path, scale: float
) -> None:
    """With guidance and without: every state, every timestep and the end."""
    method = _method(toys, tmp_path / "cache", teacher_guidance_scale=scale)
    method.on_train_start()
    ends = []
    for row in range(4):
        sample = torch.load(tmp_path / "cache" / "samples" / f"{row:08d}.pt", weights_only=True)
        noise = sample["trajectory_latents"][:1]
        states, end = _step_by_step(noise, scale)
        assert sample["trajectory_latents"].dtype == sample["real"].dtype == torch.bfloat16
        torch.testing.assert_close(
            sample["trajectory_latents"].double(), states, rtol=2**-7, atol=2**-7
        )
        torch.testing.assert_close(sample["real"].double(), end, rtol=2**-7, atol=2**-7)
        assert sample["trajectory_timesteps"].tolist() == GRID
        assert sample["caption"] == f"row {row}"
        ends.append(end)
    assert not torch.allclose(ends[0], ends[1])


def test_in_float32_the_trajectory_agrees_to_rounding(toys: ModuleType, tmp_path: Path) -> None:
    """Before it is stored, nothing but float32 is between it and the reference."""
    method = _method(toys, tmp_path)
    sample = method.make_trajectory(2)
    states, end = _step_by_step(sample["trajectory_latents"][:1], 3.0)
    torch.testing.assert_close(sample["trajectory_latents"].double(), states)
    torch.testing.assert_close(sample["real"].double(), end)


def test_noise_depends_on_the_row_and_on_nothing_else(toys: ModuleType, tmp_path: Path) -> None:
    """Whichever rank makes a trajectory, and in which order, it is the same one."""
    first, second = (_method(toys, tmp_path / name) for name in ("a", "b"))
    first.make_trajectory(0)
    sample, same = first.make_trajectory(3), second.make_trajectory(3)
    assert torch.equal(sample["trajectory_latents"], same["trajectory_latents"])
    other = second.make_trajectory(2)
    assert not torch.equal(sample["trajectory_latents"][0], other["trajectory_latents"][0])


def test_the_loss_follows_the_formula(toys: ModuleType, tmp_path: Path) -> None:
    """½·MSE(x̂₀, end) at the state of the step that was drawn; and its gradient."""
    method = _method(toys, tmp_path)
    method.on_train_start()
    batch = next(iter(method.student.dataloader))
    losses, outputs, metrics = method.single_train_step(batch, 1)
    method.backward(losses, outputs)
    index = metrics["kd_step_idx"]
    noisy, sigma = batch["trajectory_latents"][:, index], (1.0, 0.5)[int(index)]
    error = noisy - sigma * (0.1 * noisy + 0.2) - batch["real"]
    assert losses.keys() == {"total_loss", "kd_loss"}
    torch.testing.assert_close(losses["total_loss"].detach(), 0.5 * (error**2).mean())
    gradient = method.student.transformer.weight.grad
    torch.testing.assert_close(gradient, (-sigma * noisy * error).mean())


def test_every_step_of_the_student_is_drawn(toys: ModuleType, tmp_path: Path) -> None:
    """And each has its own state of the trajectory."""
    method = _method(toys, tmp_path)
    method.on_train_start()
    batch = next(iter(method.student.dataloader))
    assert batch["trajectory_timesteps"].tolist() == [[1000.0, 500.0]]
    drawn = {method.single_train_step(batch, step)[2]["kd_step_idx"] for step in range(20)}
    assert drawn == {0, 1}


def test_the_student_learns_the_ends_of_the_trajectories(toys: ModuleType, tmp_path: Path) -> None:
    """The loss falls to what rounding leaves: a linear student can copy a linear teacher."""
    method = _method(toys, tmp_path, t_list=[1000, 0])
    method.on_train_start()
    history = []
    for step in range(1, 201):
        for batch in method.student.dataloader:
            losses, outputs, _ = method.single_train_step(batch, step)
            method.backward(losses, outputs)
            method.optimizers_schedulers_step(step)
            method.optimizers_zero_grad(step)
            history.append(losses["total_loss"].item())
    assert history[-1] < 1e-3 * history[0]


def test_the_mapping_of_timesteps_is_logged(
    toys: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A person can see which states stand for the timesteps of the file."""
    caplog.set_level(logging.INFO, "fastvideo")
    _method(toys, tmp_path).on_train_start()
    assert "states of the teacher: 999 → 1000, 500 → 500" in caplog.text


def test_the_teacher_is_let_go(toys: ModuleType, tmp_path: Path) -> None:
    """Its memory is free once the trajectories are there."""
    method = _method(toys, tmp_path)
    assert method.teacher is not None
    teacher = weakref.ref(method.teacher.transformer)
    method.on_train_start()
    gc.collect()
    assert method.teacher is None
    assert teacher() is None
    assert list(method.role_modules) == ["student"]
    with pytest.raises(RuntimeError, match="let go"):
        method.make_trajectory(0)


def test_a_second_run_makes_nothing_and_needs_no_teacher(toys: ModuleType, tmp_path: Path) -> None:
    """It draws the same random numbers as the first one, too."""
    first = _method(toys, tmp_path)
    first.on_train_start()
    second = _method(toys, tmp_path, teacher=False)
    second.on_train_start()
    assert second._source.asked == []
    steps = [
        method.single_train_step(next(iter(method.student.dataloader)), 1)[0]["total_loss"].item()
        for method in (first, second)
    ]
    assert steps[0] == steps[1]


def test_an_interrupted_run_makes_what_is_missing_or_damaged(
    toys: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a file, and what a killed writer left, do not stay."""
    method = _method(toys, tmp_path)
    method.on_train_start()
    samples = tmp_path / "samples"
    whole = {path.name: path.read_bytes() for path in samples.iterdir()}
    (tmp_path / "COMPLETE").unlink()
    (samples / "00000001.pt").unlink()
    (samples / "00000002.pt").write_bytes(whole["00000002.pt"][:200])
    (samples / ".00000003.77.tmp").write_bytes(b"half")
    again = _method(toys, tmp_path)
    again.on_train_start()
    assert again._source.asked == [1, 2]
    assert "00000002.pt cannot be used" in caplog.text
    assert {path.name for path in samples.iterdir()} == set(whole)
    assert (tmp_path / "COMPLETE").read_text() == "4\n"


def test_a_rank_that_does_not_see_the_files_is_named(
    toys: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that nodes do not share is found before the first step."""
    method = _method(toys, tmp_path)
    monkeypatch.setattr(generation, "_VISIBLE_WITHIN_S", 0.0)
    monkeypatch.setattr(type(method.cache), "is_complete", lambda self, total: False)
    with pytest.raises(ConfigError, match=r": rank 0 cannot see all of .* all nodes share"):
        method.on_train_start()


def test_what_is_missing_without_a_teacher_is_an_error(toys: ModuleType, tmp_path: Path) -> None:
    """The message says how much, and what to add."""
    with pytest.raises(ConfigError, match=r"models\.teacher is missing.* lacks 4 of 4"):
        _method(toys, tmp_path, teacher=False)


def test_a_changed_byte_is_found_when_it_is_read(toys: ModuleType, tmp_path: Path) -> None:
    """A state with a flipped bit is no state of the teacher."""
    method = _method(toys, tmp_path)
    method.on_train_start()
    path = tmp_path / "samples" / "00000000.pt"
    sample = method.cache.read(0)
    wanted = sample["real"].contiguous().view(torch.uint8).numpy().tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(wanted) + 3] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"00000000\.pt cannot be used: its content is not what"):
        method.student.dataloader.dataset[0]


@pytest.mark.parametrize(
    ("changes", "models", "message"),
    [
        ({"teacher_inference_steps": 8}, None, "teacher_inference_steps was 4 and is 8"),
        ({}, {"init_from": "another"}, "teacher was 'a teacher' and is 'another'"),
        ({"teacher_guidance_scale": 1.0}, None, r"teacher_guidance_scale was 3\.0 and is 1\.0"),
    ],
)
def test_trajectories_of_another_run_are_an_error(
    toys: ModuleType, tmp_path: Path, changes: Any, models: Any, message: str
) -> None:
    """The message says what differs, and to delete them."""
    _method(toys, tmp_path).on_train_start()
    with pytest.raises(ConfigError, match=rf"{message}.*Delete the directory"):
        _method(toys, tmp_path, models=models, **changes)


def test_other_timesteps_can_use_the_same_trajectories(toys: ModuleType, tmp_path: Path) -> None:
    """Unless only the student's states were kept, which takes a part of the space."""
    _method(toys, tmp_path / "all").on_train_start()
    method = _method(toys, tmp_path / "all", t_list=[750, 250, 0])
    method.on_train_start()
    batch = next(iter(method.student.dataloader))
    assert batch["trajectory_timesteps"].tolist() == [[750.0, 250.0]]

    _method(toys, tmp_path / "few", cached_states="student").on_train_start()
    few = torch.load(tmp_path / "few" / "samples" / "00000000.pt", weights_only=True)
    everything = torch.load(tmp_path / "all" / "samples" / "00000000.pt", weights_only=True)
    assert few["trajectory_timesteps"].tolist() == [1000.0, 500.0]
    assert torch.equal(few["trajectory_latents"], everything["trajectory_latents"][[0, 2]])
    with pytest.raises(ConfigError, match="cached_timesteps"):
        _method(toys, tmp_path / "few", cached_states="student", t_list=[750, 250, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"t_list": None}, r"method\.t_list must be a list"),
        ({"t_list": [500, 999, 0]}, r"method\.t_list must be a list of descending"),
        ({"t_list": [999, 500]}, "ends in 0"),
        ({"t_list": [999, 500.5, 0]}, r"method\.t_list"),
        ({"t_list": [1001, 0]}, "at most 1000"),
        ({"student_sample_steps": 3}, r"student_sample_steps \+ 1 = 4 entries, got 3"),
        ({"teacher_path_cache": None}, r"method\.teacher_path_cache is None"),
        ({"t_list": [999, 624, 0]}, "timestep 624 has no state.*nearest one, 500"),
        ({"t_list": [1000, 999, 0]}, "belongs to another entry"),
        ({"cached_states": "some"}, r"method\.cached_states"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    toys: ModuleType, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Before anything is made."""
    section = _section(tmp_path, **changes)
    method = {key: value for key, value in changes.items() if value is None}
    with pytest.raises(ConfigError, match=message):
        _method(toys, tmp_path, **(section | method))


def test_upstreams_timesteps_fit_its_teacher(toys: ModuleType) -> None:
    """The list of the shipped file, 48 steps with shift 5: each entry is within 2 of a state."""
    from fastvideo.train.methods.knowledge_distillation.kd_config import nearest_steps  # noqa: PLC0415
    from fastvideo.train.methods.ode import sigma_grid  # noqa: PLC0415

    grid = [1000 * sigma for sigma in sigma_grid(48, 5.0)]
    positions = nearest_steps([999, 937, 833, 624], grid)
    assert positions == (0, 12, 24, 36)


def test_roles_are_checked(toys: ModuleType, tmp_path: Path) -> None:
    """A frozen student or a trainable teacher is a mistake."""
    net = toys.LinearNet(0.0, 0.0, 0.0)
    cfg = toys.run_config(_section(tmp_path))
    with pytest.raises(ConfigError, match=r"models\.student\.trainable"):
        KDMethod(cfg=cfg, role_models={"student": toys.ToyModel(net, trainable=False)})
    roles = {"student": toys.ToyModel(net), "teacher": toys.ToyModel(net)}
    with pytest.raises(ConfigError, match=r"models\.teacher\.trainable must be false"):
        KDMethod(cfg=cfg, role_models=roles)


class _Regions:
    """Notes which regions are entered."""

    def __init__(self) -> None:
        self.entered: list[str] = []

    def wants(self, region: Any) -> bool:
        return str(region.short_name).startswith("distillation_")

    def enter(self, region: Any, annotation: Any, attributes: Any) -> None:
        self.entered.append(region.short_name)

    def exit(self, token: Any, error: Any) -> None: ...


@pytest.fixture
def regions() -> Iterator[_Regions]:
    """A sink for the regions of distillation."""
    sink = _Regions()
    attach(sink)
    yield sink
    detach(sink)


def test_regions_of_distillation_are_entered(
    toys: ModuleType, tmp_path: Path, regions: _Regions
) -> None:
    """Teacher: two predictions a step with guidance. Student, loss and update: once each."""
    method = _method(toys, tmp_path)
    method.on_train_start()
    assert regions.entered == ["distillation_teacher_forward"] * (4 * 4 * 2)
    regions.entered.clear()
    losses, outputs, _ = method.single_train_step(next(iter(method.student.dataloader)), 1)
    method.backward(losses, outputs)
    method.optimizers_schedulers_step(1)
    assert regions.entered == [
        "distillation_student_forward",
        "distillation_loss",
        "distillation_update",
    ]
