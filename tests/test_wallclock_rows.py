"""Rows and tables of the wall-clock benchmark: accuracy at equal loss and for one who stops early, what is shown."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if not (ROOT / "benchmarks").exists():
    pytest.skip("needs the repository", allow_module_level=True)
sys.path.append(str(ROOT))

from benchmarks.wallclock.campaign import AUTO, FIXED, SOONEST, UNIFORM, Choice, Comparison  # noqa: E402 - on the path since above
from benchmarks.wallclock.rows import _equal_loss, _stopped_early, compare, compare_with_fixed  # noqa: E402
from benchmarks.wallclock.table import make_table, show  # noqa: E402


def compare_runs(**everyone):
    """A comparison of runs by name, uniform draws among them."""
    everyone = {UNIFORM: everyone.pop("uniform"), **everyone}
    everyone[SOONEST] = everyone[UNIFORM]
    choice = Choice("adam", "reshuffled", 0.1, 32, False)
    return Comparison(
        "p", "P", "constant", "any batch", "cpu", "train_loss", 50, dict.fromkeys(everyone, choice), everyone
    )


def test_accuracy_at_the_target_is_that_when_both_have_the_same_training_loss():
    """Uniform's budget ends after 2 s at a loss of 2; ours is there after 1.5 s, half way between two evaluations."""

    def runs(losses, accuracies):
        held_out = [loss + 1 for loss in (losses[0], *losses[:-1])]  # a second later
        curves = {"seconds": [0.0, 1.0, 2.0, 3.0, 4.0], "train_loss": losses, "test_loss": held_out}
        return [[{"curves": curves | {"test_accuracy": accuracy}}] for accuracy in accuracies]

    uniform = runs([4.0, 3.0, 2.0, 1.5, 1.0], [[0.0, 0.4, 0.6, 0.6, 0.5], [0.0, 0.4, 0.7, 0.6, 0.5]])
    ours = runs([4.0, 3.0, 1.0, 0.5, 0.1], [[0.0, 0.6, 0.8, 0.2, 0.1], [0.0, 0.6, 0.9, 0.2, 0.1]])
    slow = runs([4.0] * 5, [[0.0] * 5] * 2)
    comparison = compare_runs(uniform=uniform, ours=ours, slow=slow)
    found = _equal_loss(comparison, "ours", compare(comparison, "ours"))
    assert list(found.values()) == pytest.approx([(0.7 - 0.6 + 0.75 - 0.7) / 2, 0.05, 0.1])
    assert compare(comparison, "ours").ours == pytest.approx(1.5)
    held_out = compare(replace(comparison, goal="test_loss"), "ours")
    assert held_out.ours == pytest.approx(2.0)  # 4, which uniform has then
    assert set(_equal_loss(comparison, "slow", compare(comparison, "slow")).values()) == {None}
    below = replace(compare(comparison, "ours"), at_most=True)
    assert set(_equal_loss(comparison, "ours", below).values()) == {None}


