"""Reported runs → rows, one a method, schedule and rule for batch sizes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.parts.report import Row
from benchmarks.wallclock.campaign import AUTO, FIXED, SOONEST, UNIFORM, UNIFORM_AGAIN, Comparison
from benchmarks.wallclock.crossing import Array, Curves, Ratio, compare_means, compare_times, values_at

HELD_OUT = ("train_loss", "test_loss", "test_accuracy")


def make_rows(comparison: Comparison) -> list[Row]:
    """Every method against the best uniform configuration, that itself on other seeds beside it."""
    chance = compare(comparison, UNIFORM_AGAIN)
    rows = []
    for method in comparison.choices:
        if method not in (UNIFORM, SOONEST):
            rows.append(_make_row(comparison, method, chance))
    return rows


def compare(comparison: Comparison, method: str, column: str | None = None) -> Ratio:
    """Seconds to uniform's loss after its budget: along the curves, or, for cosine decay, over budgets.

    ``column`` is the loss; None is the one both sides are tuned for.
    """
    return _compare_with(comparison, method, (UNIFORM, SOONEST), column)


def compare_with_fixed(comparison: Comparison, method: str) -> Ratio | None:
    """The same over the time of the best fixed interval, for `AUTO` where there is one."""
    return _compare_with(comparison, method, (FIXED,)) if method == AUTO and FIXED in comparison.choices else None


def _compare_with(comparison: Comparison, method: str, rivals: Sequence[str], column: str | None = None) -> Ratio:
    targets = _curves(comparison, UNIFORM, column).losses[:, _target_point(comparison)]
    ours, *others = (_curves(comparison, name, column) for name in (method, *rivals))
    return compare_times(ours, others, targets, log=comparison.schedule == "cosine")


def compare_budgets(comparison: Comparison, method: str) -> Ratio:
    """For runs that hold their shorter ones: budgets at equal final loss, from T/2, T and 2T."""
    ours, peer, soonest = (_curves(comparison, name) for name in (method, UNIFORM, SOONEST))
    last = ours.seconds.shape[1] - 1
    points = [last // 4, last // 2, last]
    ours, peer, soonest = (Curves(side.seconds[:, points], side.losses[:, points]) for side in (ours, peer, soonest))
    return compare_times(ours, (peer, soonest), peer.losses[:, 1], log=True)


def _make_row(comparison: Comparison, method: str, chance: Ratio) -> Row:
    found, held_out = compare(comparison, method), compare(comparison, method, "test_loss")
    uniform, choice = comparison.choices[UNIFORM], comparison.choices[method]
    peer_curves, curves = _curves(comparison, UNIFORM), _curves(comparison, method)
    target_point = _target_point(comparison)
    target = float(peer_curves.losses[:, target_point].mean())
    what = "budget in seconds at equal final loss" if comparison.schedule == "cosine" else "seconds to target"
    row: Row = {
        "metric": f"{comparison.problem}, {comparison.schedule}, {comparison.batches}, {what}: {method}",
        "ours": found.ours,
        "peer": found.peer,
        "peer_name": f"{uniform.optimizer}, uniform",
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "at_most": found.at_most,
        "uniform_ratio": chance.ratio,
        "uniform_low": chance.low,
        "uniform_high": chance.high,
        "held_out_ratio": held_out.ratio,
        "held_out_low": held_out.low,
        "held_out_high": held_out.high,
        "goal": comparison.goal,
        "target": target,
        "clock": comparison.clock,
        "seeds_crossed": int((curves.losses <= target).any(1).sum()),
        "num_seeds": len(curves.losses),
        "problem": comparison.problem,
        "title": comparison.title,
        "schedule": comparison.schedule,
        "batches": comparison.batches,
        "method": method,
        "draws": choice.draws,
        "optimizer": choice.optimizer,
        "lr": choice.lr,
        "lr_at_edge": choice.at_edge,
        "batch_size": choice.batch_size,
        "peer_lr": uniform.lr,
        "peer_lr_at_edge": uniform.at_edge,
        "peer_batch_size": uniform.batch_size,
        "soonest_optimizer": comparison.choices[SOONEST].optimizer,
        "soonest_lr": comparison.choices[SOONEST].lr,
        "soonest_batch_size": comparison.choices[SOONEST].batch_size,
        "scoring_times": _scoring_times(comparison, method),
        "scoring_share": _scoring_share(comparison, method),
        **_equal_time(comparison, method, float(peer_curves.seconds[:, target_point].mean())),
        **_equal_loss(comparison, method, found),
        **_stopped_early(comparison, method),
        "curve": _mean_curve(comparison, method),
        "peer_curve": _mean_curve(comparison, UNIFORM),
    }
    fixed = compare_with_fixed(comparison, method)
    if fixed is not None:
        row |= {"fixed_ratio": fixed.ratio, "fixed_low": fixed.low, "fixed_high": fixed.high}
    if comparison.schedule == "inverse-sqrt":
        budget = compare_budgets(comparison, method)
        row |= {"budget_ratio": budget.ratio, "budget_low": budget.low, "budget_high": budget.high}
    return row


def _stack(comparison: Comparison, method: str, column: str) -> Array:
    """``[S, P]`` along a curve, or at the ends of the budgets for cosine decay."""
    seeds: list[list[float]] = []
    for runs in comparison.runs[method]:
        curves: Sequence[list[float]] = [run["curves"][column] for run in runs]
        seeds.append([curve[-1] for curve in curves] if comparison.schedule == "cosine" else curves[0])
    return np.array(seeds, np.float64)


def _curves(comparison: Comparison, method: str, column: str | None = None) -> Curves:
    return Curves(_stack(comparison, method, "seconds"), _stack(comparison, method, column or comparison.goal))


def _target_point(comparison: Comparison) -> int:
    """The column of T, in the middle of the budgets as of a curve to 2T."""
    num_points: int = _stack(comparison, UNIFORM, "seconds").shape[1]
    return (num_points - 1) // 2


def _equal_time(comparison: Comparison, method: str, moment: float) -> dict[str, Any]:
    """Losses and accuracy of both sides when uniform's budget is over, and their paired differences."""
    log = comparison.schedule == "cosine"
    values: dict[str, Any] = {"equal_seconds": moment}
    for name in HELD_OUT:
        ours, peer = (
            values_at(_stack(comparison, side, "seconds"), _stack(comparison, side, name), moment, log=log)
            for side in (method, UNIFORM)
        )
        difference, low, high = compare_means(ours, peer)
        values |= {name: float(ours.mean()), f"peer_{name}": float(peer.mean())}
        values |= {f"{name}_difference": difference, f"{name}_low": low, f"{name}_high": high}
    return values


