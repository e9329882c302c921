"""What a run file says of its roles, for checks that need no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fastvideo.train.options import reject_value

if TYPE_CHECKING:
    from collections.abc import Mapping


class Role(Protocol):
    """A model in a role, or what a run file says of one."""

    @property
    def trainable(self) -> bool:
        """Whether the role is trained."""


@dataclass(frozen=True, slots=True)
class StatedRole:
    """A role as the run file states it.

    Attributes:
        trainable: Whether it is to be trained.
    """

    trainable: bool


def stated_roles(models: Mapping[str, Mapping[str, Any]]) -> dict[str, Role]:
    """Returns what the section ``models`` says of each role of this package's classes.

    Args:
        models: role → the mapping that its model is built from.

    Raises:
        ConfigError: ``trainable`` is no truth value.
    """
    roles: dict[str, Role] = {}
    for role, spec in models.items():
        trainable = spec.get("trainable", True)
        if not isinstance(trainable, bool):
            reject_value(f"models.{role}.trainable", "true or false", trainable)
        roles[role] = StatedRole(trainable)
    return roles
