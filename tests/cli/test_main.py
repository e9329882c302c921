"""The `fastvideo` command: help, errors, and the tables it prints."""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import fastvideo
from fastvideo import envs
from fastvideo.cli import help as cli_help
from fastvideo.cli import main as cli
from fastvideo.cli import show_envs
from fastvideo.errors import ConfigError
from fastvideo.profiler import list_profiler_regions

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = [
    "activations",
    "dashboards",
    "envs",
    "export",
    "generate",
    "preprocess",
    "regions",
    "tiny-assets",
    "train",
]


def _without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "rich" else find_spec(name)
    )


def _exit_status(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    return int(caught.value.code or 0)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: int,
    command: list[str],
) -> None:
    """Help of every command is at most as wide as the terminal, and no wider than 100 columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert _exit_status([*command, "--help"]) == 0
    output = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in output.splitlines()) <= min(columns, 100)
    assert output.startswith("Usage  fastvideo")
    assert "╭─ Options" in output


def test_help_lists_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No command at all is help and no error; each command has its line."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([]) == 0
    output = capsys.readouterr().out
    rows = [line.strip("│ ").split("  ")[0] for line in output.splitlines() if "│" in line]
    assert sorted(set(rows) & set(COMMANDS)) == COMMANDS
    assert output.index("Commands") < output.index("Options")


def test_help_without_rich_is_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where rich is not installed, help and tables are plain text."""
    _without_rich(monkeypatch)
    assert cli.main([]) == 0
    output = capsys.readouterr().out
    assert output.startswith("usage: fastvideo")
    assert "tiny-assets" in output
    assert cli.main(["regions"]) == 0
    assert "training_forward\t" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    """Help appears at once: no torch, no numpy, no diffusers."""
    program = (
        "import sys; from fastvideo.cli.main import main; main([]);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'diffusers', 'yaml', 'av')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize("module", ["fastvideo", "fastvideo.cli"])
def test_package_runs_as_a_module(module: str) -> None:
    """`python -m fastvideo` and the script's `python -m fastvideo.cli` are the command."""
    result = subprocess.run(
        [sys.executable, "-m", module, "--version"], check=True, capture_output=True, text=True
    )
    assert result.stdout == f"fastvideo {fastvideo.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (["trian"], ["invalid choice: 'trian'", "Did you mean 'train'?", "'fastvideo --help'"]),
        (["envs", "--foo"], ["unrecognized arguments: --foo", "'fastvideo envs --help'"]),
        (["tiny-assets", "--out", "x", "--sed=3"], ["--sed=3 Did you mean '--seed'?"]),
        (["train"], ["required: --config", "'fastvideo train --help'"]),
        (["train", "--num-gpus", "two"], ["invalid int value: 'two'"]),
    ],
)
def test_wrong_command_lines_are_two_lines(
    capsys: pytest.CaptureFixture[str], argv: list[str], lines: list[str]
) -> None:
    """A mistake is said with the nearest word and where help is; the status is 2."""
    assert _exit_status(argv) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 2
    assert errors.startswith("error: ")
    assert all(line in errors for line in lines)


