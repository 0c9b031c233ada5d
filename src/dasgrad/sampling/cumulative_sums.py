"""Drawing by a cumulative sum, while masses stay as they are.

Masses lie end to end on a line, and a dart is looked up among the ends of their segments: one `torch.searchsorted`
for a whole batch. A segment tree needs some operations a level for the same draws, which on a GPU are as many kernels
to be launched one after the other. So there draws come from here after all masses were replaced, and from the tree
itself once single ones are updated, for that would make every end behind them anew.

The ends come from the tree's own sums, from the root down: a left child starts where its parent does, a right child
where the left one's mass is over. That is as many additions as `torch.cumsum` takes, without its two drawbacks on
CUDA: it rounds differently from run to run, and is refused under `torch.use_deterministic_algorithms`.

Rounding is where the two can differ. Both lay the same segments on the same line; this one adds up the masses before a
segment, the tree's descent takes them off the dart, level by level. A dart nearer to the end of a segment than about
2 log2(n) units in the last place of the total may hence fall on either side of it, a chance of some n log2(n) 2**-52 a
draw; all others hit the same segment. Where sums are exact, as those of integers below 2**53, all do. A `Mixture` is
scaled to [0, 1], which rounds twice more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["CumulativeSums", "Mixture", "are_faster_on", "segment_ends"]


def are_faster_on(device: torch.device) -> bool:
    """Whether searching takes less time than descending: where each operation on a level has to be launched."""
    return device.type == "cuda"


def segment_ends(levels: Sequence[Tensor], num_masses: int) -> Tensor:
    """Where each mass ends on the line, ``[num_masses]`` float64, never decreasing; one of zero has no length.

    Args:
        levels: of a `SegmentTree`, leaves first, each but the root's padded to an even length.
        num_masses: how many of the leaves are no padding.
    """
    starts = torch.zeros_like(levels[-1])
    for level in reversed(levels[:-1]):
        parents, starts = starts[: len(level) // 2], torch.empty_like(level)
        starts[0::2] = parents
        torch.add(parents, level[0::2], out=starts[1::2])
    ends = torch.minimum(torch.cat([starts[1:num_masses], levels[-1]]), levels[-1])
    # Rounding up, a segment may end behind the next one; and zeros must not be hit.
    return torch.where(levels[0][:num_masses] > 0, ends, 0.0).cummax(0).values


class CumulativeSums:
    """Segments end to end on a line that starts at 0.

    Args:
        ends: ``[n]`` float64, never decreasing, on any device; segment i goes from ``ends[i - 1]`` to ``ends[i]``, its
            start included.

    Example:
        >>> CumulativeSums(torch.tensor([0.0, 1.0, 1.0, 4.0])).find(torch.tensor([0.0, 1.0, 4.0]))
        tensor([1, 3, 3])
    """

    def __init__(self, ends: Tensor) -> None:
        # The last segment that has a length takes all darts behind it: rounding sends some to the end of the line.
        self._ends = torch.where(ends < ends[-1], ends, math.inf)

    def find(self, darts: Tensor) -> Tensor:
        """Return the segment that each dart hits, int64; none that has no length. No device is waited for."""
        return torch.searchsorted(self._ends, darts, right=True)


class Mixture:
    """Draws from `floor` times a target and the rest by mass, as one line from 0 to 1: first the target's segments.

    Args:
        target_ends: of n segments.
        mass_ends: of n segments, or None for no mass: then all draws are the target's.
        floor: the target's share.
        weights: ``[n]``, of the examples.
    """

    def __init__(self, target_ends: Tensor, mass_ends: Tensor | None, floor: float, weights: Tensor) -> None:
        share = 1.0 if mass_ends is None else floor
        parts = []
        if share > 0:  # a whole share ends exactly there: the first of the masses, which begins behind it, may be zero
            parts.append(target_ends / target_ends[-1] * share)
        if mass_ends is not None:
            parts.append(mass_ends / mass_ends[-1] * (1 - share) + share)
        self._sums = CumulativeSums(torch.cat(parts))
        self._weights = weights
        self._is_twofold = len(parts) == 2

    def draw(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples that uniforms in [0, 1] decide, and their weights. No device is waited for."""
        indices = self._sums.find(uniforms)
        if self._is_twofold:
            indices = indices.remainder_(len(self._weights))
        return indices, self._weights.index_select(0, indices)
