"""Loggers of the package."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from fastvideo.logger import configure_logging, errors_only, init_logger

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Gives the package's root logger back as it was."""
    root = logging.getLogger("fastvideo")
    before = (list(root.handlers), root.level, root.propagate)
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def test_a_logger_attaches_nothing() -> None:
    """Getting a logger changes no handler and no level."""
    logger = init_logger("fastvideo.something")
    assert (logger.handlers, logger.level) == ([], logging.NOTSET)


def test_configuring_twice_shows_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Configuration is idempotent."""
    configure_logging()
    configure_logging()
    init_logger("fastvideo.x").info("hello %d", 1)
    assert capsys.readouterr().err.count("hello 1") == 1


def test_other_ranks_show_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 3 keeps quiet at INFO and signs its warnings."""
    configure_logging("info", rank=3)
    init_logger("fastvideo.x").info("quiet")
    init_logger("fastvideo.x").warning("loud")
    err = capsys.readouterr().err
    assert "quiet" not in err
    assert err.startswith("[rank 3] WARNING")


def test_an_unknown_level_is_an_error_that_lists_the_levels() -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(ValueError, match=r"'LOUD'.*WARNING"):
        configure_logging("LOUD")


def test_errors_alone_are_logged_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """Then the level is what it was."""
    logger = init_logger("fastvideo.test")
    before = logging.getLogger("fastvideo").level
    with errors_only():
        logger.warning("left out")
        logger.error("kept")
    assert logging.getLogger("fastvideo").level == before
    assert caplog.messages == ["kept"]
