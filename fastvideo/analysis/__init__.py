"""What runs have left behind, read and compared; needs nothing but Python."""

from fastvideo.analysis.activation_diff import ActivationDiff, Difference, diff_activations
from fastvideo.analysis.activation_file import ActivationFile, ActivationRecord
from fastvideo.analysis.tolerances import Tolerances

__all__ = [
    "ActivationDiff",
    "ActivationFile",
    "ActivationRecord",
    "Difference",
    "Tolerances",
    "diff_activations",
]
