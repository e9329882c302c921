"""Resolving model names to directories, and finding the files in them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from fastvideo.dataset.model_files import (
    cache_directory,
    component_directory,
    model_fingerprint,
    read_component_config,
    resolve_model_path,
    weight_files,
)
from fastvideo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A directory that looks like a model with one component."""
    root = tmp_path / "some" / "model"
    (root / "vae").mkdir(parents=True)
    (root / "model_index.json").write_text("{}")
    (root / "vae" / "config.json").write_text('{"_class_name": "AutoencoderKLWan"}')
    (root / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"12345")
    return root


def test_a_local_directory_is_itself(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute and relative names of a directory give its absolute path."""
    monkeypatch.chdir(model_dir.parent.parent)
    assert resolve_model_path(str(model_dir)) == model_dir
    assert resolve_model_path("some/model") == model_dir


def test_a_directory_without_an_index_says_what_it_holds(tmp_path: Path) -> None:
    """A folder of other things is not taken for a model."""
    (tmp_path / "weights.pt").touch()
    with pytest.raises(DataError, match=r"holds no model_index\.json \(found: weights\.pt\)"):
        resolve_model_path(str(tmp_path))


@pytest.mark.parametrize("name", ["./missing", "/missing/model", "~/missing/model", "missing"])
def test_a_path_that_is_not_there_is_not_asked_from_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be a hub id is a missing directory."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ConfigError, match=f"init_from '{name}' is not a directory"):
        resolve_model_path(name)


def test_an_empty_name_is_refused() -> None:
    """The error lists what may be given."""
    with pytest.raises(ConfigError, match=r"init_from is empty; expected a model directory, a hub"):
        resolve_model_path(" ")


def test_an_unknown_tiny_model_suggests_the_known_one() -> None:
    """A misspelt scheme is not asked from the hub either."""
    message = "unknown tiny model 'tiny-random:wan2.2'; expected one of tiny-random:wan2.1."
    hint = " Did you mean 'tiny-random:wan2.1'?"
    with pytest.raises(ConfigError, match=re.escape(message + hint)):
        resolve_model_path("tiny-random:wan2.2")


def test_a_hub_id_without_weights_at_hand_names_both_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody who mistyped a directory learns that it was looked for as one."""

    def offline(repo_id: str, **_: object) -> str:
        message = f"cannot find {repo_id} and outgoing traffic is off"
        raise LocalEntryNotFoundError(message)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ConfigError) as caught:
        resolve_model_path("tiny/model")
    assert "'tiny/model' is not a directory below " in str(caught.value)
    assert str(caught.value).endswith(
        "hub or its cache: cannot find tiny/model and outgoing traffic is off. Where the hub "
        "cannot be reached, download the model elsewhere and give its directory as init_from"
    )


def test_a_hub_model_in_the_cache_is_used_offline(tmp_path: Path, model_dir: Path) -> None:
    """A snapshot that was downloaded before resolves without any network."""
    repo = tmp_path / "hub" / "models--some-org--some-model"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc123")
    (repo / "snapshots").mkdir()
    model_dir.rename(repo / "snapshots" / "abc123")
    code = (
        "from fastvideo.dataset.model_files import resolve_model_path as resolve\n"
        "print(resolve('some-org/some-model'))\n"
        "try: resolve('some-org/another')\n"
        "except ValueError as error: print(error)\n"
    )
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    result = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    first, second = result.stdout.splitlines()[:2]
    assert first == str(repo / "snapshots" / "abc123")
    assert second.startswith("init_from 'some-org/another' is not a directory below ")


def test_missing_components_are_named(model_dir: Path) -> None:
    """The folder and the model are in the message."""
    with pytest.raises(DataError, match=r"some/model has no transformer/ folder"):
        component_directory(model_dir, "transformer")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"vae/config\.json is missing"),
        ("{", r"vae/config\.json is not valid JSON"),
        ("[]", r"vae/config\.json holds a JSON list; expected an object"),
    ],
)
def test_a_config_that_cannot_be_read_is_named(
    content: str | None, message: str, model_dir: Path
) -> None:
    """Missing, broken and wrong content are told apart."""
    path = model_dir / "vae" / "config.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_component_config(model_dir, "vae")


def write_index(folder: Path, *shards: str) -> None:
    """Writes an index that spreads one parameter over each shard."""
    weight_map = {f"layer{i}.weight": shard for i, shard in enumerate(shards)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_an_index_decides_which_files_are_weights(tmp_path: Path) -> None:
    """Other safetensors files in the folder are left alone, and shards come once each."""
    for name in ("a.safetensors", "b.safetensors", "other.safetensors"):
        (tmp_path / name).touch()
    write_index(tmp_path, "b.safetensors", "a.safetensors", "b.safetensors")
    assert [path.name for path in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """A download that broke off is noticed before anything is loaded."""
    (tmp_path / "a.safetensors").touch()
    write_index(tmp_path, "a.safetensors", "b.safetensors")
    with pytest.raises(DataError, match=r"1 of them are missing: b\.safetensors; download"):
        weight_files(tmp_path)


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    """An index without a weight map is no index."""
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(DataError, match=r"index\.json is not a safetensors index"):
        weight_files(tmp_path)


def test_weights_without_an_index_must_be_one_file(tmp_path: Path) -> None:
    """One file is it, none or two are errors that say what is there."""
    (tmp_path / "model.bin").touch()
    with pytest.raises(DataError, match=r"holds no \*\.safetensors file \(found: model\.bin\)"):
        weight_files(tmp_path)
    (tmp_path / "a.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / "a.safetensors"]
    assert weight_files(tmp_path / "a.safetensors") == [tmp_path / "a.safetensors"]
    (tmp_path / "b.safetensors").touch()
    with pytest.raises(DataError, match=r"holds 2 safetensors files \(a.*, b.*\) and no index"):
        weight_files(tmp_path)
    with pytest.raises(DataError, match="neither a file nor a directory"):
        weight_files(tmp_path / "c.safetensors")


def test_the_fingerprint_follows_configs_and_weight_files(model_dir: Path) -> None:
    """Another config or another size of the weights is another model; a copy is the same."""
    before = model_fingerprint(model_dir, ["vae"])
    assert model_fingerprint(model_dir, ["vae"]) == before
    (model_dir / "vae" / "config.json").write_text('{"_class_name": "AutoencoderKLWan", "z": 1}')
    changed = model_fingerprint(model_dir, ["vae"])
    (model_dir / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"123456")
    assert len({before, changed, model_fingerprint(model_dir, ["vae"])}) == 3


def test_the_cache_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's variable comes first, then the user's cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("FASTVIDEO_CACHE_DIR", raising=False)
    assert cache_directory() == tmp_path / "xdg" / "fastvideo"
    monkeypatch.setenv("FASTVIDEO_CACHE_DIR", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
