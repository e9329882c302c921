"""The reference pages on run files have every key that code accepts, and no other."""

from __future__ import annotations

import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fastvideo.errors import ConfigError
from fastvideo.pipelines.generation import GenerationRequest
from fastvideo.pipelines.generator_config import GeneratorConfig
from fastvideo.pipelines.pipeline_config import PipelineConfig
from fastvideo.pipelines.run_file import load_run_file
from fastvideo.pipelines.sampling_param import SamplingParam
from fastvideo.train.callbacks.validation import ValidationCallback
from fastvideo.train.config import TrainingConfig
from fastvideo.train.instantiate import accepts_argument, resolve_target
from fastvideo.train.methods.distribution_matching.dmd2_config import DMD2Config
from fastvideo.train.methods.fine_tuning.finetune import FineTuneConfig
from fastvideo.train.methods.knowledge_distillation.kd_config import KDConfig
from fastvideo.train.methods.rl.nft_config import NFTConfig
from fastvideo.train.methods.rl.rewards.weighted import WeightedRewards
from fastvideo.train.models.conditioning import parse_unconditional_policy
from fastvideo.train.models.wan import WanModel
from fastvideo.train.run_config import RunConfig, load_run_config
from fastvideo.train.typed_section import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
CONFIGS = sorted((ROOT / "examples" / "train" / "configs").rglob("*.yaml"))
NAMED = {"models": "<role>", "callbacks": "<name>", "rewards": "<name>"}
METHODS: dict[str, Callable[[dict[str, Any]], object]] = {
    "FineTuneMethod": FineTuneConfig.from_mapping,
    "DMD2Method": lambda method: DMD2Config.from_mapping(method, num_train_timesteps=1000),
    "KDMethod": lambda method: KDConfig.from_mapping(method, num_train_timesteps=1000),
    "DiffusionNFTMethod": NFTConfig.from_mapping,
}


def _tables(name: str) -> dict[str, dict[str, dict[str, str]]]:
    """Returns the rows of a page by title of their section and by key."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for part in re.split(r"^#+ ", (REFERENCE / name).read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        head, *rows = [
            [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in text.splitlines()
            if line.startswith("|") and not line.startswith("|---")
        ] or [[]]
        cells = [dict(zip(head, row, strict=True)) for row in rows]
        tables[title.replace("`", "")] = {row["key"].strip("`"): row for row in cells}
    return tables


TRAINING = _tables("configuration.md")
GENERATION = _tables("generate-configuration.md")
ALL_KEYS = {key for rows in TRAINING.values() for key in rows}


def _keys(tables: dict[str, dict[str, dict[str, str]]], title: str) -> set[str]:
    """Returns the last parts of a section's keys."""
    return {key.rpartition(".")[2] for key in tables[title]} - {"_target_"}


def _defaults(
    tables: dict[str, dict[str, dict[str, str]]], title: str
) -> Iterator[tuple[str, object]]:
    """Yields the keys of a section whose default is a value, by their last parts."""
    for key, row in tables[title].items():
        if row["default"].startswith("`"):
            yield key.rpartition(".")[2], yaml.safe_load(row["default"].strip("`"))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _section(method: str) -> dict[str, Any]:
    """Returns the section of a method in a shipped run file."""
    for path in CONFIGS:
        section: dict[str, Any] = yaml.safe_load(path.read_text())["method"]
        if section["_target_"].endswith(f".{method}"):
            return section
    raise AssertionError(method)


@pytest.fixture
def empty_run(tmp_path: Path) -> RunConfig:
    """A run file that sets nothing but what it must."""
    file = tmp_path / "run.yaml"
    file.write_text(
        "models: {student: {_target_: a.B, init_from: base}}\nmethod: {_target_: a.C}\n"
        "training: {distributed: {num_gpus: 4}}\n"
    )
    return load_run_config(file)


