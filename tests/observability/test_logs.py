"""Log records that say where the run was."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.logger import configure_logging, init_logger
from fastvideo.observability.logs import JsonFormatter, LogFields, log_formatter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Gives logging back as it was."""
    root = logging.getLogger("fastvideo")
    before = (list(root.handlers), root.level, root.propagate, logging.getLogRecordFactory())
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])
    logging.setLogRecordFactory(before[3])


def fields(rank: int = 3, step: int | None = 12) -> LogFields:
    """Fields of a step that is traced."""
    return LogFields(rank, step=lambda: step, trace=lambda: (TRACE, SPAN))


def record(name: str = "fastvideo.train.trainer", **extra: Any) -> Any:
    """Makes a record as a logger makes it."""
    logger = logging.getLogger(name)
    return logger.makeRecord(name, logging.INFO, __file__, 1, "hello %d", (1,), None, extra=extra)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The JSON lines on standard error."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize("name", ["fastvideo", "fastvideo.train.trainer"])
def test_records_of_the_package_carry_the_fields(name: str) -> None:
    """From the moment that they are made."""
    fields().install()
    made = record(name)
    assert (made.rank, made.step, made.trace_id, made.span_id) == (3, 12, TRACE, SPAN)


@pytest.mark.parametrize("name", ["root", "torch.distributed", "fastvideo_plugin"])
def test_other_records_are_left_alone(name: str) -> None:
    """A host program's records are its own, whatever its extras are called."""
    fields().install()
    assert record(name, step="theirs").step == "theirs"
    assert not hasattr(record(name), "rank")


def test_fields_are_those_of_the_moment() -> None:
    """Each record has the step that ran when it was made."""
    steps = iter([1, 2])
    LogFields(0, step=lambda: next(steps), trace=lambda: (None, None)).install()
    first, second = record(), record()
    assert (first.step, second.step, first.trace_id) == (1, 2, None)


def test_a_source_that_raises_leaves_its_fields_empty() -> None:
    """The line is logged all the same."""

    def broken() -> tuple[str | None, str | None]:
        raise ZeroDivisionError

    LogFields(1, step=lambda: 4, trace=broken).install()
    made = record()
    assert (made.rank, made.step, made.trace_id, made.span_id) == (1, 4, None, None)


def test_outside_of_a_run_the_fields_are_empty() -> None:
    """What the process says about itself is used unless told otherwise."""
    LogFields(0).install()
    made = record()
    assert (made.rank, made.trace_id, made.span_id) == (0, None, None)


def test_installing_and_removing_are_idempotent() -> None:
    """Afterwards records are made by what made them before."""
    before = logging.getLogRecordFactory()
    added = fields()
    added.remove()
    for _ in range(2):
        added.install()
    assert record().rank == 3
    for _ in range(2):
        added.remove()
    assert logging.getLogRecordFactory() is before
    assert not hasattr(record(), "rank")
    added.install()
    assert record().rank == 3


def _stamping(previous: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    """A factory of a host program."""

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = previous(*args, **kwargs)
        made.host = "theirs"
        return made

    return make


def test_factories_of_the_host_are_kept_below() -> None:
    """One that was there before goes on."""
    logging.setLogRecordFactory(_stamping(logging.getLogRecordFactory()))
    fields().install()
    assert (record().host, record().rank) == ("theirs", 3)


def test_factories_of_the_host_are_kept_on_top() -> None:
    """Removing does not undo what came later, and installing again does not go round in circles."""
    added = fields()
    added.install()
    on_top = _stamping(logging.getLogRecordFactory())
    logging.setLogRecordFactory(on_top)
    added.remove()
    assert logging.getLogRecordFactory() is on_top
    assert record().host == "theirs"
    assert not hasattr(record(), "rank")
    added.install()
    assert (record().host, record().rank) == ("theirs", 3)


def test_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """It has the message, the place in the run, and the time in UTC."""
    configure_logging(rank=3, formatter=log_formatter("json", rank=3))
    fields().install()
    init_logger("fastvideo.x").warning("loss is %s\nand more", float("nan"))
    (line,) = lines(capsys)
    time = datetime.fromisoformat(line.pop("time"))
    assert time.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - time) < timedelta(minutes=1)
    assert line == {
        "level": "WARNING",
        "logger": "fastvideo.x",
        "message": "loss is nan\nand more",
        "rank": 3,
        "step": 12,
        "trace_id": TRACE,
        "span_id": SPAN,
    }


def test_records_without_fields_are_written_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Before a run starts there is a rank, and nothing else."""
    configure_logging(rank=2, formatter=log_formatter("JSON ", rank=2))
    init_logger("fastvideo.x").warning("early \udcff")
    (line,) = lines(capsys)
    found = [line[key] for key in ("rank", "step", "trace_id", "span_id", "message")]
    assert found == [2, None, None, None, "early \udcff"]


def test_exceptions_and_stacks_are_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """On the same line, so that readers of lines keep them together."""
    configure_logging(formatter=JsonFormatter())
    logger = init_logger("fastvideo.x")
    try:
        raise KeyError("latents")  # noqa: EM101, TRY301 - any exception
    except KeyError:
        logger.exception("no %s", "batch", stack_info=True)
    (line,) = lines(capsys)
    assert line["message"] == "no batch"
    assert line["exception"].endswith("KeyError: 'latents'")
    assert "test_logs.py" in line["stack"]


def test_an_exception_that_is_text_by_now_is_kept() -> None:
    """As it is behind a queue that another process reads."""
    made = record()
    made.exc_text = "ValueError: x"
    assert json.loads(JsonFormatter().format(made))["exception"] == "ValueError: x"


@pytest.mark.parametrize("form", ["", "text", " TEXT"])
def test_text_is_what_it_always_was(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines are those of the program's own formatter, with or without fields."""
    configure_logging(rank=3, formatter=log_formatter(form, rank=3))
    fields().install()
    init_logger("fastvideo.x").warning("hello")
    err = capsys.readouterr().err
    assert err.startswith("[rank 3] WARNING")
    assert err.endswith("[fastvideo.x] hello\n")


def test_an_unknown_form_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Lines are text then; the message names the variable and what it takes."""
    assert log_formatter("xml") is None
    (warning,) = caplog.records
    assert "FASTVIDEO_LOG_FORMAT='xml'" in warning.getMessage()
    assert "json" in warning.getMessage()
