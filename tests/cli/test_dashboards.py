"""`fastvideo dashboards`: list, write, lint."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fastvideo.cli.main import main
from fastvideo.dashboards import all_dashboards
from fastvideo.dashboards.files import stale_files

if TYPE_CHECKING:
    from pathlib import Path


def test_alone_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Its three commands are listed."""
    assert main(["dashboards"]) == 0
    output = capsys.readouterr().out
    assert all(f"│ {word} " in output for word in ("list", "write", "lint"))


@pytest.mark.parametrize("action", ["list", "write", "lint"])
def test_each_action_has_help(
    action: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help fits a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main(["dashboards", action, "--help"])
    assert caught.value.code == 0
    output = capsys.readouterr().out
    assert output.startswith(f"Usage  fastvideo dashboards {action}")
    assert max(map(len, output.splitlines())) <= 80


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Each uid is there, with the question that the dashboard answers."""
    assert main(["dashboards", "list"]) == 0
    output = capsys.readouterr().out
    assert all(board.uid in output for board in all_dashboards())
    assert "Is the run healthy?" in output


def test_write_then_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was written is said once, and is then up to date."""
    out = ["--out", str(tmp_path)]
    assert main(["dashboards", "write", *out]) == 0
    assert capsys.readouterr().out.count("wrote ") == len(all_dashboards())
    assert main(["dashboards", "write", *out]) == 0
    assert capsys.readouterr().out == f"{tmp_path} is up to date\n"
    assert main(["dashboards", "write", "--check", *out]) == 0
    assert stale_files(tmp_path) == []


def test_check_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file is a line and status 1, and stays missing."""
    assert main(["dashboards", "write", "--check", "--out", str(tmp_path)]) == 1
    assert f"{tmp_path}/fastvideo-overview.json: missing" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_lint_finds_nothing_in_what_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dashboards of this package are right."""
    main(["dashboards", "write", "--out", str(tmp_path)])
    capsys.readouterr()
    assert main(["dashboards", "lint", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "9 dashboards, nothing wrong\n"


def test_lint_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed file is judged as it is, and the status is 1."""
    main(["dashboards", "write", "--out", str(tmp_path)])
    file = tmp_path / "fastvideo-data.json"
    board = json.loads(file.read_text())
    board["panels"][1]["fieldConfig"]["defaults"]["unit"] = "seconds"
    file.write_text(json.dumps(board))
    capsys.readouterr()
    assert main(["dashboards", "lint", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        "fastvideo-data: panel 'Data wait of the worst rank': 'seconds' is no unit id of Grafana\n"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no dashboard in {out}: run 'fastvideo dashboards write'"), ("{", "is no JSON")],
)
def test_lint_without_dashboards_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    """An empty directory and a broken file are one line and status 2."""
    if content is not None:
        (tmp_path / "a.json").write_text(content)
    assert main(["dashboards", "lint", "--out", str(tmp_path)]) == 2
    assert message.format(out=tmp_path) in capsys.readouterr().err


def test_lint_names_the_extra_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the parser of PromQL the command says what to install."""
    found = importlib.import_module

    def missing(name: str) -> object:
        if name == "promql_parser":
            raise ModuleNotFoundError(name=name)
        return found(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert main(["dashboards", "lint", "--out", str(tmp_path)]) == 2
    assert "it belongs to the extra 'dev'" in capsys.readouterr().err


def test_listing_needs_no_heavy_import() -> None:
    """The dashboards are text: neither torch nor a parser is imported to write them."""
    program = (
        "import sys, fastvideo.dashboards.files; "
        "print(sorted({'torch', 'promql_parser', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
