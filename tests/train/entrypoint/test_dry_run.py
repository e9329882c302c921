"""What a dry run says about telemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from fastvideo.observability.config import TelemetryConfig
from fastvideo.train.entrypoint import train

TOYS = Path(__file__).parents[1]


def test_a_dry_run_says_what_was_set_of_telemetry_and_no_secret(tmp_path: Path) -> None:
    """Each such setting is a line of the log with its origin; defaults are none."""
    section = {"sampler_ratio": 0.1, "otlp_timeout_ms": 300, "metrics_port": 0}
    content = {
        "models": {"student": {"_target_": "toy_run.ToyModel", "init_from": "base"}},
        "method": {"_target_": "toy_run.ToyMethod"},
        "training": {"loop": {"max_train_steps": 3}, "tracker": {"run_name": "tuesday"}},
        "observability": section,
    }
    run_file = tmp_path / "toy.yaml"
    run_file.write_text(yaml.safe_dump(content), encoding="utf-8")
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:hidden@127.0.0.1:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=hidden",
        "FASTVIDEO_LOG_LEVEL": "INFO",
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "FASTVIDEO_"))}
    done = subprocess.run(
        [sys.executable, "-m", train.__name__, "--config", str(run_file), "--dry-run"],
        env=kept | {"PYTHONPATH": str(TOYS), "OMP_NUM_THREADS": "1"} | given,
        capture_output=True,
        text=True,
        check=True,
    )
    _, _, said = zip(
        *(
            line.partition("telemetry: ")
            for line in done.stderr.splitlines()
            if "telemetry: " in line
        ),
        strict=True,
    )
    described = TelemetryConfig.from_sources(given, section, run_name="tuesday").describe(
        changed_only=True
    )
    assert list(said) == [f"{name}: {value}" for name, value in described.items()]
    assert not any("(default)" in line or "tuesday" in line for line in said)
    assert "otlp_timeout_ms (spans): 300 ms (observability.otlp_timeout_ms)" in said
    assert "otlp_headers (spans): authorization (OTEL_EXPORTER_OTLP_HEADERS)" in said
    assert "hidden" not in done.stderr + done.stdout
