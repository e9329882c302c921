"""The typed training section: its defaults are the user contract."""

from __future__ import annotations

import dataclasses
from typing import get_type_hints

import pytest

from fastvideo.train.config import TrainingConfig
from fastvideo.train.typed_section import leaves

DEFAULTS = {
    "distributed.num_gpus": 1,
    "distributed.tp_size": 1,
    "distributed.sp_size": 1,
    "distributed.hsdp_replicate_dim": 1,
    "distributed.hsdp_shard_dim": -1,
    "distributed.pin_cpu_memory": False,
    "distributed.reduce_every_round": False,
    "data.data_path": "",
    "data.preprocessed_data_type": "t2v",
    "data.train_batch_size": 1,
    "data.dataloader_num_workers": 0,
    "data.training_cfg_rate": 0.0,
    "data.seed": 0,
    "data.num_height": 0,
    "data.num_width": 0,
    "data.num_latent_t": 0,
    "data.num_frames": 0,
    "optimizer.learning_rate": 0.0,
    "optimizer.betas": (0.9, 0.999),
    "optimizer.weight_decay": 0.0,
    "optimizer.lr_scheduler": "constant",
    "optimizer.lr_warmup_steps": 0,
    "optimizer.lr_num_cycles": 0,
    "optimizer.lr_power": 0.0,
    "optimizer.min_lr_ratio": 0.5,
    "loop.max_train_steps": 0,
    "loop.gradient_accumulation_steps": 1,
    "checkpoint.output_dir": "",
    "checkpoint.resume_from_checkpoint": "",
    "checkpoint.training_state_checkpointing_steps": 0,
    "checkpoint.checkpoints_total_limit": 0,
    "checkpoint.async_save": False,
    "checkpoint.save_on_sigterm": True,
    "checkpoint.sigterm_timeout_s": 300,
    "tracker.trackers": [],
    "tracker.entity": "",
    "tracker.project_name": "fastvideo",
    "tracker.run_name": "",
    "vsa.sparsity": 0.0,
    "vsa.cache_tile_buf": False,
    "model.weighting_scheme": "uniform",
    "model.logit_mean": 0.0,
    "model.logit_std": 1.0,
    "model.mode_scale": 1.0,
    "model.precondition_outputs": False,
    "model.moba_config": {},
    "model.enable_gradient_checkpointing_type": None,
    "model.enable_torch_compile": False,
    "model.torch_compile_kwargs": {},
    "performance.enabled": True,
    "performance.peak_tflops_per_gpu": None,
    "dit_precision": "fp32",
    "dit_compute_dtype": None,
    "model_path": "",
    "nonfinite_loss": "raise",
}


def _value(config: TrainingConfig, path: str) -> object:
    node: object = config
    for part in path.split("."):
        node = getattr(node, part)
    return node


def test_every_key_has_its_documented_default() -> None:
    """The dataclasses declare exactly the documented keys with the documented defaults."""
    config = TrainingConfig()
    paths = [
        leaf.path.removeprefix("training.") for leaf in leaves(TrainingConfig, where="training")
    ]
    assert {path: _value(config, path) for path in paths} == DEFAULTS


def test_sections_have_slots() -> None:
    """Assigning a misspelt key is an error instead of a new attribute."""
    config = TrainingConfig()
    with pytest.raises(AttributeError):
        config.optimizer.learning_rat = 1.0  # type: ignore[attr-defined]


def test_configs_share_no_mutable_defaults() -> None:
    """Changing one config leaves another alone."""
    first, second = TrainingConfig(), TrainingConfig()
    first.tracker.trackers.append("jsonl")
    first.data.seed = 7
    assert (second.tracker.trackers, second.data.seed) == ([], 0)


def test_vsa_keys_are_flattened() -> None:
    """The two VSA settings can be read under their flat names."""
    config = TrainingConfig()
    config.vsa.sparsity = 0.8
    config.vsa.cache_tile_buf = True
    assert (config.vsa_sparsity, config.vsa_cache_tile_buf) == (0.8, True)


def test_every_section_documents_its_keys() -> None:
    """Each dataclass names every field of it in its docstring."""
    hints = get_type_hints(TrainingConfig)
    sections = [hint for hint in hints.values() if dataclasses.is_dataclass(hint)]
    missing = [
        f"{section.__name__}.{field.name}"
        for section in sections
        for field in dataclasses.fields(section)
        if f"{field.name}:" not in (section.__doc__ or "")
    ]
    assert sections
    assert missing == []
