"""Trackers: by name, several at once, failing, and what each of them writes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.errors import ConfigError, MissingExtraError
from fastvideo.train.config import TrainingConfig
from fastvideo.train.trackers import (
    StepTracker,
    Tracker,
    build_tracker,
    initialize_trackers,
    wandb_service,
)
from fastvideo.train.trackers.jsonl import JsonlTracker

if TYPE_CHECKING:
    from pathlib import Path


class Backend:
    """A backend that remembers, and fails where told."""

    def __init__(self, name: str = "fake", fails: tuple[str, ...] = ()) -> None:
        self.name = name
        self.fails = fails
        self.calls: list[tuple[Any, ...]] = []

    def _note(self, what: str, *details: Any) -> None:
        self.calls.append((what, *details))
        if what in self.fails:
            raise OSError(what)

    def log(self, metrics: Any, step: int) -> None:
        self._note("log", dict(metrics), step)

    def log_artifacts(self, artifacts: Any, step: int) -> None:
        self._note("log_artifacts", dict(artifacts), step)

    def log_file(self, path: Path, name: str) -> None:
        self._note("log_file", path, name)

    def video(self, data: Any, *, caption: Any, fps: int, format: str) -> Any:  # noqa: A002 - the protocol
        self._note("video", data)
        return None if self.name == "no-video" else f"{self.name}:{data}"

    def finish(self, exit_code: int) -> None:
        self._note("finish", exit_code)


def start(names: Any, directory: Path, **kwargs: Any) -> Tracker:
    """Starts trackers with a small configuration."""
    settings = {"experiment_name": "project", "config": {"lr": 0.1}, **kwargs}
    return initialize_trackers(names, log_dir=directory, **settings)


def lines(path: Path) -> list[dict[str, Any]]:
    """Reads lines of JSON, refusing what strict JSON refuses."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = path.read_text(encoding="utf-8")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_an_unknown_name_lists_the_supported_ones(tmp_path: Path) -> None:
    """The error names what was given, what exists and the nearest; nothing is started."""
    expected = r"'tensorbord'.*jsonl, none, swanlab, tensorboard, wandb.*'tensorboard'\?"
    with pytest.raises(ConfigError, match=expected):
        start(["jsonl", "tensorbord"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_none_and_nothing_log_nowhere(tmp_path: Path) -> None:
    """Such trackers take every call and write nothing."""
    for names in ([], ["none"], "none"):
        tracker = start(names, tmp_path)
        assert tracker.active is False
        tracker.log({"a": 1.0}, 1)
        tracker.finish()
    assert list(tmp_path.iterdir()) == []


def test_names_may_repeat_and_differ_in_case(tmp_path: Path) -> None:
    """Each tracker is started once."""
    tracker = start(["JSONL", "jsonl ", "none"], tmp_path)
    assert [backend.name for backend in tracker.backends] == ["jsonl"]


def test_several_trackers_get_everything_in_turn() -> None:
    """Calls reach the backends in the order given."""
    first, second = Backend("a"), Backend("b")
    tracker = Tracker([first, second])
    tracker.log({"x": torch.tensor(0.5), "y": 2, "z": "text"}, 3)
    tracker.finish()
    expected = [("log", {"x": 0.5, "y": 2, "z": "text"}, 3), ("finish", 0)]
    assert first.calls == second.calls == expected


def test_a_failing_tracker_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """The others go on, one warning names it, and the end says how often it failed."""
    broken, whole = Backend("broken", fails=("log", "finish")), Backend("whole")
    tracker = Tracker([broken, whole])
    for step in (1, 2, 3):
        tracker.log({"x": 1.0}, step)
    tracker.finish(1)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 2
    assert warnings[0].startswith("tracker broken failed (OSError: log); training goes on")
    assert warnings[1] == "tracker broken failed 4 times in all"
    assert [call[0] for call in whole.calls] == ["log", "log", "log", "finish"]
    assert [call[0] for call in broken.calls] == ["log", "log", "log", "finish"]


def test_finishing_twice_is_finishing_once() -> None:
    """After the end nothing reaches a backend any more."""
    backend = Backend()
    tracker = Tracker([backend])
    tracker.finish(1)
    tracker.finish(0)
    tracker.log({"x": 1.0}, 1)
    assert backend.calls == [("finish", 1)]


def test_videos_reach_each_backend_in_its_own_form() -> None:
    """A backend without videos gets none; lists keep their order."""
    first, second = Backend("no-video"), Backend("b")
    tracker = Tracker([first, second])
    videos = [tracker.video("1.mp4"), tracker.video("2.mp4", caption="two")]
    tracker.log_artifacts({"videos": videos, "single": videos[0]}, 5)
    assert [call for call in first.calls if call[0] == "log_artifacts"] == []
    expected = {"videos": ["b:1.mp4", "b:2.mp4"], "single": "b:1.mp4"}
    assert second.calls[-1] == ("log_artifacts", expected, 5)
    assert Tracker([first]).video("1.mp4") is None


def test_what_is_no_scalar_is_logged_as_an_artifact() -> None:
    """A mixed call is split."""
    backend = Backend()
    Tracker([backend]).log({"x": 1.0, "image": {"an": "object"}}, 2)
    assert backend.calls == [
        ("log", {"x": 1.0}, 2),
        ("log_artifacts", {"image": {"an": "object"}}, 2),
    ]


def test_timed_bodies_appear_in_the_next_log() -> None:
    """Two bodies of one name add up, and are logged once."""
    backend = Backend()
    tracker = Tracker([backend])
    for _ in range(2):
        with tracker.timed("time/encode"):
            pass
    tracker.log({"x": 1.0}, 1)
    tracker.log({"x": 2.0}, 2)
    assert set(backend.calls[0][1]) == {"time/encode", "x"}
    assert backend.calls[0][1]["time/encode"] > 0.0
    assert set(backend.calls[1][1]) == {"x"}


def test_a_tracker_that_cannot_start_finishes_those_that_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays open when a later name fails."""
    finished: list[int] = []
    monkeypatch.setattr(JsonlTracker, "finish", lambda self, code: finished.append(code))
    monkeypatch.setitem(sys.modules, "swanlab", None)
    with pytest.raises(MissingExtraError, match="pip install swanlab"):
        start(["jsonl", "swanlab"], tmp_path)
    assert finished == [1]


def test_jsonl_writes_one_strict_object_per_step(tmp_path: Path) -> None:
    """Numbers that are not finite become texts, other texts stay readable."""
    tracker = start(["jsonl"], tmp_path)
    tracker.log({"a": 0.5, "b": 3, "c": "größer"}, 1)
    tracker.log({"a": math.nan, "b": math.inf, "c": -math.inf}, 2)
    tracker.finish()
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 1, "a": 0.5, "b": 3, "c": "größer"},
        {"step": 2, "a": "NaN", "b": "Infinity", "c": "-Infinity"},
    ]


def test_jsonl_lines_are_there_at_once(tmp_path: Path) -> None:
    """A line can be read before the next one and before the end."""
    tracker = start(["jsonl"], tmp_path)
    tracker.log({"a": 0.5}, 1)
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 1, "a": 0.5}]


def test_jsonl_survives_a_kill(tmp_path: Path) -> None:
    """A process that kills itself right after logging has lost nothing."""
    code = textwrap.dedent(
        """
        import os, signal, sys
        from fastvideo.train.trackers import initialize_trackers
        tracker = initialize_trackers(
            ["jsonl"], experiment_name="p", config={}, log_dir=sys.argv[1])
        for step in range(1, 101):
            tracker.log({"a": step / 2}, step)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    written = lines(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in written] == list(range(1, 101))


def test_jsonl_continues_a_run_and_keeps_a_former_one(tmp_path: Path) -> None:
    """Going on appends; starting over moves the old file aside."""
    for steps in ((1, 2), (3,), (1,), (1,)):
        tracker = start(["jsonl"], tmp_path)
        for step in steps:
            tracker.log({"a": 1.0}, step)
        tracker.finish()
    assert [record["step"] for record in lines(tmp_path / "metrics.1.jsonl")] == [1, 2, 3]
    assert [record["step"] for record in lines(tmp_path / "metrics.2.jsonl")] == [1]
    assert [record["step"] for record in lines(tmp_path / "metrics.jsonl")] == [1]


def test_jsonl_starts_a_new_line_after_a_torn_one(tmp_path: Path) -> None:
    """Half a line left by a crash does not swallow the next one."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a"')
    tracker = start(["jsonl"], tmp_path)
    tracker.log({"a": 3.0}, 3)
    tracker.finish()
    assert path.read_text().splitlines()[-1] == '{"step": 3, "a": 3.0}'


def test_jsonl_on_a_full_disk_keeps_whole_lines_and_recovers(tmp_path: Path) -> None:
    """A line that does not fit leaves no half, is reported once, and later lines are written."""
    code = textwrap.dedent(
        """
        import resource, signal, sys
        from fastvideo.train.trackers import initialize_trackers
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        tracker = initialize_trackers(
            ["jsonl"], experiment_name="p", config={}, log_dir=sys.argv[1])
        tracker.log({"a": 1.0}, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
        tracker.log({"a": 2.0}, 2)
        tracker.log({"a": 3.0}, 3)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        tracker.log({"a": 4.0}, 4)
        tracker.finish()
        """
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    assert [record["step"] for record in lines(tmp_path / "metrics.jsonl")] == [1, 4]
    assert done.stderr.count("tracker jsonl failed (OSError: only 8 of 22 bytes fit; ") == 1
    assert "Traceback" not in done.stderr


def test_files_are_copied_beside_the_metrics(tmp_path: Path) -> None:
    """The run file is kept under the given name; a copy onto itself is no error."""
    source = tmp_path / "config.yaml"
    source.write_text("a: 1\n")
    tracker = start(["jsonl", "tensorboard"], tmp_path / "tracker")
    tracker.log_file(source, name="run.yaml")
    tracker.log_file(tmp_path / "tracker" / "run.yaml")
    tracker.finish()
    assert (tmp_path / "tracker" / "run.yaml").read_text() == "a: 1\n"


def test_tensorboard_files_hold_the_scalars(tmp_path: Path) -> None:
    """TensorBoard's own reader finds every point and the configuration."""
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415 - heavy
        EventAccumulator,
    )

    tracker = start(["tensorboard"], tmp_path)
    for step in (1, 2):
        tracker.log({"loss": step / 2, "note": "left out"}, step)
    tracker.finish()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.5), (2, 1.0)]
    assert events.Tags()["tensors"] == ["config/text_summary"]


