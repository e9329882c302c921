"""Who a run is, and what all ranks agree on."""

from __future__ import annotations

import logging
import pickle
import random
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability import identity
from fastvideo.observability.identity import RunIdentity, agree, parse_traceparent, read_host_id

if TYPE_CHECKING:
    from collections.abc import Callable

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


def agreed(broadcast: Callable[[object], object] | None = None, **environ: str) -> RunIdentity:
    """Agrees with a run name and a ratio that do not matter."""
    return agree(run_name="wan", ratio=0.5, environ=environ, broadcast=broadcast)


def agree_among(*environs: dict[str, str], ratios: tuple[float, ...] = ()) -> list[RunIdentity]:
    """Lets ranks agree as over a process group: what rank 0 says is pickled to all."""
    said: list[bytes] = []

    def broadcast(value: object) -> object:
        said.append(pickle.dumps(value))
        return pickle.loads(said[0])

    return [
        agree(
            run_name=f"name of {rank}",
            ratio=ratios[rank] if ratios else 1.0,
            environ={"RANK": str(rank), "WORLD_SIZE": str(len(environs)), **environ},
            broadcast=broadcast,
        )
        for rank, environ in enumerate(environs)
    ]


def test_all_ranks_get_what_rank_0_decides() -> None:
    """Run, attempt, name and ratio are equal even where variables and arguments differ."""
    first, second = agree_among(
        {"FASTVIDEO_RUN_ID": "a", "LOCAL_RANK": "0"},
        {"FASTVIDEO_RUN_ID": "b", "LOCAL_RANK": "1", "TRACEPARENT": TRACEPARENT},
        ratios=(0.25, 0.75),
    )
    shared = [
        (i.run_id, i.attempt, i.run_name, i.sampler_ratio, i.traceparent) for i in (first, second)
    ]
    assert shared[0] == shared[1]
    assert shared[0][0] == "a"
    assert shared[0][2:] == ("name of 0", 0.25, None)
    assert [(i.rank, i.world_size, i.local_rank) for i in (first, second)] == [(0, 2, 0), (1, 2, 1)]


def test_one_value_is_broadcast_once() -> None:
    """Agreeing costs one message."""
    calls: list[object] = []

    def broadcast(value: object) -> object:
        calls.append(value)
        return value

    agreed(broadcast)
    assert len(calls) == 1


def test_the_process_group_knows_the_ranks_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that joined without a launcher has no variables, or those of something else."""
    for name, value in (("is_initialized", True), ("get_rank", 5), ("get_world_size", 8)):
        monkeypatch.setattr(f"torch.distributed.{name}", lambda value=value: value)
    found = agreed(RANK="1", WORLD_SIZE="2")
    assert (found.rank, found.world_size) == (5, 8)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"FASTVIDEO_RUN_ID": " mine ", "TRACEPARENT": TRACEPARENT}, "mine"),
        ({"TRACEPARENT": TRACEPARENT, "TORCHELASTIC_RUN_ID": "job"}, TRACE),
        ({"FASTVIDEO_RUN_ID": "", "TORCHELASTIC_RUN_ID": "job"}, "job"),
    ],
)
def test_the_run_id_comes_from_the_environment(environ: dict[str, str], expected: str) -> None:
    """The variable made for it wins; empty is unset."""
    assert agreed(**environ).run_id == expected


@pytest.mark.parametrize("environ", [{}, {"TORCHELASTIC_RUN_ID": "none"}])
def test_a_run_id_is_drawn_where_nothing_names_the_run(environ: dict[str, str]) -> None:
    """Seeding the program's generators does not make two runs the same."""
    drawn = set()
    for _ in range(3):
        random.seed(0)
        drawn.add(agreed(**environ).run_id)
    assert len(drawn) == 3
    assert all(int(run_id, 16) for run_id in drawn)


