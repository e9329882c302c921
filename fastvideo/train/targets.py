"""Looking for what a run file names by `_target_`, before a process is started for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from symtable import symtable
from typing import TYPE_CHECKING, Final

import fastvideo
from fastvideo.errors import FastVideoError, did_you_mean
from fastvideo.train.instantiate import TARGET, TargetImportError, resolve_target

if TYPE_CHECKING:
    from fastvideo.train.run_config import RunConfig

_PACKAGE: Final = "fastvideo"


def is_own(target: object) -> bool:
    """Tells whether a dotted path leads into this package."""
    return str(target).startswith(f"{_PACKAGE}.")


def named_targets(cfg: RunConfig) -> dict[str, str]:
    """Returns what a run file names by `_target_`, by its key.

    Args:
        cfg: The run file.
    """
    rewards = cfg.method.get("rewards")
    sections: dict[str, object] = {
        **{f"models.{role}": spec for role, spec in cfg.models.items()},
        "method": cfg.method,
        **{f"callbacks.{name}": spec for name, spec in cfg.callbacks.items()},
    }
    if isinstance(rewards, Mapping):
        sections |= {f"method.rewards.{name}": spec for name, spec in rewards.items()}
    return {
        f"{where}.{TARGET}": spec[TARGET]
        for where, spec in sections.items()
        if isinstance(spec, Mapping) and isinstance(spec.get(TARGET), str)
    }


def check_own_target(target: str, *, where: str) -> None:
    """Looks for a class of this package in its files, without importing anything.

    Args:
        target: A dotted path that begins with `fastvideo.`.
        where: Its key, for the message.

    Raises:
        ImportError: There is no such module, or the module has nothing of that name.
    """
    module, _, attribute = target.rpartition(".")
    place = Path(fastvideo.__file__).parent
    for part in module.split(".")[1:]:
        place, parent = place / part, place
        if place.is_dir() or place.with_suffix(".py").is_file():
            continue
        siblings = [path.stem for path in parent.glob("*") if path.suffix in {"", ".py"}]
        name = ".".join((_PACKAGE, *place.relative_to(Path(fastvideo.__file__).parent).parts))
        message = f"{where} {target!r}: there is no module {name!r}.{did_you_mean(part, siblings)}"
        raise TargetImportError(message, name=name)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    symbols = symtable(file.read_text(encoding="utf-8"), str(file), "exec").get_symbols()
    names = [s.get_name() for s in symbols if s.is_assigned() or s.is_imported()]
    if attribute not in names and "__getattr__" not in names:
        public = [name for name in names if not name.startswith("_")]
        message = (
            f"{where} {target!r}: module {module!r} has no attribute {attribute!r}."
            f"{did_you_mean(attribute, public)}"
        )
        raise TargetImportError(message, name=module)


def import_foreign_targets(cfg: RunConfig) -> None:
    """Imports what a run file names outside of this package, as every rank is going to.

    Args:
        cfg: The run file.

    Raises:
        FastVideoError: A dotted path is none, or leads nowhere, or its module cannot be imported.
    """
    for where, target in named_targets(cfg).items():
        if is_own(target):
            continue
        try:
            resolve_target(target, where=where)
        except FastVideoError:
            raise
        except Exception as error:
            message = (
                f"{where} {target!r}: its module cannot be imported: "
                f"{type(error).__name__}: {error}"
            )
            raise TargetImportError(message) from error
