"""Whether the tensors of a checkpoint are those of a run, and what to say where they are not.

Names of tensors begin with what they belong to: ``roles.<role>.transformer.<parameter>``,
``optimizers.<role>.state.<parameter>.<kind>``, ``callbacks.<name>.<key>.<parameter>``, or whatever
a method has called tensors of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import counted
from fastvideo.train.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torch import Tensor

    from fastvideo.train.checkpoint.origin import Origin

CALLBACKS: Final = "callbacks"
"""First part of the names of callbacks' tensors."""

_ROLES: Final = "roles"
_OPTIMIZERS: Final = "optimizers"
_METHOD_EMA: Final = "ema"
_SHOWN: Final = 3

Shapes = dict[str, tuple[int, ...]]


def check_fit(
    tensors: Mapping[str, Tensor],
    saved: Mapping[str, Any],
    *,
    optimizers: Mapping[str, object],
    origin: Origin,
) -> list[str]:
    """Compares names and shapes.

    Args:
        tensors: The run's tensors.
        saved: The names in the checkpoint, to objects with a ``size``.
        optimizers: The run's optimizers by role.
        origin: What the checkpoint says of the run that saved it.

    Returns:
        What the checkpoint has and this run has no use for, a sentence each.

    Raises:
        CheckpointError: The checkpoint is not one of this run's method, models and optimizers.
    """
    mine: Shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    theirs: Shapes = {name: tuple(getattr(one, "size", ())) for name, one in saved.items()}
    roles = _check_roles(mine, theirs, origin)
    for role in roles:
        _check_parameters(role, mine, theirs, origin)
    for role in sorted(_second_parts(mine, _OPTIMIZERS) | _second_parts(theirs, _OPTIMIZERS)):
        _check_optimizer(role, mine, theirs, (optimizers.get(role), origin))
    notes = _check_method_tensors(mine, theirs)
    return notes + _check_callbacks(mine, theirs)


def _check_roles(mine: Shapes, theirs: Shapes, origin: Origin) -> list[str]:
    own, saved = _second_parts(mine, _ROLES), _second_parts(theirs, _ROLES)
    if own != saved:
        by = f", as {origin.name} saved them" if origin.target else ""
        message = (
            f"it has the weights of the roles {_listed(saved)}{by}, and this run keeps those of "
            f"{_listed(own)}"
        )
        raise CheckpointError(message)
    return sorted(own)


def _check_parameters(role: str, mine: Shapes, theirs: Shapes, origin: Origin) -> None:
    own, saved = _below(mine, f"{_ROLES}.{role}"), _below(theirs, f"{_ROLES}.{role}")
    differences = _differences(own, saved)
    if not differences:
        return
    model = origin.init_from.get(role)
    hint = f"; the saved run had models.{role}.init_from {model}" if model else ""
    message = (
        f"models.{role} differs in {counted(len(differences), 'parameter')}: "
        f"{_first(differences)}{hint}"
    )
    raise CheckpointError(message)


def _check_optimizer(
    role: str, mine: Shapes, theirs: Shapes, kinds: tuple[object | None, Origin]
) -> None:
    optimizer, origin = kinds
    prefix = f"{_OPTIMIZERS}.{role}.state"
    own, saved = _below(mine, prefix), _below(theirs, prefix)
    name = "" if optimizer is None else type(optimizer).__name__
    saved_name = origin.optimizers.get(role, "")
    if saved_name and name and saved_name != name:
        message = f"the optimizer of the role {role} was {saved_name} and is {name}"
        raise CheckpointError(message)
    own_kinds, saved_kinds = _last_parts(own), _last_parts(saved)
    if own_kinds != saved_kinds:
        message = (
            f"the optimizer of the role {role} kept {_listed(saved_kinds)} of each parameter, and "
            f"this run's ({name or 'none'}) keeps {_listed(own_kinds)}"
        )
        raise CheckpointError(message)
    differences = _differences(own, saved)
    if differences:
        message = (
            f"the state of the optimizer of the role {role} differs in "
            f"{counted(len(differences), 'tensor')}: {_first(differences)}"
        )
        raise CheckpointError(message)


def _check_method_tensors(mine: Shapes, theirs: Shapes) -> list[str]:
    """Looks at tensors that methods keep beside roles: an average of their own, for example."""
    known = (_ROLES, _OPTIMIZERS, CALLBACKS)
    notes = []
    parts = {name.partition(".")[0] for name in (*mine, *theirs)} - set(known)
    for part in sorted(parts):
        own, saved = _part(mine, part), _part(theirs, part)
        what = "the method's moving average (ema)" if part == _METHOD_EMA else part
        if not own:
            notes.append(f"it has {what}, which this run does not keep: it is left out")
        elif not saved:
            message = f"it does not have {what}, which this run keeps: {_first(sorted(own))}"
            raise CheckpointError(message)
        elif differences := _differences(own, saved):
            message = f"{what} differs: {_first(differences)}"
            raise CheckpointError(message)
    return notes


def _check_callbacks(mine: Shapes, theirs: Shapes) -> list[str]:
    """A callback may be new, and starts afresh then, or gone; but not a part of its tensors."""
    notes = []
    for name in sorted(_second_parts(mine, CALLBACKS) | _second_parts(theirs, CALLBACKS)):
        prefix = f"{CALLBACKS}.{name}"
        own, saved = _below(mine, prefix), _below(theirs, prefix)
        if not own:
            notes.append(f"it has the state of {prefix}, which this run does not have: left out")
        elif saved and (differences := _differences(own, saved)):
            number = counted(len(differences), "tensor")
            message = f"{prefix} differs in {number}: {_first(differences)}"
            raise CheckpointError(message)
    return notes


def _differences(own: Shapes, saved: Shapes) -> list[str]:
    """Returns a phrase for every name that only one side has, or that differs in shape."""
    found = []
    for name in dict.fromkeys((*own, *saved)):
        if name not in saved:
            found.append(f"{name} is missing in the checkpoint and {list(own[name])} in this run")
        elif name not in own:
            found.append(f"{name} is {list(saved[name])} in the checkpoint and not in this run")
        elif own[name] != saved[name]:
            found.append(
                f"{name} is {list(saved[name])} in the checkpoint and {list(own[name])} in this run"
            )
    return found


def _part(shapes: Shapes, part: str) -> Shapes:
    return {n: shape for n, shape in shapes.items() if n == part or n.startswith(f"{part}.")}


def _below(shapes: Shapes, prefix: str) -> Shapes:
    """Returns what is below a prefix, without it."""
    start = f"{prefix}."
    return {n.removeprefix(start): shape for n, shape in shapes.items() if n.startswith(start)}


def _second_parts(names: Iterable[str], first: str) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith(f"{first}.")}


def _last_parts(names: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in names}


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _first(phrases: Collection[str]) -> str:
    shown = "; ".join(list(phrases)[:_SHOWN])
    more = len(phrases) - _SHOWN
    return shown + (f"; and {more} more" if more > 0 else "")
