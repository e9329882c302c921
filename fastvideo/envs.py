"""Every environment variable of the package, declared once and read lazily.

``envs.FASTVIDEO_TORCH_PROFILER_DIR`` reads the environment at that moment, never at import. The
table in the documentation is generated from :data:`VARIABLES` and tested against it.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "FASTVIDEO_"
"""What the names of all variables begin with."""

_ALIKE = 0.8
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def _text(value: str) -> str:
    return value


def _flag(value: str) -> bool:
    folded = value.strip().lower()
    if folded in _TRUE:
        return True
    if folded in _FALSE:
        return False
    message = f"expected 0 or 1, got {value!r}"
    raise ValueError(message)


def _count(value: str) -> int:
    number = int(value)
    if number < 0:
        message = f"expected a whole number of at least 0, got {value!r}"
        raise ValueError(message)
    return number


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One environment variable.

    Attributes:
        name: The variable, as typed in a shell.
        kind: Its type, for people: ``text``, ``0/1`` or ``count``.
        default: The value when unset or empty, already of the variable's type.
        help: One line on what it does.
        secret: Whether the value must never be printed.
    """

    name: str
    kind: str
    default: Any
    help: str
    secret: bool = False

    def read(self) -> Any:  # noqa: ANN401 - the type depends on the declaration
        """Returns the value of this variable now; empty counts as unset.

        Raises:
            ValueError: The value is not of this variable's type; the message names both.
        """
        raw = os.environ.get(self.name, "")
        if raw == "":
            return self.default
        try:
            return _PARSERS[self.kind](raw)
        except ValueError as error:
            message = f"environment variable {self.name}={raw!r} cannot be used: {error}"
            raise ValueError(message) from error


_PARSERS: dict[str, Callable[[str], Any]] = {"text": _text, "0/1": _flag, "count": _count}