@pytest.mark.integration
def test_wandb_records_offline_without_a_key(tmp_path: Path) -> None:
    """Even where online is asked for, a machine without a key records offline and says so."""
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from fastvideo.train.trackers import initialize_trackers
        tracker = initialize_trackers(["wandb"], experiment_name="project",
            config={"lr": 0.1}, log_dir=sys.argv[1], run_name="name")
        file = Path(sys.argv[1], "f.yaml")
        file.write_text("a: 1")
        tracker.log({"loss": 0.5}, 1)
        tracker.log_file(file, name="run.yaml")
        tracker.finish(exit_code=1)
        """
    )
    hidden = {"WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_SILENT", "WANDB_QUIET", "NETRC"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"WANDB_MODE": "online", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment, check=True, timeout=180, capture_output=True, text=True,
    )  # fmt: skip
    assert "wandb has no API key, so this run is recorded offline" in done.stderr
    assert "tracker wandb failed" not in done.stderr
    assert not [line for line in done.stderr.splitlines() if line.startswith("wandb: ")]
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert (run / "files" / "run.yaml").read_text() == "a: 1"
    assert any(b"loss" in file.read_bytes() for file in run.glob("run-*.wandb"))


@pytest.mark.parametrize(
    ("mode", "variable", "expected"),
    [
        (None, "", {"quiet": True}),
        ("offline", "", {"silent": True}),
        ("offline", "false", {}),
    ],
)
def test_wandb_says_little_unless_asked(
    monkeypatch: pytest.MonkeyPatch, mode: str | None, variable: str, expected: dict[str, bool]
) -> None:
    """Offline it says nothing, online only the essential, and its own variables win."""
    for name in ("WANDB_MODE", "WANDB_QUIET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", variable)
    assert wandb_service._verbosity(mode) == expected


@pytest.mark.parametrize(
    ("mode", "key", "expected"),
    [
        ("", "", "offline"),
        ("online", "", "offline"),
        ("offline", "", None),
        ("disabled", "", None),
        ("", "secret", None),
        ("online", "secret", None),
    ],
)
def test_the_wandb_mode_depends_on_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, key: str, expected: str | None
) -> None:
    """Only a run that would need a key and has none is turned offline."""
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert wandb_service._mode() == expected


def test_a_netrc_entry_counts_as_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`wandb login` leaves its key in netrc, for the host of the service in use."""
    file = tmp_path / "netrc"
    file.write_text("machine wandb.example login user password secret\n")
    file.chmod(0o600)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", str(file))
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert wandb_service._mode() is None
    monkeypatch.setenv("WANDB_BASE_URL", "https://other.example")
    assert wandb_service._mode() == "offline"


