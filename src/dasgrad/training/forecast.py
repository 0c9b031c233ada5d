"""What sampling is worth on the clock: a forecast from the gradient's noise, what is left of it, and measured costs.

With μ the mean gradient and Σ the covariance of one example's, a batch of B uniform draws gives a gradient of mean
square ‖μ‖² + tr Σ/B = ‖μ‖²(1 + N/B), N = tr Σ/‖μ‖² the *noise scale*. Steps that go as far as the noise lets them
must be as many, in proportion, as that mean square. Draws by importance leave a share r of the noise, so the time to
the same loss changes by the factor

    (1 + r N/B)/(1 + N/B) · (seconds a step, scoring included)/(seconds a step).

It is a model: it orders choices, and is not a promise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Noise:
    """The gradient's noise, as it was found on some examples or is believed to be."""

    scale: float
    """N = tr Σ/‖μ‖²; infinite where the mean could not be told from 0."""
    batch_size: int
    is_measured: bool = True
    """Not merely what is usual."""

    def steps_factor(self, noise_left: float) -> float:
        """Steps to the same loss, relative to uniform draws, where a share of the noise is left."""
        if self.scale == float("inf"):
            return noise_left
        share = self.scale / self.batch_size
        return (1 + noise_left * share) / (1 + share)

    def pays_at(self, noise_left: float, worth: float, cost: float) -> float:
        """The step s from which on draws that leave such noise take at most that share of uniform draws' time.

        Args:
            noise_left: a share.
            worth: of the time.
            cost: of scores, in steps; they are in use for s steps.
        """
        gain = worth / self.steps_factor(noise_left) - 1
        return cost / gain if gain > 0 else float("inf")

    def of_second_moment(self, second_moment_left: float) -> float:
        """The share of the noise that is left, from the share of the second moment E‖wg‖² that is."""
        if self.scale == float("inf"):
            return second_moment_left
        if self.scale <= 0:
            return 1.0
        return max(0.0, (second_moment_left * (1 + self.scale) - 1) / self.scale)

    @property
    def measured_scale(self) -> float | None:
        """N; None where that is what is usual."""
        return self.scale if self.is_measured else None

    def larger_batch_factor(self, times: int, step_seconds: float, example_seconds: float) -> float | None:
        """Time to the same loss in batches ``times`` as large, where an example costs so much and the rest is fixed.

        None where the noise was not measured.
        """
        if not self.is_measured:
            return None
        per_batch = min(step_seconds, example_seconds * self.batch_size)
        seconds = step_seconds + (times - 1) * per_batch
        return seconds / step_seconds * self.steps_factor(1 / times)


def second_moment_left(scores: Tensor, weights: Tensor) -> float:
    """E_π[w s²]/E_π[s²], from examples drawn from π: 1 for uniform draws."""
    squares = scores.double().square()
    whole, left = torch.stack((squares.sum(), squares.dot(weights.to(squares)))).tolist()
    return left / whole if whole > 0 else 1.0


def effective_number(scores: Tensor) -> float:
    """(Σs²)²/Σs⁴: how many examples carry the squares, of 1 to all of them; 0 where all are 0."""
    squares = scores.double().square()
    whole, fourth = torch.stack((squares.sum(), squares.dot(squares))).tolist()
    return whole / fourth * whole if fourth > 0 else 0.0


def weights_of(scores: Tensor, floor: float) -> Tensor:
    """The weights π/p that draws by these scores would have, from examples drawn from π along the last dimension."""
    scores = scores.double()
    mean = scores.mean(-1, keepdim=True)
    shares = (scores * ((1 - floor) / mean)).add_(floor).masked_fill_(mean == 0, 1.0)
    return shares.clamp_(min=torch.finfo(shares.dtype).tiny).reciprocal_()
