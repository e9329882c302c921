"""Where a run's metrics are logged: wandb, swanlab, TensorBoard, a file of JSON lines."""

from __future__ import annotations

from fastvideo.train.tracker_names import SUPPORTED_TRACKERS
from fastvideo.train.trackers.build import build_tracker, initialize_trackers
from fastvideo.train.trackers.jsonl import JsonlTracker
from fastvideo.train.trackers.step_tracker import StepTracker
from fastvideo.train.trackers.tracker import TrackedVideo, Tracker, TrackerBackend

__all__ = [
    "SUPPORTED_TRACKERS",
    "JsonlTracker",
    "StepTracker",
    "TrackedVideo",
    "Tracker",
    "TrackerBackend",
    "build_tracker",
    "initialize_trackers",
]
