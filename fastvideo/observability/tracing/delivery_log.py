"""What the log says about the delivery of spans: one line, then a count a minute."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable

logger = init_logger(__name__)

_EVERY_S: Final = 60.0


class DeliveryLog:
    """Reports on one destination of spans. Used by one thread.

    Args:
        target: The destination, for people; holds no secret.
        clock: Seconds that never step back.
    """

    def __init__(self, target: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._delivered_once = False
        self._failing = False
        self._next_line = 0.0
        self._failures = 0
        self._lost = 0

    def delivered(self) -> None:
        """Notes that spans arrived."""
        if not self._delivered_once:
            self._delivered_once = True
            logger.info("first spans delivered to %s", self._target)
        elif self._failing:
            logger.info("spans are delivered to %s again", self._target)
        self._failing = False

    def failed(self, detail: str, hint: str = "") -> None:
        """Notes an attempt that did not deliver.

        Args:
            detail: Why, without anything that may be secret.
            hint: What to do about it.
        """
        self._failing = True
        self._failures += 1
        self._speak(detail, hint)

    def lost(self, spans: int, detail: str) -> None:
        """Notes spans that will not be tried again."""
        self._lost += spans
        self._speak(detail, "")

    def _speak(self, detail: str, hint: str) -> None:
        now = self._clock()
        if self._next_line == 0.0:
            logger.warning(
                "spans do not reach %s (%s); the run goes on, and this is said once a minute at "
                "most.%s",
                self._target,
                detail,
                f" {hint}" if hint else "",
            )
        elif now >= self._next_line:
            logger.warning(
                "spans do not reach %s (%s): %d attempts failed and %d spans were lost since the "
                "last such line",
                self._target,
                detail,
                self._failures,
                self._lost,
            )
        else:
            return
        self._next_line = now + _EVERY_S
        self._failures = self._lost = 0
