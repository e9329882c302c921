"""The registry of region names: what exists, what it covers, how a name is spelled."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "profiler_region_"


@dataclass(frozen=True, slots=True)
class ProfilerRegion:
    """A named part of a program.

    Attributes:
        name: The registered long form, ``profiler_region_<short>``.
        description: What the region covers, for a person reading a dashboard.
    """

    name: str
    description: str

    @property
    def short_name(self) -> str:
        """The name without its prefix: metric label, span name, part of file names."""
        return self.name.removeprefix(PREFIX)


class RegionRegistry:
    """A set of regions. Names are accepted with or without the long form's prefix."""

    __slots__ = ("_regions",)

    def __init__(self) -> None:
        self._regions: dict[str, ProfilerRegion] = {}

    def register(self, name: str, description: str) -> ProfilerRegion:
        """Adds a region, or returns the one that already has this name and description.

        Args:
            name: Short or long form: letters, digits and underscores, starting with a letter.
            description: What the region covers, in one line.

        Returns:
            The registered region.

        Raises:
            ValueError: The name is not usable, or is taken with another description.
        """
        short = name.removeprefix(PREFIX) if isinstance(name, str) else ""
        if not (short.isascii() and short.isidentifier()) or short.startswith("_"):
            message = (
                f"region name {name!r} cannot be used: expected ASCII letters, digits and "
                "underscores, starting with a letter, such as 'my_region'"
            )
            raise ValueError(message)
        region = ProfilerRegion(PREFIX + short, description)
        present = self._regions.setdefault(short, region)
        if present != region:
            message = (
                f"region {short!r} is already registered as {present.description!r}; "
                "choose another name, or register it with the same description"
            )
            raise ValueError(message)
        return present

    def resolve(self, name: str) -> ProfilerRegion | None:
        """Returns the region called ``name`` (short or long form), or None."""
        return self._regions.get(name.removeprefix(PREFIX))

    def list(self) -> list[ProfilerRegion]:
        """Returns all regions in the order they were registered."""
        return list(self._regions.values())
