"""Metrics at Weights & Biases, or in its offline format when there is no key."""

from __future__ import annotations

import netrc
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastvideo.logger import init_logger
from fastvideo.train.trackers.packages import import_tracker_package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.train.trackers.tracker import Scalar

logger = init_logger(__name__)


class WandbTracker:
    """Logs to a wandb run.

    Without an API key (``WANDB_API_KEY`` or a netrc entry) the run is recorded offline, whatever
    ``WANDB_MODE`` asks for, instead of asking a person who is not there or ending the training;
    ``wandb sync`` uploads it later.

    Args:
        project: Project name.
        config: The run's configuration.
        log_dir: Where wandb keeps its files; made if missing.
        entity: Account or team, or None for the default one.
        run_name: Name of the run, or None to have one chosen.
    """

    name = "wandb"

    def __init__(
        self,
        project: str,
        config: Mapping[str, Any] | None,
        log_dir: Path,
        *,
        entity: str | None,
        run_name: str | None,
    ) -> None:
        self._wandb: Any = import_tracker_package("wandb")
        log_dir.mkdir(parents=True, exist_ok=True)
        mode = _mode()
        self._run: Any = self._wandb.init(
            project=project,
            config=dict(config or {}),
            dir=str(log_dir),
            entity=entity or None,
            name=run_name or None,
            mode=mode,
            settings=self._wandb.Settings(**_verbosity(mode)),
        )
        self._say_where()

    def _say_where(self) -> None:
        """Logs in one line what wandb would say in many."""
        settings = self._run.settings
        if settings.mode in {"offline", "dryrun"}:
            logger.info("wandb records offline; upload with:  wandb sync %s", settings.sync_dir)
        elif settings.mode != "disabled":
            logger.info("wandb shows the run at %s", self._run.url)

    def log(self, metrics: Mapping[str, Scalar], step: int) -> None:
        """Logs scalars; wandb joins calls of the same step."""
        self._run.log(dict(metrics), step=step)

    def log_artifacts(self, artifacts: Mapping[str, Any], step: int) -> None:
        """Logs media objects."""
        self._run.log(dict(artifacts), step=step)

    def log_file(self, path: Path, name: str) -> None:
        """Puts a copy of the file into the run's files."""
        if self._run.settings.mode == "disabled":  # such a run has no directory
            return
        directory = Path(self._run.dir)
        target = directory / name
        shutil.copyfile(path, target)
        self._run.save(str(target), base_path=str(directory), policy="now")

    def video(self, data: Any, *, caption: str | None, fps: int, format: str) -> Any:  # noqa: A002, ANN401 - the protocol
        """Wraps a file or frames as ``wandb.Video``."""
        if isinstance(data, (str, Path)):
            return self._wandb.Video(str(data), caption=caption, format=format)
        return self._wandb.Video(data, caption=caption, fps=fps, format=format)

    def finish(self, exit_code: int) -> None:
        """Ends the run."""
        self._run.finish(exit_code=exit_code)


def _mode() -> str | None:
    """Returns the mode to ask wandb for; None leaves it to wandb's own settings."""
    wanted = os.environ.get("WANDB_MODE", "").strip().lower()
    if wanted not in {"", "online"} or _has_key():
        return None
    logger.warning(
        "wandb has no API key, so this run is recorded offline; upload it later with "
        "'wandb sync', or set WANDB_API_KEY. WANDB_MODE=offline makes this line go away"
    )
    return "offline"


def _verbosity(mode: str | None) -> dict[str, bool]:
    """Returns how much wandb says: nothing when offline, and only the essential online.

    ``WANDB_SILENT`` and ``WANDB_QUIET`` are left to decide where they are set.
    """
    if os.environ.get("WANDB_SILENT") or os.environ.get("WANDB_QUIET"):
        return {}
    effective = mode or os.environ.get("WANDB_MODE", "").strip().lower()
    return {"quiet": True} if effective in {"", "online", "shared"} else {"silent": True}


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    base_url = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    file = os.environ.get("NETRC") or str(Path("~/.netrc").expanduser())
    try:
        return netrc.netrc(file).authenticators(urlsplit(base_url).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
