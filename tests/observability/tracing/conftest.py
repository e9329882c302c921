"""A receiver that speaks OTLP, steps as the hot path makes them, pipelines that are shut down."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.tracing.settings import TraceSettings
from fastvideo.observability.tracing.worker import SpanPipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


def _load(name: str) -> ModuleType:
    """Imports a file beside this one; test folders are no packages."""
    full_name = f"fastvideo_tests_tracing_{name}"
    if full_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            full_name, Path(__file__).parent / f"{name}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full_name] = module
        spec.loader.exec_module(module)
    return sys.modules[full_name]


@pytest.fixture(scope="session")
def steps() -> ModuleType:
    """Entries, steps and identities."""
    return _load("steps")


@pytest.fixture(scope="session")
def otlp_receiver() -> ModuleType:
    """The module of the receivers."""
    return _load("otlp_receiver")


@pytest.fixture
def http_receiver(otlp_receiver: ModuleType) -> Iterator[Any]:
    """A receiver for OTLP over HTTP."""
    receiver = otlp_receiver.HttpReceiver()
    yield receiver
    receiver.close()


@pytest.fixture
def grpc_receiver(otlp_receiver: ModuleType) -> Iterator[Any]:
    """A receiver for OTLP over gRPC."""
    receiver = otlp_receiver.GrpcReceiver()
    yield receiver
    receiver.close()


@pytest.fixture
def counts(steps: ModuleType) -> Any:
    """What became of spans."""
    return steps.Counts()


@pytest.fixture
def start_pipeline(steps: ModuleType, counts: Any) -> Iterator[Callable[..., SpanPipeline]]:
    """Starts pipelines by environment variables; they are shut down after the test."""
    started: list[SpanPipeline] = []

    def start(environ: dict[str, str], **identity: Any) -> SpanPipeline:
        settings = TraceSettings.from_env(environ)
        pipeline = SpanPipeline(settings, steps.make_identity(**identity), count=counts)
        pipeline.start()
        started.append(pipeline)
        return pipeline

    yield start
    for pipeline in started:
        pipeline.shutdown(1.0)


@pytest.fixture
def run_program() -> Callable[..., Any]:
    """Runs a scenario of ``span_program.py`` to its end; returns what it printed and how."""

    def run(scenario: str, *, timeout_s: float = 60.0, **environ: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(_PROGRAM), scenario],
            env=program_environment(environ),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        result["stderr"] = done.stderr
        return result

    return run


@pytest.fixture
def start_program() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a scenario of ``span_program.py``; it is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(scenario: str, **environ: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, str(_PROGRAM), scenario],
                env=program_environment(environ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def program_environment(environ: dict[str, str]) -> dict[str, str]:
    """Returns the environment without settings of its own for spans, and ``environ``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", **environ}


_PROGRAM = Path(__file__).with_name("span_program.py")
