"""The Wan plugin on the tiny model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.dataset.encoders import load_transformer, load_vae, vae_latent_stats
from fastvideo.errors import ConfigError, DataError
from fastvideo.train.config import PipelineSettings
from fastvideo.train.models.wan import WanModel

if TYPE_CHECKING:
    from pathlib import Path

    from fastvideo.train.config import TrainingConfig

SEED = 3


def _model(config: TrainingConfig, model_dir: Path, **options: Any) -> WanModel:
    return WanModel(training_config=config, init_from=str(model_dir), **options)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


# -- Building --------------------------------------------------------------------------------------


def test_a_trainable_role_and_a_frozen_one(config: TrainingConfig, model_dir: Path) -> None:
    """Frozen roles are in eval mode and have no trainable parameter and no recomputation."""
    config.model.enable_gradient_checkpointing_type = "full"
    student = _model(config, model_dir)
    teacher = _model(config, model_dir, trainable=False)
    assert student.trainable
    assert student.transformer.training
    assert student.transformer.gradient_checkpointing
    assert all(
        p.requires_grad and p.dtype == torch.float32 for p in student.transformer.parameters()
    )
    assert not teacher.trainable
    assert not teacher.transformer.training
    assert not teacher.transformer.gradient_checkpointing
    assert not any(p.requires_grad for p in teacher.transformer.parameters())


def test_the_role_decides_on_recomputation_before_the_run(
    config: TrainingConfig, model_dir: Path
) -> None:
    """A wrong name is an error, wherever it stands."""
    model = _model(config, model_dir, enable_gradient_checkpointing_type="ops")
    assert model.transformer.gradient_checkpointing
    with pytest.raises(ConfigError, match="enable_gradient_checkpointing_type"):
        _model(config, model_dir, enable_gradient_checkpointing_type="some")


def test_weights_can_come_from_another_file(
    config: TrainingConfig, model_dir: Path, tmp_path: Path
) -> None:
    """An override replaces the weights, unless custom weights are disabled for the role."""
    other = load_transformer(model_dir)
    with torch.no_grad():
        other.proj_out.bias.fill_(7.0)
    other.save_pretrained(tmp_path)
    override = str(tmp_path / "diffusion_pytorch_model.safetensors")
    changed = _model(config, model_dir, transformer_override_safetensor=override)
    assert changed.transformer.proj_out.bias.eq(7.0).all()
    kept = _model(
        config,
        model_dir,
        transformer_override_safetensor=override,
        disable_custom_init_weights=True,
    )
    assert not kept.transformer.proj_out.bias.eq(7.0).any()


@pytest.mark.parametrize(
    ("own", "pipeline", "shift", "timestep_shift"),
    [(None, None, 3.0, 3.0), (5.0, None, 5.0, 5.0), (None, 8.0, 8.0, 8.0), (5.0, 8.0, 5.0, 8.0)],
)
def test_flow_shifts(
    config: TrainingConfig, model_dir: Path, data_set: Path,
    own: float | None, pipeline: float | None, shift: float, timestep_shift: float,
) -> None:  # fmt: skip
    """The role's shift makes its grid; the pipeline's shifts the student's score timesteps."""
    config.data.data_path = str(data_set)
    if pipeline is not None:
        config.pipeline_config = PipelineSettings(flow_shift=pipeline)
    model = _model(config, model_dir, flow_shift=own)
    model.init_preprocessors(config)
    assert model.noise_scheduler.shift == shift
    assert model.timestep_shift == timestep_shift
    assert model.start_step == 0
    assert next(iter(model.dataloader))["vae_latent"].shape == (1, 16, 3, 8, 8)


