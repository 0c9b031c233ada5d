"""From scores to draws: segment tree, sampler, and examples that can be drawn."""

from dasgrad.sampling.sampler import AdaptiveSampler, Draw
from dasgrad.sampling.segment_tree import SegmentTree
from dasgrad.sampling.sparse_rows import SparseRows
from dasgrad.sampling.with_draws import WithDraws

__all__ = ["AdaptiveSampler", "Draw", "SegmentTree", "SparseRows", "WithDraws"]
