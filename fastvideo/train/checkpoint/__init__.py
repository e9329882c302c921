"""Saving a run, going on with it, and exporting what it has trained.

Nothing is imported here: the launcher looks at checkpoints before torch is imported.
"""

from __future__ import annotations

__all__: list[str] = []
