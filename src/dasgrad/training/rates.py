"""What the learning rate says of what is to be won: a rate that falls to 0 averages noise away by itself.

The forecast is of a rate that stays, or falls as α/√t, as far as noise lets it. Under a schedule that ends, what is won
is much less, and what is made late in it is used for a short time.
"""

import math
from dataclasses import dataclass

from torch.optim import Optimizer

POWER = 3.0
"""Under a schedule that ends, the share of the time that is saved is the forecast's to this power: of seven tenths a
third is left, of four tenths hardly anything (docs/wall-clock.md, "Rates that fall")."""
ROOT = (0.45, 0.55)
"""A rate goes as α/√t where the power of t by which it falls from look to look is between these."""
ROUGHLY = (0.3, 0.7)
"""And that by which it has fallen since its largest between these; one that falls by more falls to 0."""
FALLEN = 0.9
"""Of the largest: a rate that someone else than a scheduler set has fallen below this."""


@dataclass
class RateBelief:
    """Whether the learning rate is to fall to 0, from what it is at looks.

    A scheduler may lower it later, as cosine decay hardly does at first: it is taken to lead to 0 unless the rate goes
    as α/√t. Without one a rate is taken to stay until it has fallen faster than that.
    """

    largest: float = 0.0
    """Of the rates at looks."""
    largest_at: int = 0
    """The step of the last look that had it."""
    rate: float = 0.0
    """At the last look."""
    step: int = 0
    """Of the last look; 0 before the first."""
    rate_before: float = 0.0
    """At the look before that."""
    step_before: int = 0
    ends: bool = False
    """Whether the rate is to fall to 0."""

    def observe(self, step: int, optimizer: Optimizer) -> None:
        """The rates of the param groups before a step, counted from 1; of several the largest counts.

        Of several calls before one step the first one counts. Nothing is learnt from an optimizer without rates.
        """
        groups = [group for group in optimizer.param_groups if group.get("lr") is not None]
        if step == self.step or not groups:
            return
        rate = max(float(group["lr"]) for group in groups)
        starts = [float(group["initial_lr"]) for group in groups if group.get("initial_lr") is not None]
        self.rate_before, self.step_before = self.rate, self.step
        self.rate, self.step = rate, step
        if rate >= self.largest:
            self.largest, self.largest_at = rate, step
        since_largest = _power(self.largest, self.largest_at, rate, step)
        if starts:
            self.ends = not self._goes_as_root(_power(max(starts), 1, rate, step), since_largest)
        else:
            self.ends = rate < FALLEN * self.largest and (self.ends or since_largest > ROUGHLY[1])

    def _goes_as_root(self, since_start: float, since_largest: float) -> bool:
        if self.step_before == 0:
            return ROOT[0] <= since_start <= ROOT[1]
        lately = _power(self.rate_before, self.step_before, self.rate, self.step)
        long = [since_start] + ([since_largest] if self.largest_at < self.step_before else [])  # else it is the same
        return ROOT[0] <= lately <= ROOT[1] and any(ROUGHLY[0] <= power <= ROUGHLY[1] for power in long)

    @property
    def power(self) -> float:
        """That what would be saved at a constant rate is to be taken to."""
        return POWER if self.ends else 1.0

    @property
    def steps_left(self) -> float:
        """Up to 0 on a straight line, from the largest rate or from that of the look before through the last one.

        The later end of the two: so a rate that falls in stairs has no end in sight where it has not fallen lately.
        """
        if not self.ends:
            return math.inf
        points = ((self.largest, self.largest_at), (self.rate_before, self.step_before))
        return max(self._steps_to_0(rate, step) for rate, step in points if step > 0)

    def _steps_to_0(self, rate: float, step: int) -> float:
        return (self.step - step) * self.rate / (rate - self.rate) if rate > self.rate else math.inf


def _power(before: float, step_before: int, now: float, step: int) -> float:
    """Of the step by which a rate fell; infinite where it fell to 0."""
    if step <= step_before or before <= 0:
        return 0.0
    return math.log(before / now) / math.log(step / step_before) if now > 0 else math.inf