def test_sparse_attention_is_said_to_be_missing(
    config: TrainingConfig, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run file that asks for it runs, densely, with a warning."""
    config.vsa.sparsity = 0.5
    _model(config, model_dir)
    assert "training.vsa.sparsity is set" in caplog.text


def test_attention_backends_have_fastvideos_names(config: TrainingConfig, model_dir: Path) -> None:
    """An implementation that is unknown is an error that lists the names."""
    model = _model(config, model_dir, attention_backend="TORCH_SDPA")
    assert model.attention_backend_name == "TORCH_SDPA"
    with pytest.raises(ConfigError, match=r"'TORCH_SDPB' cannot be used.*Did you mean"):
        _model(config, model_dir, attention_backend="TORCH_SDPB")


# -- Batches ---------------------------------------------------------------------------------------


def test_a_prepared_batch(config: TrainingConfig, model_dir: Path, raw: dict[str, Any]) -> None:
    """Latents are cut and normalised; noise, then timesteps are drawn; layouts are as specified."""
    model = _model(config, model_dir)
    batch = model.prepare_batch(raw, generator=_generator())

    mean, std, channels = vae_latent_stats(model_dir)
    stats = (mean.reshape(1, -1, 1, 1, 1), std.reshape(1, -1, 1, 1, 1))
    clean = (raw["vae_latent"][:, :, :3] - stats[0]) / stats[1]
    draws = _generator()
    noise = torch.randn((2, channels, 3, 8, 8), generator=draws)
    index = (torch.rand(2, generator=draws) * 1000).long()
    timesteps = model.noise_scheduler.timesteps[index]
    sigmas = (timesteps / 1000).reshape(2, 1, 1, 1, 1)

    torch.testing.assert_close(batch.latents, clean.permute(0, 2, 1, 3, 4))
    assert torch.equal(batch.noise, noise)
    assert torch.equal(batch.timesteps, timesteps)
    assert torch.equal(batch.sigmas, sigmas)
    torch.testing.assert_close(batch.noisy_model_input, (1 - sigmas) * clean + sigmas * noise)
    assert batch.raw_latent_shape == (2, 16, 3, 8, 8)
    assert torch.equal(batch.encoder_hidden_states, raw["text_embedding"])
    assert torch.equal(batch.encoder_attention_mask, raw["text_attention_mask"])
    assert batch.conditional_dict["encoder_hidden_states"] is batch.encoder_hidden_states
    assert batch.unconditional_dict is None
    assert batch.infos == raw["info_list"]


def test_zero_latents_have_the_configured_size_and_the_same_draws(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """A text-only batch will do, and the generator ends in the same state as with data."""
    model = _model(config, model_dir)
    generators = _generator(), _generator()
    with_data = model.prepare_batch(raw, generator=generators[0])
    del raw["vae_latent"]
    zeros = model.prepare_batch(raw, generator=generators[1], latents_source="zeros")
    assert zeros.latents.shape == (2, 3, 16, 8, 8)
    assert not zeros.latents.any()
    assert torch.equal(zeros.noise, with_data.noise)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


def test_what_is_missing_from_a_batch_is_named(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """Latents, text, the size of zeros, or the source."""
    model = _model(config, model_dir)
    with pytest.raises(ValueError, match="latents_source is 'noise'"):
        model.prepare_batch(raw, generator=_generator(), latents_source="noise")  # type: ignore[arg-type]
    empty = {**raw, "vae_latent": torch.empty(0)}
    with pytest.raises(ValueError, match="vae_latent not found"):
        model.prepare_batch(empty, generator=_generator())
    with pytest.raises(ValueError, match="text_embedding not found"):
        model.prepare_batch({"vae_latent": raw["vae_latent"]}, generator=_generator())
    config.data.num_height = 0
    with pytest.raises(ConfigError, match=r"training\.data\.num_height must be set"):
        model.prepare_batch(raw, generator=_generator(), latents_source="zeros")


def test_shapes_of_another_model_are_refused(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """Before torch fails somewhere inside of the model."""
    model = _model(config, model_dir)
    latents = {**raw, "vae_latent": raw["vae_latent"][:, :12]}
    with pytest.raises(DataError, match=r"vae_latent: a row has the shape \[12, 4, 8, 8\]"):
        model.prepare_batch(latents, generator=_generator())
    text = {**raw, "text_embedding": raw["text_embedding"].repeat(1, 1, 2)}
    with pytest.raises(DataError, match=r"text_embedding: a row has the shape \[6, 64\]"):
        model.prepare_batch(text, generator=_generator())


def test_the_negative_prompt_is_expanded_to_the_batch(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """Only a method that asks for it pays for it."""
    model = _model(config, model_dir, negative_prompt="gray")
    model.on_train_start()
    assert model.prepare_batch(raw, generator=_generator()).unconditional_dict is None
    model.set_requires_negative_conditioning(True)
    model.on_train_start()
    negative = model.prepare_batch(raw, generator=_generator()).unconditional_dict
    assert negative is not None
    assert negative["encoder_hidden_states"].shape == (2, 512, 32)
    assert torch.equal(*negative["encoder_hidden_states"].unbind(0))


def test_weighted_timesteps_reach_the_batch(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """A logit-normal density far to one side gives the grid's last points only."""
    config.model.weighting_scheme, config.model.logit_mean = "logit_normal", 20.0
    batch = _model(config, model_dir).prepare_batch(raw, generator=_generator())
    assert (batch.timesteps < 10).all()


# -- Predictions -----------------------------------------------------------------------------------


def test_the_velocity_is_that_of_the_transformer(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """Layouts are converted and nothing is scaled; x₀ follows by the flow's algebra."""
    model = _model(config, model_dir, trainable=False)
    batch = model.prepare_batch(raw, generator=_generator())
    timestep = torch.tensor([300.0, 700.0])
    velocity = model.predict_noise(batch.latents, timestep, batch, conditional=True)
    direct = load_transformer(model_dir)(
        batch.latents.permute(0, 2, 1, 3, 4), timestep, raw["text_embedding"], return_dict=False
    )[0]
    torch.testing.assert_close(velocity, direct.permute(0, 2, 1, 3, 4))
    clean = model.predict_x0(batch.latents, timestep, batch, conditional=True)
    sigma = torch.tensor([0.3, 0.7]).reshape(2, 1, 1, 1, 1)
    torch.testing.assert_close(clean, batch.latents - sigma * velocity)


def test_all_shapes_of_a_timestep_mean_the_same(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """One, per sample, per frame and flattened; frames may also differ."""
    model = _model(config, model_dir, trainable=False)
    batch = model.prepare_batch(raw, generator=_generator())

    def predict(timestep: torch.Tensor) -> torch.Tensor:
        return model.predict_noise(batch.latents, timestep, batch, conditional=True)

    expected = predict(torch.tensor([400.0]))
    for shape in ((), (2,), (2, 3), (6,)):
        torch.testing.assert_close(predict(torch.full(shape, 400.0)), expected)
    by_frame = predict(torch.tensor([[400.0, 400.0, 900.0]] * 2))
    assert not torch.allclose(by_frame[:, 2], expected[:, 2], atol=1e-4)
    with pytest.raises(ValueError, match="timestep has shape"):
        predict(torch.full((3,), 400.0))


def test_unconditional_predictions_follow_the_policy(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """The negative prompt, zeros and the prompt give three different velocities."""
    model = _model(config, model_dir, trainable=False)
    model.set_requires_negative_conditioning(True)
    batch = model.prepare_batch(raw, generator=_generator())
    timestep = torch.tensor([500.0])

    def predict(**options: Any) -> torch.Tensor:
        return model.predict_noise(batch.latents, timestep, batch, **options)

    prompt = predict(conditional=True)
    negative = predict(conditional=False)
    zero = predict(conditional=False, cfg_uncond={"text": "zero"})
    keep = predict(conditional=False, cfg_uncond={"text": "keep"})
    assert torch.equal(keep, prompt)
    assert not torch.allclose(negative, prompt, atol=1e-4)
    assert not torch.allclose(zero, negative, atol=1e-5)


def test_sparse_attention_is_dense_here_and_other_kinds_are_errors(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """Methods may ask for `vsa`, as FastVideo's do."""
    model = _model(config, model_dir, trainable=False)
    batch = model.prepare_batch(raw, generator=_generator())
    args = (batch.latents, torch.tensor([500.0]), batch)
    dense = model.predict_noise(*args, conditional=True, attn_kind="dense")
    assert torch.equal(model.predict_noise(*args, conditional=True, attn_kind="vsa"), dense)
    with pytest.raises(ValueError, match="attn_kind is 'moba'"):
        model.predict_noise(*args, conditional=True, attn_kind="moba")  # type: ignore[arg-type]


def test_computing_in_bf16_returns_float32_and_trains(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """Weights and gradients stay float32; the velocity differs by rounding only."""
    exact = _model(config, model_dir)
    config.dit_compute_dtype = "bf16"
    half = _model(config, model_dir)
    batch = exact.prepare_batch(raw, generator=_generator())
    args = (batch.latents, torch.tensor([500.0]), batch)
    expected = exact.predict_noise(*args, conditional=True)
    velocity = half.predict_noise(*args, conditional=True)
    velocity.square().mean().backward()
    assert velocity.dtype == torch.float32
    assert not torch.equal(velocity, expected)
    torch.testing.assert_close(velocity, expected, atol=0.1, rtol=0.1)
    assert all(p.grad.dtype == torch.float32 for p in half.transformer.parameters())


def test_decoding_undoes_the_normalisation(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """The VAE gets raw latents, and the video is in [0, 1]."""
    model = _model(config, model_dir, trainable=False)
    batch = model.prepare_batch(raw, generator=_generator())
    video = model.decode_latents(batch.latents)
    vae = load_vae(model_dir)
    with torch.no_grad():
        expected = vae.decode(raw["vae_latent"][:, :, :3], return_dict=False)[0]
    assert video.shape == (2, 3, 9, 64, 64)
    torch.testing.assert_close(video, (expected / 2 + 0.5).clamp(0, 1))


def test_sizes_that_are_not_those_of_the_data_are_said_once(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The latents are used as they are, and one warning names both sizes."""
    config.data.num_latent_t, config.data.num_height = 5, 480
    model = _model(config, model_dir)
    for _ in range(2):
        batch = model.prepare_batch(raw, generator=_generator())
    assert batch.latents.shape[1] == 4
    said = "num_height 480 (the data has 64), num_latent_t 5 (the data has 4)"
    assert caplog.text.count(said) == 1
