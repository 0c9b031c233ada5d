"""What `AutoRefresh` holds true between looks: how noisy gradients are, and how fast scores age.

A look is a small sample: of 256 examples three may carry all of the gradient. So what it says is averaged with what
is believed already, each counted by how much it can know.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dasgrad.training.forecast import Noise

USUAL_NOISE, MOST_NOISE = 4.0, 32.0
"""N/B before anything is known, and the most that is believed: optimizers that take their step from the noise do not
gain without bound when it goes."""
ENOUGH = 16
"""Batches in whose gradients the noise is measured at most: 8B examples in each half count four times the usual."""
USUAL_AGING = 0.15
"""The share of what fresh scores win that is lost from one look to the next, before anything is known."""
PRIOR_EXAMPLES = 16
"""Examples that the present belief about aging counts as, beside a look's."""
LEAST_KEPT = 0.05
"""Of what scores win, after a look: what is lost beyond that counts as harm, in proportion to time."""
MOST_HARM = 1.0
"""What old scores lose against uniform draws, over what fresh ones win: no more than this is believed."""
FADING = 0.5
"""What a look's noise counts beside the next one's."""


@dataclass
class NoiseBelief:
    """The noise scale N = tr Σ/‖μ‖², by its inverse, in which an estimate's error is known.

    Of m examples in each half, noise alone gives ⟨ga, gb⟩/tr Σ an error of up to 1/m. So an estimate counts by m²,
    and what is usual, ‖μ‖²/tr Σ = 1/(4B), by (4B)².
    """

    inverse: float = 0.0
    """Σ m² ‖μ‖²/tr Σ over looks, older ones fading."""
    weight: float = 0.0
    """Σ m²."""

    def observe(self, noise: float, mean: float, number: int) -> None:
        """Estimates of tr Σ and of ‖μ‖², which can be negative, from so many examples in each half."""
        self.inverse = FADING * self.inverse + number**2 * mean / noise
        self.weight = FADING * self.weight + number**2

    @staticmethod
    def most(batch_size: int) -> Noise:
        """The most that is believed of batches of that size, whatever was found."""
        return Noise(MOST_NOISE * batch_size, batch_size)

    def at(self, batch_size: int) -> Noise:
        """Of batches of that size."""
        usual = USUAL_NOISE * batch_size
        inverse = (usual + self.inverse) / (usual**2 + self.weight)
        scale = 1.0 / max(inverse, 1.0 / self.most(batch_size).scale)
        return Noise(scale, batch_size, is_measured=self.weight > 0)


@dataclass
class AgingBelief:
    """The share of what scores win over uniform draws that is lost from one look to the next.

    What is kept goes by powers of time down to `LEAST_KEPT` at a look; what is lost faster is lost in proportion to
    time, and the share is above 1. So it is where old scores do harm: examples that were thought small have the largest
    weights.
    """

    share: float = USUAL_AGING

    def observe(self, left_before: float, left_now: float, number: float, looks: float = 1.0) -> None:
        """Noise left so many looks ago and now, the latter by so many examples that count.

        They count less over a part of a look, for which chance weighs more.
        """
        if left_before < 1:
            number *= min(1.0, looks)
            kept = min(1.0, max(-MOST_HARM, (1 - left_now) / (1 - left_before)))
            slowest = LEAST_KEPT**looks
            found = 1 - kept ** (1 / looks) if kept >= slowest else 1 - LEAST_KEPT + (slowest - kept) / looks
            self.share = (PRIOR_EXAMPLES * self.share + number * found) / (PRIOR_EXAMPLES + number)

    def forget(self) -> None:
        """A look without scores whose age could be seen: half way back to what is usual."""
        self.share = (self.share + USUAL_AGING) / 2

    def kept(self, looks: float = 1.0) -> float:
        """The share of what scores win that is left after so many looks, at most 1; negative where they do harm."""
        base = max(LEAST_KEPT, 1 - self.share)
        return float(base**looks - (self.share - 1 + base) * looks)

    def age(self, left: float, looks: float = 1.0) -> float:
        """The noise left after so many looks, where this much is now."""
        return left + (1 - self.kept(looks)) * max(0.0, 1 - left)

    def on_average(self, left: float, looks: float = 1.0) -> float:
        """The noise left until then, where this much is now and what is kept goes by powers."""
        kept = self.kept(looks)
        power = min(1.0, max(LEAST_KEPT, kept))
        kept_on_average = (power - 1) / math.log(power) if power < 1 else 1.0
        kept_on_average += min(0.0, kept - power) / 2
        return left + (1 - kept_on_average) * max(0.0, 1 - left)


@dataclass
class Beliefs:
    """Both of them."""

    noise: NoiseBelief
    aging: AgingBelief

    @classmethod
    def usual(cls) -> "Beliefs":
        """Before anything is known."""
        return cls(NoiseBelief(), AgingBelief())

    def least_factor(self, second_moment_left: float, batch_size: int) -> float:
        """What draws that leave such a share of the second moment now make of the time, whatever the noise is.

        The more noise there is the more they win: so it is what they make of it where noise is all that is believed.
        """
        most = self.noise.most(batch_size)
        return most.steps_factor(self.aging.on_average(most.of_second_moment(second_moment_left)))

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> "Beliefs":
        """From `state_dict`."""
        return cls(NoiseBelief(**state_dict["noise"]), AgingBelief(**state_dict["aging"]))
