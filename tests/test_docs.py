"""The documentation says what the code does, in both directions."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fastvideo import envs
from fastvideo.observability.config import TelemetryConfig
from fastvideo.observability.logs import JsonFormatter
from fastvideo.observability.metrics.families import FAMILIES
from fastvideo.observability.settings_table import KEYS, SETTINGS, VARIABLES
from fastvideo.profiler.catalogue import BUILT_IN
from fastvideo.profiler.registry import PREFIX

ROOT = Path(__file__).parents[1]
TELEMETRY = ROOT / "docs" / "telemetry.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


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
    """The catalogue lists nothing that is never entered."""
    assert set(BUILT_IN) - _entered_regions() == set()


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


def _blocks(page: Path, language: str) -> list[str]:
    """Returns the blocks of code of a page, in its order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_table_of_settings_has_every_key_and_every_variable() -> None:
    """Both directions: no setting without a row, and no row about something that is not there."""
    page = (ROOT / "docs" / "reference" / "telemetry-settings.md").read_text()
    rows = [
        line.split(" | ") for line in page.splitlines() if re.match(r"\| (`[a-z_]+`| ?) \|", line)
    ]
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row[0])}
    named = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row[1])}
    assert keys == KEYS
    assert named == {name for s in (*SETTINGS, *VARIABLES) for name in s.all_variables}
    assert all(all(cell.strip() for cell in (row[2], row[3], row[5])) for row in rows)


def test_every_variable_of_opentelemetry_in_the_text_is_obeyed() -> None:
    """Pages name no OTEL_* variable that the table of settings lacks."""
    named = {
        name for page in PAGES for name in re.findall(r"\bOTEL_[A-Z_]*[A-Z]\b", page.read_text())
    }
    assert named - {name for s in (*SETTINGS, *VARIABLES) for name in s.all_variables} == set()


def test_every_metric_in_the_text_exists() -> None:
    """Pages and their queries name only families that are served, and rules that record."""
    known = {family.name for family in FAMILIES.values()}
    rules = (ROOT / "deploy" / "prometheus" / "rules" / "recording.yaml").read_text()
    recorded = set(re.findall(r"record: (\S+)", rules))
    for page in PAGES:
        text = page.read_text()
        assert set(re.findall(r"\b(?:run|rank):fastvideo_\w+:\w+", text)) <= recorded, page.name
        for name in re.findall(r"(?<!:)\bfastvideo_[a-z_]+[a-z]\b", text):
            base = re.sub(r"_(sum|count|bucket)$", "", name)
            assert base in known or name in known or f"{name}_total" in known, (page.name, name)


def test_the_loop_of_your_own_runs_and_its_spans_are_read(tmp_path: Path) -> None:
    """The two programs of the page, as they stand there: one leaves spans, the other shows them."""
    reading, loop = _blocks(TELEMETRY, "python")
    given = "loader, train = [[1.0, 2.0]] * 3, sum\n"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "FASTVIDEO_"))}
    environ = {
        **kept,
        "HOME": str(tmp_path),
        "FASTVIDEO_SPAN_DIR": str(tmp_path / "spans"),
        "FASTVIDEO_METRICS_PORT": "0",
        "OMP_NUM_THREADS": "1",
    }
    shown = ""
    for program in (given + loop, reading):
        shown = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    names = [line.split()[1] for line in shown.splitlines()]
    assert names.count("run_start") == names.count("run_end") == 1
    assert names.count("training_train_one_step") == names.count("training_forward") == 3


def test_commands_of_the_telemetry_page_set_what_they_say() -> None:
    """Each command is the launcher's with variables before it, and every one has its effect."""
    known = {name for s in (*SETTINGS, *VARIABLES) for name in s.all_variables}
    for block in _blocks(TELEMETRY, "bash"):
        *assignments, call = block.replace("\\\n", " ").rpartition(
            "bash examples/train/run.sh CONFIG"
        )
        assert call.strip() in {"", "--dry-run"}
        given = dict(re.findall(r"(\w+)=(\S+)", assignments[0]))
        assert set(given) <= known
        config = TelemetryConfig.from_sources(given)
        assert set(given) <= set(config.origins.values())
        assert config.traces.problems == ()
    assert _blocks(TELEMETRY, "bash")


def test_the_scrape_configuration_reads_what_ranks_write() -> None:
    """Prometheus looks for target files where the command before it has them written."""
    (scrape,) = _blocks(TELEMETRY, "yaml")
    (job,) = yaml.safe_load(scrape)["scrape_configs"]
    (files,) = job["file_sd_configs"][0]["files"]
    assert f"FASTVIDEO_METRICS_TARGETS_DIR={Path(files).parent} " in TELEMETRY.read_text()
    assert Path(files).name == "*.json"


def test_the_line_of_a_log_in_json_has_the_fields_that_lines_have() -> None:
    """The example has the keys that the formatter writes, in its order."""
    (example,) = _blocks(TELEMETRY, "json")
    record = logging.makeLogRecord({"msg": "step", "name": "fastvideo.train.progress"})
    assert list(json.loads(example)) == list(json.loads(JsonFormatter().format(record)))


def test_what_the_page_says_of_a_dry_run_is_what_one_prints() -> None:
    """The lines of the example are what those settings give."""
    (example,) = _blocks(TELEMETRY, "text")
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=hidden",
    }
    described = TelemetryConfig.from_sources(environ, {"sampler_ratio": 0.01}).describe(
        changed_only=True
    )
    printed = {f"telemetry: {name}: {value}" for name, value in described.items()}
    assert set(example.splitlines()) <= printed


@pytest.mark.parametrize(
    "title",
    [
        "Scrape it",
        "Send it to Jaeger or Tempo",
        "Read spans without a collector",
        "Use it in your own loop",
    ],
)
def test_the_page_tells_how_to(title: str) -> None:
    """What people want to do has a heading and something to type below it."""
    _, heading, rest = TELEMETRY.read_text().partition(f"\n## {title}\n")
    assert heading
    assert "```" in rest.partition("\n## ")[0]
