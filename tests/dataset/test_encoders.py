"""Loading a Wan model's parts, and encoding text and pixels."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

from fastvideo.dataset.encoders import (
    TextEncoder,
    clean_prompt,
    encode_video,
    load_transformer,
    load_vae,
    vae_latent_stats,
)
from fastvideo.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = ["a red ball", "", "a man in a car talks while trees pass", "a red dot"]


@pytest.fixture(scope="module")
def text_encoder(tiny_model: Path) -> TextEncoder:
    """The tiny model's text encoder."""
    return TextEncoder.from_model_dir(tiny_model)


@pytest.fixture
def copied_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return shutil.copytree(tiny_model, tmp_path / "copy")


def transformer_inputs() -> dict[str, torch.Tensor]:
    """A small batch for the tiny transformer."""
    generator = torch.Generator().manual_seed(0)
    return {
        "hidden_states": torch.randn(1, 16, 2, 8, 8, generator=generator),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, 5, 32, generator=generator),
    }


def weights_of(model_dir: Path, component: str) -> Path:
    """The weight file of a component of the tiny model."""
    return model_dir / component / "diffusion_pytorch_model.safetensors"


def change_json(path: Path, **values: Any) -> None:
    """Sets values in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_the_transformer_computes_what_its_weights_say(tiny_model: Path) -> None:
    """It equals a model that was built the ordinary way and filled with the same weights."""
    loaded = load_transformer(tiny_model)
    config = json.loads((tiny_model / "transformer" / "config.json").read_text())
    plain = WanTransformer3DModel.from_config(config)
    plain.load_state_dict(load_file(weights_of(tiny_model, "transformer")))
    with torch.no_grad():
        actual, expected = (
            model.eval()(**transformer_inputs(), return_dict=False)[0] for model in (loaded, plain)
        )
    assert torch.equal(actual, expected)


def test_loading_leaves_the_random_state_alone(tiny_model: Path) -> None:
    """Numbers drawn after loading do not depend on what was loaded."""
    before = torch.get_rng_state()
    load_transformer(tiny_model)
    load_vae(tiny_model)
    assert torch.equal(torch.get_rng_state(), before)


def test_loading_restores_torchs_initialisers(tiny_model: Path) -> None:
    """Modules built afterwards are initialised as ever."""
    load_transformer(tiny_model)
    assert float(torch.nn.init.ones_(torch.zeros(1))) == 1.0


def test_parameters_have_the_type_asked_for_and_tables_keep_theirs(tiny_model: Path) -> None:
    """Rotary tables in bfloat16 would blur positions."""
    full, half = load_transformer(tiny_model), load_transformer(tiny_model, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert all(parameter.requires_grad for parameter in half.parameters())
    for (name, table), (_, expected) in zip(
        half.named_buffers(), full.named_buffers(), strict=True
    ):
        assert table.dtype == expected.dtype == torch.float32, name
        assert torch.equal(table, expected), name
    first, second = next(half.parameters()), next(full.parameters())
    assert torch.equal(first, second.to(torch.bfloat16))


def test_sharded_weights_are_the_same_weights(tiny_model: Path, tmp_path: Path) -> None:
    """Several files with an index load like one."""
    whole = load_transformer(tiny_model)
    shutil.copytree(tiny_model, tmp_path / "m")
    shutil.rmtree(tmp_path / "m" / "transformer")
    whole.save_pretrained(tmp_path / "m" / "transformer", max_shard_size="60KB")
    assert len(list((tmp_path / "m" / "transformer").glob("*.safetensors"))) > 1
    sharded = load_transformer(tmp_path / "m").state_dict()
    assert all(torch.equal(sharded[name], value) for name, value in whole.state_dict().items())


def test_other_weights_replace_the_models_own(tiny_model: Path, tmp_path: Path) -> None:
    """A file or a folder of weights may stand in for the model's."""
    tensors = load_file(weights_of(tiny_model, "transformer"))
    tensors["proj_out.bias"] = torch.full_like(tensors["proj_out.bias"], 7.0)
    save_file(tensors, tmp_path / "other.safetensors")
    for override in (tmp_path, tmp_path / "other.safetensors", str(tmp_path)):
        loaded = load_transformer(tiny_model, override_safetensor=override)
        assert loaded.proj_out.bias.unique().tolist() == [7.0]


