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
SLOWEST, FASTEST = 0.3, 0.7
"""A rate goes as α/√t where the power of t by which it falls is between these."""


@dataclass
class RateBelief:
    """Whether the learning rate is to fall to 0, from what it was at looks.

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
    """Of the last look."""
    ends: bool = False
    """Whether the rate is to fall to 0."""

    def observe(self, step: int, optimizer: Optimizer) -> None:
        """The rates of the param groups before a step, counted from 1; of several the largest counts.

        Of several calls before one step the first one counts.
        """
        if step == self.step:
            return
        rate = max(float(group["lr"]) for group in optimizer.param_groups)
        starts = [float(group["initial_lr"]) for group in optimizer.param_groups if "initial_lr" in group]
        if rate >= self.largest:
            self.largest, self.largest_at = rate, step
        start, start_at = (max(starts), 1) if starts else (self.largest, self.largest_at)
        as_root = _is_root(start, start_at, rate, step)
        if as_root and self.step > start_at:
            as_root = _is_root(self.rate, self.step, rate, step)
        self.ends = (bool(starts) or rate < self.largest) and not as_root
        self.rate, self.step = rate, step

    @property
    def power(self) -> float:
        """That what would be saved at a constant rate is to be taken to."""
        return POWER if self.ends else 1.0

    @property
    def steps_left(self) -> float:
        """Up to the end of a straight line from the largest rate through that of the last look to 0."""
        if not self.ends or self.rate >= self.largest:
            return math.inf
        return (self.step - self.largest_at) * self.rate / (self.largest - self.rate)


def _is_root(before: float, step_before: int, now: float, step: int) -> bool:
    """Whether a rate fell as α/√t, about."""
    if before <= 0 or now <= 0 or step <= step_before:
        return False
    return SLOWEST <= math.log(before / now) / math.log(step / step_before) <= FASTEST
