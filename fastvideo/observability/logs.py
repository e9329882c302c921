"""Log records that say where the run was: rank, step, trace id and span id.

The fields are set when a record is made, so they are right wherever and whenever it is written:
in the program's handlers, in those of a host program, behind a queue.
"""

from __future__ import annotations

import contextlib
import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger
from fastvideo.observability.current import current_step, current_trace

if TYPE_CHECKING:
    from collections.abc import Callable

logger = init_logger(__name__)

_PACKAGE: Final = "fastvideo"
_INSIDE: Final = _PACKAGE + "."


class LogFields:
    """Adds ``rank``, ``step``, ``trace_id`` and ``span_id`` to the records of the package.

    Records of other packages are left as they are. What made records before goes on making them.
    As with any field of a record, a call of the package must not use these names in its ``extra``.

    Args:
        rank: Global rank of this process.
        step: Returns the number of the step that runs, or None.
        trace: Returns trace id and span id in hexadecimal, or None for each.
    """

    def __init__(
        self,
        rank: int,
        *,
        step: Callable[[], int | None] = current_step,
        trace: Callable[[], tuple[str | None, str | None]] = current_trace,
    ) -> None:
        self._rank = rank
        self._step = step
        self._trace = trace
        self._factory: _RecordFactory | None = None

    def install(self) -> None:
        """Begins to add the fields; a second time does nothing."""
        if self._factory is None:
            self._factory = _RecordFactory(self._add, logging.getLogRecordFactory())
            logging.setLogRecordFactory(self._factory)

    def remove(self) -> None:
        """Ends what :meth:`install` began; a second time does nothing."""
        factory, self._factory = self._factory, None
        if factory is None:
            return
        factory.add = None  # for programs that have put something on top of it
        if logging.getLogRecordFactory() is factory:
            logging.setLogRecordFactory(factory.previous)

    def _add(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(_INSIDE) and record.name != _PACKAGE:
            return
        record.rank = self._rank
        record.step = record.trace_id = record.span_id = None
        with contextlib.suppress(Exception):  # a line that is logged never ends a run
            record.step = self._step()
            record.trace_id, record.span_id = self._trace()


class _RecordFactory:
    """Makes records as the factory before it did, and adds to them while it is wanted."""

    def __init__(
        self,
        add: Callable[[logging.LogRecord], None],
        previous: Callable[..., logging.LogRecord],
    ) -> None:
        self.add: Callable[[logging.LogRecord], None] | None = add
        self.previous = previous

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:  # noqa: ANN401 - passed on
        record = self.previous(*args, **kwargs)
        if self.add is not None:
            self.add(record)
        return record


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON.

    The keys are ``time`` (UTC, ISO 8601 with microseconds), ``level``, ``logger``, ``message``,
    ``rank``, ``step``, ``trace_id``, ``span_id``, and ``exception`` and ``stack`` where there are
    any. Ids are hexadecimal as OpenTelemetry writes them; what is not known is null.

    Args:
        rank: Rank of the records that do not carry one.
    """

    def __init__(self, rank: int = 0) -> None:
        super().__init__()
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "rank": getattr(record, "rank", self._rank),
            "step": getattr(record, "step", None),
            "trace_id": getattr(record, "trace_id", None),
            "span_id": getattr(record, "span_id", None),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


def log_formatter(form: str, *, rank: int = 0) -> logging.Formatter | None:
    """Returns the formatter that ``FASTVIDEO_LOG_FORMAT`` asks for.

    Args:
        form: ``"json"``, or ``"text"``. Anything else is reported and taken for ``"text"``.
        rank: Global rank of this process.

    Returns:
        A formatter for :func:`fastvideo.logger.configure_logging`; None for its own text.
    """
    folded = form.strip().lower()
    if folded == "json":
        return JsonFormatter(rank)
    if folded not in {"", "text"}:
        logger.warning(
            "environment variable FASTVIDEO_LOG_FORMAT=%.80r is neither text nor json; "
            "lines are text",
            form,
        )
    return None