def test_weights_that_do_not_fit_are_refused(copied_model: Path) -> None:
    """Names that are missing or too many, and other shapes, are named."""
    path = weights_of(copied_model, "transformer")
    tensors = load_file(path)
    renamed = dict(tensors)
    renamed["proj_out.offset"] = renamed.pop("proj_out.bias")
    save_file(renamed, path)
    message = r"1 missing \(proj_out\.bias\); 1 not expected \(proj_out\.offset\)"
    with pytest.raises(DataError, match=message):
        load_transformer(copied_model)
    save_file({**tensors, "proj_out.bias": torch.zeros(3)}, path)
    with pytest.raises(DataError, match=r"proj_out\.bias has shape \(3,\); WanTransf.* \(64,\)"):
        load_transformer(copied_model)
    path.write_bytes(b"\x00" * 64)
    with pytest.raises(DataError, match="is not a readable safetensors file"):
        load_transformer(copied_model)


def test_another_class_of_model_is_refused(copied_model: Path) -> None:
    """A model of another family is named before its weights are read."""
    change_json(copied_model / "transformer" / "config.json", _class_name="FluxTransformer2DModel")
    change_json(copied_model / "text_encoder" / "config.json", model_type="t5")
    message = "describes a FluxTransformer2DModel; expected WanTransformer3DModel"
    with pytest.raises(DataError, match=message):
        load_transformer(copied_model)
    with pytest.raises(DataError, match="a model of type 't5'; expected 'umt5'"):
        TextEncoder.from_model_dir(copied_model)


def test_missing_files_are_named(copied_model: Path) -> None:
    """Each part says which of its files is not there."""
    (copied_model / "text_encoder" / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"text_encoder holds no \*\.safetensors file"):
        TextEncoder.from_model_dir(copied_model)
    shutil.rmtree(copied_model / "vae")
    with pytest.raises(DataError, match="has no vae/ folder"):
        load_vae(copied_model)


def test_a_model_without_a_tokenizer_says_so(copied_model: Path) -> None:
    """An empty tokenizer folder is an error of the model, not a download."""
    for path in (copied_model / "tokenizer").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="tokenizer holds no usable tokenizer"):
        TextEncoder.from_model_dir(copied_model)


