"""`Odds`: the probabilities that a sampler draws by, of single examples and of whole parts of its trees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dasgrad.sampling.segment_tree import SegmentTree

BITS = 44
WHOLE = 1 << BITS
"""A node's probability, in units of its left child's share."""


@dataclass(frozen=True, eq=False)
class Odds:
    """A share ``floor`` of the target, and the rest of a tree that has mass, as both are at the moment.

    pᵢ = (1−λ)·massᵢ/Σmass + λ·πᵢ.
    """

    tree: SegmentTree
    target: SegmentTree | None
    """As many leaves as the tree; None is uniform."""
    floor: float
    """λ."""

    def weights_of(self, indices: Tensor) -> Tensor:
        """W = π/p of some examples with πᵢ > 0, ``[k]``; no device is waited for."""
        shares = None if self.target is None else self.target.masses_of(indices)
        return self._weigh(self.tree.masses_of(indices), shares)

    @property
    def weights(self) -> Tensor:
        """The same of all examples, ``[n]``; not a number where πᵢ = 0."""
        return self._weigh(self.tree.masses, None if self.target is None else self.target.masses)

    def _weigh(self, masses: Tensor, shares: Tensor | None) -> Tensor:
        scores = masses * len(self.tree) if shares is None else masses / shares
        return 1.0 / ((1 - self.floor) * scores / self.tree.known_total + self.floor)

    def left_shares(self, level: int, parents: Tensor) -> Tensor:
        """What the left children, on that level of the tree, have of their parents' probabilities, times `WHOLE`.

        A child that can be drawn at all has at least 1, and one that cannot 0.
        """
        left, right = (self._at(level, 2 * parents + side) for side in (0, 1))
        shares = (left / (left + right) * WHOLE).long()
        return shares.maximum((left > 0).long()).minimum(WHOLE - (right > 0).long())

    def _at(self, level: int, positions: Tensor) -> Tensor:
        """Probabilities of nodes, up to a factor that all have."""
        masses = (1 - self.floor) * self.tree.levels[level].index_select(0, positions)
        if self.target is not None:
            of_target = self.floor * self.tree.known_total / self.target.known_total
            return masses + of_target * self.target.levels[level].index_select(0, positions)
        num, first = len(self.tree), positions << level
        leaves = (first + (1 << level)).clamp_(max=num).sub_(first.clamp(max=num))
        return masses + self.floor * self.tree.known_total / num * leaves.to(torch.float64)
