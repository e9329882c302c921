"""A rank that is told to end lets the others go first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fastvideo.train.entrypoint.peers import PeerConnections

RANKS = Path(__file__).parent / "peer_ranks.py"


@pytest.mark.slow
@pytest.mark.distributed
def test_a_waiting_rank_is_freed_while_the_other_still_runs(tmp_path: Path) -> None:
    """Its collective fails at once, the handler from before is called, and is put back."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc_per_node=2", str(RANKS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "freed True handler True restored True" in done.stdout


def test_a_run_of_one_rank_has_no_peers() -> None:
    """Nothing is opened, and nothing is closed."""
    peers = PeerConnections()
    with peers.opened_here():
        pass
    peers.shut_down()
