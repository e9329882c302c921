"""Lets tests of the live stack import the modules beside them, which are no tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
