"""Regret over seeds, sub-linearity, and the methods that fail: Adam, and literal weighting with constant β₁."""

import numpy as np
import pytest
from scipy import stats

from dasgrad import theory
from dasgrad.theory import Scheme
from theory.convex import linear_model, lines, start_of, vector


@pytest.mark.parametrize("freedom", [1, 2, 3, 9, 19, 100])
def test_quantiles_of_t(freedom):
    for level in (0.025, 0.5, 0.8, 0.95, 0.975, 0.999):
        assert theory.t_quantile(level, freedom) == pytest.approx(stats.t.ppf(level, freedom), rel=1e-9, abs=1e-12)


def test_estimates_and_fits():
    values = [1.0, 2.0, 4.0, 8.0]
    found = theory.estimate(values)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 3, np.mean(values), stats.sem(values)))
    assert found.mean < found.upper_limit < found.high
    steps = np.arange(1.0, 501.0)
    assert theory.fit_exponent(steps, 7 * steps**0.7) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="at least 2 seeds"):
        theory.estimate([1.0])
    with pytest.raises(ValueError, match="must have 3 points in the last decade, got 1"):
        theory.fit_exponent(np.array([1.0, 100.0]), np.ones(2))
    with pytest.raises(ValueError, match=r"must be positive there, got -1\.0"):
        theory.fit_exponent(steps, -np.ones(500))
    with pytest.raises(ValueError, match=r"level=\.\.\.\)` must be in \(0, 1\), got 1"):
        theory.t_quantile(1, 3)
    with pytest.raises(ValueError, match=r"freedom=\.\.\.\)` must be at least 1, got 0"):
        theory.t_quantile(0.9, 0)


def test_mean_over_seeds_agrees_with_the_enumeration():
    problem, scheme = lines([3.0, -1.0, -1.0], -1.0, 1.0), Scheme("sgd", alpha=0.3, adaptive=True, floor=0.5)
    exact = theory.enumerate_draws(problem, scheme, vector(0.2), 5).get("regret")[-1]
    runs = [theory.follow(problem, scheme, vector(0.2), 5, seed) for seed in range(60)]
    found = theory.expected_regret(runs)
    assert found.low - 0.05 <= exact <= found.high + 0.05


@pytest.mark.parametrize(
    "scheme", [Scheme("sgd", alpha=0.1), Scheme("amsgrad", "update", 0.3, 0.9, 1.0, adaptive=True)]
)
def test_regret_is_sub_linear_where_the_theorem_promises_it(scheme):
    problem = linear_model("logistic", 20, 3, 6)
    runs = [theory.follow(problem, scheme, start_of(problem), 300, seed) for seed in range(4)]
    slopes = theory.estimate([theory.fit_exponent(run.steps, run.get("regret")) for run in runs])
    assert slopes.high < 1


def mean_regrets(problem, scheme, num_steps, seed=0):
    """R(t)/t after a hundredth, a tenth and all of the steps, from 0."""
    walk, total, found = theory.Walk(problem, scheme, vector(0.0), seed), 0.0, []
    for t in range(1, num_steps + 1):
        total += float(problem.excess(walk.theta.detach()))
        walk.take_steps(1)
        if t in (num_steps // 100, num_steps // 10, num_steps):
            found.append(total / t)
    return found


@pytest.mark.parametrize(
    ("moments", "adaptive", "fails"), [("adam", False, True), ("amsgrad", False, False), ("amsgrad", True, False)]
)
def test_adam_fails_where_amsgrad_and_dasgrad_do_not(moments, adaptive, fails):
    """Slopes 3, −1, −1 on [−1, 1], β = (0, 0.1), α = 0.5, 20,000 steps: the worst R/T there can be is 2/3."""
    scheme = Scheme(moments, alpha=0.5, beta1=0.0, beta2=0.1, adaptive=adaptive)
    found = mean_regrets(lines([3.0, -1.0, -1.0], -1.0, 1.0), scheme, 20_000)
    if fails:
        assert min(found) > 0.55
    else:
        assert found[2] < 0.01
        assert found[0] > 2 * found[1] > 4 * found[2]


def test_adaptive_draws_do_not_cure_adam():
    options = {"alpha": 0.5, "beta1": 0.0, "beta2": 0.1, "adaptive": True}
    problem = lines([3.0, -1.0, -1.0], -1.0, 1.0)
    assert mean_regrets(problem, Scheme("adam", **options), 2000)[2] > 0.3
    assert mean_regrets(problem, Scheme("amsgrad", **options), 2000)[2] < 0.03


STEEP = lines([-50.0, *[1.0] * 99], -1.0, 1.0)


def test_literal_weighting_with_constant_beta1_has_linear_regret():
    """One −50θ among 99 of θ: the regret is twice 0.49 at every step once the wrong end is reached."""
    found = mean_regrets(STEEP, Scheme("amsgrad", "update", 2.0, adaptive=True), 2500)
    assert found[0] > 0.9
    assert found[2] > 0.97


@pytest.mark.parametrize(
    "scheme",
    [
        Scheme("amsgrad", "update", 2.0, beta1_power=1.0, adaptive=True),
        Scheme("amsgrad", "gradient", 2.0, adaptive=True),
    ],
)
def test_falling_beta1_and_weighted_gradients_cure_it(scheme):
    found = mean_regrets(STEEP, scheme, 2500)
    assert found[2] < 0.3 * found[0]
