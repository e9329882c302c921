"""Which traces are kept: ``OTEL_TRACES_SAMPLER`` brought down to one ratio for the whole run.

Ratio and trace id decide alone, so ranks that agree on both agree on every trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SAMPLERS: Final = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
"""The samplers of the specification that need no service of their own."""

DEFAULT_SAMPLER: Final = "parentbased_always_on"

_PARENT_BASED: Final = "parentbased_"


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler by its name in the specification.

    Attributes:
        name: One of :data:`SAMPLERS`.
        argument: Share of traces that the ratio samplers keep, 0 to 1.
    """

    name: str = DEFAULT_SAMPLER
    argument: float = 1.0

    def ratio(self, *, parent_sampled: bool | None = None) -> float:
        """Returns the share of step traces to keep, 0 to 1.

        Args:
            parent_sampled: Whether the span that started this run (``TRACEPARENT``) is sampled;
                None without one.
        """
        if self.name.startswith(_PARENT_BASED) and parent_sampled is not None:
            # A parent that is in the sample says that this run is watched; it does not say that
            # each of a million steps is, so the ratio still holds among them.
            if not parent_sampled:
                return 0.0
            return self.argument if self.name == "parentbased_traceidratio" else 1.0
        kind = self.name.removeprefix(_PARENT_BASED)
        return {"always_on": 1.0, "always_off": 0.0}.get(kind, self.argument)
