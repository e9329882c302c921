"""An exponential moving average of the student's weights, sharded like the weights."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger
from fastvideo.train.callbacks.callback import Callback
from fastvideo.train.options import as_float, as_int
from fastvideo.train.step import STEP_SKIPPED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

    from fastvideo.train.methods.base import TrainingMethod

logger = init_logger(__name__)

_WRAPPERS: Final = ("_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module")


class ShadowWeights:
    """The moving average of a module's trainable parameters, in float32.

    A parameter that is a shard has a shadow that is a shard of the same mesh and placements, so a
    distributed checkpoint saves and restores it as it does the parameter.

    Args:
        module: The module.
        decay: Weight of the old average in an update, from 0 to 1.
        device: Where the shadows are kept; None for the parameters' own device.

    Attributes:
        shadow: Average by parameter name; names are free of the wrappers that checkpointing and
            compilation put around modules.
        decay: As given.
    """

    def __init__(self, module: nn.Module, decay: float, device: str | None = None) -> None:
        self.decay = decay
        self._device = torch.device(device) if device is not None else None
        self.shadow: dict[str, Tensor] = {}
        self.restart(module)

    @torch.no_grad()
    def restart(self, module: nn.Module) -> None:
        """Makes the average equal to the weights."""
        for name, parameter in trainable_parameters(module).items():
            present = self.shadow.get(name)
            if present is None:
                self.shadow[name] = parameter.detach().to(
                    device=self._device or parameter.device, dtype=torch.float32, copy=True
                )
            else:
                _local(present).copy_(_local(parameter))

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Moves the average: ``decay * average + (1 - decay) * weight``, on the device."""
        shadows: list[Tensor] = []
        weights: list[Tensor] = []
        for name, parameter in trainable_parameters(module).items():
            shadow = _local(self.shadow[name])
            shadows.append(shadow)
            weights.append(_local(parameter).to(device=shadow.device, dtype=shadow.dtype))
        if shadows:
            torch._foreach_lerp_(shadows, weights, 1.0 - self.decay)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        """Overwrites the module's trainable parameters with the average."""
        for name, parameter in trainable_parameters(module).items():
            _local(parameter).copy_(_local(self.shadow[name]))

    @contextmanager
    def applied_to(self, module: nn.Module) -> Iterator[nn.Module]:
        """Gives a module the average for the body, then its own weights back, bit for bit.

        Args:
            module: A module with the same trainable parameters.

        Yields:
            The same module.
        """
        _reshard(module)
        own = [
            (parameter, _local(parameter).detach().clone())
            for parameter in trainable_parameters(module).values()
        ]
        self.copy_to(module)
        try:
            yield module
        finally:
            _reshard(module)
            with torch.no_grad():
                for parameter, saved in own:
                    _local(parameter).copy_(saved)

    @torch.no_grad()
    def load(self, shadow: Mapping[str, Tensor]) -> None:
        """Overwrites the average.

        Args:
            shadow: By parameter name, like :attr:`shadow`.

        Raises:
            ValueError: A name is missing, or a tensor has another shape than its parameter, as
                the shards have that were saved without their sharding.
        """
        for name, present in self.shadow.items():
            if name not in shadow:
                message = f"the saved EMA has no {name!r}; it belongs to another model"
                raise ValueError(message)
            saved = shadow[name]
            if saved is present:  # a distributed checkpoint was read into it in place
                continue
            if saved.shape != present.shape:
                message = (
                    f"the saved EMA of {name!r} has shape {tuple(saved.shape)}, the parameter has "
                    f"{tuple(present.shape)}; it may be one rank's shard of an older checkpoint, "
                    "which cannot be used: leave the EMA state out when resuming from it"
                )
                raise ValueError(message)
            _copy_sharded(present, saved)