def test_swanlab_gets_the_calls_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package present, an experiment is started, logged to and finished."""
    calls: list[tuple[str, Any]] = []
    module = ModuleType("swanlab")
    module.init = lambda **kwargs: calls.append(("init", kwargs))
    module.log = lambda data, step: calls.append(("log", (data, step)))
    module.finish = lambda state: calls.append(("finish", state))
    monkeypatch.setitem(sys.modules, "swanlab", module)
    tracker = start(["swanlab"], tmp_path, run_name="run", entity="team")
    tracker.log({"loss": 0.5, "note": "text"}, 1)
    tracker.finish(exit_code=1)
    assert calls[0][1]["project"] == "project"
    assert calls[0][1]["workspace"] == "team"
    assert calls[0][1]["experiment_name"] == "run"
    assert calls[1:] == [("log", ({"loss": 0.5}, 1)), ("finish", "crashed")]


def test_only_rank_0_gets_real_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks check the names and write nothing; rank 0 writes below the output directory."""
    config = TrainingConfig()
    config.tracker.trackers = ["jsonl"]
    config.checkpoint.output_dir = str(tmp_path / "out")
    monkeypatch.setenv("RANK", "1")
    assert build_tracker(config).active is False
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("RANK", "0")
    tracker = build_tracker(config)
    tracker.log({"a": 1.0}, 1)
    tracker.finish()
    assert (tmp_path / "out" / "tracker" / "metrics.jsonl").exists()
    monkeypatch.setenv("RANK", "1")
    config.tracker.trackers = ["nothing"]
    with pytest.raises(ConfigError, match="'nothing' is not supported"):
        build_tracker(config)


