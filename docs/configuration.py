"""The reference pages on run files, made from the code that reads them."""

from __future__ import annotations

import dataclasses
import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import yaml
from key_tables import (
    REQUIRED,
    Key,
    described,
    introduced,
    keys_of_fields,
    keys_of_parameters,
    section,
)

from fastvideo.errors import ConfigError
from fastvideo.pipelines.generation import OUTPUT_FIELDS, GenerationRequest
from fastvideo.pipelines.generator_config import EngineConfig, GeneratorConfig
from fastvideo.pipelines.pipeline_config import PipelineConfig
from fastvideo.pipelines.sampling_param import SamplingParam
from fastvideo.train import config as training
from fastvideo.train.callbacks.ema import EMACallback
from fastvideo.train.callbacks.grad_clip import GradNormClipCallback
from fastvideo.train.callbacks.validation import ValidationCallback
from fastvideo.train.methods.distribution_matching.dmd2 import DMD2Method
from fastvideo.train.methods.distribution_matching.dmd2_config import DMD2Config
from fastvideo.train.methods.fine_tuning.finetune import FineTuneConfig, FineTuneMethod
from fastvideo.train.methods.knowledge_distillation.kd import KDMethod
from fastvideo.train.methods.knowledge_distillation.kd_config import KDConfig
from fastvideo.train.methods.rl import rewards
from fastvideo.train.methods.rl.diffusion_nft import DiffusionNFTMethod
from fastvideo.train.methods.rl.nft_config import NFTConfig
from fastvideo.train.models.conditioning import UnconditionalPolicy
from fastvideo.train.models.wan import WanModel

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parents[1] / "examples" / "train" / "configs"
NUM_TRAIN_TIMESTEPS = 1000


def keys_of_method(
    cls: type[Any], example: str, read: Callable[[dict[str, Any]], object]
) -> list[Key]:
    """Returns the rows of a method, with the defaults that reading its section really gives.

    Args:
        cls: The dataclass of its section.
        example: A run file with the method.
        read: Makes the dataclass of a section.
    """
    section = yaml.safe_load((EXAMPLES / example).read_text(encoding="utf-8"))["method"]
    fields = [f.name for f in dataclasses.fields(cls) if f.name != "needs_negative_prompt"]
    defaults = {}
    for name in fields:
        without = {key: value for key, value in section.items() if key != name}
        try:
            defaults[name] = getattr(read(without), name)
        except ConfigError:
            defaults[name] = REQUIRED
    return keys_of_fields(cls, "method", only=tuple(fields), defaults=defaults)


def target_key(where: str, meaning: str, default: str, *paths: str) -> Key:
    """Returns the row of a `_target_`.

    Args:
        where: Path of the mapping that has it.
        meaning: What it names.
        default: What an unset one is.
        paths: Dotted paths of this package's classes.
    """
    names = ", ".join(f"`{path}`" for path in paths)
    return Key(f"{where}._target_", "text", default, names, "", meaning)


