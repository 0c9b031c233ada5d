"""Which configurations the wall-clock benchmark chooses in tuning."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if not (ROOT / "benchmarks").exists():
    pytest.skip("needs the repository", allow_module_level=True)
sys.path.append(str(ROOT))

from benchmarks.wallclock.choosing import (  # noqa: E402 - the repository comes onto the path above
    Standard,
    best_of_each_size,
    choose_config,
    mean_of,
    time_to,
)
from benchmarks.wallclock.training import RunConfig  # noqa: E402

CONFIG = RunConfig("rare", "constant", "adam", "reshuffled", 0.001, 8, 0, 8, 4, 64, "cpu", "here")


def curves(**columns):
    """A run."""
    return {"curves": columns}


def test_a_column_is_taken_at_equal_time_and_no_number_for_the_worst():
    run = curves(seconds=[0, 2], train_loss=[4, 2])
    assert mean_of([run], "train_loss", 1.0) == 3
    assert mean_of([run], "train_loss", None) == 2
    assert mean_of([curves(seconds=[0, 2], train_loss=[4, math.nan])], "train_loss", None) == math.inf


def test_the_time_is_that_at_which_the_mean_curve_crosses():
    runs = [curves(seconds=[0, 2, 4], train_loss=[4, 2, y]) for y in (0.5, 1.5)]
    assert time_to(runs, 3.0, "train_loss") == pytest.approx(1.0)
    assert time_to(runs, 1.5, "train_loss") == pytest.approx(3.0)
    assert time_to(runs, 0.9, "train_loss") == math.inf


def test_a_dip_is_not_taken_for_the_target():
    """A curve that is below it for a moment, one that hovers about it, and one that gets there later and stays."""
    seconds = [0, 1, 2, 3, 4]
    dips, hovers, stays, broken = (
        [curves(seconds=seconds, train_loss=losses)]
        for losses in ([4, 1, 3, 3, 3], [4, 2, 1.5, 2.2, 1.8], [4, 3, 3, 2, 1], [4, 1, math.nan, 1, 1])
    )
    assert time_to(dips, 2.0, "train_loss") == math.inf
    assert time_to(hovers, 2.0, "train_loss") == pytest.approx(1.0)
    assert time_to(stays, 2.0, "train_loss") == pytest.approx(3.0)
    assert time_to(broken, 2.0, "train_loss") == pytest.approx(3.0)
    over_fits = [curves(seconds=seconds, validation_loss=[4, 2, 3, 4, 5])]
    assert time_to(over_fits, 2.0, "validation_loss") == pytest.approx(1.0)


def test_the_first_at_the_target_is_chosen_and_without_a_target_the_lowest():
    """One is at 2 after a second and stays there; the other is there after two seconds and goes on to 1."""
    quick, low = CONFIG, replace(CONFIG, lr=0.003)
    runs = {
        quick: [curves(seconds=[0, 1, 3], train_loss=[4, 2, 2], validation_loss=[4, 3, 3])],
        low: [curves(seconds=[0, 2, 3], train_loss=[4, 2, 1], validation_loss=[4, 1, 5])],
    }
    assert choose_config(runs, "train_loss", 3.0, target=2.0) == quick
    assert choose_config(runs, "train_loss", 3.0) == low
    assert choose_config(runs, "validation_loss", 3.0, target=2.0) == low
    assert choose_config(runs, "validation_loss", 3.0) == quick


def test_the_first_at_the_target_that_keeps_uniforms_accuracy_is_chosen():
    """All but one are at the target, the less accurate the sooner, by what they are when uniform's budget is over."""
    uniform = replace(CONFIG, lr=0.1)

    def run(target_at, accuracy_then):
        return curves(seconds=[0, target_at, 4], train_loss=[4, 2, 2], validation_accuracy=[0, 1, accuracy_then])

    runs = {
        replace(CONFIG, draws="adaptive:auto", lr=lr): [run(seconds, accuracy)]
        for lr, seconds, accuracy in ((0.4, 1.0, 0.7), (0.3, 1.5, 0.8), (0.2, 2.0, 0.9), (0.1, 3.0, 0.5))
    }
    standard = Standard(0.8, 4.0, [uniform])
    options = {"target": 2.0, "standard": standard}
    assert choose_config(runs, "train_loss", 4.0, target=2.0).lr == 0.4
    assert choose_config(runs, "train_loss", 4.0, **options).lr == 0.3
    stricter = {"target": 2.0, "standard": replace(standard, accuracy=0.95)}
    assert choose_config(runs, "train_loss", 4.0, **stricter).lr == 0.1  # uniform's own, which nothing is asked of
    elsewhere = {"target": 2.0, "standard": replace(standard, accuracy=0.95, configs=[replace(uniform, batch_size=16)])}
    assert choose_config(runs, "train_loss", 4.0, **elsewhere).lr == 0.4  # where none keeps it, the first
    at_once = {"target": 2.0, "standard": replace(standard, moment=1.5)}
    assert choose_config(runs, "train_loss", 1.5, **at_once).lr == 0.4  # after 1.5 s its accuracy is still 0.95


def test_an_accuracy_that_is_no_number_is_not_kept():
    standard, other = Standard(0.8, 1.0, [CONFIG]), replace(CONFIG, lr=0.5)
    for accuracy, keeps in ((0.9, True), (0.7, False), (math.nan, False)):
        run = curves(seconds=[0, 1], validation_accuracy=[0, accuracy])
        assert standard.keeps(other, [run]) == keeps
        assert standard.keeps(CONFIG, [run])


def test_a_further_seed_is_for_the_best_third_of_each_batch_size():
    runs = {
        replace(CONFIG, lr=lr, batch_size=size): [curves(seconds=[0, 1], train_loss=[9, abs(lr - 5) + size])]
        for lr in range(12)
        for size in (32, 128)
    }
    kept = best_of_each_size(runs, 1 / 3, "train_loss", None)
    assert {(c.batch_size, c.lr) for c in kept} == {(size, lr) for size in (32, 128) for lr in (3, 4, 5, 6)}
    few = {c: found for c, found in runs.items() if c.lr < 5}
    assert {c.lr for c in best_of_each_size(few, 1 / 3, "train_loss", None)} == {2, 3, 4}
    assert {c.lr for c in best_of_each_size(runs, 0.0, "train_loss", None)} == {4, 5, 6}


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_of_two_seeds_on_those_who_keep_the_standard_are_tried_further(num_seeds):
    """Losses rise with the rate and accuracy, too; uniform draws' own rate is the largest, and is kept at any time."""
    runs = {
        replace(CONFIG, lr=lr): num_seeds
        * [curves(seconds=[0, 1], train_loss=[9, lr], validation_accuracy=[0, lr / 10])]
        for lr in range(10)
    }
    standard = Standard(0.45, 1.0, [replace(CONFIG, lr=9)])
    kept = {c.lr for c in best_of_each_size(runs, 0.0, "train_loss", standard)}
    assert kept == ({0, 1, 2, 9} if num_seeds == 1 else {5, 6, 7, 9})
