"""Makes `python -m fastvideo.cli` the same as `fastvideo`."""

from __future__ import annotations

import sys

from fastvideo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
