"""What `import fastvideo` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fastvideo
from fastvideo.pipelines.pipeline_config import PipelineConfig
from fastvideo.pipelines.sampling_param import SamplingParam
from fastvideo.pipelines.video_generator import VideoGenerator


def test_the_public_names_are_those_of_inference() -> None:
    """They come from where they are written."""
    assert fastvideo.VideoGenerator is VideoGenerator
    assert fastvideo.SamplingParam is SamplingParam
    assert fastvideo.PipelineConfig is PipelineConfig
    assert all(hasattr(fastvideo, name) for name in fastvideo.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'VideoGenerater'"):
        _ = fastvideo.VideoGenerater


def test_importing_the_package_imports_nothing_heavy() -> None:
    """Public names are loaded when they are asked for."""
    program = "import sys, fastvideo; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    subprocess.run([sys.executable, "-c", program], check=True)
