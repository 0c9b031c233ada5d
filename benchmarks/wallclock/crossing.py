"""When a curve first comes down to a target, and how two such times compare over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasgrad.experiments.statistics import LEVEL, resample_shares

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ratio:
    """A ratio of two means over seeds with its 95 % interval; infinite where ours never crosses."""

    ours: float
    peer: float
    ratio: float
    low: float
    high: float
    at_most: bool = False
    """Ours was below the target at its first point: the ratio is only known to be at most this."""


@dataclass(frozen=True, eq=False)
class Curves:
    """One curve a seed, ``[S, P]`` each, seeds of both sides of a comparison in the same order."""

    seconds: Array
    losses: Array

    def __post_init__(self) -> None:
        if self.seconds.ndim != 2 or self.seconds.shape != self.losses.shape:
            raise ValueError(
                f"`Curves(seconds=..., losses=...)` must have one shape [seeds, points], got {self.seconds.shape} "
                f"and {self.losses.shape}."
            )


def first_crossings(positions: Array, losses: Array, targets: Array) -> Array:
    """``[R]``: where each row of ``losses`` is first at most its target, infinite where it never is.

    Straight lines between points; the first position where the curve starts at or below its target. A loss that is
    not a number is above every target.

    Args:
        positions: ``[R, P]``, rising along each row.
        losses: ``[R, P]``.
        targets: ``[R]``.
    """
    losses = np.where(np.isnan(losses), np.inf, losses)
    below = losses <= targets[:, None]
    rows = np.arange(len(losses))
    after = below.argmax(1)
    before = np.maximum(after - 1, 0)
    start, end = positions[rows, before], positions[rows, after]
    upper, lower = losses[rows, before], losses[rows, after]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (upper - targets) / (upper - lower)
    share = np.where(np.isinf(upper), 1.0, share)
    share = np.where(after == before, 0.0, share)
    return np.where(below.any(1), start + share * (end - start), np.inf)


def compare_times(ours: Curves, rivals: Sequence[Curves], targets: Array, *, log: bool = False) -> Ratio:
    """Time of ours to a loss over that of the rival that is first there.

    Every resample of seeds has its own mean curves and its own target.

    Args:
        ours: of the method.
        rivals: of one or more configurations, on the same seeds.
        targets: ``[S]``, the loss to come down to, of each seed.
        log: interpolate in the logarithm of seconds.

    Raises:
        ValueError: for fewer than two seeds, or sides that differ in their number.
    """
    num_seeds = len(targets)
    if num_seeds < 2 or any(len(side.losses) != num_seeds for side in (ours, *rivals)):
        raise ValueError(
            f"all sides must have as many seeds as there are targets, at least 2, got {num_seeds} targets and "
            f"{', '.join(str(len(side.losses)) for side in (ours, *rivals))} seeds."
        )

    def both(shares: Array) -> tuple[Array, Array]:
        mine, *theirs = (_times(side, targets, shares, log) for side in (ours, *rivals))
        return mine, np.min(theirs, axis=0)

    mine, theirs = both(np.full((1, num_seeds), 1.0 / num_seeds))
    my_times, their_times = both(resample_shares(num_seeds))
    low, high = quantile_ends(_ratios(my_times, their_times))
    return Ratio(
        ours=float(mine[0]),
        peer=float(theirs[0]),
        ratio=float(_ratios(mine, theirs)[0]),
        low=low,
        high=high,
        at_most=bool(ours.losses.mean(0)[0] <= targets.mean()),
    )


def _ratios(mine: Array, theirs: Array) -> Array:
    """Infinite where ours never crosses, also where the rival does not."""
    return np.divide(mine, theirs, out=np.full_like(mine, np.inf), where=np.isfinite(mine))


def _times(side: Curves, targets: Array, shares: Array, log: bool) -> Array:
    """Crossing times ``[R]`` of a side's mean curves under ``[R, S]`` shares of the seeds."""
    seconds = shares @ side.seconds
    found = first_crossings(np.log(seconds) if log else seconds, shares @ side.losses, shares @ targets)
    return np.exp(found) if log else found


def quantile_ends(values: Array) -> tuple[float, float]:
    """Both ends of the 95 % interval of resampled values, of which some may be infinite."""
    low = np.quantile(values, (1 - LEVEL) / 2, method="lower")
    high = np.quantile(values, (1 + LEVEL) / 2, method="higher")
    return float(low), float(high)


def values_at(seconds: Array, values: Array, moment: float, *, log: bool = False) -> Array:
    """``[S]``: values ``[S, P]`` of each seed at a moment of its own clock; the last one where it ended before."""
    scale = np.log if log else np.asarray
    return np.array([np.interp(scale(moment), scale(own), row) for own, row in zip(seconds, values, strict=True)])


def compare_means(ours: Array, peer: Array) -> tuple[float, float, float]:
    """Mean difference ours − peer of one value a seed, and both ends of its paired interval."""
    differences = ours - peer
    low, high = quantile_ends(resample_shares(len(differences)) @ differences)
    return float(differences.mean()), low, high
