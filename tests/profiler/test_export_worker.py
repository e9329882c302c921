"""The export helper by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fastvideo.profiler import export_worker

WORKER = Path(export_worker.__file__)


def run(jobs: bytes) -> subprocess.CompletedProcess[bytes]:
    """Runs the helper with its whole input."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(WORKER)],
        input=jobs,
        capture_output=True,
        check=False,
        timeout=60,
    )


def job(number: int, record: Any) -> bytes:
    """Returns the line of one job."""
    return b'{"job": %d, "record": %s}\n' % (number, record.to_json())


def test_jobs_in_results_out(cuda_step: Any, make_record: Any, tmp_path: Path) -> None:
    """Each job is answered by a line with its number; nothing is said on standard error."""
    records = [
        make_record(cuda_step.write(tmp_path / f".raw{index}.json"), index=index)
        for index in range(3)
    ]
    done = run(b"".join(job(10 + i, record) for i, record in enumerate(records)))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, b"")
    assert [(a["job"], a["line"]["status"]) for a in answers] == [
        (10, "ok"),
        (11, "ok"),
        (12, "ok"),
    ]


def test_input_that_makes_no_sense_is_skipped(
    cuda_step: Any, make_record: Any, tmp_path: Path
) -> None:
    """A line that is no JSON costs no other job."""
    record = make_record(cuda_step.write(tmp_path / ".raw.json"))
    done = run(b"not json\n\n" + job(1, record) + b'{"job": 2, "rec')
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(line)["job"] for line in done.stdout.splitlines()] == [1]


def test_it_ends_when_it_is_told_to(cuda_step: Any, make_record: Any, tmp_path: Path) -> None:
    """A closing message ends it although its input stays open; earlier jobs are done first."""
    helper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    record = make_record(cuda_step.write(tmp_path / ".raw.json"))
    assert helper.stdin is not None
    assert helper.stdout is not None
    helper.stdin.write(job(1, record) + b'{"close": true}\n')
    helper.stdin.flush()
    assert helper.wait(60) == 0
    assert json.loads(helper.stdout.read())["job"] == 1
    helper.stdin.close()
    helper.stdout.close()


def test_it_goes_on_when_nobody_listens(cuda_step: Any, make_record: Any, tmp_path: Path) -> None:
    """A trainer that is gone reads no results; the files are written all the same."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    record = make_record(cuda_step.write(tmp_path / ".raw.json"))
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(WORKER)],
        input=job(1, record) * 2,
        stdout=write_end,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len((tmp_path / "segments_rank0.jsonl").read_bytes().splitlines()) == 2


IMPATIENT = f"""
import runpy, sys
sys.argv = [{str(WORKER)!r}]
module = runpy.run_path({str(WORKER)!r})
module["main"].__globals__["DRAIN_LIMIT_S"] = 0.2
sys.exit(module["main"]())
"""


def test_it_does_not_outlive_the_trainer_for_long(make_record: Any, tmp_path: Path) -> None:
    """A job that hangs is given up when the drain limit has passed."""
    hanging = tmp_path / ".raw.json"
    os.mkfifo(hanging)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPATIENT],
        input=job(1, make_record(hanging)),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".raw.json"]


def test_it_needs_neither_torch_nor_this_package(
    cuda_step: Any, make_record: Any, tmp_path: Path
) -> None:
    """Copied into an empty folder, the modules that it imports work by themselves."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for source in WORKER.parent.glob("*.py"):
        if "fastvideo.logger" not in source.read_text("utf-8") and source.name != "__init__.py":
            (folder / source.name).write_bytes(source.read_bytes())
    record = make_record(cuda_step.write(tmp_path / ".raw.json"))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", str(folder / WORKER.name)],
        input=job(1, record),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["line"]["status"] == "ok"
    imported = {line.rpartition(b"|")[2].strip() for line in done.stderr.splitlines()}
    assert b"fastvideo_segment_export.summary" in imported
    assert not {name for name in imported if name.split(b".")[0] in (b"torch", b"fastvideo")}
