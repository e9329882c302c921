"""From a checkpoint to a model directory that diffusers loads.

Training changes the transformer of a role and nothing else, so the result is the directory the
role was started from with that transformer's weights replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from fastvideo.dataset.encoders import load_transformer
from fastvideo.dataset.model_files import resolve_model_path
from fastvideo.distributed import RankGroup
from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger
from fastvideo.train.checkpoint import storage
from fastvideo.train.checkpoint.checksums import check_metadata, verify_checksums
from fastvideo.train.checkpoint.directory import telling_of_files
from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.checkpoint.finite import describe_nonfinite, nonfinite_names
from fastvideo.train.checkpoint.fit import CALLBACKS
from fastvideo.train.checkpoint.layout import (
    DCP,
    checkpoint_step,
    rank_file_name,
    read_metadata,
    resolve_checkpoint,
)
from fastvideo.train.checkpoint.plain import read_plain
from fastvideo.train.checkpoint.state import MODULE_KEY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor, nn

logger = init_logger(__name__)

EXPORT_FILE: Final = "export.json"
"""Says in an exported directory which checkpoint it was made from."""

STUDENT: Final = "student"
_CALLBACK_EMA: Final = f"{CALLBACKS}.ema.student_ema."
_METHOD_EMA: Final = "ema.student."
_TRANSFORMER: Final = "transformer"
_MODEL_INDEX: Final = "model_index.json"
_DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What is to be exported, and how.

    Attributes:
        checkpoint: A ``checkpoint-<step>``, its ``dcp``, or a run's output directory, which
            stands for its newest checkpoint.
        output_dir: The directory to write.
        role: Whose transformer.
        ema: Take the moving average of the student instead of its weights: that of
            ``callbacks.ema``, else the method's own.
        base_model: Directory or name of the model to put the weights into; None for the one that
            the checkpoint says the role was started from.
        dtype: Type of the weights: ``fp32``, ``bf16`` or ``fp16``.
        overwrite: Replace a model that is at ``output_dir``.
        verify: Load the result again, and compare every weight with the checkpoint.
    """

    checkpoint: str
    output_dir: Path
    role: str = STUDENT
    ema: bool = False
    base_model: str | None = None
    dtype: str = "fp32"
    overwrite: bool = False
    verify: bool = False


def export_checkpoint(request: ExportRequest) -> Path:
    """Writes a model directory in diffusers layout.

    Args:
        request: What to export.

    Returns:
        The directory. It appears when it is complete.

    Raises:
        FileNotFoundError: There is no such checkpoint.
        ConfigError: The directory exists, the role or the average is not in the checkpoint, or
            the base model is not known.
        CheckpointError: The checkpoint is damaged, or does not fit the base model.
    """
    _check_target(request)
    checkpoint = resolve_checkpoint(request.checkpoint, option="--checkpoint")
    if checkpoint is None:
        message = "--checkpoint is empty; give a directory called checkpoint-<step>"
        raise ConfigError(message)
    check_metadata(checkpoint)
    verify_checksums(checkpoint)
    spec = _role_spec(checkpoint, request.role)
    base = resolve_model_path(_base_model(request, checkpoint, spec), option="--base-model")
    transformer = load_transformer(base, override_safetensor=_override(spec))
    count = _fill(transformer, checkpoint, request)
    nonfinite = nonfinite_names(dict(transformer.named_parameters()))
    if nonfinite:
        logger.warning(
            "%s: %s: videos of this model will be of no use; export an older checkpoint",
            *(checkpoint, describe_nonfinite(nonfinite)),
        )
    for parameter in transformer.parameters():  # buffers are not written
        parameter.data = parameter.data.to(_DTYPES[request.dtype])
    unfinished = request.output_dir.with_name(f".tmp-{request.output_dir.name}-{os.getpid()}")
    try:
        with telling_of_files("cannot write", unfinished):
            _write(transformer, base, unfinished, _about(request, checkpoint, count))
            if request.verify:
                _verify(transformer, unfinished, _DTYPES[request.dtype])
            _put_in_place(unfinished, request.output_dir)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    logger.info("exported %d tensors of %s to %s", count, checkpoint, request.output_dir)
    return request.output_dir


def _check_target(request: ExportRequest) -> None:
    if request.dtype not in _DTYPES:
        message = f"--dtype: expected one of {', '.join(_DTYPES)}, got {request.dtype!r}"
        raise ConfigError(message)
    if request.ema and request.role != STUDENT:
        message = f"--ema: only the student has an average, not the role {request.role!r}"
        raise ConfigError(message)
    target = request.output_dir
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not request.overwrite:
        message = f"--output-dir {target} exists; give another one, or --overwrite"
        raise ConfigError(message)
    if not (target / _MODEL_INDEX).is_file():
        message = f"--output-dir {target} holds no model ({_MODEL_INDEX}), so it is not overwritten"
        raise ConfigError(message)


def _role_spec(checkpoint: Path, role: str) -> Mapping[str, Any]:
    """Returns the keys of ``models.<role>`` in the run file that the checkpoint keeps."""
    config = read_metadata(checkpoint).get("config") or {}
    models = config.get("models") if isinstance(config, dict) else None
    spec = models.get(role) if isinstance(models, dict) else None
    return spec if isinstance(spec, dict) else {}


