"""Comparing methods over paired seeds: means, and 95 % intervals by a percentile bootstrap over seeds.

One set of resamples, fixed once and for all, serves every method: a resample takes the same seeds of both
methods of a difference, so that what a seed has in common cancels.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dasgrad.experiments.records import COLUMNS, DRAW_COLUMNS, Record

NUM_RESAMPLES = 10_000
BOOTSTRAP_SEED = 0
LEVEL = 0.95

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Band:
    """A mean curve and its pointwise 95 % band, ``[P]`` each."""

    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class MethodSummary:
    """How one method ended, and what it cost."""

    method: str
    lr: float
    finals: dict[str, Interval]
    """Of train_loss, test_loss, train_accuracy, test_accuracy and seconds."""
    scoring_share: float
    """Of all seconds, those spent scoring."""
    gradient_evaluations: float
    scored_examples: float
    steps_to_reference: int | None
    """First evaluated step at which the mean loss is at most the reference's final one; None: never."""
    seconds_to_reference: float | None
    evaluations_to_reference: float | None = None
    """Examples whose gradients or scores were computed until then."""
    draws: dict[str, Interval] = field(default_factory=dict)
    """Of adaptive methods, the state of the draws at the end, by `records.DRAW_COLUMNS`."""
    extras: dict[str, Interval] = field(default_factory=dict)
    """The experiment's own columns at the end."""


@dataclass(frozen=True)
class Improvement:
    """How much lower a method's final loss is than a baseline's, seed by seed."""

    method: str
    baseline: str
    difference: Interval
    """Baseline minus method: positive is better."""
    relative: Interval
    """The difference over the baseline's mean."""


@dataclass(frozen=True)
class Summary:
    """The comparison of all methods."""

    reference: str
    num_seeds: int
    methods: dict[str, MethodSummary]
    improvements: list[Improvement]


@functools.lru_cache(maxsize=8)
def resample_shares(num_seeds: int) -> Array:
    """``[R, S]``: the share of each seed in each resample of S seeds with replacement; rows sum to 1."""
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    return generator.multinomial(num_seeds, np.full(num_seeds, 1.0 / num_seeds), NUM_RESAMPLES) / num_seeds


def mean_band(values: Array) -> Band:
    """Mean over seeds of ``[S, P]`` values, with pointwise intervals.

    Raises:
        ValueError: for fewer than two seeds, of which no interval can be made.
    """
    if values.ndim != 2 or len(values) < 2:
        raise ValueError(f"`mean_band(values=...)` must have shape [seeds of at least 2, points], got {values.shape}.")
    return _percentile_band(values.mean(0), resample_shares(len(values)) @ values)


def mean_interval(values: Sequence[float] | Array) -> Interval:
    """Mean and interval of one value per seed."""
    return _only(mean_band(np.asarray(values, dtype=np.float64)[:, None]))


def relative_band(differences: Array, baselines: Array) -> Band:
    """Mean difference over mean baseline of ``[S, P]`` values, with both resampled together.

    Raises:
        ValueError: when the two differ in shape.
    """
    if differences.shape != baselines.shape:
        raise ValueError(
            f"`baselines` must have the shape of `differences`, {differences.shape}, got {baselines.shape}."
        )
    shares = resample_shares(len(differences))
    with np.errstate(divide="ignore", invalid="ignore"):  # a baseline of exactly 0 has no relative difference
        return _percentile_band(differences.mean(0) / baselines.mean(0), (shares @ differences) / (shares @ baselines))


def stack(records: Sequence[Record], column: str) -> Array:
    """``[S, P]``: one curve per seed."""
    return np.stack([record.curves[column] for record in records])


def relative_improvement_band(
    baselines: Sequence[Record], records: Sequence[Record], column: str = "train_loss"
) -> Band:
    """The curve of (baseline − method) / baseline in a loss, paired by seed."""
    before = stack(baselines, column)
    return relative_band(before - stack(records, column), before)


def difference_band(baselines: Sequence[Record], records: Sequence[Record], column: str) -> Band:
    """The curve of method − baseline in any column, paired by seed: an improvement where more is better."""
    return mean_band(stack(records, column) - stack(baselines, column))


def first_reaching(losses: Array, mark: float) -> int | None:
    """The first position at which ``losses`` is at most ``mark``, or None."""
    reached = np.flatnonzero(losses <= mark)
    return int(reached[0]) if len(reached) else None


def summarise(
    records: Mapping[str, Sequence[Record]],
    comparisons: Sequence[tuple[str, str]],
    reference: str,
    column: str = "train_loss",
) -> Summary:
    """Compare methods, each with its records by seed.

    Args:
        records: of each method, in the same order of seeds.
        comparisons: pairs (method, baseline) whose paired difference is measured.
        reference: the method whose final mean loss is the mark to reach.
        column: the loss that is compared.

    Raises:
        ValueError: when the methods' seeds are not the same.
    """
    seeds = {method: [record.config.seed for record in runs] for method, runs in records.items()}
    for method, own in seeds.items():
        if own != seeds[reference]:
            raise ValueError(f"`records` must be paired: {reference} has seeds {seeds[reference]}, {method} {own}.")
    mark = float(stack(records[reference], column)[:, -1].mean())
    improvements = []
    for ours, baseline in comparisons:
        before = stack(records[baseline], column)[:, -1:]
        gained = before - stack(records[ours], column)[:, -1:]
        relative = _only(relative_band(gained, before))
        improvements.append(Improvement(ours, baseline, mean_interval(gained[:, 0]), relative))
    methods = {method: _summarise_method(method, runs, mark, column) for method, runs in records.items()}
    return Summary(reference, len(seeds[reference]), methods, improvements)


def _summarise_method(method: str, runs: Sequence[Record], mark: float, column: str) -> MethodSummary:
    columns = ("train_loss", "test_loss", "train_accuracy", "test_accuracy", "seconds")
    means = {name: stack(runs, name).mean(0) for name in runs[0].curves}
    reached = first_reaching(means[column], mark)
    charged = means["gradient_evaluations"] + means["scored_examples"]

    def ends(names: Sequence[str]) -> dict[str, Interval]:
        return {name: mean_interval(stack(runs, name)[:, -1]) for name in names}

    return MethodSummary(
        method=method,
        lr=runs[0].config.lr,
        finals=ends(columns),
        scoring_share=float(means["scoring_seconds"][-1] / means["seconds"][-1]),
        gradient_evaluations=float(means["gradient_evaluations"][-1]),
        scored_examples=float(means["scored_examples"][-1]),
        steps_to_reference=None if reached is None else int(means["step"][reached]),
        seconds_to_reference=None if reached is None else float(means["seconds"][reached]),
        evaluations_to_reference=None if reached is None else float(charged[reached]),
        draws=ends([name for name in DRAW_COLUMNS if name in means]),
        extras=ends([name for name in means if name not in (*COLUMNS, *DRAW_COLUMNS)]),
    )


def _percentile_band(mean: Array, resampled: Array) -> Band:
    by_point = np.ascontiguousarray(resampled.T)  # quantiles of rows that lie together take a tenth of the time
    low, high = np.quantile(by_point, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    return Band(mean, low, high)


def _only(band: Band) -> Interval:
    return Interval(float(band.mean[0]), float(band.low[0]), float(band.high[0]))