def test_every_key_says_what_it_is() -> None:
    """No row lacks its type, its default or its meaning."""
    for tables in (TRAINING, GENERATION):
        for rows in tables.values():
            for key, row in rows.items():
                assert all(row[name] for name in ("type", "default", "meaning")), key


def test_the_training_section_has_its_keys_and_defaults(empty_run: RunConfig) -> None:
    """Keys are those that are typed; defaults are what loading a run file gives."""
    listed = _rows_of_training()
    assert set(listed) == {leaf.path for leaf in leaves(TrainingConfig, where="training")}
    resolved = empty_run.resolved_config()
    for key, row in listed.items():
        default = row["default"]
        value = _at(resolved, key)
        if default.startswith("that of "):
            assert (key, value) == (key, _at(resolved, default.split("`")[1]))
        elif key != "training.distributed.num_gpus":
            assert (key, value) == (key, yaml.safe_load(default.strip("`")))


def _rows_of_training() -> dict[str, dict[str, str]]:
    return {
        key: row
        for title, rows in TRAINING.items()
        if title.split(".")[0] == "training"
        for key, row in rows.items()
    }


def _at(tree: object, path: str) -> object:
    for part in path.split("."):
        assert isinstance(tree, dict)
        tree = tree[part]
    return tree


def test_what_the_training_section_allows_is_accepted_and_nothing_below_it(tmp_path: Path) -> None:
    """Each choice and bound that a row states is obeyed."""
    for key, row in _rows_of_training().items():
        bound = re.fullmatch(r"at least (-?\d+)|(\d+) to \d+", row.get("allowed", ""))
        if bound is None:
            continue
        least = int(bound[1] or bound[2])
        file = tmp_path / "run.yaml"
        for value, is_allowed in ((least, True), (least - 1, key.endswith("max_train_steps"))):
            # A length of 0 is refused after loading, where dry runs need none.
            section: object = value
            for part in reversed(key.split(".")):
                section = {part: section}
            assert isinstance(section, dict)
            role = {"student": {"_target_": "a.B"}}
            content = {"models": role, "method": {"_target_": "a.C"}, **section}
            file.write_text(yaml.safe_dump(content))
            try:
                load_run_config(file)
            except ConfigError:
                assert not is_allowed, (key, value)
            else:
                assert is_allowed, (key, value)


def test_the_keys_of_a_role_are_the_arguments_of_its_model() -> None:
    """All but the section that every model is given; defaults are the constructor's."""
    parameters = dict(inspect.signature(WanModel).parameters)
    del parameters["training_config"]
    assert _keys(TRAINING, "models") == set(parameters)
    for name, default in _defaults(TRAINING, "models"):
        assert (name, parameters[name].default) == (name, default)
    needed = {name for name, p in parameters.items() if p.default is p.empty}
    rows = TRAINING["models"]
    assert needed == {n for n in parameters if rows[f"models.<role>.{n}"]["default"] == "required"}


@pytest.mark.parametrize("method", METHODS)
def test_the_keys_of_a_method_are_those_it_knows(method: str) -> None:
    """Both ways; an unset key has the default that the page says, and a required one is missed."""
    rows = TRAINING[f"method: {method}"]
    cls = resolve_target(rows["method._target_"]["allowed"].strip("`"))
    assert _keys(TRAINING, f"method: {method}") == set(cls.known_keys) - {"rewards"}
    section = _section(method)
    for name, default in _defaults(TRAINING, f"method: {method}"):
        without = {key: value for key, value in section.items() if key != name}
        assert (name, _plain(getattr(METHODS[method](without), name))) == (name, default)
    for key, row in rows.items():
        if row["default"] == "required" and not key.endswith("_target_"):
            without = {k: v for k, v in section.items() if k != key.rpartition(".")[2]}
            with pytest.raises(ConfigError, match=key):
                METHODS[method](without)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_allows_is_what_it_accepts(method: str) -> None:
    """Each choice is accepted, the lowest value too, and what is below is refused by key."""
    section = _section(method)
    for key, row in TRAINING[f"method: {method}"].items():
        name, stated = key.rpartition(".")[2], row.get("allowed", "")
        choices = re.findall(r"`(\w+)`", stated) if re.fullmatch(r"(`\w+`(, )?)+", stated) else []
        bound = re.match(r"(?:at least|from|above) (\d+)", stated)
        if bound is not None:
            least = float(bound[1])
            below = least if stated.startswith("above") else least - 1
            choices = [least + 1] if stated == "above 0" else []
            choices += [] if stated.startswith("above") else [int(least)]
            with pytest.raises(ConfigError, match=key):
                METHODS[method](section | {name: below})
        for choice in choices:
            METHODS[method](section | {name: choice})