def test_latent_statistics_come_from_the_config(tiny_model: Path) -> None:
    """They have a value per channel and agree with the file."""
    mean, std, z_dim = vae_latent_stats(tiny_model)
    config = json.loads((tiny_model / "vae" / "config.json").read_text())
    assert z_dim == 16
    assert torch.equal(mean, torch.tensor(config["latents_mean"]))
    assert torch.equal(std, torch.tensor(config["latents_std"]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"latents_std": [1.0]}, r"latents_std \(1,\); expected 16 numbers each"),
        ({"latents_std": [0.0] * 16}, "standard deviations above 0"),
        ({"z_dim": 8}, "z_dim is 8, latents_mean has shape"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(
    values: dict[str, Any], message: str, copied_model: Path
) -> None:
    """A wrong number of values and a zero deviation are found when they are read."""
    change_json(copied_model / "vae" / "config.json", **values)
    with pytest.raises(DataError, match=message):
        vae_latent_stats(copied_model)


def test_missing_statistics_are_named(copied_model: Path) -> None:
    """A config of another VAE is refused."""
    (copied_model / "vae" / "config.json").write_text('{"z_dim": 16}')
    with pytest.raises(DataError, match="has no latents_mean, latents_std"):
        vae_latent_stats(copied_model)


def test_latents_are_the_unnormalised_mean_of_the_posterior(tiny_model: Path) -> None:
    """They are 4 times shorter and 8 times smaller, without noise, and the same every time."""
    vae = load_vae(tiny_model)
    video = torch.rand(1, 3, 9, 32, 48, generator=torch.Generator().manual_seed(0)) * 2 - 1
    latents = encode_video(vae, video)
    assert latents.shape == (1, 16, 3, 4, 6)
    assert (latents.dtype, latents.requires_grad) == (torch.float32, False)
    assert torch.equal(latents, encode_video(vae, video))
    assert torch.equal(latents, vae.encode(video).latent_dist.mode())


def test_a_vae_in_another_type_takes_float_pixels(tiny_model: Path) -> None:
    """Pixels are converted, and latents come back as float32."""
    video = torch.rand(1, 3, 1, 16, 16) * 2 - 1
    full, half = (
        encode_video(load_vae(tiny_model, dtype=dtype), video)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert half.dtype == torch.float32
    assert torch.allclose(half, full, atol=0.05)


def test_a_loaded_vae_is_frozen(tiny_model: Path) -> None:
    """Nothing trains the VAE by accident."""
    vae = load_vae(tiny_model)
    assert not vae.training
    assert not any(parameter.requires_grad for parameter in vae.parameters())


def test_embeddings_have_a_row_per_token(text_encoder: TextEncoder) -> None:
    """They are trimmed: the end token is the last row, and an empty prompt is that row alone."""
    embeddings = text_encoder.encode(PROMPTS)
    assert [len(e) for e in embeddings] == [text_encoder.count_tokens(p) for p in PROMPTS]
    assert embeddings[1].shape == (1, 32)
    assert {e.dtype for e in embeddings} == {torch.float32}
    assert text_encoder.text_dim == 32


def test_an_embedding_does_not_depend_on_its_neighbours(text_encoder: TextEncoder) -> None:
    """A prompt alone and the same one among others agree."""
    together = text_encoder.encode(PROMPTS)
    for prompt, embedding in zip(PROMPTS, together, strict=True):
        assert torch.allclose(text_encoder.encode([prompt])[0], embedding, atol=1e-6)
    assert text_encoder.encode([]) == []


def test_a_long_prompt_is_cut_and_keeps_its_end_token(tiny_model: Path) -> None:
    """The cut prompt is encoded like its beginning followed by the end token."""
    encoder = TextEncoder.from_model_dir(tiny_model, text_len=6)
    long = encoder.encode(["a red ball " * 20])[0]
    assert long.shape == (6, 32)
    assert encoder.count_tokens("a red ball " * 20) > 6
    tokenizer = encoder._tokenizer
    assert tokenizer("a red ball " * 20, truncation=True, max_length=6)["input_ids"][-1] == 1


def test_a_sharded_text_encoder_is_the_same_encoder(
    tiny_model: Path, copied_model: Path, text_encoder: TextEncoder
) -> None:
    """Real checkpoints come in several files; the shared embedding is stored once."""
    shutil.rmtree(copied_model / "text_encoder")
    text_encoder._model.save_pretrained(copied_model / "text_encoder", max_shard_size="40KB")
    assert len(list((copied_model / "text_encoder").glob("*.safetensors"))) > 1
    sharded = TextEncoder.from_model_dir(copied_model)
    assert torch.equal(sharded.encode(["a red ball"])[0], text_encoder.encode(["a red ball"])[0])


def test_loading_prints_nothing(tiny_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Loading bars would break the bar of whoever loads."""
    TextEncoder.from_model_dir(tiny_model)
    load_vae(tiny_model)
    load_transformer(tiny_model)
    assert capfd.readouterr() == ("", "")


def test_prompts_are_cleaned_like_the_stock_pipeline_does() -> None:
    """HTML entities, also doubled ones, and white space."""
    assert clean_prompt("  a &amp;lt;b&amp;gt;\n\tcat &amp; dog ") == "a <b> cat & dog"
