"""When curves of the wall-clock benchmark come down to a target, and how such times compare."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
if not (ROOT / "benchmarks").exists():
    pytest.skip("needs the repository", allow_module_level=True)
sys.path.append(str(ROOT))

from benchmarks.wallclock.crossing import (  # noqa: E402 - the repository comes onto the path above
    Curves,
    compare_means,
    compare_times,
    first_crossings,
    values_at,
)


def crossing_of(positions, losses, target):
    rows = (np.array([values], dtype=float) for values in (positions, losses))
    (found,) = first_crossings(*rows, np.array([target], dtype=float))
    return found


@pytest.mark.parametrize(
    ("losses", "target", "expected"),
    [
        ([4, 2, 1, 0], 3, 0.5),
        ([4, 2, 1, 0], 2, 1.0),
        ([4, 2, 3, 1], 2.5, 0.75),  # the first crossing counts, although the curve rises again
        ([4, 2, 1, 0], 5, 0.0),  # below from the start
        ([4, 2, 1, 0], -1, math.inf),  # never: infinitely slow, not left out
        ([4, math.nan, 1, 1], 1, 4.0),  # no number is above every target
        ([4, 4, 4, 2], 4, 0.0),
    ],
)
def test_the_first_crossing_lies_on_the_line_between_two_evaluations(losses, target, expected):
    assert crossing_of([0, 1, 4, 5], losses, target) == pytest.approx(expected)


def test_curves_must_fit_together():
    with pytest.raises(ValueError, match="one shape"):
        Curves(np.zeros((2, 3)), np.zeros((2, 4)))
    two, three = (Curves(np.ones((n, 2)), np.ones((n, 2))) for n in (2, 3))
    with pytest.raises(ValueError, match="at least 2, got 2 targets and 2, 3 seeds"):
        compare_times(two, [three], np.ones(2))


def falling(seconds_a_step, seeds):
    """Losses 10 − step + noise of the seed, at steps 0 to 8."""
    steps = np.arange(9.0)
    noise = np.array([np.random.default_rng(seed).normal(0, 0.2) for seed in seeds])
    return Curves(np.tile(seconds_a_step * steps, (len(seeds), 1)), 10 - steps + noise[:, None])


def compare(ours, peer, *others, point=4, **options):
    """To the loss of the peer at a point of its curves."""
    return compare_times(ours, (peer, *others), peer.losses[:, point], **options)


def test_a_method_twice_as_fast_takes_half_the_time_whatever_seeds_have_in_common():
    found = compare(falling(0.5, range(10)), falling(1.0, range(10)))
    assert (found.ours, found.peer, found.ratio) == pytest.approx((2.0, 4.0, 0.5))
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))  # paired: nothing is left of the noise
    assert not found.at_most


def test_a_sooner_configuration_of_the_peer_counts():
    """Its time, to the target that the first one sets; a later one changes nothing."""
    ours, peer, sooner, later = (falling(speed, range(10)) for speed in (0.5, 1.0, 0.8, 2.0))
    alone = compare(ours, peer)
    found = compare(ours, peer, sooner)
    assert found.ours == alone.ours
    assert found.ratio == pytest.approx(alone.ratio / 0.8, rel=0.05)
    assert compare(ours, peer, later) == alone


def test_other_seeds_show_what_chance_does():
    found = compare(falling(1.0, range(100, 110)), falling(1.0, range(10)))
    assert found.low < 1 < found.high
    assert found.low > 0.8
    assert found.high < 1.2


def test_a_method_that_never_crosses_is_infinitely_slow():
    flat = falling(1.0, range(10))
    found = compare(never := Curves(flat.seconds, np.full_like(flat.losses, 9.0)), flat)
    assert (found.ours, found.ratio, found.low, found.high) == (math.inf,) * 4
    neither = compare_times(never, [never], flat.losses[:, 4])
    assert (neither.ratio, neither.low, neither.high) == (math.inf,) * 3


def test_an_interval_may_end_at_infinity():
    losses = np.array([[10.0, 0.0]] * 5 + [[10.0, 8.5]] * 5)
    seconds = np.tile([0.0, 1.0], (10, 1))
    found = compare(Curves(seconds, losses), Curves(seconds, np.tile([10.0, 4.0], (10, 1))), point=1)
    assert found.high == math.inf
    assert found.low < found.ratio


def test_budgets_are_interpolated_in_their_logarithm():
    """Losses 3 − log₂(budget): ours, one lower everywhere, needs half the budget."""
    seconds = np.tile([1.0, 2.0, 4.0], (5, 1))
    uniform = 3 - np.log2(seconds)
    found = compare(Curves(seconds, uniform - 0.5), Curves(seconds, uniform), point=1, log=True)
    assert found.ratio == pytest.approx(2**-0.5)
    bound = compare(Curves(seconds, uniform - 1.5), Curves(seconds, uniform), point=1, log=True)
    assert bound.ratio == pytest.approx(0.5)
    assert bound.at_most
    assert compare(Curves(seconds, uniform + 1.5), Curves(seconds, uniform), point=1, log=True).ratio == math.inf


def test_values_at_equal_time_stop_where_a_run_ended():
    seconds, values = np.array([[0.0, 2.0], [0.0, 1.0]]), np.array([[4.0, 2.0], [4.0, 2.0]])
    assert values_at(seconds, values, 1.5).tolist() == [2.5, 2.0]
    difference, low, high = compare_means(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0]))
    assert (difference, low, high) == pytest.approx((1, 1, 1))
