"""What scoring takes, told from a few chunks that grow."""

import pytest

from dasgrad.training.trials import Trial, try_out


def note(seconds_of):
    sizes = []

    def time_scores(size):
        sizes.append(size)
        return seconds_of(size)

    return sizes, time_scores


def test_both_parts_are_told_apart():
    sizes, time_scores = note(lambda size: 3.0 + 0.25 * size)
    found = try_out(time_scores, 10_000, 1.0)
    assert sizes == [64, 64, 64, 512, 512]
    assert (found.once, found.each) == pytest.approx((3.0, 0.25))
    assert found.seconds(1000, 300) == pytest.approx(4 * 3.0 + 250)


def test_trials_stay_short_where_they_can_and_large_enough_to_see():
    sizes, time_scores = note(lambda size: 1e-3 * size)
    try_out(time_scores, 10_000, 1.0)
    assert sizes == [64, 64, 64, 512, 512]
    sizes, time_scores = note(lambda size: 1e-3 * size)
    try_out(time_scores, 300, 1.0)
    assert sizes == [64, 64, 64, 300, 300]


def test_an_example_is_never_free():
    _, time_scores = note(lambda size: 50.0 - 1e-4 * size)
    assert try_out(time_scores, 1000, 1.0).each > 0


def test_a_clock_that_runs_backwards_does_no_harm():
    _, time_scores = note(lambda size: -1.0)
    assert try_out(time_scores, 1000, 1.0) == Trial(0.0, 0.0)


def test_one_example():
    sizes, time_scores = note(lambda size: 2.0)
    assert try_out(time_scores, 1, 1.0).seconds(1, 1) == pytest.approx(2.0)
    assert sizes == [1, 1, 1]


def test_a_compiler_at_work_is_not_what_scoring_takes():
    compiled = set()

    def seconds_of(size):
        first = size not in compiled
        compiled.add(size)
        return 3.0 + 0.25 * size + (1e4 if first else 0.0)

    sizes, time_scores = note(seconds_of)
    found = try_out(time_scores, 10_000, 1.0)
    assert sizes == [64, 64, 64, 512, 512]
    assert (found.once, found.each) == pytest.approx((3.0, 0.25))


@pytest.mark.parametrize("paused", [1, 2, 3, 4])
def test_a_pause_is_not_multiplied_with_all_examples(paused):
    """Another program has the core for 5 ms in one of the calls that tell the price of 60,000."""
    calls = []

    def seconds_of(size):
        calls.append(size)
        return 5e-4 + 5e-7 * size + (5e-3 if len(calls) - 1 == paused else 0.0)

    found = try_out(seconds_of, 16_384, 1e-4)
    assert found.seconds(60_000, 16_384) == pytest.approx(4 * 5e-4 + 60_000 * 5e-7)


@pytest.mark.parametrize("jump", [1, 2, 3, 4])
def test_a_clock_that_jumps_back_in_one_call_does_no_harm(jump):
    calls = []

    def seconds_of(size):
        calls.append(size)
        return -1e9 if len(calls) - 1 == jump else 3.0 + 0.25 * size

    assert try_out(seconds_of, 10_000, 1.0) == Trial(pytest.approx(3.0), pytest.approx(0.25))