def _path_of(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def training_page() -> str:
    """Returns the page on the run files of training."""
    lines = [
        "# Configuration of training",
        "",
        "Every key of a run file of `fastvideo train`. On the command line each is `--key value`,",
        "as in `--training.data.seed 7`; [Train](../training.md#the-run-file) has examples. A key",
        "that is not listed here is ignored with a warning that names the nearest one; on the",
        "command line, one below `training` that does not exist is an error.",
        "",
        "Required are `models` with at least the role `student`, `method`, and `training`, which",
        "may be `{}`. `callbacks`, `pipeline` and `observability` are optional; the keys of the",
        "last one are [telemetry settings](telemetry-settings.md).",
        "",
        *_models(),
        *_methods(),
        *_training(),
        *_callbacks(),
        *section(
            "`pipeline`",
            "How the model is sampled, in validation. `flow_shift` counts in training as well. The "
            "section may also be the path of a JSON file with these keys. Others are ignored.",
            _pipeline_keys("pipeline"),
        ),
    ]
    return "\n".join(lines)


def _models() -> list[str]:
    where = "models.<role>"
    meaning = "Class of the role's model; another class has its own keys."
    target = target_key(where, meaning, REQUIRED, _path_of(WanModel))
    keys = keys_of_parameters(WanModel, where, given=("training_config",))
    roles = (
        "One mapping for each role: `student` in all methods, with `teacher` and `critic` in DMD2, "
        "`teacher` in KD, `old` and `reference` in DiffusionNFT. `models.*` on the command line is "
        "every role at once."
    )
    return section("`models`", roles, [target, *keys])


def _methods() -> list[str]:
    num = {"num_train_timesteps": NUM_TRAIN_TIMESTEPS}
    methods = [
        (FineTuneMethod, FineTuneConfig, "fine_tuning/wan/t2v.yaml", {}),
        (DMD2Method, DMD2Config, "distribution_matching/wan/dmd2_t2v.yaml", num),
        (KDMethod, KDConfig, "knowledge_distillation/wan/t2v.yaml", num),
        (DiffusionNFTMethod, NFTConfig, "rl/wan/diffusion_nft_t2v.yaml", {}),
    ]
    lines = ["## `method`", "", "The keys depend on the method that `_target_` names.", ""]
    for cls, config, example, options in methods:
        keys = [target_key("method", "Class of the method.", REQUIRED, _path_of(cls))]
        keys += keys_of_method(config, example, partial(config.from_mapping, **options))
        lines += section(f"`method`: {cls.__name__}", introduced(cls), keys, level=3)
    policy = keys_of_fields(UnconditionalPolicy, "method.cfg_uncond")
    lines += section(
        "`method.cfg_uncond`",
        'What guidance takes for "no prompt", in DMD2, KD and DiffusionNFT.',
        [dataclasses.replace(key, key=key.key.replace("channels", "<input>")) for key in policy],
        level=3,
    )
    return lines + _rewards()


def _rewards() -> list[str]:
    where = "method.rewards.<name>"
    classes = {
        f"{rewards.__name__}.{name}": getattr(rewards, name)
        for name in rewards.__all__
        if name not in {"Reward", "WeightedRewards"}
    }
    weight = described(rewards.WeightedRewards, "Args")["weights"]
    keys = [
        target_key(where, "Class of the reward; others have their own keys.", REQUIRED, *classes),
        Key(f"{where}.weight", "number", "`1.0`", "at least 0", "", weight),
    ]
    lines = section(
        "`method.rewards`",
        "What DiffusionNFT learns from: at least one reward, each under a name of your choice. "
        "`null` in place of a mapping leaves one out.",
        keys,
        level=3,
    )
    for cls in classes.values():
        if own := inspect.signature(cls).parameters and keys_of_parameters(cls, where):
            lines += section(f"`method.rewards`: {cls.__name__}", introduced(cls), own, level=4)
    return lines


def _training() -> list[str]:
    top = training.TrainingConfig
    lines = section("`training`", introduced(top), keys_of_fields(top, "training"))
    hints = get_type_hints(top)
    for field in dataclasses.fields(top):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            where = f"training.{field.name}"
            keys = keys_of_fields(hint, where)
            lines += section(f"`{where}`", introduced(hint), keys, level=3)
    return lines


def _callbacks() -> list[str]:
    where = "callbacks.<name>"
    meaning = "Class of the callback; other keys are arguments of its constructor."
    lines = section(
        "`callbacks`",
        "What happens beside the steps, in the order of the file. `grad_clip`, `ema` and "
        "`validation` need no `_target_`; `grad_clip: {}` takes the defaults. "
        "[Callbacks of your own](../extend.md) have any other name.",
        [target_key(where, meaning, "that of the name", *map(_path_of, _CALLBACKS.values()))],
    )
    for name, cls in _CALLBACKS.items():
        keys = keys_of_parameters(cls, f"callbacks.{name}")
        text = introduced(cls)
        if cls is ValidationCallback:
            text += " Keys of [`pipeline`](#pipeline) may stand here too, and win."
        lines += section(f"`callbacks.{name}`", text, keys, level=3)
    return lines


def _pipeline_keys(where: str) -> list[Key]:
    """Returns the rows of a pipeline's settings, where `flow_shift` is that of training as well."""
    rest = [
        key for key in keys_of_fields(PipelineConfig, where) if key.key != f"{where}.flow_shift"
    ]
    (shift,) = keys_of_fields(training.PipelineSettings, where, only=("flow_shift",))
    return [dataclasses.replace(shift, allowed="above 0"), *rest]


def generation_page() -> str:
    """Returns the page on the run files of `fastvideo generate`."""
    own = tuple(f.name for f in dataclasses.fields(SamplingParam) if f.name not in OUTPUT_FIELDS)
    own = tuple(name for name in own if name != "negative_prompt")
    top = ("model_path", "pipeline_class")
    lines = [
        "# Configuration of generation",
        "",
        "Every key of a run file of `fastvideo generate --config`. On the command line each is",
        "`--key value`, as in `--request.sampling.seed 7`. An unknown key is an error.",
        "The keys of the section `observability` are [telemetry settings](telemetry-settings.md).",
        "",
        *section(
            "`generator`",
            introduced(GeneratorConfig),
            keys_of_fields(GeneratorConfig, "generator", only=top),
        ),
        *section(
            "`generator.engine`",
            introduced(EngineConfig),
            keys_of_fields(EngineConfig, "generator.engine"),
            level=3,
        ),
        *section(
            "`generator.pipeline`",
            "What differs from [the model's preset](../inference.md#presets). The defaults below "
            "are those of a model without one.",
            keys_of_fields(PipelineConfig, "generator.pipeline"),
            level=3,
        ),
        *section(
            "`request`",
            "What is asked for: `prompt` or `prompt_path`.",
            keys_of_fields(
                GenerationRequest, "request", only=("prompt", "prompt_path", "negative_prompt")
            ),
        ),
        *section(
            "`request.sampling`",
            "The videos. What is not set comes from [the model's preset](../inference.md#presets); "
            "the defaults below are those of a model without one.",
            keys_of_fields(SamplingParam, "request.sampling", only=own),
            level=3,
        ),
        *section(
            "`request.output`",
            "What becomes of them.",
            keys_of_fields(SamplingParam, "request.output", only=OUTPUT_FIELDS),
            level=3,
        ),
    ]
    return "\n".join(lines)


_CALLBACKS: dict[str, type[Any]] = {
    "grad_clip": GradNormClipCallback,
    "ema": EMACallback,
    "validation": ValidationCallback,
}
