"""Torch's profiler in its corners, as far as that needs no session."""

from __future__ import annotations

import os

import pytest
import torch
from torch.profiler import ProfilerActivity

from fastvideo.profiler import torch_session


@pytest.mark.parametrize("cuda", [False, True])
def test_only_activities_that_exist_are_asked_for(
    cuda: bool,  # noqa: FBT001 - a parameter of the test
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA is one where torch supports it and there is a device."""
    both = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    monkeypatch.setattr("torch.autograd._supported_activities", lambda: both)
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    expected = (ProfilerActivity.CPU, ProfilerActivity.CUDA) if cuda else (ProfilerActivity.CPU,)
    assert torch_session.existing_activities() == expected


def test_kineto_is_silenced_unless_the_user_chose_a_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The level is set only while a session begins, and a user's level stays."""
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    with torch_session.kineto_silenced():
        assert os.environ["KINETO_LOG_LEVEL"] == "6"
    assert "KINETO_LOG_LEVEL" not in os.environ
    monkeypatch.setenv("KINETO_LOG_LEVEL", "0")
    with torch_session.kineto_silenced():
        assert os.environ["KINETO_LOG_LEVEL"] == "0"
    assert os.environ["KINETO_LOG_LEVEL"] == "0"


def test_annotations_outside_of_sessions_cost_nothing_later() -> None:
    """An annotation may begin and end while nothing records."""
    annotation = torch_session.begin_annotation("x")
    torch_session.end_annotation(annotation)
    assert not torch_session.a_profiler_runs()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_without_cuda_no_graph_is_captured() -> None:
    """The question is safe to ask without a device."""
    assert not torch_session.a_graph_is_captured()
