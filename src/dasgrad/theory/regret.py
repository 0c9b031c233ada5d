"""Expected regret from paired seeds, and whether it grows slower than the number of steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasgrad.theory.trajectory import Trajectory

Array = NDArray[np.float64]
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with limits from Student's t."""

    mean: float
    low: float
    """Of the two-sided 95 % interval, and so ``high``."""
    high: float
    upper_limit: float
    """One-sided, 95 %: the expectation is below it, at that level. What may be held against a bound."""


def estimate(values: Sequence[float] | Array) -> Estimate:
    """The mean of one value per seed, with its t-intervals.

    Raises:
        ValueError: for fewer than two values.

    Example:
        >>> round(estimate([1.0, 2.0, 3.0]).upper_limit, 3)
        3.686
    """
    own = np.asarray(values, dtype=np.float64)
    if own.ndim != 1 or len(own) < 2:
        raise ValueError(f"`estimate(values=...)` must hold one number a seed, of at least 2 seeds, got {own.shape}.")
    mean, spread = float(own.mean()), float(own.std(ddof=1)) / math.sqrt(len(own))
    two_sided = t_quantile((1 + LEVEL) / 2, len(own) - 1) * spread
    return Estimate(mean, mean - two_sided, mean + two_sided, mean + t_quantile(LEVEL, len(own) - 1) * spread)


def expected_regret(trajectories: Sequence[Trajectory]) -> Estimate:
    """The regret at the last step, over seeds. For small n and T, `enumerate_draws` has it exactly."""
    return estimate([float(trajectory.get("regret")[-1]) for trajectory in trajectories])


def fit_exponent(steps: Array, regret: Array) -> float:
    """The slope of log R over log t on the last decade, t from T/10 to T, by least squares.

    Below 1, regret is sub-linear there: R(t)/t falls.

    Raises:
        ValueError: with fewer than three points in the last decade, or regret that is not positive.

    Example:
        >>> steps = np.arange(1.0, 1001.0)
        >>> round(fit_exponent(steps, 3 * np.sqrt(steps)), 6)
        0.5
    """
    last = steps >= steps[-1] / 10
    if last.sum() < 3:
        raise ValueError(f"`fit_exponent(steps=...)` must have 3 points in the last decade, got {int(last.sum())}.")
    if not (regret[last] > 0).all():
        raise ValueError(f"`fit_exponent(regret=...)` must be positive there, got {float(regret[last].min())!r}.")
    x, y = np.log(steps[last]), np.log(regret[last])
    x = x - x.mean()
    return float(x @ y / (x @ x))


def t_quantile(level: float, freedom: int) -> float:
    """The quantile of Student's t with a whole number of degrees of freedom, by bisection.

    Raises:
        ValueError: for a level outside (0, 1) or freedom below 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"`t_quantile(level=...)` must be in (0, 1), got {level!r}.")
    if freedom < 1:
        raise ValueError(f"`t_quantile(freedom=...)` must be at least 1, got {freedom!r}.")
    if level < 0.5:
        return -t_quantile(1 - level, freedom)
    low, high = 0.0, 1.0
    while _t_distribution(high, freedom) < level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_distribution(middle, freedom) < level else (low, middle)
    return high


def _t_distribution(t: float, freedom: int) -> float:
    """P(X ≤ t), t ≥ 0: Abramowitz and Stegun 26.7.3 and 26.7.4, finite sums."""
    angle = math.atan(t / math.sqrt(freedom))
    cos_square, term, total = math.cos(angle) ** 2, 1.0, 0.0
    start = freedom % 2
    for k in range(2 + start, freedom + 1, 2):
        total += term
        term *= cos_square * ((k - 1) / k)
    if start:
        within = 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    else:
        within = math.sin(angle) * total
    return (1 + within) / 2
