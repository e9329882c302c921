"""What a checkpoint holds of a run: tensors that the ranks share, and each rank's plain values.

Tensors are the live ones of the run. A checkpoint is read into them, so nothing is held twice.
Names are those of the parameters without the wrappers that sharding, compilation and activation
checkpointing put around modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.checkpoint.fit import CALLBACKS, check_fit
from fastvideo.train.checkpoint.origin import Origin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fastvideo.train.callbacks import CallbackDict
    from fastvideo.train.methods.base import TrainingMethod

MODULE_KEY: Final = "roles.{role}.transformer"
"""Name that `TrainingMethod.checkpoint_state` gives the transformer of a role."""

_ROLES: Final = "roles."
_OPTIMIZERS: Final = "optimizers."
_GROUP: Final = "param_groups"
_PARAMS: Final = "params"
_SETTINGS: Final = (
    (("initial_lr", "lr"), "learning rate"),  # the first where there is a schedule
    (("betas",), "betas"),
    (("weight_decay",), "weight decay"),
)
_WRAPPERS: Final = frozenset(("_checkpoint_wrapped_module", "_orig_mod"))
_FLAT: Final = StateDictOptions(flatten_optimizer_state_dict=True)


class RunState:
    """The state of a method and its callbacks, as two flat parts.

    Args:
        method: The training method.
        callbacks: The run's callbacks, if there are any.
    """

    def __init__(self, method: TrainingMethod, callbacks: CallbackDict | None = None) -> None:
        self._method = method
        self._callbacks = callbacks

    def tensors(self) -> dict[str, Tensor]:
        """Returns the live tensors that all ranks save together, by name.

        Optimizers that have not stepped yet are given the state of step 0 first, which changes
        no later step: otherwise torch would make it by stepping, which does.
        """
        self._method.seed_optimizer_state_for_resume()
        found: dict[str, Tensor] = {}
        for key, item in self._method.checkpoint_state().items():
            if isinstance(item, nn.Module):
                state: Mapping[str, Any] = _module_state(item)
            elif isinstance(item, Optimizer) and self._module_of(key) is not None:
                state = get_optimizer_state_dict(self._module_of(key), item, options=_FLAT)
            elif isinstance(item, torch.Tensor):
                found[key] = item
                continue
            else:
                continue
            found |= {f"{key}.{n}": v for n, v in state.items() if isinstance(v, torch.Tensor)}
        return found | self._callback_tensors()

    def constants(self) -> set[str]:
        """Returns the names of tensors that are constants of the models, such as masks."""
        return {
            f"{key}.{_unwrapped(name)}"
            for key, item in self._method.checkpoint_state().items()
            if isinstance(item, nn.Module)
            for name, _ in item.named_buffers()
        }

    def plain(self) -> dict[str, Any]:
        """Returns everything else, as this rank has it: nested mappings of values."""
        own: dict[str, Any] = {}
        for key, item in self._method.checkpoint_state().items():
            if isinstance(item, nn.Module | torch.Tensor):
                continue
            if isinstance(item, Optimizer):
                own[key] = self._plain_optimizer(key, item)
            elif callable(getattr(item, "state_dict", None)):
                own[key] = item.state_dict()
            else:
                own[key] = item
        return {"method": own, CALLBACKS: self._callback_values()}

    def roles(self) -> list[str]:
        """Returns the roles whose weights are saved."""
        keys = self._method.checkpoint_state()
        return [key.split(".")[1] for key in keys if key.startswith(_ROLES)]

    def optimizers(self) -> dict[str, Optimizer]:
        """Returns the optimizers whose state is saved, by role."""
        state = self._method.checkpoint_state()
        return {
            key.removeprefix(_OPTIMIZERS): item
            for key, item in state.items()
            if isinstance(item, Optimizer)
        }

    def wanted(
        self, saved: Mapping[str, Any], origin: Origin | None = None
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Returns the tensors to read; what a checkpoint must have and lacks is an error.

        A callback that the saved run did not have is left out: it starts afresh.

        Args:
            saved: The names in the checkpoint, to objects with a ``size``.
            origin: What the checkpoint says of the run that saved it.

        Returns:
            The tensors by name, and what else differs, a sentence each.

        Raises:
            CheckpointError: The checkpoint has other roles, or tensors of the method are missing
                or have other shapes.
        """
        tensors = self.tensors()
        notes = check_fit(tensors, saved, optimizers=self.optimizers(), origin=origin or Origin())
        return {name: tensor for name, tensor in tensors.items() if name in saved}, notes

    def overridden_settings(self, plain: Mapping[str, Any]) -> list[str]:
        """Returns the settings of optimizers that a checkpoint changes, a phrase each.

        Args:
            plain: What :meth:`plain` returned in the saved run; to be called before
                :meth:`restore`.
        """
        found = []
        for role, optimizer in self.optimizers().items():
            saved = plain["method"].get(f"{_OPTIMIZERS}{role}") or {}
            for group, values in zip(optimizer.param_groups, saved.get("groups", ()), strict=False):
                found += [
                    f"{label} of the role {role} stays {theirs} (run file: {mine})"
                    for keys, label in _SETTINGS
                    for mine, theirs in [(_first_of(group, keys), _first_of(values, keys))]
                    if None not in (mine, theirs) and mine != theirs
                ]
        return list(dict.fromkeys(found))

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Takes a checkpoint's content back.

        Args:
            tensors: What :meth:`wanted` returned, read into.
            plain: What :meth:`plain` returned in the saved run.

        Raises:
            CheckpointError: The plain values belong to another run.
        """
        saved = plain["method"]
        for key, item in self._method.checkpoint_state().items():
            if isinstance(item, nn.Module):
                _set_module_state(item, _below(tensors, key))
            elif isinstance(item, Optimizer):
                self._restore_optimizer(key, item, _below(tensors, key), _of(saved, key))
            elif callable(getattr(item, "load_state_dict", None)):
                item.load_state_dict(_of(saved, key))
        self._restore_callbacks(tensors, plain[CALLBACKS])

    # -- Optimizers ------------------------------------------------------------------------------

    def _module_of(self, key: str) -> Any:  # noqa: ANN401 - a module or None
        role = key.removeprefix(_OPTIMIZERS)
        found = self._method.checkpoint_state().get(MODULE_KEY.format(role=role))
        return found if isinstance(found, nn.Module) else None

    def _plain_optimizer(self, key: str, optimizer: Optimizer) -> dict[str, Any]:
        """The settings of its groups, and what is no tensor in its state."""
        module = self._module_of(key)
        if module is None:
            return dict(optimizer.state_dict())
        flat: Mapping[str, Any] = get_optimizer_state_dict(module, optimizer, options=_FLAT)
        values = {
            name: value
            for name, value in flat.items()
            if not isinstance(value, torch.Tensor) and not name.startswith(f"{_GROUP}.")
        }
        groups = [
            {name: value for name, value in group.items() if name != _PARAMS}
            for group in optimizer.param_groups
        ]
        return {"groups": groups, "values": values}

    def _restore_optimizer(
        self,
        key: str,
        optimizer: Optimizer,
        tensors: Mapping[str, Tensor],
        saved: Mapping[str, Any],
    ) -> None:
        module = self._module_of(key)
        if module is None:
            optimizer.load_state_dict(dict(saved))
            return
        groups = saved["groups"]
        if len(groups) != len(optimizer.param_groups):
            message = (
                f"{key} has {len(groups)} parameter groups in the checkpoint and "
                f"{len(optimizer.param_groups)} in this run"
            )
            raise CheckpointError(message)
        flat: Mapping[str, Any] = get_optimizer_state_dict(module, optimizer, options=_FLAT)
        flat = {**flat, **tensors, **saved["values"]}
        set_optimizer_state_dict(module, optimizer, flat, options=_FLAT)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)

    # -- Callbacks -------------------------------------------------------------------------------

    def _callback_states(self) -> dict[str, dict[str, Any]]:
        states: dict[str, Any] = {} if self._callbacks is None else self._callbacks.state_dict()
        for name, state in states.items():
            where = f"state_dict() of {self._callback_kind(name)} (callbacks.{name})"
            if not isinstance(state, dict):
                message = (
                    f"{where} returned a {type(state).__name__}; expected a dict of names to "
                    "numbers, texts, tensors, numpy arrays and containers of them"
                )
                raise CheckpointError(message)
            for key in self._shared_keys(name) & state.keys():
                if not isinstance(state[key], dict):
                    message = (
                        f"{where} has a {type(state[key]).__name__} as {key!r}, which is one of "
                        "its shared_state_keys; expected a dict of names to tensors"
                    )
                    raise CheckpointError(message)
        return states

    def _callback_kind(self, name: str) -> str:
        callback = None if self._callbacks is None else self._callbacks.get(name)
        return type(callback).__name__

    def _shared_keys(self, name: str) -> frozenset[str]:
        callback = None if self._callbacks is None else self._callbacks.get(name)
        return frozenset() if callback is None else callback.shared_state_keys

    def _callback_tensors(self) -> dict[str, Tensor]:
        return {
            f"{CALLBACKS}.{name}.{key}.{inner}": tensor
            for name, state in self._callback_states().items()
            for key in self._shared_keys(name) & state.keys()
            for inner, tensor in state[key].items()
        }

    def _callback_values(self) -> dict[str, Any]:
        return {
            name: {key: value for key, value in state.items() if key not in self._shared_keys(name)}
            for name, state in self._callback_states().items()
        }

    def _restore_callbacks(self, tensors: Mapping[str, Tensor], saved: Mapping[str, Any]) -> None:
        if self._callbacks is None:
            return
        states = {name: dict(state) for name, state in saved.items()}
        for name, state in list(states.items()):
            present = self._callback_states().get(name, {})
            for key in self._shared_keys(name) & present.keys():
                shared = _below(tensors, f"{CALLBACKS}.{name}.{key}")
                if shared:
                    state[key] = shared
                elif present[key]:  # its tensors are missing: what is left is of no use
                    del states[name]
                    break
        self._callbacks.load_state_dict(states)


def _module_state(module: nn.Module) -> dict[str, Any]:
    """Returns what training changes of a module: all of it, or its trainable part if it has one."""
    return get_model_state_dict(module, options=_module_options(module))


def _set_module_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    options = _module_options(module)
    set_model_state_dict(
        module,
        dict(tensors),
        options=StateDictOptions(ignore_frozen_params=options.ignore_frozen_params, strict=False),
    )


def _unwrapped(name: str) -> str:
    """Returns the name of a tensor without the parts that wrappers of modules add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _module_options(module: nn.Module) -> StateDictOptions:
    trainable = any(parameter.requires_grad for parameter in module.parameters())
    return StateDictOptions(ignore_frozen_params=trainable)


def _first_of(group: Mapping[str, Any], keys: tuple[str, ...]) -> Any:  # noqa: ANN401 - settings
    value = next((group[key] for key in keys if key in group), None)
    if isinstance(value, torch.Tensor):
        value = value.item()
    return tuple(value) if isinstance(value, list) else value


def _below(tensors: Mapping[str, Tensor], key: str) -> dict[str, Tensor]:
    prefix = f"{key}."
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _of(saved: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - as it was saved
    if key not in saved:
        message = f"the checkpoint has no {key}: it was saved by another method"
        raise CheckpointError(message)
    return saved[key]