def test_auto_is_compared_with_the_best_fixed_interval_at_uniforms_loss():
    """Uniform has a loss of 2 after 2 s, the fixed interval after 1 s, auto after 1.5 s."""

    def runs(*losses):
        curves = {"seconds": [0.0, 1.0, 2.0, 3.0, 4.0], "train_loss": list(losses)}
        return [[{"curves": curves}]] * 3

    sides = {AUTO: runs(4, 3, 1, 1, 1), FIXED: runs(4, 2, 2, 2, 2)}
    comparison = compare_runs(uniform=runs(4, 3, 2, 1, 0), **sides)
    found = compare_with_fixed(comparison, AUTO)
    assert (found.ratio, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert compare(comparison, AUTO).ratio == pytest.approx(0.75)
    assert compare_with_fixed(comparison, FIXED) is None
    assert compare_with_fixed(compare_runs(uniform=runs(4, 3, 2, 1, 0), **{AUTO: sides[AUTO]}), AUTO) is None


def test_one_who_stops_early_has_the_accuracy_at_the_least_validation_loss_of_uniforms_budget():
    """The budget ends with the third evaluation of the seed: what comes later does not count, nor what is no number."""
    clocks = [1.0, 1.1]  # seconds from one evaluation to the next, of each seed

    def runs(losses, accuracies, slower=1.0):
        curves = {"train_loss": [4.0, 3.0, 2.0, 1.0, 0.5], "validation_loss": losses}
        found = []
        for clock, accuracy in zip(clocks, accuracies, strict=True):
            seconds = [slower * clock * k for k in range(5)]
            found.append([{"curves": curves | {"seconds": seconds, "test_accuracy": accuracy}}])
        return found

    uniform = runs([4.0, 3.0, 2.0, 1.0, 0.0], [[0.0, 0.4, 0.6, 0.9, 0.9], [0.0, 0.4, 0.7, 0.9, 0.9]])
    ours = runs([4.0, 1.0, 3.0, 0.5, 0.0], [[0.0, 0.8, 0.5, 0.9, 0.9], [0.0, 0.8, 0.5, 0.9, 0.9]])
    late = runs([4.0, 3.0, 2.0, 1.0, 0.0], [[0.0, 0.4, 0.6, 0.9, 0.9], [0.0, 0.4, 0.7, 0.9, 0.9]], slower=1.01)
    broken = runs([4.0, math.nan, math.nan, 0.5, 0.0], [[0.1, 0.8, 0.5, 0.9, 0.9]] * 2)
    comparison = compare_runs(uniform=uniform, ours=ours, late=late, broken=broken)
    assert list(_stopped_early(comparison, "ours").values()) == pytest.approx([0.15, 0.1, 0.2, 1.05, 2.1])
    assert _stopped_early(comparison, UNIFORM)["accuracy_stopped_difference"] == 0
    assert _stopped_early(comparison, "late")["accuracy_stopped_difference"] == pytest.approx(0.4 - 0.65)
    assert _stopped_early(comparison, "broken")["accuracy_stopped_difference"] == pytest.approx(0.1 - 0.65)
    decayed = replace(comparison, schedule="cosine")
    assert set(_stopped_early(decayed, "ours").values()) == {None}


def test_tables_say_never_and_at_most():
    assert show(math.inf) == "∞"
    assert show(0.12345) == "0.123"
    row = {
        "title": "T",
        "problem": "p",
        "schedule": "cosine",
        "batches": "any batch",
        "method": "adaptive:5",
        "peer_name": "adam, uniform",
        "peer_lr": 0.1,
        "peer_lr_at_edge": True,
        "peer_batch_size": 32,
        "soonest_optimizer": "adam",
        "soonest_lr": 0.1,
        "soonest_batch_size": 32,
        "goal": "train_loss",
        "target": 0.5,
        "peer": 2.0,
        "equal_seconds": 2.0,
        "num_seeds": 3,
        "lr": 0.1,
        "lr_at_edge": False,
        "batch_size": 32,
        "ours": math.inf,
        "ratio": math.inf,
        "low": 1.0,
        "high": math.inf,
        "held_out_ratio": 1.0,
        "held_out_low": 0.9,
        "held_out_high": 1.1,
        "at_most": False,
        "optimizer": "adam",
        "scoring_times": 2.5,
        "scoring_share": None,
        "clock": "cpu",
        "draws": "adaptive:auto",
        "accuracy_at_target_difference": None,
        "stopped_seconds": None,
    }
    for name in ("train_loss", "test_loss", "test_accuracy"):
        row |= {name: 0.5, f"peer_{name}": 0.5, f"{name}_difference": 0.0, f"{name}_low": -0.1, f"{name}_high": 0.1}
    page = "\n".join(make_table([row]))
    assert "∞ [1, ∞]" in page
    assert "lr 0.1*" in page
    assert "processor time" in page
    assert "| 2.5 × |" in page
    assert "| 2.5 ×, 10% |" in "\n".join(make_table([row | {"scoring_share": 0.1}]))
    assert "budget ×" not in page
    assert "× best fixed" not in page
    found = {"ratio": 0.5, "low": 0.4, "high": 0.6, "at_most": True}
    found |= {"accuracy_at_target_difference": 0.02, "accuracy_at_target_low": -0.01, "accuracy_at_target_high": 0.05}
    found |= {"accuracy_stopped_difference": 0.03, "accuracy_stopped_low": -0.02, "accuracy_stopped_high": 0.04}
    found |= {"stopped_seconds": 0.5, "peer_stopped_seconds": 1.25}
    page = "\n".join(make_table([row | found]))
    assert "| +0.03 [-0.02, +0.04], 0.5 s, uniform 1.25 s |" in page
    assert "≤ 0.5 [0.4, 0.6]" in page
    assert "| +0.02 [-0.01, +0.05] |" in page
    fixed = {"fixed_ratio": 1.25, "fixed_low": 1.0, "fixed_high": math.inf}
    page = "\n".join(make_table([row | fixed, row | {"method": FIXED, "draws": "adaptive:300"}]))
    assert "| 1.25 [1, ∞] |" in page
    assert "| adam, 0.1, 32, J = 300 |" in page
    assert "| adam, 0.1, 32 |" in page
