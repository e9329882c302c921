"""A receiver that speaks OTLP, steps as the hot path makes them, pipelines that are shut down."""

from __future__ import annotations

import importlib.util
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
