"""DMD2 on the tiny Wan model: what only a real transformer can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from fastvideo.train.methods.distribution_matching.dmd2 import DMD2Method


@pytest.fixture(scope="module")
def data(tiny_runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set for the tiny model."""
    written: Path = tiny_runs.write_dataset(tmp_path_factory.mktemp("data"))
    return written


def _method(tiny_runs: ModuleType, data: Path, dtype: str = "fp32") -> DMD2Method:
    config = tiny_runs.training_config(data)
    config.dit_compute_dtype = dtype
    method: DMD2Method = tiny_runs.dmd2(config)
    method.on_train_start()
    return method


def test_the_teacher_can_predict_both_in_one_call(tiny_runs: ModuleType, data: Path) -> None:
    """batch_teacher_guidance changes the number of calls and nothing else."""
    method = _method(tiny_runs, data)
    calls = []
    method.teacher.transformer.register_forward_hook(lambda *_: calls.append(1))
    raw = next(iter(method.student.dataloader))
    batch = method.student.prepare_batch(raw, generator=method.generator)
    args = (batch.latents, torch.tensor([600.0]), batch)
    with torch.no_grad():
        apart = method._teacher_x0(*args)
        assert len(calls) == 2
        method.method_config["batch_teacher_guidance"] = True
        method.config = type(method.config).from_mapping(
            method.method_config, num_train_timesteps=1000
        )
        together = method._teacher_x0(*args)
    assert len(calls) == 3
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_six_steps_are_finite_and_move_both_roles(
    tiny_runs: ModuleType, data: Path, dtype: str
) -> None:
    """Student updates come at steps 2, 4 and 6; the teacher keeps its weights."""
    method = _method(tiny_runs, data, dtype)
    weights = {role: _flat(method, role) for role in ("student", "critic", "teacher")}
    stream = tiny_runs._endless(method.student.dataloader)
    updates, moved = [], []
    for step in range(1, 7):
        before = _flat(method, "student")
        losses, outputs, metrics = method.single_train_step(next(stream), step)
        method.backward(losses, outputs)
        method.optimizers_schedulers_step(step)
        method.optimizers_zero_grad(step)
        assert all(torch.isfinite(loss) for loss in losses.values())
        assert (losses["generator_loss"].item() > 0) is bool(metrics["update_student"])
        updates.append(metrics["update_student"])
        moved.append(not torch.equal(before, _flat(method, "student")))
    assert updates == [0, 1, 0, 1, 0, 1]
    assert moved == [bool(update) for update in updates]
    assert not torch.equal(weights["critic"], _flat(method, "critic"))
    assert torch.equal(weights["teacher"], _flat(method, "teacher"))


def _flat(method: DMD2Method, role: str) -> torch.Tensor:
    parameters = method._role_models[role].transformer.parameters()
    return torch.cat([p.detach().flatten() for p in parameters])