def test_each_start_is_an_attempt_of_its_own() -> None:
    """A resumed run keeps its id and repeats steps, so the attempt must differ."""
    environ = {"FASTVIDEO_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "3"}
    first, second = agreed(**environ), agreed(**environ)
    assert first.run_id == second.run_id
    assert first.attempt != second.attempt
    assert first.attempt.split("-")[0] == second.attempt.split("-")[0] == "3"


@pytest.mark.parametrize(
    ("environ", "restarts"),
    [
        ({}, "0"),
        ({"SLURM_RESTART_COUNT": "2"}, "2"),
        ({"TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "2"}, "0"),
        ({"TORCHELASTIC_RESTART_COUNT": "many"}, "0"),
    ],
)
def test_the_launchers_restarts_are_counted(environ: dict[str, str], restarts: str) -> None:
    """The elastic launcher's count wins over the scheduler's."""
    assert agreed(**environ).attempt.split("-")[0] == restarts


def test_several_ranks_without_a_way_to_agree_still_match() -> None:
    """With the run's id in the environment they need no message."""
    environs = [{"FASTVIDEO_RUN_ID": "r", "RANK": str(r), "WORLD_SIZE": "2"} for r in range(2)]
    first, second = (agreed(**environ) for environ in environs)
    assert (first.run_id, first.attempt) == (second.run_id, second.attempt) == ("r", "0")


def _raises(value: object) -> object:
    message = "secret of the network"
    raise ConnectionError(message)


@pytest.mark.parametrize(
    ("broadcast", "said"),
    [(_raises, "ConnectionError"), (lambda _: None, "a NoneType from rank 0")],
)
def test_a_broadcast_that_fails_ends_no_run(
    broadcast: Callable[[object], object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, without the text of the exception; the environment decides."""
    with caplog.at_level(logging.WARNING, "fastvideo"):
        found = agreed(broadcast, FASTVIDEO_RUN_ID="r", RANK="1", WORLD_SIZE="2")
    assert (found.run_id, found.attempt, found.sampler_ratio) == ("r", "0", 0.5)
    (record,) = caplog.records
    assert said in record.getMessage()
    assert "FASTVIDEO_RUN_ID" in record.getMessage()
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TRACEPARENT, (int(TRACE, 16), int(SPAN, 16), True)),
        (f"00-{TRACE}-{SPAN}-00", (int(TRACE, 16), int(SPAN, 16), False)),
        (f" {TRACEPARENT}\t", (int(TRACE, 16), int(SPAN, 16), True)),
        (f"00-{TRACE}-{SPAN}-03", (int(TRACE, 16), int(SPAN, 16), True)),
        (f"cc-{TRACE}-{SPAN}-01-what-comes", (int(TRACE, 16), int(SPAN, 16), True)),
        ("", None),
        ("00", None),
        ("\x00\udcff", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"cc-{TRACE}-{SPAN}-01more", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE[:-1]}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN[:-1]}g-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"{TRACEPARENT}\n", None),
        (TRACEPARENT * 1000, None),
    ],
)
def test_traceparent(text: str, expected: tuple[int, int, bool] | None) -> None:
    """Every form of the specification is read, and nothing else."""
    assert parse_traceparent(text) == expected


def test_a_malformed_traceparent_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on as if the variable were unset."""
    with caplog.at_level(logging.WARNING, "fastvideo"):
        found = agreed(TRACEPARENT="00-xyz-1" * 100, FASTVIDEO_RUN_ID="r")
    assert (found.traceparent, found.run_id) == (None, "r")
    (record,) = caplog.records
    assert "TRACEPARENT" in record.getMessage()
    assert len(record.getMessage()) < 250


@pytest.mark.parametrize(
    ("ratio", "expected"), [(-1.0, 0.0), (2.0, 1.0), (float("nan"), 1.0), (0.1, 0.1), (0, 0.0)]
)
def test_the_ratio_stays_between_0_and_1(ratio: float, expected: float) -> None:
    """What a sampler could not use never reaches one."""
    found = agree(run_name="n", ratio=ratio, environ={}, broadcast=None)
    assert found.sampler_ratio == expected


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "٣", "", "9" * 5000])
def test_wrong_ranks_in_the_environment_raise_nothing(value: str) -> None:
    """They count as unset here; whoever needs them reports them."""
    found = agreed(RANK=value, WORLD_SIZE=value, LOCAL_RANK=value, SLURM_RESTART_COUNT=value)
    assert (found.rank, found.world_size, found.local_rank) == (0, 1, 0)


def test_names_are_what_every_exporter_can_carry() -> None:
    """Bytes that are no UTF-8, control characters and floods are removed."""
    found = agree(
        run_name="wän\x00\n" + "x" * 1000,
        ratio=1.0,
        environ={"FASTVIDEO_RUN_ID": "a\udcffb"},
        broadcast=None,
    )
    assert found.run_id == "a?b"
    assert found.run_name.startswith("wänx")
    assert len(found.run_name) == 200
    assert agree(run_name=" ", ratio=1.0, environ={}, broadcast=None).run_name


def test_the_instance_id_names_run_attempt_and_rank() -> None:
    """It is a UUIDv5 that differs by each of them, and by nothing else."""
    base: dict[str, Any] = {
        "run_id": "r",
        "attempt": "0-aa",
        "run_name": "n",
        "rank": 1,
        "world_size": 2,
        "local_rank": 1,
        "host_name": "h",
        "host_id": "i",
        "sampler_ratio": 1.0,
        "traceparent": None,
    }
    one = RunIdentity(**base).service_instance_id
    assert uuid.UUID(one).version == 5
    assert (
        RunIdentity(**base | {"host_name": "other", "sampler_ratio": 0.0}).service_instance_id
        == one
    )
    others = [{"run_id": "s"}, {"attempt": "1-aa"}, {"rank": 0}]
    assert len({one, *(RunIdentity(**base | o).service_instance_id for o in others)}) == 4


def test_the_host_id_is_the_first_there_is(tmp_path: Path) -> None:
    """Images without a machine id have it empty or say that it is uninitialised."""
    empty, unset, machine = (tmp_path / name for name in ("empty", "unset", "machine"))
    empty.write_text("\n")
    unset.write_text("uninitialized\n")
    machine.write_text("0123abcd\n")
    missing = tmp_path / "missing"
    assert read_host_id((missing, empty, unset, machine)) == "0123abcd"
    assert read_host_id((missing, empty)) == ""


def test_without_a_host_id_the_name_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host always has an identifier."""
    monkeypatch.setattr(identity, "_HOST_ID_FILES", (Path("/nowhere/at/all"),))
    found = agreed()
    assert found.host_id == found.host_name != ""


@pytest.mark.alone
def test_agreeing_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is looked up on a network, which could take as long as it likes."""

    def slow(*args: object) -> object:
        message = "a lookup"
        raise AssertionError(message)

    for name in ("getfqdn", "gethostbyname", "getaddrinfo", "gethostbyaddr"):
        monkeypatch.setattr(f"socket.{name}", slow)
    began = time.perf_counter()
    agreed()
    assert time.perf_counter() - began < 0.2