def _command(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    def add_parser(subparsers: Any) -> None:
        subparsers.add_parser("fake").set_defaults(run=run)

    monkeypatch.setattr(cli, "COMMANDS", (SimpleNamespace(add_parser=add_parser),))


@pytest.mark.parametrize("error", [ConfigError("x: wrong"), FileNotFoundError("no such run file")])
def test_mistakes_of_the_caller_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """An error of this package is its message and status 2, without a traceback."""

    def run(args: Any) -> int:
        raise error

    _command(monkeypatch, run)
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileExistsError(errno.EEXIST, "File exists", "out"), "out: File exists"),
        (PermissionError(errno.EACCES, "Permission denied", "/out"), "/out: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: OSError,
    message: str,
) -> None:
    """Wherever a command comes upon it: the file and the reason, with status 2."""

    def run(args: Any) -> int:
        raise error

    _command(monkeypatch, run)
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), ConnectionResetError(errno.ECONNRESET, "x")]
)
def test_unexpected_errors_keep_their_traceback(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What nobody foresaw is not hidden."""

    def run(args: Any) -> int:
        raise error

    _command(monkeypatch, run)
    with pytest.raises(type(error)):
        cli.main(["fake"])


def test_status_of_a_command_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a command returns is what the shell sees; Ctrl-C is 130."""
    _command(monkeypatch, lambda args: 5)
    assert cli.main(["fake"]) == 5

    def interrupt(args: Any) -> int:
        raise KeyboardInterrupt

    _command(monkeypatch, interrupt)
    assert cli.main(["fake"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_envs_lists_every_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each declared variable is in the table, unbroken, with the value it has here."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILER_DIR", "my-traces")
    monkeypatch.setenv("FASTVIDEO_LOG_LEVLE", "DEBUG")
    assert cli.main(["envs"]) == 0
    printed = capsys.readouterr()
    assert printed.err == (
        "warning: FASTVIDEO_LOG_LEVLE is set, but is no variable: is FASTVIDEO_LOG_LEVEL meant?\n"
    )
    words = printed.out.split()
    assert set(envs.VARIABLES) <= set(words)
    assert "my-traces" in words


def test_values_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset, default, set, wrong and secret values are told apart; a secret is never shown."""
    flag = envs.EnvVar("FASTVIDEO_T", "0/1", default=False, help="")
    text = envs.EnvVar("FASTVIDEO_T", "text", "", "")
    secret = envs.EnvVar("FASTVIDEO_T", "text", "", "", secret=True)
    monkeypatch.delenv("FASTVIDEO_T", raising=False)
    assert show_envs.describe_value(flag) == "0 (default)"
    assert show_envs.describe_value(text) == "(not set)"
    assert show_envs.describe_value(secret) == "(not set)"
    monkeypatch.setenv("FASTVIDEO_T", "maybe")
    assert show_envs.describe_value(flag) == "maybe (not a value of type 0/1)"
    assert show_envs.describe_value(text) == "maybe"
    assert show_envs.describe_value(secret) == "(set, not shown)"


def test_regions_lists_the_catalogue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each built-in region is in the table under its short name."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["regions"]) == 0
    words = capsys.readouterr().out.split()
    assert {region.short_name for region in list_profiler_regions()} <= set(words)


def test_wide_terminals_are_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are at most as wide as can be read."""
    monkeypatch.setenv("COLUMNS", "300")
    assert cli_help.make_console(io.StringIO()).width == cli_help.MAX_WIDTH


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run file that loads."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "models: {student: {_target_: a.B}}\nmethod: {_target_: a.C}\n"
        "training: {loop: {max_train_steps: 3}}\n",
        encoding="utf-8",
    )
    return path


def test_train_becomes_the_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    """The process is replaced by the launcher with the trainer's words, and notes are printed."""
    started: list[tuple[str, tuple[str, ...], dict[str, str]]] = []

    def replace(program: str, argv: tuple[str, ...], environ: dict[str, str]) -> NoReturn:
        started.append((program, argv, environ))
        raise SystemExit

    monkeypatch.setattr(os, "execve", replace)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("NUM_GPUS", raising=False)
    words = ["--config", str(run_file), "--training.data.seed", "7", "--num-gpus", "2"]
    with pytest.raises(SystemExit):
        cli.main(["train", *words])
    ((program, argv, environ),) = started
    assert program == argv[0] == sys.executable
    assert argv[argv.index("--nproc_per_node") + 1] == "2"
    assert argv[-4:] == ("--config", str(run_file), "--training.data.seed", "7")
    assert environ["OMP_NUM_THREADS"] == "1"
    assert "fastvideo: no GPU found: 2 processes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--training.loop.max_train_step=1"], "Did you mean --training.loop.max_train_steps?"),
        (["--num-gpus", "0"], "--num-gpus: expected a whole number of at least 1, got 0"),
        (["stray"], "unexpected argument 'stray'"),
        (["--training.loop.max_train_steps=0"], "training.loop.max_train_steps: expected a whole"),
        (["--training.tracker.trackers=[jsnl]"], "Did you mean 'jsonl'?"),
        (
            ["--callbacks.validation.every_steps=9"],
            "callbacks.validation.dataset_file: it is required",
        ),
    ],
)
def test_train_checks_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_file: Path,
    words: list[str],
    message: str,
) -> None:
    """Mistakes in overrides and numbers are one line, and nothing is started."""
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started"))
    assert cli.main(["train", "--config", str(run_file), *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_train_explains_an_error_with_the_warnings_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    """A mistyped section is named above what is missing because of it."""
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started"))
    run_file.write_text(run_file.read_text().replace("loop:", "loopp:"), encoding="utf-8")
    assert cli.main(["train", "--config", str(run_file)]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning == ("warning: unknown key training.loopp is ignored. Did you mean 'loop'?")
    assert error.startswith("error: training.loop.max_train_steps: expected")


def test_train_without_the_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    """Without PyYAML the error names the extra."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert cli.main(["train", "--config", str(run_file)]) == 2
    assert "pip install '.[train]'" in capsys.readouterr().err
