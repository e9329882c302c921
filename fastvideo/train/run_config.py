"""A run file, loaded: YAML plus overrides, checked and typed."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastvideo.errors import ConfigError, did_you_mean
from fastvideo.logger import init_logger
from fastvideo.train.config import PipelineSettings, TrainingConfig
from fastvideo.train.mesh import reject_model_parallel, resolve_shard_dim
from fastvideo.train.options import as_float, as_mapping
from fastvideo.train.overrides import apply_overrides, parse_overrides, unknown_path
from fastvideo.train.typed_section import Leaf, build_section, leaves
from fastvideo.train.yaml_file import MissingRunFileError, read_yaml

logger = init_logger(__name__)

FREE_SECTIONS = ("callbacks", "method", "models", "observability", "pipeline")
"""Sections in which an override may name any key; their readers check them."""

_TARGET = "_target_"
_SECTIONS = ("training", *FREE_SECTIONS)


@dataclass(slots=True)
class RunConfig:
    """Everything one training run is configured by.

    Attributes:
        models: Role to the mapping its model is built from, each with a `_target_`.
        method: The mapping of the training method, with a `_target_`.
        training: The typed section.
        callbacks: Callback name to its mapping.
        raw: The YAML mapping after overrides and before typing; goes into checkpoints.
        observability: The telemetry settings, untyped.
    """

    models: dict[str, dict[str, Any]]
    method: dict[str, Any]
    training: TrainingConfig
    callbacks: dict[str, dict[str, Any]]
    raw: dict[str, Any]
    observability: dict[str, Any] = field(default_factory=dict)

    def resolved_config(self) -> dict[str, Any]:
        """Returns all sections with defaults as plain values, for the tracker.

        What is not plain (callables, classes, objects) is left out; tuples become lists.
        """
        training = dataclasses.asdict(self.training)
        pipeline = training.pop("pipeline_config")
        sections = {
            "models": self.models,
            "method": self.method,
            "training": training,
            "callbacks": self.callbacks,
            "observability": self.observability,
            "pipeline": pipeline,
        }
        return {name: _plain(section) for name, section in sections.items()}


def load_run_config(path: str | Path, overrides: Sequence[str] | None = None) -> RunConfig:
    """Loads a run file and applies command-line overrides.

    Args:
        path: The YAML file.
        overrides: Words such as `["--training.data.seed", "7"]`, see `fastvideo.train.overrides`.

    Returns:
        The configuration, with defaults filled in. Its mesh is the one of the file; fitting it to
        the processes that started is `fastvideo.train.mesh.reconcile_mesh`.

    Raises:
        FileNotFoundError: There is no such file.
        ConfigError: (a `ValueError`) The file, a section, a value or an override is wrong.
    """
    raw = as_mapping(read_yaml(Path(path)), where=f"the top of {path}")
    apply_overrides(raw, parse_overrides(overrides or ()), check_path=_check_override)
    for key in raw:
        if key not in _SECTIONS:
            logger.warning("unknown section %s is ignored.%s", key, did_you_mean(key, _SECTIONS))
    models = _models(_required_section(raw, "models"))
    method = _with_target(_required_section(raw, "method"), where="method")
    return RunConfig(
        models=models,
        method=method,
        training=_training(_required_section(raw, "training"), models, raw.get("pipeline")),
        callbacks=_callbacks(raw.get("callbacks")),
        raw=raw,
        observability=_observability(raw.get("observability")),
    )


def _check_override(path: tuple[str, ...]) -> bool:
    """Raises for a path that is not known, and tells whether its value is text."""
    typed = {leaf.path: leaf for leaf in leaves(TrainingConfig, where="training")}
    dotted = ".".join(path)
    if path[0] in FREE_SECTIONS:
        return False
    leaf = typed.get(dotted)
    if leaf is not None:
        return leaf.is_text
    if any(known.startswith(f"{dotted}.") for known in typed) or _below_mapping(dotted, typed):
        return False
    raise unknown_path(dotted, typed=list(typed), free=FREE_SECTIONS)


def _below_mapping(dotted: str, typed: Mapping[str, Leaf]) -> bool:
    return any(leaf.is_mapping and dotted.startswith(f"{leaf.path}.") for leaf in typed.values())


def _required_section(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    if name not in raw:
        message = f"the run file has no section {name!r}.{did_you_mean(name, raw)}"
        raise ConfigError(message)
    return as_mapping(raw[name], where=name)


def _with_target(section: dict[str, Any], *, where: str) -> dict[str, Any]:
    target = section.get(_TARGET)
    if not isinstance(target, str) or not target:
        message = (
            f"{where}.{_TARGET} must name a class as 'package.module.Class', got {target!r}."
            f"{did_you_mean(_TARGET, section)}"
        )
        raise ConfigError(message)
    return copy.deepcopy(section)


def _models(section: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if not section:
        message = "models: at least one role is needed, such as models.student"
        raise ConfigError(message)
    return {
        role: _with_target(as_mapping(spec, where=f"models.{role}"), where=f"models.{role}")
        for role, spec in section.items()
    }


def _callbacks(raw: object) -> dict[str, dict[str, Any]]:
    section = {} if raw is None else as_mapping(raw, where="callbacks")
    return {
        name: {} if spec is None else copy.deepcopy(as_mapping(spec, where=f"callbacks.{name}"))
        for name, spec in section.items()
    }


def _observability(raw: object) -> dict[str, Any]:
    return {} if raw is None else copy.deepcopy(as_mapping(raw, where="observability"))


def _training(
    section: dict[str, Any],
    models: Mapping[str, Mapping[str, Any]],
    pipeline: object,
) -> TrainingConfig:
    training = build_section(TrainingConfig, copy.deepcopy(section), where="training")
    distributed = training.distributed
    if "hsdp_shard_dim" not in (section.get("distributed") or {}):
        distributed.hsdp_shard_dim = distributed.num_gpus
    resolve_shard_dim(distributed)
    reject_model_parallel(distributed)
    if not training.tracker.trackers and training.tracker.project_name:
        training.tracker.trackers = ["wandb"]
    if not training.model_path:
        training.model_path = str(models.get("student", {}).get("init_from") or "")
    training.pipeline_config = _pipeline(pipeline)
    return training


def _pipeline(raw: object) -> PipelineSettings | None:
    if raw is None:
        return None
    section = as_mapping(_read_json(raw) if isinstance(raw, str) else raw, where="pipeline")
    shift = section.pop("flow_shift", None)
    return PipelineSettings(
        flow_shift=None if shift is None else as_float(shift, where="pipeline.flow_shift"),
        options=copy.deepcopy(section),
    )


def _read_json(path: str) -> object:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        message = f"pipeline: the file {path} does not exist"
        raise MissingRunFileError(message) from error
    except (OSError, ValueError) as error:
        message = f"pipeline: {path} cannot be read as JSON: {error}"
        raise ConfigError(message) from error


def _plain(value: object) -> Any:  # noqa: ANN401 - plain values of any kind
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if _is_plain(item)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value if _is_plain(item)]
    return value


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | Mapping | list | tuple)
