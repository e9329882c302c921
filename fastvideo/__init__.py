"""Observability for training and serving video diffusion models, with the trainer it observes."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("fastvideo")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0.0.0"

__all__ = ["PipelineConfig", "SamplingParam", "VideoGenerator", "__version__"]

# Imported when they are asked for: importing the package must stay light.
_HOMES = {
    "PipelineConfig": "fastvideo.pipelines.pipeline_config",
    "SamplingParam": "fastvideo.pipelines.sampling_param",
    "VideoGenerator": "fastvideo.pipelines.video_generator",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what is exported
    home = _HOMES.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(home), name)