def test_the_policy_of_guidance_has_its_keys_and_defaults() -> None:
    """The inputs of a model are any keys; two have a meaning of their own."""
    assert _keys(TRAINING, "method.cfg_uncond") == {"text", "<input>", "on_missing"}
    policy = parse_unconditional_policy({})
    for name, default in _defaults(TRAINING, "method.cfg_uncond"):
        if name != "<input>":
            assert (name, getattr(policy, name)) == (name, default)
    for key, row in TRAINING["method.cfg_uncond"].items():
        for choice in re.findall(r"`(\w+)`", row["allowed"]):
            parse_unconditional_policy({key.rpartition(".")[2]: choice})


def test_rewards_have_their_keys_and_defaults() -> None:
    """Every reward of the package is named, each with the arguments of its constructor."""
    target = TRAINING["method.rewards"]["method.rewards.<name>._target_"]["allowed"]
    paths = re.findall(r"`([\w.]+)`", target)
    package = import_module("fastvideo.train.methods.rl.rewards")
    names = {name for name in package.__all__ if name not in {"Reward", "WeightedRewards"}}
    assert {path.rpartition(".")[2] for path in paths} == names
    for path in paths:
        cls = resolve_target(path)
        title = f"method.rewards: {cls.__name__}"
        parameters = inspect.signature(cls).parameters
        assert (_keys(TRAINING, title) if title in TRAINING else set()) == set(parameters)
        for name, default in _defaults(TRAINING, title) if title in TRAINING else ():
            assert (name, getattr(cls(), name)) == (name, default)
    built = WeightedRewards.from_mapping({"one": {"_target_": paths[-1]}})
    assert dict(_defaults(TRAINING, "method.rewards")) == {"weight": built.weights["one"]}


