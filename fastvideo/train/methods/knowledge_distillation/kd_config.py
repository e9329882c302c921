"""The `method:` section of knowledge distillation, checked."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError
from fastvideo.train.models.conditioning import parse_unconditional_policy
from fastvideo.train.options import (
    get_optional_float,
    require_choice,
    require_positive_int,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WHERE: Final = "method"
CACHED_STATES: Final = ("all", "student")
TOLERANCE: Final = 2.0
"""How far a student's timestep may be from the teacher's nearest one, of N = 1000."""


@dataclass(frozen=True, slots=True)
class KDConfig:
    """What knowledge distillation is told. Attribute names are the YAML keys, see `KD_KEYS`.

    Attributes:
        t_list: Timesteps of the student's sampler and a 0, such as `[999, 937, 833, 624, 0]`.
        student_sample_steps: Steps of that sampler; only there to be compared with `t_list`.
        teacher_path_cache: Directory of the teacher's trajectories, which all ranks see.
        teacher_inference_steps: Steps of the teacher's sampler.
        teacher_guidance_scale: Guidance scale s of the teacher; 1 is no guidance.
        cached_states: `all` keeps every state of a trajectory, so that `t_list` can change later;
            `student` only those that `t_list` needs, in a small part of the space.
        cfg_uncond: What stands for "no prompt" in the teacher's guidance, by input.
        needs_negative_prompt: Whether guidance needs the embedding of a negative prompt.
        lr_step_rules: Rules of a `piecewise_constant` schedule: factors of the peak rate, each up
            to a step, and the last one, such as `"1:1000,0.5:2000,0.1"`.
    """

    t_list: tuple[int, ...] = field(
        metadata={"allowed": "descending, at most 1000, the last one 0"}
    )
    student_sample_steps: int = field(
        metadata={"default": "what `t_list` says", "allowed": "one less than `t_list` has entries"}
    )
    teacher_path_cache: Path
    teacher_inference_steps: int = field(metadata={"allowed": "at least 1", "unit": "steps"})
    teacher_guidance_scale: float
    cached_states: str = field(metadata={"allowed": CACHED_STATES})
    cfg_uncond: Mapping[str, Any] | None
    needs_negative_prompt: bool
    lr_step_rules: str | None

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], *, num_train_timesteps: int) -> KDConfig:
        """Checks the section.

        Args:
            method: The run's `method:` mapping.
            num_train_timesteps: N.

        Raises:
            ConfigError: A key is missing or its value cannot be used; the message names it.
        """
        t_list = _t_list(method, num_train_timesteps)
        steps = require_positive_int(
            method, "student_sample_steps", default=len(t_list) - 1, where=_WHERE
        )
        if len(t_list) != steps + 1:
            message = (
                f"{_WHERE}.t_list must have student_sample_steps + 1 = {steps + 1} entries, "
                f"got {len(t_list)}: {list(t_list)}"
            )
            raise ConfigError(message)
        scale = get_optional_float(method, "teacher_guidance_scale", default=1.0, where=_WHERE)
        policy = parse_unconditional_policy(method.get("cfg_uncond"))
        guidance = 1.0 if scale is None else scale
        return cls(
            t_list=t_list,
            student_sample_steps=steps,
            teacher_path_cache=_cache_path(method),
            teacher_inference_steps=require_positive_int(
                method, "teacher_inference_steps", default=48, where=_WHERE
            ),
            teacher_guidance_scale=guidance,
            cached_states=require_choice(
                method, "cached_states", CACHED_STATES, default="all", where=_WHERE
            ),
            cfg_uncond=method.get("cfg_uncond"),
            needs_negative_prompt=guidance != 1.0 and policy.needs_negative_prompt,
            lr_step_rules=method.get("lr_step_rules"),
        )

    @property
    def uses_guidance(self) -> bool:
        """Whether the teacher's unconditional prediction has any weight."""
        return self.teacher_guidance_scale != 1.0

    @property
    def student_timesteps(self) -> tuple[int, ...]:
        """`t_list` without the 0 at its end, where nothing is predicted."""
        return self.t_list[:-1]


KD_KEYS: Final = frozenset(f.name for f in fields(KDConfig)) - {"needs_negative_prompt"}
"""The keys that the section may have; the one left out follows from others."""


def nearest_steps(wanted: Sequence[float], teacher: Sequence[float]) -> tuple[int, ...]:
    """Returns the teacher's step for each of the student's timesteps.

    Args:
        wanted: Timesteps of the student.
        teacher: Timesteps of the teacher's states.

    Returns:
        Positions in ``teacher``.

    Raises:
        ConfigError: A timestep is further than :data:`TOLERANCE` from all of the teacher's, or two
            of them share one; the message says what is near.
    """
    positions: list[int] = []
    for timestep in wanted:
        position = min(range(len(teacher)), key=lambda i: abs(teacher[i] - timestep))
        found = teacher[position]
        if abs(found - timestep) > TOLERANCE or position in positions:
            steps = ", ".join(f"{t:g}" for t in teacher)
            problem = (
                f"is {abs(found - timestep):.4g} away from it, more than {TOLERANCE:g}"
                if position not in positions
                else "belongs to another entry already"
            )
            message = (
                f"{_WHERE}.t_list: timestep {timestep:g} has no state in the teacher's "
                f"trajectories: the nearest one, {found:.4g}, {problem}. The teacher's timesteps "
                f"are {steps}; change t_list, teacher_inference_steps or the flow shift"
            )
            raise ConfigError(message)
        positions.append(position)
    return tuple(positions)


def _t_list(method: Mapping[str, Any], num_train_timesteps: int) -> tuple[int, ...]:
    given = method.get("t_list")
    steps = given if isinstance(given, list | tuple) else ()
    numbers = tuple(s for s in steps if isinstance(s, int) and not isinstance(s, bool))
    descending = all(a > b for a, b in pairwise(numbers))
    least = 2  # one step, and where it leads
    complete = len(numbers) == len(steps) >= least
    if not complete or not descending or numbers[-1] != 0 or numbers[0] > num_train_timesteps:
        message = (
            f"{_WHERE}.t_list must be a list of descending whole timesteps of at most "
            f"{num_train_timesteps} that ends in 0, such as [999, 937, 833, 624, 0]; got {given!r}"
        )
        raise ConfigError(message)
    return numbers


def _cache_path(method: Mapping[str, Any]) -> Path:
    given = method.get("teacher_path_cache")
    if not isinstance(given, str | Path) or not str(given).strip():
        message = (
            f"{_WHERE}.teacher_path_cache is {given!r}; it must be a directory for the teacher's "
            "trajectories, which all ranks see"
        )
        raise ConfigError(message)
    return Path(given).expanduser()