class EMACallback(Callback):
    """Keeps a moving average of the student's weights.

    The average follows steps in which the student's optimizer really stepped: not those of other
    roles only, and not those that were skipped because of a loss that is not finite.

    Args:
        decay: Weight of the old average in an update.
        start_iter: First step that counts; the average starts from the weights of that step.
        device: Where it is kept, such as ``cpu`` to save device memory at the price of a copy in
            every step.

    Attributes:
        student_ema: The average; None before the run starts.

    Raises:
        ConfigError: ``decay`` is not from 0 to 1, ``start_iter`` is negative, or there is no such
            device.
    """

    shared_state_keys: ClassVar[frozenset[str]] = frozenset({"student_ema"})

    def __init__(
        self,
        decay: Annotated[float, {"allowed": "0 to 1"}] = 0.9999,
        start_iter: Annotated[int, {"allowed": "at least 0", "unit": "steps"}] = 0,
        *,
        device: Annotated[str | None, {"default": "the weights' own"}] = None,
    ) -> None:
        self.decay = as_float(decay, where="callbacks.ema.decay")
        self.start_iter = as_int(start_iter, where="callbacks.ema.start_iter")
        if not 0.0 <= self.decay <= 1.0:
            message = f"callbacks.ema.decay must be from 0 to 1, got {decay!r}"
            raise ConfigError(message)
        if self.start_iter < 0:
            message = f"callbacks.ema.start_iter must be at least 0, got {start_iter!r}"
            raise ConfigError(message)
        if device is not None:
            _check_device(device)
        self.device = device
        self.student_ema: ShadowWeights | None = None
        self._ema_started = False

    def on_train_start(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Copies the student's weights.

        Args:
            method: The training method.
            iteration: The step the run starts from.

        Raises:
            ValueError: The method has no student transformer.
        """
        del iteration
        self.student_ema = ShadowWeights(_student_transformer(method), self.decay, self.device)

    def on_training_step_end(
        self,
        method: TrainingMethod,
        loss_dict: Mapping[str, float],
        iteration: int = 0,
    ) -> None:
        """Moves the average, if the student has moved.

        Args:
            method: The training method.
            loss_dict: The step's scalars.
            iteration: The step.
        """
        if self.student_ema is None or iteration < self.start_iter:
            return
        if STEP_SKIPPED in loss_dict or not _student_stepped(method, iteration):
            return
        transformer = _student_transformer(method)
        if not self._ema_started:
            self.student_ema.restart(transformer)
            self._ema_started = True
        self.student_ema.update(transformer)
        tracker = getattr(method, "tracker", None)
        if tracker is not None:
            tracker.log({"ema/decay": self.decay}, iteration)

    @contextmanager
    def ema_context(self, transformer: nn.Module) -> Iterator[nn.Module]:
        """Gives ``transformer`` the averaged weights for the body, then its own back, bit for bit.

        Before the average has started, the weights stay as they are.

        Args:
            transformer: The student's transformer.

        Yields:
            The same module.
        """
        ema = self.student_ema
        if ema is None or not self._ema_started:
            yield transformer
            return
        with ema.applied_to(transformer):
            yield transformer

    def state_dict(self) -> dict[str, Any]:
        """Returns the average, sharded like the weights; empty before the run has started."""
        if self.student_ema is None:
            return {}
        return {"student_ema": dict(self.student_ema.shadow), "ema_started": self._ema_started}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a saved average back; call it after :meth:`on_train_start`.

        Args:
            state_dict: What :meth:`state_dict` returned; empty changes nothing.

        Raises:
            ValueError: The tensors do not fit the student.
            RuntimeError: The run has not started.
        """
        if not state_dict:
            return
        if self.student_ema is None:
            message = "the EMA has no weights yet; call on_train_start before load_state_dict"
            raise RuntimeError(message)
        self.student_ema.load(state_dict["student_ema"])
        self._ema_started = bool(state_dict.get("ema_started", True))


def trainable_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters that require gradients, by their name without wrappers.

    Args:
        module: A module, perhaps sharded, compiled or with activation checkpointing.
    """
    return {
        ".".join(part for part in name.split(".") if part not in _WRAPPERS): parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def _local(tensor: Tensor) -> Tensor:
    """Returns the part of a tensor that this rank holds; shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copy_sharded(target: Tensor, source: Tensor) -> None:
    """Copies whole or sharded values into a target that may be sharded another way."""
    if not isinstance(target, DTensor):
        whole = source.full_tensor() if isinstance(source, DTensor) else source
        target.copy_(whole)
        return
    if not isinstance(source, DTensor):
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - rarely needed

        source = distribute_tensor(
            source.to(target.device), target.device_mesh, target.placements, src_data_rank=None
        )
    else:
        source = source.redistribute(target.device_mesh, target.placements)
    _local(target).copy_(_local(source))


def _reshard(module: nn.Module) -> None:
    """Makes FSDP drop gathered weights, which would not follow a change of the shards."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _student_transformer(method: TrainingMethod) -> nn.Module:
    transformer = getattr(getattr(method, "student", None), "transformer", None)
    if transformer is None:
        message = (
            "No student transformer: the callback 'ema' averages method.student.transformer, and "
            f"{type(method).__name__} has none; remove callbacks.ema or add models.student"
        )
        raise ValueError(message)
    found: nn.Module = transformer
    return found


def _student_stepped(method: TrainingMethod, iteration: int) -> bool:
    """Tells whether the student's optimizer stepped; True where a method cannot say."""
    if hasattr(method, "did_update_role"):
        return bool(method.did_update_role("student", iteration))
    if hasattr(method, "get_optimizers"):
        own = getattr(method, "_optimizer_dict", {}).get("student")
        return own is None or any(own is other for other in method.get_optimizers(iteration))
    return True


def _check_device(name: object) -> None:
    """Refuses a device that torch does not know, or that this machine lacks."""
    key = "callbacks.ema.device"
    try:
        kind = torch.device(str(name)).type
    except RuntimeError as error:
        message = f"{key}: expected a device such as cpu or cuda, got {name!r}"
        raise ConfigError(message) from error
    if kind == "cuda" and not torch.cuda.is_available():
        message = f"{key} is {name!r}, but CUDA is not available here; set --{key} cpu, or leave it"
        raise ConfigError(message)
