"""Without pyarrow the data set package says what to install."""

from __future__ import annotations

import subprocess
import sys


def test_missing_pyarrow_names_the_extra() -> None:
    """Importing the package without pyarrow is one error that names the extra."""
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from fastvideo.errors import MissingExtraError\n"
        "try:\n    import fastvideo.dataset\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install '.[train]'" in done.stdout
    assert "'pyarrow'" in done.stdout
