"""Writes the reference tables from the code: ``python docs/generate.py`` (``--check`` compares)."""

from __future__ import annotations

import html
import sys
from pathlib import Path

from configuration import generation_page, training_page

from fastvideo import envs
from fastvideo.dashboards import all_dashboards
from fastvideo.observability.metrics.families import FAMILIES
from fastvideo.observability.settings_table import SETTINGS, UNSET, VARIABLES, Setting
from fastvideo.observability.tracing import records, run_spans
from fastvideo.profiler.catalogue import BUILT_IN

REFERENCE = Path(__file__).parent / "reference"


def environment_page() -> str:
    """Returns the page on environment variables."""
    rows = []
    for variable in envs.VARIABLES.values():
        default = variable.default
        shown = int(default) if isinstance(default, bool) else default
        text = html.escape(variable.help, quote=False)
        cell = "(empty)" if shown == "" else f"`{shown}`"
        rows.append(f"| `{variable.name}` | {variable.kind} | {cell} | {text} |")
    return "\n".join(
        [
            "# Environment variables",
            "",
            "Every variable that this package reads. A variable that is set to nothing counts as",
            "unset. `fastvideo envs` prints the same table with the values of your shell.",
            "",
            "| variable | type | default | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def regions_page() -> str:
    """Returns the page on the built-in regions."""
    rows = [f"| `{name}` | {text} |" for name, text in BUILT_IN.items()]
    return "\n".join(
        [
            "# Regions",
            "",
            "The built-in regions, in the order in which a reader of a run meets them. Wherever",
            "a person types a name, the prefix `profiler_region_` is optional.",
            "",
            "| region | covers |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def metrics_page() -> str:
    """Returns the page on metric families."""
    rows = []
    for family in FAMILIES.values():
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    return "\n".join(
        [
            "# Metrics",
            "",
            "Every family that a process serves at `/metrics`. `rank` and `run` are on every",
            "series. A summary has a sum and a count: divide their rates for a mean. Counters and",
            "the series of known regions exist at zero from the start.",
            "",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
            "## Tracker names",
            "",
            "What the trackers log, and where the same number is here.",
            "",
            "| tracker key | metric |",
            "|---|---|",
            "| `step_time_sec` | `fastvideo_training_step_duration_seconds` |",
            "| `dataloader_time_sec` | `fastvideo_training_dataloader_time_seconds` |",
            '| `total_loss`, other losses | `fastvideo_training_loss{loss="total_loss"}` |',
            '| every other scalar | `fastvideo_training_metric{name="lr/student"}` |',
            "",
        ]
    )


def spans_page() -> str:
    """Returns the page on spans."""
    dropped = FAMILIES["fastvideo_telemetry_spans_dropped_total"]
    return "\n".join(
        [
            "# Spans",
            "",
            "| span | emitted by | what it is |",
            "|---|---|---|",
            f"| `{run_spans.RUN_START}` | rank 0 | a run's start, sent at once; steps link to it |",
            f"| `{records.ROOT_SPAN_NAME}` | rank 0 | root of a step's trace |",
            "| `training_train_one_step` | every rank | the step on that rank; child of the root |",
            "| name of a region | every rank | an entry of the region inside a step |",
            "| `training_validation` | every rank | a trace of its own, with a root from rank 0 |",
            "| `training_save_checkpoint` | every rank | likewise |",
            (
                "| `inference_request` | who answers | a video's request: in its caller's trace, "
                "or the root of its own |"
            ),
            f"| `{run_spans.RUN_END}` | rank 0 | the end of a run |",
            "",
            "| attribute | on | meaning |",
            "|---|---|---|",
            f"| `{records.STEP_ATTRIBUTE}` | spans of a step | number of the step |",
            f"| `{records.STEP_KIND_ATTRIBUTE}` | root and step | such as `generator`, `critic` |",
            f"| `{records.DEVICE_DURATION_ATTRIBUTE}` | regions | milliseconds on the device |",
            f"| `{records.SEGMENT_ATTRIBUTE}` | regions | file name of the kernel trace recorded |",
            f"| `{records.OMITTED_ATTRIBUTE}` | step | spans left out to keep the trace small |",
            "| `error.type` | regions | type of the exception that left it; never its message |",
            f"| `{run_spans.RUN_DURATION_ATTRIBUTE}` | `{run_spans.RUN_END}` | seconds |",
            f"| `{run_spans.LAST_STEP_ATTRIBUTE}` | `{run_spans.RUN_END}` | last step done |",
            "",
            "What a call site gives a region besides, as in `profiler_region(name, key=value)`, is",
            "the attribute `fastvideo.key`. Rank, run, attempt, world size and host are",
            "attributes of the resource. A region that is left after its step has ended has no",
            "span; it is",
            'counted in `fastvideo_telemetry_spans_dropped_total{reason="late"}`.',
            "",
            "Every span counts once for each place it goes to, in",
            "`fastvideo_telemetry_spans_total`, as exported or as dropped. Why it was dropped:",
            "",
            "| reason | meaning |",
            "|---|---|",
            *(f"| `{reason}` | {DROP_REASONS[reason]} |" for (reason,) in dropped.initial),
            "",
        ]
    )


def settings_page() -> str:
    """Returns the page on telemetry settings."""
    lines = [
        "# Telemetry settings",
        "",
        "A setting is a key of the section `observability` of a run file, or an environment",
        "variable, or both; the variable wins, and one that is set to nothing counts as unset. Of",
        "several variables the first that is set counts; those in brackets count only where",
        "neither the others nor the file say anything. `OTEL_…` variables have the meaning that",
        "OpenTelemetry's specification gives them. A value that cannot be used is one warning and",
        "the default. `fastvideo train --config CONFIG --dry-run` prints what was set, its effect",
        "and where it comes from.",
        "",
    ]
    for group in dict.fromkeys(setting.group for setting in (*SETTINGS, *VARIABLES)):
        lines += [f"## {group}", ""]
        if any(setting.per_signal for setting in SETTINGS if setting.group == group):
            lines += [
                "For each variable there is one for spans and one for metrics, which counts first:",
                "`OTEL_EXPORTER_OTLP_TRACES_TIMEOUT`, `OTEL_EXPORTER_OTLP_METRICS_TIMEOUT`, and so",
                "on.",
                "",
            ]
        lines += [
            "| key | variable | type | default | unit | meaning |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            _settings_row(setting) for setting in (*SETTINGS, *VARIABLES) if setting.group == group
        ]
        lines.append("")
    return "\n".join(lines)


def _settings_row(setting: Setting) -> str:
    key = f"`{setting.name}`" if setting.in_file else ""
    variables = [f"`{name}`" for name in setting.all_variables if name not in setting.below]
    variables += [f"(`{name}`)" for name in setting.below]
    default = setting.default if setting.default == UNSET else f"`{setting.default}`"
    cells = (key, ", ".join(variables), setting.kind, default, setting.unit, setting.meaning)
    return f"| {' | '.join(cells)} |"


DROP_REASONS = {
    "queue_full": "more spans waited to be built or sent than `OTEL_BSP_MAX_QUEUE_SIZE`",
    "trace_budget": "the step's trace would be larger than `FASTVIDEO_TRACE_MAX_BYTES`",
    "step_limit": "its step has more spans than are kept of one",
    "late": "its region was left after its step had ended",
    "unreachable": "the collector could not be reached in `OTEL_BSP_EXPORT_TIMEOUT`",
    "timeout": "the collector did not answer in that time",
    "unavailable": "the collector asked to be left alone for longer than that",
    "rejected": "the collector refused it",
    "no_destination": "there is nothing that takes spans",
    "file": "the span file could not be written",
    "host": "every span processor of the program's TracerProvider raised an exception",
    "host_sampler": "the sampler of the program's TracerProvider did not keep its trace",
    "host_shutdown": "the program's TracerProvider was shut down before it came",
    "console": "standard output could not be written",
    "error": "it could not be built or encoded",
    "shutdown": "telemetry ended before it was sent, or while its destination hung",
}


def dashboards_page() -> str:
    """Returns the page on the dashboards, with a picture of each."""
    lines = [
        "# Dashboards",
        "",
        "What `deploy/` shows in Grafana, folder FastVideo. Begin at the overview; whatever is not",
        "green there leads to the dashboard that explains it. The pictures are drawn from the same",
        "queries by `fastvideo dashboards draw`, of real runs of a tiny model on two ranks; device",
        "time, checkpoints, validations and requests from made-up numbers.",
        "",
    ]
    for board in all_dashboards():
        name = board.uid.removeprefix("fastvideo-")
        pictures = sorted((REFERENCE.parent / "images" / "dashboards").glob(f"*/{name}.png"))
        lines += [f"## {board.title}", "", f"**{board.question}**", ""]
        for path in pictures:
            kind = path.parent.name.replace("-", " ")
            source = path.relative_to(REFERENCE.parent).as_posix()
            lines += [f"![{board.title}, {kind}](../{source})", "", f"*{kind}*", ""]
        lines += ["| panel | what it tells |", "|---|---|"]
        for row in board.rows:
            for panel in row.panels:
                text = html.escape(panel.question, quote=False).replace("|", "\\|")
                lines.append(f"| {panel.title} | {' '.join(text.split())} |")
        lines.append("")
    return "\n".join(lines)


PAGES = {
    "configuration.md": training_page,
    "dashboards.md": dashboards_page,
    "environment.md": environment_page,
    "generate-configuration.md": generation_page,
    "regions.md": regions_page,
    "metrics.md": metrics_page,
    "spans.md": spans_page,
    "telemetry-settings.md": settings_page,
}


def main(arguments: list[str]) -> int:
    """Writes the pages, or with ``--check`` reports those that differ from the code."""
    stale = []
    for name, build in PAGES.items():
        path = REFERENCE / name
        if "--check" not in arguments:
            path.write_text(build())
        elif not path.is_file() or path.read_text() != build():
            stale.append(name)
    if stale:
        sys.stderr.write(f"not up to date: {', '.join(stale)}; run python docs/generate.py\n")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
