"""The programs of the page about extending: as they stand there, they train."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from fastvideo.train.methods.rl.rewards import WeightedRewards

ROOT = Path(__file__).parents[2]


def _programs() -> dict[str, str]:
    """Returns the page's blocks that begin with the name of their file, by that name."""
    page = (ROOT / "docs" / "extend.md").read_text()
    blocks = re.findall(r"^```(?:python|yaml)\n(# (\S+)\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    return {name: text for text, name in blocks}


def test_the_page_trains_its_own_model_with_its_own_method_and_callback(tmp_path: Path) -> None:
    """The loss falls, the callback logs the lowest, and a second run goes on from the first."""
    programs = _programs()
    assert list(programs) == [
        "my_model.py",
        "my_method.py",
        "my_callback.py",
        "my_reward.py",
        "run.yaml",
    ]
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-W", "error", "-m", "fastvideo.train.entrypoint.train"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "FASTVIDEO_"))}
    environ = {**kept, "PYTHONPATH": f"{tmp_path}:{ROOT}", "OMP_NUM_THREADS": "1"}
    resume = ["--training.checkpoint.resume_from_checkpoint", "latest"]
    for more in ([], [*resume, "--training.loop.max_train_steps", "62"]):
        done = subprocess.run(
            [*command, "--config", "run.yaml", *more],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
    metrics = tmp_path / "out" / "tracker" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [line["match_loss"] for line in lines]
    assert [line["step"] for line in lines] == list(range(1, 63))
    assert sum(losses[50:60]) < 0.5 * sum(losses[:10])
    assert [line["lowest/match_loss"] for line in lines] == [
        min(losses[: i + 1]) for i in range(len(losses))
    ]


def test_the_reward_of_the_page_scores(tmp_path: Path) -> None:
    """Grey frames have no colour, and pure red ones all of it."""
    (tmp_path / "my_reward.py").write_text(_programs()["my_reward.py"])
    sys.path.insert(0, str(tmp_path))
    try:
        rewards = WeightedRewards.from_mapping({"colour": {"_target_": "my_reward.Colourful"}})
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("my_reward", None)
    videos = torch.zeros(2, 3, 2, 4, 4)
    videos[0], videos[1, 0] = 0.5, 1.0
    assert rewards.score(videos, ["", ""])["avg"].tolist() == [0.0, 1.0]
