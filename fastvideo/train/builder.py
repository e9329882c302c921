"""From a run configuration to the objects that train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastvideo.errors import did_you_mean
from fastvideo.logger import init_logger
from fastvideo.train.instantiate import (
    TARGET,
    TargetTypeError,
    accepts_argument,
    instantiate,
    resolve_target,
)
from fastvideo.train.models.base import ModelBase
from fastvideo.train.settings_check import STUDENT, check_settings, method_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.methods.base import TrainingMethod
    from fastvideo.train.run_config import RunConfig

logger = init_logger(__name__)


def build_from_config(cfg: RunConfig) -> tuple[TrainingConfig, TrainingMethod, Any, int]:
    """Builds every model role and the method.

    The method's constructor prepares the student (its data loader among other things), which is
    why the last two results are read from the student only then.

    Args:
        cfg: The loaded run file.

    Returns:
        The typed training section, the method, its data loader, and the step to start after.

    Raises:
        ConfigError: There is no student, or a setting cannot be used.
        TypeError: A role is no `ModelBase`, or the method is no `TrainingMethod` class.
        ImportError: A `_target_` does not exist.
    """
    check_settings(cfg)
    method = method_class(cfg)
    _warn_unknown_keys(cfg.method, method.known_keys)
    _warn_unused_roles(cfg.models, method.known_roles)
    role_models = {role: _build_model(cfg, role) for role in cfg.models}
    built = method(cfg=cfg, role_models=role_models)
    student = role_models[STUDENT]
    return cfg.training, built, student.dataloader, int(student.start_step or 0)


def _build_model(cfg: RunConfig, role: str) -> ModelBase:
    spec = dict(cfg.models[role])
    extra: dict[str, Any] = {"training_config": cfg.training}
    try:
        factory = resolve_target(spec[TARGET])
        shift = _default_flow_shift(cfg, spec, factory)
        if shift is not None:
            extra["flow_shift"] = shift
        model = instantiate(spec, **extra)
    except Exception as error:
        error.add_note(f"while building models.{role} ({spec.get(TARGET)})")
        raise
    if not isinstance(model, ModelBase):
        message = (
            f"models.{role}: expected {spec[TARGET]} to make a ModelBase, "
            f"got {type(model).__module__}.{type(model).__qualname__}"
        )
        raise TargetTypeError(message)
    return model


def _default_flow_shift(
    cfg: RunConfig,
    spec: dict[str, Any],
    factory: Callable[..., object],
) -> float | None:
    """A role that does not say its own shift gets the pipeline's, if it takes one at all."""
    pipeline = cfg.training.pipeline_config
    if pipeline is None or pipeline.flow_shift is None or spec.get("flow_shift") is not None:
        return None
    return pipeline.flow_shift if accepts_argument(factory, "flow_shift") else None


def _warn_unknown_keys(section: Mapping[str, Any], known: frozenset[str] | None) -> None:
    if known is None:
        return
    for key in section:
        if key != TARGET and key not in known:
            logger.warning("unknown key method.%s is ignored.%s", key, did_you_mean(key, known))


def _warn_unused_roles(roles: Iterable[str], known: frozenset[str] | None) -> None:
    if known is None:
        return
    for role in roles:
        if role not in known:
            logger.warning(
                "models.%s is loaded, but the method does not use it; its roles are %s.%s",
                role,
                ", ".join(sorted(known)),
                did_you_mean(role, known),
            )
