"""Paired improvement along a run: at the same step, after the same gradient evaluations, after the same seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dasgrad.experiments.records import Record
from dasgrad.experiments.statistics import Band, Interval, mean_band, mean_interval, relative_band, stack

NUM_POINTS = 31
"""Of a curve on an axis on which runs were not measured at the same points."""
AXES = ("step", "evaluations", "seconds")
"""Steps; examples whose gradients were computed, for a step or for a score; seconds, scoring included."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quantity:
    """What is compared: a column, whether less of it is better, and whether the difference is relative."""

    column: str
    label: str
    less_is_better: bool

    @property
    def relative(self) -> bool:
        """Losses are compared relative to the baseline's; accuracies by their difference."""
        return self.less_is_better


QUANTITIES = (
    Quantity("train_loss", "training loss", less_is_better=True),
    Quantity("test_loss", "held-out loss", less_is_better=True),
    Quantity("train_accuracy", "training accuracy", less_is_better=False),
    Quantity("test_accuracy", "held-out accuracy", less_is_better=False),
)


def find_quantity(column: str) -> Quantity:
    """The quantity of a column of `QUANTITIES`."""
    return next(quantity for quantity in QUANTITIES if quantity.column == column)


def axis_values(record: Record, axis: str) -> Array:
    """A run's position on one of `AXES` at each evaluation; scoring an example counts as a gradient."""
    if axis == "evaluations":
        return record.curves["gradient_evaluations"] + record.curves["scored_examples"]
    return record.curves[axis]


def improvement_curve(
    ours: Sequence[Record], baselines: Sequence[Record], quantity: Quantity, axis: str
) -> tuple[Array, Band]:
    """Positions on an axis, and how much better ``ours`` is there, seed by seed, with its 95 % band.

    Between two evaluations curves are straight lines. The axis ends where the first of all runs ends.
    """
    runs = [*ours, *baselines]
    ends = [axis_values(run, axis)[-1] for run in runs]
    steps = runs[0].curves["step"]
    same = axis == "step" and all(np.array_equal(run.curves["step"], steps) for run in runs)
    grid = steps if same else np.linspace(0.0, min(ends), NUM_POINTS)
    own, other = (
        np.stack([np.interp(grid, axis_values(run, axis), run.curves[quantity.column]) for run in side])
        for side in (ours, baselines)
    )
    return grid, _gain_band(own, other, quantity)


def final_improvement(ours: Sequence[Record], baselines: Sequence[Record], quantity: Quantity) -> Interval:
    """How much better ``ours`` ends, seed by seed, relative for losses."""
    own, other = (stack(side, quantity.column)[:, -1:] for side in (ours, baselines))
    band = _gain_band(own, other, quantity)
    return Interval(float(band.mean[0]), float(band.low[0]), float(band.high[0]))


def final_gains(ours: Sequence[Record], baselines: Sequence[Record], quantity: Quantity) -> Array:
    """``[S]``: the improvement of each seed at the end, relative to the baselines' mean for losses."""
    own, other = (stack(side, quantity.column)[:, -1] for side in (ours, baselines))
    return (other - own) / other.mean() if quantity.relative else own - other


def saved_steps(ours: Sequence[Record], baselines: Sequence[Record]) -> tuple[Interval, int]:
    """The share of steps saved to reach the baseline's final training loss, and in how many seeds it is reached.

    Each seed has its own mark, the final loss of its baseline. A seed that does not reach it saves nothing.
    """
    shares, num_reached = [], 0
    for run, baseline in zip(ours, baselines, strict=True):
        reached = np.flatnonzero(run.curves["train_loss"] <= baseline.final("train_loss"))
        num_reached += len(reached) > 0
        steps = run.curves["step"]
        shares.append(1.0 - float(steps[reached[0]] / steps[-1]) if len(reached) else 0.0)
    return interval_of(shares), num_reached


def interval_of(values: Sequence[float] | Array) -> Interval:
    """Mean and interval over seeds; a single seed has a mean and no interval (NaN)."""
    array = np.asarray(values, dtype=np.float64)
    return mean_interval(array) if len(array) > 1 else Interval(float(array[0]), float("nan"), float("nan"))


def band_of(values: Array) -> Band:
    """Mean and band over seeds of ``[S, P]``; a single seed has a mean and no band (NaN)."""
    if len(values) > 1:
        return mean_band(values)
    nothing = np.full(values.shape[1], np.nan)
    return Band(values[0], nothing, nothing)


def _gain_band(own: Array, other: Array, quantity: Quantity) -> Band:
    gained = other - own if quantity.less_is_better else own - other
    if not quantity.relative:
        return band_of(gained)
    if len(own) > 1:
        return relative_band(gained, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        return band_of(gained / other)
