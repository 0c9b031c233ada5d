"""Double adaptive stochastic gradients: adaptive moments joined with adaptive importance sampling."""

from dasgrad import moments, projections, targets
from dasgrad.optim import Beta1Decay, DASGrad, InverseSqrtLR
from dasgrad.sampling import AdaptiveSampler, SegmentTree, SparseRows, WithDraws
from dasgrad.scoring import ExampleScorer
from dasgrad.training import (
    AdaptiveLoader,
    AutoRefresh,
    CapturedLoop,
    WeightedBatch,
    load_checkpoint,
    save_checkpoint,
)

__version__ = "0.1.0"

__all__ = [
    "AdaptiveLoader",
    "AdaptiveSampler",
    "AutoRefresh",
    "Beta1Decay",
    "CapturedLoop",
    "DASGrad",
    "ExampleScorer",
    "InverseSqrtLR",
    "SegmentTree",
    "SparseRows",
    "WeightedBatch",
    "WithDraws",
    "__version__",
    "load_checkpoint",
    "moments",
    "projections",
    "save_checkpoint",
    "targets",
]
