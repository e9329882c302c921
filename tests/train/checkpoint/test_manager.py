"""When a run is saved, what stays of it, and what a failing disk does to it."""

from __future__ import annotations

import json
import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.profiler import RecordingSink, attach, detach
from fastvideo.train.callbacks import Callback
from fastvideo.train.checkpoint import manager as manager_module
from fastvideo.train.checkpoint import plain, storage
from fastvideo.train.checkpoint.errors import CheckpointError, CheckpointWriteError
from fastvideo.train.checkpoint.manager import CheckpointConfig, CheckpointManager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

SAVED = "training_save_checkpoint"


@pytest.fixture
def sink() -> Iterator[RecordingSink]:
    """Hears of every region of the test."""
    recording = RecordingSink()
    attach(recording)
    yield recording
    detach(recording)


@pytest.fixture(scope="module")
def run(runs: ModuleType, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that has trained one step, for managers of the tests' own."""
    return runs.Run("finetune", data, tmp_path_factory.mktemp("run")).train(1)


def _manager(run: Any, out: Path, **config: Any) -> CheckpointManager:
    return CheckpointManager(
        run.method,
        run.method.student.dataloader,
        out,
        config=CheckpointConfig(**config),
        callbacks=run.trainer.callbacks,
        raw_config={"training": {"data": {"seed": 11}}},
    )


def _names(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


@pytest.mark.parametrize("async_save", [False, True])
def test_saves_come_every_so_many_steps_once_each(
    run: Any, tmp_path: Path, sink: RecordingSink, *, async_save: bool
) -> None:
    """The region is entered when something is saved and at no other time; the oldest go."""
    manager = _manager(run, tmp_path, save_steps=2, keep_last=2, async_save=async_save)
    for step in range(1, 8):
        manager.maybe_save(step)
    manager.save_final(7)
    assert _names(tmp_path) == ["checkpoint-6", "checkpoint-7"]
    # The end of a save in a thread is waited for in a region, too.
    assert sink.events == [("enter", SAVED), ("exit", SAVED)] * (5 if async_save else 4)
    manager.save_final(7)
    manager.maybe_save(6)
    assert sink.events.count(("enter", SAVED)) == (6 if async_save else 5)
    content = json.loads((tmp_path / "checkpoint-7" / "metadata.json").read_text())
    assert content["config"] == {"training": {"data": {"seed": 11}}}
    assert (content["step"], content["world_size"]) == (7, 1)
    assert set(content["files"]) == {
        *("dcp/.metadata", "dcp/__0_0.distcp", "rng_state_rank0.pt"),
    }


def test_a_run_that_is_never_saved_touches_no_disk(
    run: Any, tmp_path: Path, sink: RecordingSink
) -> None:
    """The final save included."""
    manager = _manager(run, tmp_path / "none", save_steps=0)
    manager.maybe_save(2)
    manager.save_final(2)
    assert sink.events == []
    assert not (tmp_path / "none").exists()


def test_a_run_that_is_past_its_end_is_not_saved_again(
    runs: ModuleType, data: Path, tmp_path: Path, sink: RecordingSink
) -> None:
    """Nor is the step that it was resumed from."""
    save = CheckpointConfig(save_steps=2)
    runs.Run("finetune", data, tmp_path, save=save).train(3)
    assert _names(tmp_path) == ["checkpoint-2", "checkpoint-3"]
    written = (tmp_path / "checkpoint-3" / "metadata.json").stat().st_mtime_ns
    sink.events.clear()
    for last in (3, 2):
        runs.Run("finetune", data, tmp_path, save=save).train(last, resume="latest")
    assert ("enter", SAVED) not in sink.events
    assert (tmp_path / "checkpoint-3" / "metadata.json").stat().st_mtime_ns == written


def _full_disk(path: Path, content: Any) -> None:
    raise OSError(28, os.strerror(28), str(path))


def test_a_full_disk_ends_no_run_but_the_last_save_fails(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line says so; nothing half written stays; the next save may work again."""
    manager = _manager(run, tmp_path, save_steps=2)
    manager.maybe_save(2)
    with monkeypatch.context() as patch:
        patch.setattr(manager_module, "write_plain", _full_disk)
        manager.maybe_save(4)
        (record,) = (r for r in caplog.records if r.levelname == "ERROR")
        assert "step 4 was not saved: cannot write" in record.getMessage()
        assert "No space left on device; " in record.getMessage()
        with pytest.raises(CheckpointWriteError, match="No space left on device"):
            manager.save_final(5)
    assert _names(tmp_path) == ["checkpoint-2"]
    manager.maybe_save(6)
    assert _names(tmp_path) == ["checkpoint-2", "checkpoint-6"]


@pytest.mark.parametrize("async_save", [False, True])
def test_weights_that_cannot_be_written_are_no_checkpoint(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    async_save: bool,
) -> None:
    """Also when a thread finds out, which is said with the next save."""

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, os.strerror(28))

    manager = _manager(run, tmp_path, save_steps=2, async_save=async_save)
    with monkeypatch.context() as patch:
        patch.setattr(storage.CheckpointWriter, "write_data", full)
        manager.maybe_save(2)
        if async_save:
            assert manager._pending is not None
            assert manager._pending.thread is not None
            manager._pending.thread.join()
    manager.maybe_save(4)
    manager.save_final(4)
    assert _names(tmp_path) == ["checkpoint-4"]
    assert "step 2 was not saved: " in caplog.text
    assert "rank 0: OSError: [Errno 28] No space left" in caplog.text


def test_the_last_save_of_a_thread_fails_loudly(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has not kept what it was to keep."""

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(storage.CheckpointWriter, "write_data", full)
    manager = _manager(run, tmp_path, save_steps=2, async_save=True)
    with pytest.raises(CheckpointWriteError, match="step 2 was not saved: cannot write"):
        manager.save_final(2)
    assert _names(tmp_path) == []


def test_one_save_at_a_time_and_close_waits(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second save waits for the first; a run that ends with an error lets the last one end."""
    manager = _manager(run, tmp_path, save_steps=1, async_save=True)
    may_complete = threading.Event()
    complete = manager_module.complete_directory

    def slow(*args: Any) -> Path:
        assert may_complete.wait(60)
        return complete(*args)

    monkeypatch.setattr(manager_module, "complete_directory", slow)
    manager.maybe_save(1)
    assert not any(name.startswith("checkpoint-") for name in _names(tmp_path))
    threading.Timer(0.05, may_complete.set).start()
    manager.maybe_save(2)
    assert "checkpoint-1" in _names(tmp_path)
    manager.close()
    assert _names(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    manager.close()


def test_state_that_cannot_be_kept_ends_the_run_at_its_first_save(run: Any, tmp_path: Path) -> None:
    """It is a mistake in a callback, not in the disk, and is named."""

    class Bad(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"lock": threading.Lock()}

    run.trainer.callbacks._callbacks["bad"] = Bad()
    try:
        manager = _manager(run, tmp_path, save_steps=1)
        with pytest.raises(CheckpointError, match=r"\['callbacks'\]\['bad'\]\['lock'\] is a _thr"):
            manager.maybe_save(1)
    finally:
        del run.trainer.callbacks._callbacks["bad"]
    assert _names(tmp_path) == []


def test_leftovers_of_killed_saves_are_removed_with_the_first_save(
    run: Any, tmp_path: Path
) -> None:
    """Not before: a run that only looks on changes nothing."""
    (tmp_path / ".tmp-checkpoint-8-123").mkdir()
    (tmp_path / ".old-checkpoint-2-123").mkdir()
    manager = _manager(run, tmp_path, save_steps=1)
    assert len(_names(tmp_path)) == 2
    manager.maybe_save(1)
    assert _names(tmp_path) == ["checkpoint-1"]


def test_resume_says_what_it_goes_on_from(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing, the newest, or an older one, with a warning of the newer."""
    caplog.set_level("INFO", "fastvideo")
    manager = _manager(run, tmp_path, save_steps=1)
    assert manager.maybe_resume(resume_from_checkpoint="") is None
    assert manager.maybe_resume(resume_from_checkpoint="latest") is None
    assert "no checkpoint in" in caplog.text
    manager.maybe_save(1)
    manager.maybe_save(2)
    for value, step in [("latest", 2), (str(tmp_path / "checkpoint-1"), 1)]:
        other = _manager(run, tmp_path)
        assert other.maybe_resume(resume_from_checkpoint=value) == step
        other.load_rng_snapshot(value)
    assert "checkpoint-2 is newer than the checkpoint-1 that this run goes on from" in caplog.text
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        manager.maybe_resume(resume_from_checkpoint=str(tmp_path / "none"))


def test_a_newer_checkpoint_that_is_not_whole_is_named_once(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that is passed over; 'latest' will not take it, so nothing says that it would."""
    manager = _manager(run, tmp_path, save_steps=1)
    manager.maybe_save(1)
    manager.maybe_save(2)
    (tmp_path / "checkpoint-2" / "dcp" / "__0_0.distcp").write_bytes(b"short")
    assert _manager(run, tmp_path).maybe_resume(resume_from_checkpoint="latest") == 1
    assert "checkpoint-2: dcp/__0_0.distcp has 5 bytes" in caplog.text
    assert "is newer than" not in caplog.text


@pytest.mark.parametrize("name", ["rng_state_rank0.pt", "dcp/.metadata", "dcp/__0_0.distcp"])
def test_a_corrupt_file_is_named(run: Any, tmp_path: Path, name: str) -> None:
    """Of the right size, so that it takes reading to find out."""
    manager = _manager(run, tmp_path, save_steps=1)
    manager.maybe_save(1)
    path = tmp_path / "checkpoint-1" / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2] + bytes(size - size // 2))
    before = run.method.student.transformer.proj_out.weight.clone()
    with pytest.raises(CheckpointError, match=rf"checkpoint-1/{name} (cannot be read|is damaged)"):
        _manager(run, tmp_path).maybe_resume(resume_from_checkpoint="latest")
    assert torch.equal(run.method.student.transformer.proj_out.weight, before)


@pytest.mark.parametrize("name", ["rng_state_rank0.pt", "dcp/.metadata", "metadata.json"])
@pytest.mark.parametrize("old", [False, True])
def test_a_changed_byte_is_found(run: Any, tmp_path: Path, name: str, *, old: bool) -> None:
    """Wherever it is; in checkpoints without checksums at least in the ranks' files."""
    _manager(run, tmp_path, save_steps=1).maybe_save(1)
    checkpoint = tmp_path / "checkpoint-1"
    if old:
        _forget_checksums(checkpoint)
        assert _manager(run, tmp_path).maybe_resume(resume_from_checkpoint="latest") == 1
        if not name.endswith(".pt"):
            return
    whole = (checkpoint / name).read_bytes()
    marks: dict[str, list[tuple[bytes, int]]] = {
        "rng_state_rank0.pt": [(b"betas", 20), (b"/data/0", 200)],
        "dcp/.metadata": [(b"proj_out", 0)],
        "metadata.json": [(b"FineTuneMethod", 0), (b'"seed": 11', 9)],
    }
    for mark, offset in marks[name]:
        place = whole.index(mark) + offset
        content = bytearray(whole)
        content[place] ^= 1
        (checkpoint / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"{name} .*checksum; resume from another"):
            _manager(run, tmp_path).maybe_resume(resume_from_checkpoint="latest")


def test_a_renamed_checkpoint_is_refused(run: Any, tmp_path: Path) -> None:
    """Both names are in the message; one without a description is known by its ranks' files."""
    _manager(run, tmp_path, save_steps=1).maybe_save(1)
    renamed = (tmp_path / "checkpoint-1").rename(tmp_path / "checkpoint-100")
    for file in ("metadata.json", "rng_state_rank0.pt"):
        with pytest.raises(
            CheckpointError, match=rf"checkpoint-100 is named after step 100, but its {file} is of"
        ) as refusal:
            _manager(run, tmp_path).maybe_resume(resume_from_checkpoint="latest")
        assert "its own name again (checkpoint-1)" in str(refusal.value)
        (renamed / "metadata.json").unlink(missing_ok=True)


def test_weights_that_are_not_finite_are_said_and_replace_nothing_better(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest finite checkpoint outlives the limit, until there is another finite one."""
    caplog.set_level("WARNING", "fastvideo")
    manager = _manager(run, tmp_path, save_steps=1, keep_last=1)
    manager.maybe_save(1)
    manager.maybe_save(2)
    weight = run.method.student.transformer.proj_out.weight
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight[0, 0] = torch.nan
        manager.maybe_save(3)
        manager.maybe_save(4)
        assert _names(tmp_path) == ["checkpoint-2", "checkpoint-4"]
        said = caplog.records[0].getMessage()
        assert "checkpoint-3: 1 tensor holds NaN or infinite values (roles.student.tra" in said
        assert said.endswith("proj_out.weight); checkpoint-2 is the newest without, and stays")
        caplog.clear()
        _manager(run, tmp_path).maybe_resume(resume_from_checkpoint="latest")
        assert "checkpoint-4 held NaN or infinite values when it was saved; to go on" in caplog.text
        assert f"resume_from_checkpoint {tmp_path / 'checkpoint-2'}" in caplog.text
    finally:
        with torch.no_grad():
            weight.copy_(kept)
    manager.maybe_save(5)
    assert _names(tmp_path) == ["checkpoint-5"]


@pytest.mark.parametrize(
    ("state", "shared", "said"),
    [
        (
            [1],
            frozenset(),
            r"state_dict\(\) of Bad \(callbacks\.bad\) returned a list; expected a dict",
        ),
        (
            {"x": [1]},
            frozenset({"x"}),
            r"Bad \(callbacks\.bad\) has a list as 'x', which is one of",
        ),
    ],
)
def test_a_callback_with_state_of_another_kind_is_named(
    run: Any, tmp_path: Path, state: Any, shared: frozenset[str], said: str
) -> None:
    """With what it returned and what is expected."""

    class Bad(Callback):
        shared_state_keys = shared

        def state_dict(self) -> dict[str, Any]:
            return state  # type: ignore[no-any-return]

    run.trainer.callbacks._callbacks["bad"] = Bad()
    try:
        with pytest.raises(CheckpointError, match=said):
            _manager(run, tmp_path, save_steps=1).maybe_save(1)
    finally:
        del run.trainer.callbacks._callbacks["bad"]


def test_a_rank_file_of_its_own_is_missed(run: Any, tmp_path: Path) -> None:
    """Checkpoints without a list of files are not asked for it before."""
    manager = _manager(run, tmp_path, save_steps=1)
    manager.maybe_save(1)
    (tmp_path / "checkpoint-1" / "metadata.json").unlink()
    (tmp_path / "checkpoint-1" / "rng_state_rank0.pt").unlink()
    with pytest.raises(CheckpointError, match=r"rng_state_rank0\.pt cannot be read: FileNotFound"):
        _manager(run, tmp_path).maybe_resume(resume_from_checkpoint="latest")


def test_other_roles_are_refused(run: Any, tmp_path: Path) -> None:
    """With those of the checkpoint and those of the run."""
    manager = _manager(run, tmp_path, save_steps=1)
    manager.maybe_save(1)
    content = plain.read_plain(tmp_path / "checkpoint-1" / "rng_state_rank0.pt")
    assert content["rank"] == 0
    state = run.method.checkpoint_state()
    other = _manager(run, tmp_path)
    critic = torch.nn.Linear(1, 1)
    other._state._method = _With(run.method, state | {"roles.critic.transformer": critic})
    with pytest.raises(CheckpointError, match="the roles student, as FineTuneMethod saved them"):
        other.maybe_resume(resume_from_checkpoint="latest")


@pytest.fixture
def finetuned(runs: ModuleType, data: Path, tmp_path: Path) -> Path:
    """The output directory of a run that was saved once."""
    out = tmp_path / "finetuned"
    runs.Run("finetune", data, out, save=CheckpointConfig(save_steps=1)).train(1)
    return out


def _forget_checksums(checkpoint: Path) -> None:
    """Makes a checkpoint as older versions wrote them."""
    path = checkpoint / "metadata.json"
    content = json.loads(path.read_text())
    del content["sha256"], content["metadata_sha256"]
    path.write_text(json.dumps(content))


def _content(out: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(out)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(out.rglob("*"))
    }


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("resume", ["latest", "path", ""])
def test_another_method_is_refused(
    runs: ModuleType, data: Path, finetuned: Path, tmp_path: Path, resume: str, *, old: bool
) -> None:
    """Both are named, and what to do; what is there stays. Older checkpoints say it in places."""
    metadata = finetuned / "checkpoint-1" / "metadata.json"
    content = json.loads(metadata.read_text())
    assert content["method"]["roles"] == ["student"]
    assert content["method"]["optimizers"] == {"student": "AdamW"}
    if old:
        content["config"] = {"method": {"_target_": content.pop("method")["target"]}}
        del content["metadata_sha256"]
        metadata.write_text(json.dumps(content))
    before = _content(finetuned)
    out = tmp_path / "dmd2" if resume == "path" else finetuned
    save = CheckpointConfig(save_steps=1)
    other = runs.Run("dmd2", data, out, save=save)
    resume = str(finetuned) if resume == "path" else resume
    with pytest.raises(CheckpointError) as refusal:
        other.train(2, resume=resume)
    key = "resume_from_checkpoint" if resume else "output_dir"
    message = str(refusal.value)
    assert message.startswith(f"training.checkpoint.{key}: {finetuned / 'checkpoint-1'}")
    assert "it was saved by FineTuneMethod" in message
    assert ("with the roles student" in message) is not old
    assert "this run's method is DMD2Method" in message
    assert "another --training.checkpoint.output_dir" in message or not resume
    assert _content(finetuned) == before


def test_a_checkpoint_that_does_not_say_who_saved_it(
    runs: ModuleType, data: Path, finetuned: Path, tmp_path: Path
) -> None:
    """The run goes on from one that has its tensors; one with other roles is refused."""
    metadata = finetuned / "checkpoint-1" / "metadata.json"
    content = json.loads(metadata.read_text())
    del content["method"], content["metadata_sha256"]
    metadata.write_text(json.dumps(content | {"config": None}))
    run = runs.Run("finetune", data, tmp_path / "more").train(2, resume=str(finetuned))
    assert list(run.recorder.steps) == [2]
    other = runs.Run("dmd2", data, tmp_path / "dmd2")
    with pytest.raises(CheckpointError, match="of the roles student, and this run keeps those of"):
        other.train(2, resume=str(finetuned))


def test_another_model_is_refused_by_its_parameters(
    run: Any, finetuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the checkpoint, the role and shapes; before anything is changed."""
    state = run.method.checkpoint_state()
    other = _manager(run, finetuned)
    other._state._method = _With(run.method, {"roles.student.transformer": torch.nn.Linear(1, 1)})
    with pytest.raises(
        CheckpointError, match=r"checkpoint-1 does not fit .*models\.student differs in"
    ):
        other.maybe_resume(resume_from_checkpoint="latest")
    sgd = torch.optim.SGD(run.method.student.transformer.parameters())
    other._state._method = _With(run.method, state | {"optimizers.student": sgd})
    with pytest.raises(CheckpointError, match="optimizer of the role student was AdamW and is SGD"):
        other.maybe_resume(resume_from_checkpoint="latest")
    assert "going on" not in caplog.text


def test_a_changed_learning_rate_is_said_to_have_no_effect(
    runs: ModuleType, data: Path, finetuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In one warning with both values."""
    run = runs.Run("finetune", data, finetuned)
    for group in run.method._optimizer_dict["student"].param_groups:
        group |= {"lr": 5e-4, "initial_lr": 5e-4}
    caplog.set_level("WARNING", "fastvideo")
    run.train(2, resume="latest")
    (record,) = (r for r in caplog.records if "no effect" in r.getMessage())
    assert record.getMessage().endswith(
        "go on with the settings of checkpoint-1, and those of the run file have no effect: "
        "learning rate of the role student stays 0.001 (run file: 0.0005)"
    )
    assert run.method._optimizer_dict["student"].param_groups[0]["initial_lr"] == 1e-3


def test_a_start_among_older_checkpoints_is_refused(
    runs: ModuleType, data: Path, finetuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of the older run is lost; a run that goes on is told nothing."""
    caplog.set_level("WARNING", "fastvideo")
    save = CheckpointConfig(save_steps=1)
    runs.Run("finetune", data, finetuned, save=save).train(2, resume="latest")
    runs.Run("finetune", data, finetuned, save=save).train(3, resume=str(finetuned))
    assert caplog.text == ""
    before = _content(finetuned)
    with pytest.raises(CheckpointError) as refusal:
        runs.Run("finetune", data, finetuned, save=save).train(1)
    assert "of an earlier run, up to checkpoint-3, and this run would begin from" in str(
        refusal.value
    )
    shutil.copytree(finetuned, other := finetuned.with_name("other"))
    with pytest.raises(CheckpointError, match=r"would go on from .*other/checkpoint-3 among"):
        runs.Run("finetune", data, finetuned, save=save).train(4, resume=str(other))
    assert _content(finetuned) == before


class _With:
    """A method with another state."""

    def __init__(self, method: Any, state: dict[str, Any]) -> None:
        self._method = method
        self.checkpoint_state = lambda: state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)