def _base_model(request: ExportRequest, checkpoint: Path, spec: Mapping[str, Any]) -> str:
    found = request.base_model or spec.get("init_from")
    if not found:
        _prefix(request, checkpoint, storage.read_index(checkpoint / DCP).state_dict_metadata)
        message = (
            f"{checkpoint} does not say which model the role {request.role!r} was started from; "
            "give it with --base-model"
        )
        raise ConfigError(message)
    return str(found)


def _override(spec: Mapping[str, Any]) -> str | None:
    """Where a role's own weights came from: those that were not trained are still theirs."""
    if spec.get("disable_custom_init_weights"):
        return None
    return spec.get("transformer_override_safetensor") or None


def _fill(transformer: nn.Module, checkpoint: Path, request: ExportRequest) -> int:
    """Reads the checkpoint into the transformer; returns how many tensors it had."""
    index = storage.read_index(checkpoint / DCP)
    prefix = _prefix(request, checkpoint, index.state_dict_metadata)
    storage.verify_files(checkpoint / DCP, index)
    own = transformer.state_dict()
    targets: dict[str, Tensor] = {}
    for name, saved in index.state_dict_metadata.items():
        if not name.startswith(prefix):
            continue
        target = own.get(name.removeprefix(prefix))
        size = getattr(saved, "size", None)  # a pickled value has none
        if target is None or size is None or tuple(target.shape) != tuple(size):
            shape = "is unknown to" if target is None else "has another shape than in"
            message = f"{name} of {checkpoint} {shape} the base model; give its own --base-model"
            raise CheckpointError(message)
        targets[name] = target
    storage.load_tensors(targets, checkpoint / DCP, _alone())
    return len(targets)


def _prefix(request: ExportRequest, checkpoint: Path, names: Collection[str]) -> str:
    """Returns what the names of the tensors begin with in the checkpoint.

    Of two averages, that of the callback is taken, as validation does.

    Raises:
        ConfigError: There are no such tensors, or the average is still that of the first step.
    """
    weights = MODULE_KEY.format(role=request.role) + "."
    for prefix in (_CALLBACK_EMA, _METHOD_EMA) if request.ema else (weights,):
        if any(name.startswith(prefix) for name in names):
            if prefix == _CALLBACK_EMA and not _has_started(checkpoint):
                message = (
                    f"--ema: the average in {checkpoint} has not started yet "
                    "(callbacks.ema.start_iter); take a later checkpoint, or leave --ema out"
                )
                raise ConfigError(message)
            return prefix
    raise ConfigError(_nothing_found(request, checkpoint, names))


def _has_started(checkpoint: Path) -> bool:
    """Tells whether the callback's average follows the weights, which rank 0 knows."""
    path = checkpoint / rank_file_name(0)
    if not path.exists():
        return True
    state: Any = read_plain(path).get(CALLBACKS, {}).get("ema", {})
    return bool(state.get("ema_started", True))


def _nothing_found(request: ExportRequest, checkpoint: Path, names: Collection[str]) -> str:
    if request.ema:
        return (
            f"--ema: {checkpoint} has no average; the run needs callbacks.ema for one, or "
            "method.ema_decay where the method has it"
        )
    roles = sorted({name.split(".")[1] for name in names if name.startswith("roles.")})
    return f"--role {request.role}: {checkpoint} has the roles {', '.join(roles)}"


def _about(request: ExportRequest, checkpoint: Path, count: int) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint.name,
        "step": checkpoint_step(checkpoint),
        "role": request.role,
        "ema": request.ema,
        "dtype": request.dtype,
        "tensors": count,
    }


def _write(transformer: Any, base: Path, target: Path, about: Mapping[str, Any]) -> None:  # noqa: ANN401
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(base, target, ignore=_without_weights(base))
    transformer.save_pretrained(target / _TRANSFORMER)
    (target / EXPORT_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _without_weights(base: Path) -> Any:  # noqa: ANN401 - a function for copytree
    """Leaves out the transformer, which is written anew, and what makes a copy a repository."""

    def ignore(directory: str, names: list[str]) -> list[str]:
        at_the_top = Path(directory) == base
        return [n for n in names if n == ".git" or (at_the_top and n in {_TRANSFORMER, ".cache"})]

    return ignore


def _verify(transformer: nn.Module, directory: Path, dtype: torch.dtype) -> None:
    written = load_transformer(directory, dtype=dtype).state_dict()
    different = [n for n, t in transformer.state_dict().items() if not torch.equal(t, written[n])]
    if different:
        message = f"{len(different)} tensors were not written as they are, such as {different[0]}"
        raise CheckpointError(message)


def _put_in_place(unfinished: Path, target: Path) -> None:
    replaced = None
    if target.exists():
        replaced = target.with_name(f".old-{target.name}-{os.getpid()}")
        target.rename(replaced)
    unfinished.rename(target)
    if replaced is not None:
        shutil.rmtree(replaced)


def _alone() -> RankGroup:
    return RankGroup(rank=0, local_rank=0, ranks=(0,))