def _equal_loss(comparison: Comparison, method: str, found: Ratio) -> dict[str, float | None]:
    """Accuracy when a method is at the target, less uniform's when its budget is over: with the same loss.

    None where it never has that loss, or less at the first point.
    """
    names = ("accuracy_at_target_difference", "accuracy_at_target_low", "accuracy_at_target_high")
    if not np.isfinite(found.ours) or found.at_most:
        return dict.fromkeys(names)
    accuracy, log = "test_accuracy", comparison.schedule == "cosine"
    ours = values_at(_stack(comparison, method, "seconds"), _stack(comparison, method, accuracy), found.ours, log=log)
    peer = _stack(comparison, UNIFORM, accuracy)[:, _target_point(comparison)]
    return dict(zip(names, compare_means(ours, peer), strict=True))


def _stopped_early(comparison: Comparison, method: str) -> dict[str, float | None]:
    """Accuracy at the evaluation of least validation loss by the time that uniform's budget is over, less uniform's.

    The budget is that of the seed. None under cosine decay, where a run has one end.
    """
    names = [f"accuracy_stopped_{end}" for end in ("difference", "low", "high")]
    names += ["stopped_seconds", "peer_stopped_seconds"]
    if comparison.schedule == "cosine":
        return dict.fromkeys(names)
    moments = _stack(comparison, UNIFORM, "seconds")[:, _target_point(comparison)]
    (ours, seconds), (peer, peer_seconds) = (_best_so_far(comparison, side, moments) for side in (method, UNIFORM))
    values = (*compare_means(ours, peer), float(seconds.mean()), float(peer_seconds.mean()))
    return dict(zip(names, values, strict=True))


def _best_so_far(comparison: Comparison, method: str, moments: Array) -> tuple[Array, Array]:
    """Of each seed: accuracy and seconds at the evaluation of least validation loss up to a moment ``[S]``."""
    names = ("seconds", "validation_loss", "test_accuracy")
    seconds, losses, accuracy = (_stack(comparison, method, name) for name in names)
    counts = (seconds <= moments[:, None]) & ~np.isnan(losses)
    best = np.where(counts, losses, np.inf).argmin(1)  # without any, the evaluation before the first step
    seeds = np.arange(len(best))
    return accuracy[seeds, best], seconds[seeds, best]


def _scoring_times(comparison: Comparison, method: str) -> float:
    """How often all examples were scored in a whole run, on average."""
    scored: list[int] = [runs[-1]["scored"] for runs in comparison.runs[method]]
    return sum(scored) / len(scored) / comparison.num_examples


def _scoring_share(comparison: Comparison, method: str) -> float | None:
    """Of all seconds, those of refreshes, which are taken by the wall clock alone."""
    if comparison.clock != "wall":
        return None
    last = [runs[-1] for runs in comparison.runs[method]]
    return float(sum(run["scoring_seconds"] for run in last) / sum(run["curves"]["seconds"][-1] for run in last))


def _mean_curve(comparison: Comparison, method: str) -> dict[str, list[float]]:
    return {name: _stack(comparison, method, name).mean(0).tolist() for name in ("seconds", "train_loss")}
