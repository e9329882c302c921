"""What the classes that a run file names would refuse, asked of them before a model is loaded.

A method and a callback say what they refuse in `check_settings`. The launcher asks them before it
starts processes, and every rank before it loads models; the constructors check the same. Classes of
other packages are not asked, since what they accept is theirs to say when they are made. Nothing is
written and nothing downloaded.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from fastvideo.distributed import get_world_rank
from fastvideo.errors import ConfigError, did_you_mean
from fastvideo.logger import errors_only
from fastvideo.train.callbacks.callback_dict import check_callbacks
from fastvideo.train.instantiate import TARGET, TargetTypeError, resolve_target
from fastvideo.train.methods.base import TrainingMethod
from fastvideo.train.models.latent_size import check_video_size
from fastvideo.train.targets import is_own
from fastvideo.train.tracker_names import checked_tracker_names
from fastvideo.train.trackers.packages import import_tracker_package

if TYPE_CHECKING:
    from fastvideo.train.run_config import RunConfig

STUDENT = "student"


def check_settings(cfg: RunConfig) -> None:
    """Refuses settings of models, method, callbacks, data and trackers that cannot be used.

    Warnings are left to the objects when they are made.

    Args:
        cfg: The loaded run file.

    Raises:
        FastVideoError: A value cannot be used; the message names its key.
    """
    if STUDENT not in cfg.models:
        message = (
            f"models.{STUDENT} is required and missing; the roles are {sorted(cfg.models)}."
            f"{did_you_mean(STUDENT, cfg.models)}"
        )
        raise ConfigError(message)
    with errors_only(), warnings.catch_warnings(action="ignore"):
        if is_own(cfg.models[STUDENT].get(TARGET)):
            _check_data(cfg)
        method = method_class(cfg)
        if all(is_own(spec.get(TARGET)) for spec in (cfg.method, *cfg.models.values())):
            method.check_settings(cfg)
        check_callbacks(cfg.callbacks, cfg.training)
        names = checked_tracker_names(cfg.training.tracker.trackers)
        for name in names if get_world_rank() == 0 else ():
            import_tracker_package(name)


def method_class(cfg: RunConfig) -> type[TrainingMethod]:
    """Returns the class that the section ``method`` names.

    Args:
        cfg: The loaded run file.

    Raises:
        TypeError: It is no class of a training method.
        ImportError: It does not exist.
    """
    target = cfg.method[TARGET]
    found = resolve_target(target, where=f"method.{TARGET}")
    if not isinstance(found, type) or not issubclass(found, TrainingMethod):
        message = f"method.{TARGET}: expected {target} to be a TrainingMethod class, got {found!r}"
        raise TargetTypeError(message)
    return found


def _check_data(cfg: RunConfig) -> None:
    """Looks for rows, and at the sizes of videos."""
    from fastvideo.dataset.file_list import check_data_path  # noqa: PLC0415 - needs pyarrow

    data = cfg.training.data
    check_video_size(data)
    if not data.data_path:
        if not is_own(cfg.method.get(TARGET)):
            return  # a method of another package may need none
        message = "training.data.data_path is empty; set it to a preprocessed parquet data set"
        raise ConfigError(message)
    check_data_path(data.data_path, at_least=data.train_batch_size)
