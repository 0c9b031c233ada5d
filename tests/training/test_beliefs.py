"""What is believed between looks: much from large ones, little from small ones."""

import pytest
import torch

from dasgrad.training.beliefs import (
    FADING,
    MOST_HARM,
    MOST_NOISE,
    PRIOR_EXAMPLES,
    USUAL_AGING,
    USUAL_NOISE,
    AgingBelief,
    Beliefs,
    NoiseBelief,
)

BATCH = 50


def test_noise_is_the_usual_before_anything_is_known():
    assert NoiseBelief().at(BATCH).scale == pytest.approx(USUAL_NOISE * BATCH)


def test_a_large_look_is_believed_and_a_small_one_hardly():
    """The truth is N = 1000, five times the prior; 10⁵ examples know it, 10 do not."""
    large, small = NoiseBelief(), NoiseBelief()
    large.observe(1.0, 1e-3, 100_000)
    small.observe(1.0, 1e-3, 10)
    assert large.at(BATCH).scale == pytest.approx(1000, rel=1e-3)
    assert small.at(BATCH).scale == pytest.approx(USUAL_NOISE * BATCH, rel=0.01)


def test_a_look_as_large_as_the_prior_counts_as_much():
    belief = NoiseBelief()
    usual = int(USUAL_NOISE * BATCH)
    belief.observe(1.0, 3 / usual, usual)
    assert 1 / belief.at(BATCH).scale == pytest.approx(2 / usual)


def test_the_error_that_weights_assume_is_that_of_noise_alone():
    """With μ = 0 and gradients along a line, where errors are largest, ⟨ga, gb⟩/tr Σ has standard deviation 1/m."""
    generator = torch.Generator().manual_seed(0)
    m, num_looks = 16, 20_000
    gradients = torch.randn(num_looks, 2, m, generator=generator, dtype=torch.float64)
    first, second = gradients.mean(2).unbind(1)
    assert float((first * second).std()) == pytest.approx(1 / m, rel=0.03)  # standard error 1 %


def test_older_looks_fade_and_shrinking_gradients_do_not_matter():
    belief = NoiseBelief()
    belief.observe(1e6, 1e5, 10**6)  # N = 10
    belief.observe(1.0, 1e-3, 10**6)  # N = 1000, gradients a thousandth as long
    expected = (FADING * 0.1 + 1e-3) / (FADING + 1)
    assert 1 / belief.at(BATCH).scale == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("mean", [0.0, -1.0])
def test_no_more_noise_is_believed_than_can_be_used(mean):
    belief = NoiseBelief()
    belief.observe(1.0, mean, 10**6)
    assert belief.at(BATCH).scale == pytest.approx(MOST_NOISE * BATCH)


def test_aging_is_averaged_by_the_examples_that_count():
    belief = AgingBelief()
    belief.observe(0.2, 0.6, PRIOR_EXAMPLES)  # half of what was won is lost
    assert belief.share == pytest.approx((USUAL_AGING + 0.5) / 2)
    belief.observe(0.2, 0.2, 1e9)
    assert belief.share == pytest.approx(0.0, abs=1e-6)
    belief.observe(0.2, 1.0, 1e9)  # as uniform draws: all is lost
    assert belief.share == pytest.approx(1.0)
    belief.observe(0.2, 0.1, 1e9)  # better than it was
    assert belief.share == pytest.approx(0.0, abs=1e-6)


def test_aging_over_several_looks_is_that_of_each():
    """Three looks at which half of what is won is lost leave an eighth of it."""
    belief = AgingBelief()
    belief.observe(0.2, 1 - 0.8 / 8, 1e12, looks=3)
    assert belief.share == pytest.approx(0.5)


def test_aging_cannot_be_seen_where_nothing_was_won():
    belief = AgingBelief(0.3)
    belief.observe(1.0, 1.0, 100)
    assert belief.share == 0.3


def test_aging_goes_back_to_the_usual_without_scores():
    belief = AgingBelief(1.0)
    for _ in range(20):
        belief.forget()
    assert belief.share == pytest.approx(USUAL_AGING, abs=1e-5)


@pytest.mark.parametrize(("left", "expected"), [(0.2, 0.6), (1.0, 1.0), (1.5, 1.5)])
def test_what_ages_is_what_was_won(left, expected):
    assert AgingBelief(0.5).age(left) == pytest.approx(expected)


@pytest.mark.parametrize("second_moment", [0.01, 0.5, 0.84, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.15, 1.5])
def test_no_noise_makes_draws_win_more_than_the_most_that_is_believed(second_moment, share):
    beliefs = Beliefs(NoiseBelief(), AgingBelief(share))
    factors = []
    for mean in (10.0, 1.0, 0.1, 0.001, -1.0):
        belief = NoiseBelief()
        belief.observe(1.0, mean, 10**6)
        noise = belief.at(8)
        now = noise.of_second_moment(second_moment)
        factors.append(noise.steps_factor(beliefs.aging.on_average(now)))
    assert min(factors) == factors[-1]
    assert beliefs.least_factor(second_moment, 8) == pytest.approx(factors[-1])


def test_state_round_trip():
    beliefs = Beliefs.usual()
    beliefs.noise.observe(1.0, 0.2, 30)
    beliefs.aging.observe(0.1, 0.4, 30)
    assert Beliefs.from_state_dict(beliefs.state_dict()) == beliefs


def test_scores_that_do_harm_are_seen_to():
    """From a fifth of the noise to 1.6 times as much: all that was won is lost, and three quarters of it again."""
    belief = AgingBelief(share=0.15)
    belief.observe(0.2, 1.6, 10**9)
    assert belief.share == pytest.approx(1.75, rel=1e-6)
    assert belief.age(0.2) == pytest.approx(1.6, rel=1e-6)
    belief.observe(0.9, 2.0, 10**9)
    assert belief.share == pytest.approx(1 + MOST_HARM, rel=1e-6)
