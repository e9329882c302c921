"""Planning a launch: processes, ports, environment."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.entrypoint.arguments import TrainArguments
from fastvideo.train.launcher import (
    PROCESSES_PER_CORE,
    LaunchPlan,
    check_process_count,
    count_visible_gpus,
    find_free_port,
    plan_launch,
)

ARGUMENTS = TrainArguments(
    config=Path("my runs/a.yaml"), dry_run=False, overrides=("--training.data.seed", "7")
)


def _plan(environ: dict[str, str] | None = None, *, gpus: int = 0) -> LaunchPlan:
    return plan_launch(ARGUMENTS, {"HOME": "/nowhere"} | (environ or {}), visible_gpus=gpus)


def _option(plan: LaunchPlan, name: str) -> str:
    return plan.argv[plan.argv.index(name) + 1]


def test_without_gpus_one_process_on_the_cpu() -> None:
    """No GPU and no NUM_GPUS is one process, said in a note, with one thread."""
    plan = _plan()
    assert _option(plan, "--nproc_per_node") == "1"
    assert plan.environ["OMP_NUM_THREADS"] == "1"
    assert plan.notes[0].startswith("no GPU found and NUM_GPUS is not set")


def test_num_gpus_decides_on_the_cpu_too() -> None:
    """Two processes on a CPU are two processes with one thread each."""
    plan = _plan({"NUM_GPUS": "2"})
    assert _option(plan, "--nproc_per_node") == "2"
    assert plan.notes[0] == "no GPU found: 2 processes on the CPU (gloo)"


def test_all_gpus_are_used_by_default() -> None:
    """With GPUs and nothing said, one process each, and threads are torchrun's business."""
    plan = _plan(gpus=4)
    assert _option(plan, "--nproc_per_node") == "4"
    assert "OMP_NUM_THREADS" not in plan.environ


def test_more_processes_than_gpus_are_remarked() -> None:
    """A person is told when processes will share devices."""
    assert "only 2 GPUs are visible" in _plan({"NUM_GPUS": "4"}, gpus=2).notes[0]


def test_argument_wins_over_the_environment() -> None:
    """`--num-gpus` beats NUM_GPUS."""
    plan = plan_launch(ARGUMENTS, {"NUM_GPUS": "2"}, num_gpus=3, visible_gpus=8)
    assert _option(plan, "--nproc_per_node") == "3"


def test_thread_count_of_the_user_is_kept() -> None:
    """A set OMP_NUM_THREADS is never changed."""
    assert _plan({"OMP_NUM_THREADS": "8"}).environ["OMP_NUM_THREADS"] == "8"


def test_ports_of_two_plans_differ() -> None:
    """Two runs on one machine meet at ports of their own; a given port is used."""
    ports = {_option(_plan(), "--master_port") for _ in range(5)}
    assert len(ports) > 1
    assert _option(_plan({"MASTER_PORT": "1234"}), "--master_port") == "1234"