@pytest.mark.parametrize("name", ["grad_clip", "ema", "validation"])
def test_callbacks_have_their_keys_and_defaults(name: str, tmp_path: Path) -> None:
    """Keys are the constructor's arguments, and what is not given is what the page says."""
    target = TRAINING["callbacks"]["callbacks.<name>._target_"]["allowed"]
    (path,) = re.findall(rf"`(fastvideo\.train\.callbacks\.{name}\.\w+)`", target)
    cls = resolve_target(path)
    parameters = inspect.signature(cls).parameters
    named = {n for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    assert _keys(TRAINING, f"callbacks.{name}") == named
    required = {
        key.rpartition(".")[2]: "a.b"
        for key, row in TRAINING[f"callbacks.{name}"].items()
        if row["default"] == "required"
    }
    callback = cls(**required)
    for key, default in _defaults(TRAINING, f"callbacks.{name}"):
        assert (key, _plain(getattr(callback, key))) == (key, default)
    assert set(required) == {n for n in named if parameters[n].default is inspect.Parameter.empty}


def test_a_validation_passes_the_keys_of_the_pipeline() -> None:
    """Those of the section `pipeline` are the fields of a pipeline's settings."""
    fields = {f.name for f in dataclasses.fields(PipelineConfig)}
    assert _keys(TRAINING, "pipeline") == fields
    config = PipelineConfig()
    for name, default in _defaults(TRAINING, "pipeline"):
        assert (name, getattr(config, name)) == (name, default)
    assert all(accepts_argument(ValidationCallback, name) for name in fields)


def _used(section: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yields the keys of a run file as the page writes them."""
    for key, value in section.items():
        parent = where.rpartition(".")[2]
        path = f"{where}.{key}"
        if parent in NAMED and path not in ALL_KEYS and isinstance(value, dict):
            general = f"{where}.{NAMED[parent]}"
            is_known = any(known.startswith(f"{path}.") for known in ALL_KEYS)
            path = path if is_known else general
        if isinstance(value, dict) and path not in ALL_KEYS:
            yield from _used(value, path)
        else:
            yield path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_key_of_a_shipped_run_file_is_on_the_page(path: Path) -> None:
    """And those of its method are in the table of that method."""
    raw = yaml.safe_load(path.read_text())
    used = {key for name, section in raw.items() for key in _used(section, name)}
    assert len(used) > 30
    assert used - ALL_KEYS == set()
    method = raw["method"].pop("_target_").rpartition(".")[2]
    raw["method"].pop("rewards", None)
    assert set(raw["method"]) <= _keys(TRAINING, f"method: {method}")


def test_generation_has_its_keys_and_defaults() -> None:
    """Keys of all sections are the fields that they fill, with their defaults."""
    config = GeneratorConfig.from_mapping({"model_path": "model"})
    param = SamplingParam()
    expected: dict[str, object] = {
        "generator": config,
        "generator.engine": config.engine,
        "generator.pipeline": PipelineConfig(),
        "request": GenerationRequest(),
        "request.sampling": param,
        "request.output": param,
    }
    assert set(GENERATION) - {"Configuration of generation"} == set(expected)
    for title, filled in expected.items():
        for name, default in _defaults(GENERATION, title):
            assert (name, getattr(filled, name)) == (name, default)
    listed = {title: _keys(GENERATION, title) for title in expected}
    sections = {
        "generator": {"engine", "pipeline", "observability"},
        "request": {"sampling", "output"},
    }
    for title in ("generator", "generator.engine", "generator.pipeline", "request"):
        fields = {f.name for f in dataclasses.fields(expected[title])}  # type: ignore[arg-type]
        assert listed[title] == fields - sections.get(title, set())
    fields = {f.name for f in dataclasses.fields(SamplingParam)}
    assert listed["request.sampling"] | listed["request.output"] == fields - {"negative_prompt"}


def test_every_key_of_generation_is_accepted_where_it_stands() -> None:
    """With the default that it has anyway; in another section it is an error."""
    for title in ("request.sampling", "request.output"):
        for name, default in _defaults(GENERATION, title):
            place = title.rpartition(".")[2]
            request = GenerationRequest.from_mapping({place: {name: default}})
            assert getattr(request.parameters(SamplingParam()), name) == default
            other = {"sampling": "output", "output": "sampling"}[place]
            request = GenerationRequest.from_mapping({other: {name: default}})
            with pytest.raises(ConfigError, match=f"{name}: unknown field"):
                request.parameters(SamplingParam())


def test_the_run_file_of_the_generation_page_uses_listed_keys(tmp_path: Path) -> None:
    """The example of the page on making videos has no key that the reference lacks."""
    page = (ROOT / "docs" / "inference.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "run.yaml").write_text(example)
    sections = load_run_file(tmp_path / "run.yaml")
    keys = {key for rows in GENERATION.values() for key in rows}

    def leaves_of(tree: object, where: str) -> Iterator[str]:
        if isinstance(tree, dict) and where not in keys:
            for name, value in tree.items():
                yield from leaves_of(value, f"{where}.{name}")
        else:
            yield where

    used = {key for name in ("generator", "request") for key in leaves_of(sections[name], name)}
    assert used - keys == set()
