"""`AgedScores`: scores computed at different steps, on one scale.

An old score says less of the present one the older it is. The mass that leaves the least variance is in proportion to
√E[s² | old score, age], which is learned from pairs: whenever an example is scored anew, its old score and age are at
hand. Examples fall into classes of age, by the logarithm of time as scores age, and in each class

    √E[s² | o] = c·oᵖ,

o the old score over a running scale. c carries what all scores of that age have in common, a power p below 1 takes
back differences that no longer hold. Per class and power three sums over the pairs suffice, which fade with the number
of pairs. A pair counts by its importance weight, so that examples which are drawn often do not speak for the others.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

POWERS = (0.5, 0.75, 1.0)
_AGES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Upper ends of the classes of ln(step now/step then); the first one holds the scores of this step."""
_DAMPING = 0.25
"""Added to oᵖ where it divides, as the floor adds to a probability: small old scores do not decide alone."""
_FADING = 4096.0
"""Pairs after which earlier ones count 1/e."""
_PRIOR = 50.0
"""Pairs with c = 1 that each class starts with."""
_ENOUGH = 200.0
"""Pairs that a power below 1 needs."""
_PREFERENCE = 0.12
"""What a power lower by 1 must win: between equals, scores stay as they are."""
_SMOOTHING = 256.0
"""Scores that move the running scale half the way."""
_RECOUNT = 0.02
"""Old scores are brought to the present when the step has grown by this share."""


class AgedScores:
    """The last score of each of n examples, the step it was computed at, and what both say of the present.

    Args:
        scores: ``[n]``, finite and non-negative.
        step: at which they were computed, from 1.

    Example:
        >>> ages = AgedScores(torch.tensor([1.0, 2.0, 4.0, 4.0]), step=10)
        >>> ages.learn(20, torch.tensor([0, 1]), torch.tensor([2.0, 4.0]))  # twice as large as at step 10
        >>> ages.present(20)[:2]
        tensor([2., 4.], dtype=torch.float64)
    """

    def __init__(self, scores: Tensor, step: int) -> None:
        device = scores.device
        self._edges = torch.tensor(_AGES, dtype=torch.float64, device=device)
        self._powers = torch.tensor(POWERS, dtype=torch.float64, device=device)
        # For each class of age and power: Σ s²/(u+d), Σ u²/(u+d) and Σ u+d over pairs, with u = oᵖ; and their number.
        self._sums = torch.zeros(3, len(_AGES) + 1, len(POWERS), dtype=torch.float64, device=device)
        self._num_pairs = torch.zeros(len(_AGES) + 1, dtype=torch.float64, device=device)
        self.refresh(scores, step)

    def refresh(self, scores: Tensor, step: int) -> None:
        """Take new scores of all examples; what was learned about aging stays."""
        scores = scores.double()
        mean = scores.mean()
        self._scale = torch.where(mean > 0, mean, 1.0)
        self._relative = scores / self._scale
        self._mean = torch.ones_like(mean)  # of all relative scores, brought to the present when that was last done
        self._steps = torch.full_like(scores, float(step))
        self._counted_at = step

    def learn(self, step: int, indices: Tensor, scores: Tensor, weights: Tensor | None = None) -> None:
        """Take new scores ``[k]`` of some examples, and learn from them how older ones have aged.

        Args:
            step: the present one.
            indices: ``[k]``; of an index given twice, either score counts.
            scores: theirs, finite and non-negative.
            weights: w = π/p ``[k]`` of draws by p; None for a random choice.
        """
        if len(indices) == 0:
            return
        scores = scores.double()
        weights = torch.ones_like(scores) if weights is None else weights.double()
        weights = weights * len(weights) / weights.sum()
        classes, old = self._classes(step, self._steps[indices]), self._relative[indices]
        self._move_scale(weights, scores, self._present(classes, old))
        relative = scores / self._scale
        powers_kP = old[:, None] ** self._powers
        damped_kP = powers_kP + _DAMPING
        terms = torch.stack((relative[:, None].square() / damped_kP, powers_kP.square() / damped_kP, damped_kP))
        fading = math.exp(-len(indices) / _FADING)
        self._sums.mul_(fading).index_add_(1, classes, weights[None, :, None] * terms)
        self._num_pairs.mul_(fading).index_add_(0, classes, weights)
        self._relative[indices] = relative
        self._steps[indices] = float(step)

    def present(self, step: int) -> Tensor:
        """√E[s²] of all examples now, ``[n]`` float64, from their last scores; exact for scores of this step."""
        self._counted_at = step
        relative = self._present(self._classes(step, self._steps), self._relative)
        self._mean = relative.mean()
        return self._scale * relative

    def is_due(self, step: int) -> bool:
        """Whether old scores have aged enough since the last `present` for another one."""
        return step >= self._counted_at + max(1.0, _RECOUNT * self._counted_at)

    def calibration(self) -> tuple[Tensor, Tensor]:
        """The factor c and the power p of each class of age, youngest first; 1 and 1 for scores of this step."""
        squares, old_squares, damped = self._sums
        factors = ((squares + _PRIOR) / (old_squares + _PRIOR)).sqrt()
        left = squares * damped * (1 + _PREFERENCE * (1 - self._powers))
        last = len(POWERS) - 1
        best = torch.where(self._num_pairs >= _ENOUGH, left.argmin(dim=1), last)
        factors = factors.gather(1, best[:, None])[:, 0]
        factors[0], best[0] = 1.0, last
        return factors, self._powers[best]

    def _classes(self, step: int, steps: Tensor) -> Tensor:
        return torch.bucketize((step / steps).log_(), self._edges)

    def _present(self, classes: Tensor, relative: Tensor) -> Tensor:
        factors, powers = self.calibration()
        return factors[classes] * relative ** powers[classes]

    def _move_scale(self, weights: Tensor, scores: Tensor, expected: Tensor) -> None:
        """Follow the mean of all scores: that of these, times what the mean of all is to that of these as expected."""
        ratio = (weights * scores).sum() * self._mean / (self._scale * (weights * expected).sum())
        ratio = torch.where(torch.isfinite(ratio) & (ratio > 0), ratio, 1.0)
        self._scale = self._scale * ratio ** (len(scores) / (len(scores) + _SMOOTHING))

    # --- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Scores, their steps, and what was learned."""
        return {
            "relative": self._relative.clone(),
            "steps": self._steps.clone(),
            "scale": self._scale.clone(),
            "mean": self._mean.clone(),
            "sums": self._sums.clone(),
            "num_pairs": self._num_pairs.clone(),
            "counted_at": self._counted_at,
        }

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any], device: torch.device) -> "AgedScores":
        """The scores that `state_dict` was taken of."""
        ages = cls(state_dict["relative"].to(device), 1)
        ages._relative = state_dict["relative"].to(device, copy=True)
        ages._steps = state_dict["steps"].to(device, copy=True)
        ages._scale = state_dict["scale"].to(device, copy=True)
        ages._mean = state_dict["mean"].to(device, copy=True)
        ages._sums = state_dict["sums"].to(device, copy=True)
        ages._num_pairs = state_dict["num_pairs"].to(device, copy=True)
        ages._counted_at = int(state_dict["counted_at"])
        return ages
