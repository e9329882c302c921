"""Which method and roles saved a checkpoint, so that a run goes on from its own ones only.

Nothing is imported by the names that a checkpoint holds: classes are compared by their names. A
class that has moved to another module is the same, and a subclass goes on from what its base has
saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.checkpoint.layout import list_checkpoints, read_metadata, what_is_missing

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

METHOD: Final = "method"
"""Key of ``metadata.json`` with what :func:`describe_method` returns."""

RESUME_KEY: Final = "training.checkpoint.resume_from_checkpoint"
OUTPUT_KEY: Final = "training.checkpoint.output_dir"
_TARGET: Final = "_target_"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a checkpoint says of the run that saved it; older ones say less.

    Attributes:
        target: Dotted path of the method's class; "" where it is not known.
        roles: The roles whose weights are in it, sorted; empty where they are not known.
        optimizers: Role to the name of its optimizer's class.
        init_from: Role to the model that the run file started it from.
    """

    target: str = ""
    roles: tuple[str, ...] = ()
    optimizers: Mapping[str, str] = field(default_factory=dict)
    init_from: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The class's own name."""
        return self.target.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class MethodNames:
    """What this run's method is called.

    Attributes:
        target: Dotted path in the run file, or of the class.
        classes: Names of the class and of those that it derives from.
    """

    target: str
    classes: Collection[str]

    @classmethod
    def of(cls, method: object, raw_config: Mapping[str, Any] | None = None) -> MethodNames:
        """Returns the names of a method.

        Args:
            method: The method.
            raw_config: The run file, if it was made from one.
        """
        kind = type(method)
        target = _mapping(_mapping(raw_config).get(METHOD)).get(_TARGET)
        classes = frozenset(base.__name__ for base in kind.__mro__[:-1])
        return cls(str(target or f"{kind.__module__}.{kind.__qualname__}"), classes)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.target.rpartition(".")[2]

    def can_go_on_from(self, origin: Origin) -> bool:
        """Tells whether a checkpoint's method is this one, as far as is known."""
        return not origin.target or origin.target == self.target or origin.name in self.classes


def describe_method(
    method: object, roles: Collection[str], optimizers: Mapping[str, object]
) -> dict[str, Any]:
    """Returns what ``metadata.json`` keeps of a method.

    Args:
        method: The method.
        roles: The roles whose weights are saved.
        optimizers: Role to its optimizer.
    """
    kind = type(method)
    return {
        "target": f"{kind.__module__}.{kind.__qualname__}",
        "roles": sorted(roles),
        "optimizers": {role: type(one).__name__ for role, one in sorted(optimizers.items())},
    }


def read_origin(checkpoint: Path) -> Origin:
    """Returns what a checkpoint's ``metadata.json`` says; older ones only have the run file.

    Args:
        checkpoint: A checkpoint's directory.

    Raises:
        CheckpointError: The file cannot be read.
    """
    metadata = read_metadata(checkpoint)
    method = _mapping(metadata.get(METHOD))
    config = _mapping(metadata.get("config"))
    models = {role: _mapping(spec) for role, spec in _mapping(config.get("models")).items()}
    roles = method.get("roles")
    return Origin(
        target=str(method.get("target") or _mapping(config.get(METHOD)).get(_TARGET) or ""),
        roles=tuple(str(role) for role in roles) if isinstance(roles, list) else (),
        optimizers=dict(_mapping(method.get("optimizers"))),
        init_from={r: str(spec["init_from"]) for r, spec in models.items() if "init_from" in spec},
    )


def refuse_other_method(checkpoint: Path, own: MethodNames, *, key: str = RESUME_KEY) -> Origin:
    """Refuses to go on from what another method has saved.

    Args:
        checkpoint: A checkpoint's directory.
        own: This run's method.
        key: What named the checkpoint.

    Returns:
        What the checkpoint says of the run that saved it.

    Raises:
        CheckpointError: Another method saved it.
    """
    origin = read_origin(checkpoint)
    if not own.can_go_on_from(origin):
        misfit = f"{_saved_by(origin)}, and this run's method is {own.name}"
        raise CheckpointError(misfit_message(checkpoint, misfit, key=key))
    return origin


def newest_whole(output_dir: str | Path) -> Path | None:
    """Returns the newest whole checkpoint of an output directory, without a word on others."""
    whole = (one for one in reversed(list_checkpoints(output_dir)) if not what_is_missing(one))
    return next(whole, None)


def refuse_mixing(output_dir: str | Path, own: MethodNames) -> Path | None:
    """Refuses to save among the checkpoints of another method.

    Args:
        output_dir: The run's output directory.
        own: This run's method.

    Returns:
        The newest whole checkpoint that is there, if there is one.

    Raises:
        CheckpointError: Another method saved it.
    """
    newest = newest_whole(output_dir)
    if newest is None:
        return None
    origin = read_origin(newest)
    if not own.can_go_on_from(origin):
        message = (
            f"{OUTPUT_KEY}: {newest}: {_saved_by(origin)}, and this run's method is {own.name}; "
            f"it would mix its checkpoints with those and remove some of them. "
            f"Set --{OUTPUT_KEY} to another directory"
        )
        raise CheckpointError(message)
    return newest


def refuse_starting_among(
    output_dir: str | Path, newest: Path | None, resumed: Path | None
) -> None:
    """Refuses to save among the checkpoints of an earlier run that this one does not go on from.

    `latest` would find the earlier run's checkpoint of a later step, and the limit on their number
    would remove others of them.

    Args:
        output_dir: The run's output directory.
        newest: The newest whole checkpoint that is there, if there is one.
        resumed: What this run goes on from; None for one that begins from the start.

    Raises:
        CheckpointError: There are such checkpoints.
    """
    if newest is None or (resumed is not None and resumed.parent.samefile(newest.parent)):
        return
    how = "begin from the start" if resumed is None else f"go on from {resumed}"
    message = (
        f"{OUTPUT_KEY}: {output_dir} has checkpoints of an earlier run, up to {newest.name}, and "
        f"this run would {how} among them. Set --{RESUME_KEY} latest to go on with the earlier "
        f"run, or --{OUTPUT_KEY} to another directory, or move those checkpoints away"
    )
    raise CheckpointError(message)


def misfit_message(checkpoint: Path, misfit: str, *, key: str = RESUME_KEY) -> str:
    """Returns why a run cannot go on from a checkpoint, and what to do instead.

    Args:
        checkpoint: The checkpoint.
        misfit: What does not fit.
        key: What named the checkpoint.
    """
    return (
        f"{key}: {checkpoint} does not fit this run: {misfit}. A run goes on from checkpoints of "
        "its own method, models and optimizers only. To start from the weights in this one, write "
        f"them as a model (fastvideo export --checkpoint {checkpoint} --output-dir MODEL), and set "
        f"--models.student.init_from MODEL and another --{OUTPUT_KEY}, with --{RESUME_KEY} empty "
        "or latest"
    )


def _saved_by(origin: Origin) -> str:
    roles = f" with the roles {', '.join(origin.roles)}" if origin.roles else ""
    return f"it was saved by {origin.name}{roles}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
