"""The join of optimizer, sampler and scorer for a training loop."""

from dasgrad.training.auto import AutoRefresh
from dasgrad.training.batch import WeightedBatch
from dasgrad.training.captured import CapturedLoop
from dasgrad.training.checkpoint import load_checkpoint, save_checkpoint
from dasgrad.training.costs import Costs
from dasgrad.training.diagnosis import Diagnosis
from dasgrad.training.loader import AdaptiveLoader
from dasgrad.training.rescoring import Refresh

__all__ = [
    "AdaptiveLoader",
    "AutoRefresh",
    "CapturedLoop",
    "Costs",
    "Diagnosis",
    "Refresh",
    "WeightedBatch",
    "load_checkpoint",
    "save_checkpoint",
]
