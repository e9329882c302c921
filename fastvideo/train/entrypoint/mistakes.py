"""How a rank ends when the mistake is the user's: with the message alone, said once.

Ranks that make the same mistake at the same moment do not know of each other. So rank 0 logs it;
the others leave it in the error file that torchrun gives them, and the launcher prints what rank 0
has not said. Without such a file, every rank logs for itself.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.errors import FastVideoError

logger = init_logger(__name__)

_ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"
_TOLD: Final = "told"


def tell_mistake(error: FastVideoError, *, rank: int) -> None:
    """Logs an error, or leaves it to the launcher; see the module.

    Args:
        error: What ended this rank.
        rank: Global rank of this process.
    """
    text = "; ".join([str(error), *getattr(error, "__notes__", ())])
    file = os.environ.get(_ERROR_FILE)
    if rank == 0 or not file:
        logger.error("%s", text)
    if file:
        # The keys are those of torch.distributed.elastic; its report prints the second text.
        extra = {"py_callstack": text, "timestamp": str(int(time.time())), _TOLD: rank == 0}
        record = {"message": {"message": f"{type(error).__name__}: {text}", "extraInfo": extra}}
        Path(file).write_text(json.dumps(record), encoding="utf-8")


def recorded_failure(record: Mapping[str, Any]) -> tuple[str, bool]:
    """Reads what a rank left in its error file.

    Args:
        record: The content of the file.

    Returns:
        The first line of its message, empty if there is none; and whether the rank logged it, so
        that a person has seen it.
    """
    message = record.get("message")
    if not isinstance(message, dict):
        return "", False
    extra = message.get("extraInfo")
    told = isinstance(extra, dict) and bool(extra.get(_TOLD))
    return str(message.get("message", "")).strip().partition("\n")[0], told
