"""Who a trace belongs to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from fastvideo.profiler import trace_metadata as module
from fastvideo.profiler.trace_metadata import (
    default_run_id,
    plain_attributes,
    set_trace_metadata,
    trace_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _own_metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("FASTVIDEO_RUN_ID", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    before = module._metadata
    yield
    module._metadata = before


def test_versions_and_host_are_there_and_plain() -> None:
    """What is written can be read by any JSON reader."""
    metadata = trace_metadata(None)
    assert json.loads(json.dumps(metadata, allow_nan=False)) == metadata
    assert metadata["torch"] == torch.__version__
    assert {"host", "pid", "python", "cuda", "fastvideo"} <= metadata.keys()
    assert (metadata["run_id"], metadata["trace_id"]) == (None, None)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"FASTVIDEO_RUN_ID": "mine", "TORCHELASTIC_RUN_ID": "theirs"}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "theirs"}, "theirs"),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
    ],
)
def test_the_launcher_names_the_run(
    variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only names that all ranks were given count; torchrun's "none" is none."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_run_id() == expected


def test_other_parts_of_a_program_add_what_they_know() -> None:
    """Run, distributed trace of the step, and anything else; each call changes what it names."""
    set_trace_metadata(run_id="run-7", trace_id_of_step=lambda step: f"{step:032x}")
    set_trace_metadata(extra={"attempt": 2})
    metadata = trace_metadata(12)
    assert metadata["run_id"] == "run-7"
    assert metadata["trace_id"] == "0" * 31 + "c"
    assert metadata["attempt"] == 2


def test_an_unknown_field_is_an_error() -> None:
    """A misspelled field is not silently dropped."""
    with pytest.raises(TypeError, match="runid"):
        set_trace_metadata(runid="x")


def test_attributes_that_are_not_plain_are_named_by_type() -> None:
    """Tensors are never read, and objects never printed."""
    attributes = {"a": 1, "b": 2.5, "c": "x", "d": None, "e": True, "f": torch.ones(1), "g": [1]}
    expected = {"a": 1, "b": 2.5, "c": "x", "d": None, "e": True, "f": "<Tensor>", "g": "<list>"}
    assert plain_attributes(attributes) == expected


def test_attributes_are_of_bounded_size() -> None:
    """Numbers and texts that could break or bloat the files are cut, at hand-over."""
    many = {f"key{number}": number for number in range(200)}
    found = plain_attributes({"big": -(10**5000), "fits": 2**63, "long": "x" * 5000} | many)
    assert found["big"] == "<int of 16610 bits>"
    assert found["fits"] == 2**63
    assert found["long"] == "x" * 1000 + "… (5000 characters)"
    assert len(found) == 100
