"""How far two numbers may be apart, by the type that they were computed in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_RTOL: Final = {"float64": 1e-9, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
"""Of float16 and bfloat16, one unit in the last place; types that are not here must be equal."""

DEFAULT_ATOL: Final = 1e-8

_SHORT: Final = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What counts as equal: ``|a - b| <= atol + rtol * scale``.

    Attributes:
        rtol: By type; the empty name is for types that have none of their own.
        atol: Likewise.
    """

    rtol: Mapping[str, float]
    atol: Mapping[str, float]

    @classmethod
    def parse(cls, rtol: Iterable[str] = (), atol: Iterable[str] = ()) -> Tolerances:
        """Reads tolerances as they are typed.

        Args:
            rtol: Each a number for all types, or one for a type such as ``bf16=1e-2``; without
                any: :data:`DEFAULT_RTOL`.
            atol: Likewise; without any: :data:`DEFAULT_ATOL`.

        Raises:
            ConfigError: One is not of this form.
        """
        return cls(
            _parse(rtol, "--rtol", {"": 0.0, **DEFAULT_RTOL}),
            _parse(atol, "--atol", {"": DEFAULT_ATOL}),
        )

    def of(self, *dtypes: str) -> tuple[float, float]:
        """Returns rtol and atol between two types: the looser ones.

        Args:
            *dtypes: Names of types, such as ``torch.bfloat16``.
        """
        names = [name.removeprefix("torch.") for name in dtypes]
        return (
            max(self.rtol.get(name, self.rtol[""]) for name in names),
            max(self.atol.get(name, self.atol[""]) for name in names),
        )


def _parse(texts: Iterable[str], option: str, defaults: dict[str, float]) -> dict[str, float]:
    values: dict[str, float] = dict(defaults)
    for text in sorted(texts, key=lambda text: "=" in text):  # those for all types come first
        dtype, _, number = text.rpartition("=")
        dtype = _SHORT.get(dtype, dtype.removeprefix("torch."))
        if dtype and dtype not in DEFAULT_RTOL:
            message = (
                f"{option} {text}: there is no type {dtype!r}; expected one of "
                f"{', '.join(_SHORT)}.{did_you_mean(dtype, (*_SHORT, *DEFAULT_RTOL))}"
            )
            raise ConfigError(message)
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not value >= 0:
            message = (
                f"{option} {text}: expected a number of at least 0, such as 1e-3, or bf16=1e-2"
            )
            raise ConfigError(message)
        if not dtype:
            values.clear()
        values[dtype] = value
    return values