def test_several_nodes_meet_at_a_known_port() -> None:
    """Machines cannot agree on a free port, so they share the documented one."""
    plan = _plan({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"})
    options = [_option(plan, n) for n in ("--nnodes", "--node_rank", "--master_addr")]
    assert options == ["2", "1", "10.0.0.1"]
    assert _option(plan, "--master_port") == "29501"


def test_free_port_can_be_bound() -> None:
    """What is called free is free."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", find_free_port()))


def test_command_line_ends_with_the_trainers_words() -> None:
    """The entry point is started with config, flags and overrides, blanks kept."""
    plan = _plan()
    assert plan.argv[:3] == (sys.executable, "-m", "fastvideo.train.entrypoint.launch")
    assert plan.argv[-6:] == (
        *("-m", "fastvideo.train.entrypoint.train"),
        *("--config", "my runs/a.yaml", "--training.data.seed", "7"),
    )
    dry = TrainArguments(config=Path("a.yaml"), dry_run=True, overrides=())
    assert plan_launch(dry, {}, visible_gpus=0).argv[-1] == "--dry-run"


def test_wandb_is_offline_without_a_key() -> None:
    """No key and no mode is offline, in the environment and in a note."""
    plan = _plan({"WANDB_API_KEY": ""})
    assert plan.environ["WANDB_MODE"] == "offline"
    assert "WANDB_API_KEY" not in plan.environ
    assert any("stays offline" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("environ", "mode"),
    [({"WANDB_API_KEY": "k"}, None), ({"WANDB_MODE": "online"}, "online")],
)
def test_wandb_mode_is_left_alone(environ: dict[str, str], mode: str | None) -> None:
    """A key or a mode is the user's decision, and no key is ever in a note."""
    plan = _plan(environ)
    assert plan.environ.get("WANDB_MODE") == mode
    assert not any("Weights" in note for note in plan.notes)


def test_wandb_login_counts_as_a_key(tmp_path: Path) -> None:
    """Who logged in once is not put offline."""
    path = tmp_path / ".netrc"
    path.write_text("machine api.wandb.ai\n  login user\n  password secret\n", encoding="utf-8")
    path.chmod(0o600)
    assert "WANDB_MODE" not in _plan({"HOME": str(tmp_path)}).environ
    path.write_text("machine elsewhere login user password secret\n", encoding="utf-8")
    assert _plan({"NETRC": str(path)}).environ["WANDB_MODE"] == "offline"


def test_far_more_processes_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip of the finger does not fill the memory; the message names the key and the limit."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    most = 2 * PROCESSES_PER_CORE
    assert _option(_plan({"NUM_GPUS": str(most)}), "--nproc_per_node") == str(most)
    with pytest.raises(ConfigError, match=rf"NUM_GPUS asks for {most + 1} .* to {most} or less"):
        _plan({"NUM_GPUS": str(most + 1)})
    with pytest.raises(ConfigError, match=r"--num-gpus asks for 99 .* 1 GPU and 2 cores;"):
        plan_launch(ARGUMENTS, {}, num_gpus=99, visible_gpus=1)
    check_process_count(99, gpus=99, where="NUM_GPUS")


def test_restarts_on_one_machine_keep_the_port() -> None:
    """They are torchrun's; an argument wins over the environment, and none are said to it."""
    plan = _plan({"MAX_RESTARTS": "3", "MASTER_PORT": "1234"})
    assert _option(plan, "--max_restarts") == "3"
    assert _option(plan, "--master_port") == "1234"
    other = plan_launch(ARGUMENTS, {"MAX_RESTARTS": "3"}, max_restarts=1, visible_gpus=0)
    assert _option(other, "--max_restarts") == "1"
    assert "--max_restarts" not in _plan({"MAX_RESTARTS": "0"}).argv
    with pytest.raises(ConfigError, match=r"MAX_RESTARTS='-1': expected .* at least 0"):
        _plan({"MAX_RESTARTS": "-1"})


def test_machines_that_may_start_again_meet_at_the_first() -> None:
    """The first machine keeps the store, and only it does."""
    environ = {"NNODES": "2", "MASTER_ADDR": "10.0.0.1", "MAX_RESTARTS": "2"}
    first, second = (_plan(environ | {"NODE_RANK": rank}) for rank in "01")
    for plan in (first, second):
        assert _option(plan, "--rdzv_backend") == "c10d"
        assert _option(plan, "--rdzv_endpoint") == "10.0.0.1:29501"
        assert "--node_rank" not in plan.argv
    assert [_option(plan, "--rdzv_conf") for plan in (first, second)] == ["is_host=1", "is_host=0"]
    assert _option(first, "--local_addr") == "10.0.0.1"
    assert "--local_addr" not in second.argv


@pytest.mark.parametrize("rank", ["2", "-1", "one"])
def test_a_node_rank_that_is_none(rank: str) -> None:
    """Two machines are 0 and 1."""
    with pytest.raises(ConfigError, match="NODE_RANK"):
        _plan({"NNODES": "2", "NODE_RANK": rank})


def test_a_port_is_at_most_65535() -> None:
    """A larger one would be refused by the sockets of every process."""
    with pytest.raises(ConfigError, match=r"MASTER_PORT='99999': .* at least 1 and at most 65535"):
        _plan({"MASTER_PORT": "99999"})


@pytest.mark.parametrize("name", ["NUM_GPUS", "NNODES", "MASTER_PORT"])
@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_numbers_that_are_none(name: str, value: str) -> None:
    """A wrong number in the environment is named."""
    with pytest.raises(ConfigError, match=f"{name}='{value}': expected a whole number"):
        _plan({name: value})


@pytest.fixture
def smi(tmp_path: Path) -> Path:
    """A directory with an nvidia-smi that lists three GPUs, one of them with a MIG slice."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'echo "GPU 0: A (UUID: a)"\necho "  MIG 1g.10gb Device 0: (UUID: m)"\n'
        'echo "GPU 1: A (UUID: b)"\necho "GPU 2: A (UUID: c)"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 3), ("0,1", 2), ("", 0), ("-1", 0), ("0,-1,2", 1), ("0,1,2,3", 3)],
)
def test_gpus_are_counted(smi: Path, visible: str | None, count: int) -> None:
    """GPUs that CUDA_VISIBLE_DEVICES hides do not count."""
    environ = {"PATH": str(smi)}
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    assert count_visible_gpus(environ) == count


def test_no_or_broken_nvidia_smi_means_no_gpu(smi: Path, tmp_path: Path) -> None:
    """Neither a missing nor a failing program is an error."""
    assert count_visible_gpus({"PATH": str(tmp_path / "empty")}) == 0
    (smi / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    assert count_visible_gpus({"PATH": str(smi)}) == 0
