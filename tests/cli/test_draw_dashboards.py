"""`fastvideo dashboards draw`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo.cli.main import main

if TYPE_CHECKING:
    import pytest

NOWHERE = "http://127.0.0.1:1"


def test_nobody_at_the_address_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It says where it looked; nothing is written."""
    status = main(
        ["dashboards", "draw", "--prometheus", NOWHERE, "--output", str(tmp_path), "--last", "5m"]
    )
    assert status == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: no Prometheus answers at {NOWHERE}: ")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_dashboard_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest one."""
    assert main(["dashboards", "draw", "--prometheus", NOWHERE, "--board", "rank"]) == 2
    assert capsys.readouterr().err == (
        "error: there is no dashboard 'rank'. Did you mean 'fastvideo-ranks'?\n"
    )


def test_pictures_are_written_and_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of each dashboard that was asked for, of the run that was asked for."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "dashboards"))
    from fake_prometheus import FakePrometheus  # noqa: PLC0415 - lies beside other tests

    server = FakePrometheus()
    try:
        words = ["dashboards", "draw", "--prometheus", server.url, "--output", str(tmp_path)]
        assert main([*words, "--board", "data", "--board", "fastvideo-ranks", "--run", "a"]) == 0
        assert main([*words, "--run", "nobody"]) == 2
    finally:
        server.close()
        sys.modules.pop("fake_prometheus", None)
    captured = capsys.readouterr()
    assert captured.out == "".join(
        f"wrote {tmp_path / name}\n" for name in ("fastvideo-data.png", "fastvideo-ranks.png")
    )
    assert "run 'nobody' is not in Prometheus at that time; it has a, b" in captured.err