def test_without_names_the_project_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trackers but a project name means wandb; no project means none."""
    from fastvideo.train.trackers import build  # noqa: PLC0415 - patched below

    asked: list[list[str]] = []

    def fake(names: list[str], **kwargs: Any) -> Tracker:
        asked.append(list(names))
        return Tracker()

    monkeypatch.setattr(build, "initialize_trackers", fake)
    config = TrainingConfig()
    build_tracker(config)
    config.tracker.project_name = ""
    build_tracker(config)
    assert asked == [["wandb"], []]


def test_a_step_is_collected_and_logged_once() -> None:
    """Everything said about the current step is one call; the rest passes through."""
    backend = Backend()
    tracker = StepTracker(Tracker([backend]))
    tracker.log({"before": 1.0}, 0)
    tracker.begin(1)
    tracker.log({"a": 1.0}, 1)
    tracker.log({"a": 2.0, "late": torch.tensor(5.0)}, 1)
    tracker.defer("gone", torch.tensor(0.0), drop_zero=True)
    tracker.end()
    tracker.log({"validation": 3.0}, 1)
    assert backend.calls == [
        ("log", {"before": 1.0}, 0),
        ("log", {"a": 2.0, "late": 5.0}, 1),
        ("log", {"validation": 3.0}, 1),
    ]


def test_deferred_scalars_are_handed_to_the_trainer() -> None:
    """What was taken for the joint transfer is not logged again."""
    backend = Backend()
    tracker = StepTracker(Tracker([backend]))
    tracker.begin(1)
    tracker.defer("norm", torch.tensor(5.0))
    (item,) = tracker.take_deferred()
    assert (item.name, float(item.value)) == ("norm", 5.0)
    tracker.end()
    assert backend.calls == []


def test_an_abandoned_step_reads_no_device() -> None:
    """After an error only what is on the host is logged."""
    backend = Backend()
    tracker = StepTracker(Tracker([backend]))
    tracker.begin(1)
    tracker.log({"known": 1.0, "on_device": torch.tensor(2.0)}, 1)
    tracker.abandon()
    assert backend.calls == [("log", {"known": 1.0}, 1)]


def test_nothing_is_deferred_for_ranks_that_log_nowhere() -> None:
    """Where nothing is logged, nothing is kept to be read."""
    tracker = StepTracker(Tracker())
    tracker.begin(1)
    tracker.log({"a": torch.tensor(1.0)}, 1)
    assert tracker.take_deferred() == []


@pytest.mark.parametrize("name", ["jsonl", "tensorboard"])
def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path, name: str) -> None:
    """It names the tracker, the directory, the reason and the key to set."""
    (tmp_path / "file").write_text("")
    message = (
        rf"^the tracker '{name}' cannot write to .*/file/tracker: Not a directory\. "
        r"Set --training\.checkpoint\.output_dir DIR$"
    )
    with pytest.raises(ConfigError, match=message):
        initialize_trackers(
            name, experiment_name="a", config=None, log_dir=tmp_path / "file" / "tracker"
        )