VARIABLES: dict[str, EnvVar] = {
    variable.name: variable
    for variable in (
        # Kernel traces
        EnvVar(
            "FASTVIDEO_TORCH_PROFILER_DIR",
            "text",
            "",
            "Directory for kernel-trace segments; setting it turns tracing on",
        ),
        EnvVar(
            "FASTVIDEO_TORCH_PROFILE_REGIONS",
            "text",
            "",
            "Comma-separated regions that are traced; required with a directory",
        ),
        EnvVar(
            "FASTVIDEO_TORCH_PROFILER_RECORD_SHAPES",
            "0/1",
            False,
            "Record the input shapes of every operator",
        ),
        EnvVar(
            "FASTVIDEO_TORCH_PROFILER_WITH_PROFILE_MEMORY",
            "0/1",
            False,
            "Record allocations and frees",
        ),
        EnvVar(
            "FASTVIDEO_TORCH_PROFILER_WITH_STACK",
            "0/1",
            False,
            "Record Python stacks (slow; replaces a sys.setprofile hook meanwhile)",
        ),
        EnvVar(
            "FASTVIDEO_TORCH_PROFILER_WITH_FLOPS",
            "0/1",
            False,
            "Estimate floating point operations of matrix products and convolutions",
        ),
        EnvVar(
            "FASTVIDEO_TORCH_PROFILE_STEPS",
            "text",
            "",
            "Step window such as 10-12,100; empty: every step",
        ),
        EnvVar(
            "FASTVIDEO_TORCH_PROFILE_RANKS",
            "text",
            "all",
            "Ranks that trace, such as 0,3, or all",
        ),
        EnvVar(
            "FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS",
            "count",
            200,
            "Segments that one process writes before it stops tracing",
        ),
        EnvVar(
            "FASTVIDEO_NVTX_PROFILE",
            "0/1",
            False,
            "Emit NVTX ranges for Nsight Systems (needs CUDA)",
        ),
        # Activation traces
        EnvVar(
            "FASTVIDEO_TRACE_ACTIVATIONS",
            "0/1",
            False,
            "Record statistics of what the modules of the transformers return",
        ),
        EnvVar(
            "FASTVIDEO_TRACE_LAYERS",
            "text",
            "",
            "Regular expression that is searched in the names of modules; empty: all modules",
        ),
        EnvVar(
            "FASTVIDEO_TRACE_STATS",
            "text",
            "abs_mean,sum",
            "Statistics, some of abs_mean,sum,min,max,mean,std; shape and dtype are always there",
        ),
        EnvVar(
            "FASTVIDEO_TRACE_OUTPUT",
            "text",
            "",
            "File, in which <rank> and <pid> are replaced; empty: fv_trace_<pid>.jsonl in the "
            "temporary directory",
        ),
        EnvVar(
            "FASTVIDEO_TRACE_STEPS",
            "text",
            "",
            "Steps such as 0,5 or 10-12; empty: every step",
        ),
        # Training
        EnvVar(
            "FASTVIDEO_TRAIN_DTYPE",
            "text",
            "",
            "Compute type in training: fp32, bf16 or fp16; empty: bf16 on CUDA, fp32 on CPU",
        ),
        EnvVar(
            "FASTVIDEO_STRICT_MESH",
            "0/1",
            False,
            "Refuse a device mesh that does not fit the number of processes",
        ),
        # Inference
        EnvVar(
            "FASTVIDEO_STAGE_LOGGING",
            "0/1",
            False,
            "Log how long every stage of an inference pipeline took, waiting for the device",
        ),
        EnvVar(
            "FASTVIDEO_LAUNCHER_PID",
            "count",
            0,
            "Set by the launcher: its process id, so that ranks end with it (0: they do not)",
        ),
        EnvVar(
            "FASTVIDEO_STOP_FILE",
            "text",
            "",
            "Set by the launcher: the file that tells ranks somebody stopped the run",
        ),
        # Telemetry
        EnvVar("FASTVIDEO_METRICS", "0/1", True, "Serve Prometheus metrics, one endpoint per rank"),
        EnvVar(
            "FASTVIDEO_METRICS_HOST",
            "text",
            "127.0.0.1",
            "Address that the metrics endpoint binds to",
        ),
        EnvVar(
            "FASTVIDEO_METRICS_PORT",
            "count",
            9464,
            "Port of local rank 0, the others follow; 0: any free port",
        ),
        EnvVar(
            "FASTVIDEO_METRICS_TARGETS_DIR",
            "text",
            "",
            "Directory for target files that Prometheus discovers (file_sd)",
        ),
        EnvVar(
            "FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS",
            "count",
            20,
            "Longest wait at a run's end for a scrape that sees it, if one is due by then; 0: none",
        ),
        EnvVar(
            "FASTVIDEO_METRICS_WEB_CONFIG",
            "text",
            "",
            "TLS and users of the metrics endpoint: a web-config.yml",
        ),
        EnvVar(
            "FASTVIDEO_SPAN_DIR",
            "text",
            "",
            "Directory for spans as OTLP-JSON lines, for use without a collector",
        ),
        EnvVar(
            "FASTVIDEO_SPAN_FILE_MAX_BYTES",
            "count",
            268435456,
            "Size at which a span file is rotated; two are kept",
        ),
        EnvVar(
            "FASTVIDEO_TRACE_MAX_BYTES",
            "count",
            4000000,
            "Size of one step's trace over all ranks",
        ),
        # Run
        EnvVar(
            "FASTVIDEO_RUN_ID",
            "text",
            "",
            "Identifier of this run in traces; empty: drawn at start",
        ),
        EnvVar("FASTVIDEO_RUN_NAME", "text", "", "Name of this run, for people and dashboards"),
        EnvVar("FASTVIDEO_LOG_LEVEL", "text", "INFO", "Lowest level of log lines that is shown"),
        EnvVar("FASTVIDEO_LOG_FORMAT", "text", "text", "Form of log lines: text, or json"),
        EnvVar(
            "FASTVIDEO_CACHE_DIR",
            "text",
            "",
            "Directory for caches; empty: fastvideo below the user's cache directory",
        ),
    )
}


def misspelled_variables() -> dict[str, str]:
    """Returns names in the environment that are almost those of variables, each with the right one.

    Other names that begin alike may be those of another program, and are left out.
    """
    names = {name.removeprefix(PREFIX): name for name in VARIABLES}
    found = {}
    for given in sorted(os.environ):
        if given.startswith(PREFIX) and given not in VARIABLES:
            word = given.removeprefix(PREFIX).upper()
            matches = difflib.get_close_matches(word, names, n=1, cutoff=_ALIKE)
            if matches:
                found[given] = names[matches[0]]
    return found


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type depends on the declaration
    variable = VARIABLES.get(name)
    if variable is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return variable.read()
