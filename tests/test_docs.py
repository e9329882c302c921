"""The documentation says what the code does, in both directions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastvideo import envs
from fastvideo.profiler.catalogue import BUILT_IN
from fastvideo.profiler.registry import PREFIX

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Registered for code that is not part of this release; the list can only shrink.
NOT_ENTERED_YET = {
    "inference_text_encoding",
    "inference_denoising",
    "inference_decoding",
    "training_validation",
}


def _entered_regions() -> set[str]:
    """The region names that the package's own call sites spell out.

    Some are class attributes called ``<something>_region``, which a base class enters.
    """
    names = set()
    for path in (ROOT / "fastvideo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                if isinstance(node.target, ast.Name) and node.target.id.endswith("_region"):
                    names.add(str(node.value.value))
                continue
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            first = node.args[0]
            if called in {"profiler_region", "profile_region"} and isinstance(first, ast.Constant):
                names.add(str(first.value))
    return names


def test_generated_pages_are_up_to_date() -> None:
    """The tables of variables and regions equal what the code declares."""
    check = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (check.returncode, check.stderr) == (0, "")


def test_every_call_site_uses_the_short_form_of_a_catalogued_region() -> None:
    """No call site names a region that the catalogue does not have."""
    entered = _entered_regions() - {"None"}
    assert {name for name in entered if name.startswith(PREFIX)} == set()
    assert entered <= set(BUILT_IN)


def test_every_catalogued_region_is_entered_by_real_code() -> None:
    """What the catalogue lists is entered somewhere, or is on the list of what is to come."""
    assert set(BUILT_IN) - _entered_regions() == NOT_ENTERED_YET


def test_every_variable_in_the_text_exists() -> None:
    """Documentation, examples and the launcher name only variables that are declared."""
    named: dict[str, str] = {}
    places = [*PAGES, *(ROOT / "examples").rglob("*"), ROOT / "Makefile"]
    for path in places:
        if path.is_file() and path.suffix in {".md", ".sh", ".yaml", ".py", ""}:
            for name in re.findall(r"\bFASTVIDEO_[A-Z0-9_]*[A-Z0-9]\b", path.read_text()):
                named[name] = path.name
    families = {"FASTVIDEO_TORCH_PROFILER", "FASTVIDEO_TORCH_PROFILE"}
    assert set(named) - families - set(envs.VARIABLES) == set()


def test_every_variable_is_read_by_the_package() -> None:
    """A declared variable that nothing reads would be a promise that nobody keeps."""
    text = "\n".join(
        path.read_text() for path in (ROOT / "fastvideo").rglob("*.py") if path.name != "envs.py"
    )
    assert {name for name in envs.VARIABLES if name not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """A relative link names a file that exists."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_paths_named_in_the_readme_exist() -> None:
    """Scripts and configurations that the README tells people to run are there."""
    named = re.findall(
        r"\b(?:examples|benchmarks|docs)/[\w./-]+\w", (ROOT / "README.md").read_text()
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
