"""Profilers of others, with stand-ins for torch's sessions."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from fastvideo.profiler import foreign
from fastvideo.profiler.foreign import ForeignProfilers

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeSession:
    """Goes through the methods that torch's sessions go through."""

    def __init__(self, order: list[str]) -> None:
        self.order = order

    def _prepare_trace(self) -> None:
        self.order.append("prepare")

    def __exit__(self, *_: object) -> None:
        self.order.append("end")


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Gives the list that sessions and watchers write into."""
    monkeypatch.setattr(foreign, "_Session", FakeSession)
    before = (FakeSession._prepare_trace, FakeSession.__exit__)
    yield []
    assert (FakeSession._prepare_trace, FakeSession.__exit__) == before


def test_a_session_is_present_from_its_preparation_to_its_end(order: list[str]) -> None:
    """Way is made before it is prepared, and it is forgotten when it has ended."""
    profilers = ForeignProfilers(lambda: order.append("make way"))
    profilers.watch()
    session = FakeSession(order)
    assert not profilers.present()
    session._prepare_trace()
    assert profilers.present()
    session.__exit__(None, None, None)
    assert not profilers.present()
    profilers.unwatch()
    assert order == ["make way", "prepare", "end"]


def test_own_sessions_are_not_foreign(order: list[str]) -> None:
    """A session that is prepared for a segment displaces nothing."""
    profilers = ForeignProfilers(lambda: order.append("make way"))
    profilers.watch()
    session = FakeSession(order)
    with profilers.own():
        session._prepare_trace()
    assert not profilers.present()
    profilers.unwatch()
    assert order == ["prepare"]


def test_a_session_that_is_dropped_is_forgotten(order: list[str]) -> None:
    """A profiler that is prepared and never ended does not end tracing for good."""
    profilers = ForeignProfilers(lambda: None)
    profilers.watch()
    FakeSession(order)._prepare_trace()
    gc.collect()
    assert not profilers.present()
    profilers.unwatch()


def test_several_watchers_share_the_watch(order: list[str]) -> None:
    """Each is told; torch is as it was when the last one leaves, which the fixture checks."""
    one, two = (ForeignProfilers(lambda: order.append("make way")) for _ in range(2))
    for profilers in (one, two, one):
        profilers.watch()
    session = FakeSession(order)
    session._prepare_trace()
    assert (one.present(), two.present()) == (True, True)
    one.unwatch()
    session.__exit__(None, None, None)
    assert two.present() is False
    two.unwatch()
    two.unwatch()
    assert order == ["make way", "make way", "prepare", "end"]


def test_a_torch_that_is_built_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the methods there is nothing to watch, and nothing breaks."""
    monkeypatch.setattr(foreign, "_Session", object)
    profilers = ForeignProfilers(lambda: None)
    profilers.watch()
    assert not profilers.present()
    profilers.unwatch()
