"""The exception tree and the words of its messages."""

from __future__ import annotations

import pytest

from fastvideo.errors import (
    ConfigError,
    DataError,
    FastVideoError,
    MissingExtraError,
    counted,
    did_you_mean,
    import_extra,
    nearest,
)


def test_errors_are_also_the_builtin_people_catch() -> None:
    """Callers who know only ValueError and ImportError catch ours."""
    assert issubclass(ConfigError, ValueError)
    assert issubclass(DataError, ValueError)
    assert issubclass(MissingExtraError, ImportError)
    assert all(issubclass(e, FastVideoError) for e in (ConfigError, DataError, MissingExtraError))


def test_missing_extra_names_what_to_install() -> None:
    """The message names the module and the command."""
    with pytest.raises(MissingExtraError, match=r"'no_such_module_x'.*install '\.\[train\]'  in"):
        import_extra("no_such_module_x", extra="train")


def test_import_extra_returns_the_module_itself() -> None:
    """An installed module, dotted or not, is returned."""
    assert import_extra("os.path", extra="train").join("a", "b") == "a/b"


def test_a_failure_inside_the_module_is_not_disguised(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed module that misses something of its own says so itself."""
    (tmp_path / "has_a_gap.py").write_text("import gap_in_the_middle\n")  # type: ignore[operator]
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="gap_in_the_middle") as caught:
        import_extra("has_a_gap", extra="train")
    assert not isinstance(caught.value, MissingExtraError)


def test_nearest_match() -> None:
    """The closest candidate is offered, and nothing when nothing is close."""
    assert nearest("trainin", ["training", "models"]) == "training"
    assert nearest("zzz", ["training", "models"]) is None
    assert did_you_mean("trainin", ["training"]) == " Did you mean 'training'?"
    assert did_you_mean("zzz", ["training"]) == ""


def test_numbers_have_the_noun_that_fits() -> None:
    """One of a thing is singular, none and several are plural."""
    said = [counted(n, noun) for noun in ("process", "GPU") for n in (0, 1, 2)]
    assert said == ["0 processes", "1 process", "2 processes", "0 GPUs", "1 GPU", "2 GPUs"]
