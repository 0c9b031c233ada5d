"""Lemma 2 in rational arithmetic and in float64, the optimal probabilities, and the projection lemma."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dasgrad import theory
from dasgrad.theory import Scheme
from dasgrad.theory.ahead import dual_square_norm, look_ahead, own_directions, score_all
from helpers import PROJECTIONS
from theory.convex import linear_model, start_of

positive = st.fractions(Fraction(1, 1000), Fraction(1000), max_denominator=1000)
scores_and_shares = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.fractions(0, 100, max_denominator=100), min_size=n, max_size=n),
        st.lists(positive, min_size=n, max_size=n),
        st.lists(positive, min_size=n, max_size=n),
    )
)


def normalised(values):
    total = sum(values)
    return [value / total for value in values]


@given(scores_and_shares)
def test_lemma_2_is_an_identity_of_rational_numbers(drawn):
    """Σπ²s²/p − (Σπs)² = Σp(πs/p − Σπs)², exactly."""
    s, p, pi = drawn[0], normalised(drawn[1]), normalised(drawn[2])
    mean = sum(a * b for a, b in zip(pi, s, strict=True))
    excess = theory.excess_second_moment(s, p, pi)
    assert theory.second_moment(s, p, pi) - mean**2 == excess >= 0
    best = theory.optimal_probabilities(s, pi)
    assert theory.second_moment(s, best, pi) == mean**2
    # E‖g‖² − Var‖g‖ is the same number, and uniform draws lose exactly the variance.
    assert sum(a * b * b for a, b in zip(pi, s, strict=True)) - theory.score_variance(s, pi) == mean**2
    assert theory.excess_second_moment(s, pi, pi) == theory.score_variance(s, pi)


@given(scores_and_shares)
def test_lemma_2_in_float64(drawn):
    s, p, pi = ([float(x) for x in own] for own in (drawn[0], normalised(drawn[1]), normalised(drawn[2])))
    mean = sum(a * b for a, b in zip(pi, s, strict=True))
    left = theory.second_moment(s, p, pi)
    assert left == pytest.approx(mean**2 + theory.excess_second_moment(s, p, pi), rel=1e-12)
    if mean > 0:
        best = theory.optimal_probabilities(s, pi)
        assert theory.second_moment(s, best, pi) == pytest.approx(mean**2, rel=1e-12)
        assert left >= mean**2 * (1 - 1e-12)


def test_no_other_p_on_the_simplex_does_better():
    """p̂ ∝ π s, against random points, every vertex direction, and p ∝ s, which forgets the target."""
    rng = np.random.default_rng(0)
    s, pi = rng.gamma(0.5, size=8), rng.dirichlet(np.ones(8))
    best = np.array(theory.optimal_probabilities(s, pi))
    least = theory.second_moment(s, best, pi)
    others = [0.9 * best + 0.1 * rng.dirichlet(np.ones(8)) for _ in range(100)]
    others += [0.999 * best + 0.001 * vertex for vertex in np.eye(8)]
    assert all(theory.second_moment(s, p, pi) > least for p in others)
    assert theory.second_moment(s, s / s.sum(), pi) > least


def test_an_example_that_counts_and_is_never_drawn_is_refused():
    with pytest.raises(ValueError, match=r"`second_moment\(probabilities=\.\.\.\)` must be positive where π s is"):
        theory.second_moment([1.0, 2.0], [1.0, 0.0], [0.5, 0.5])
    assert theory.second_moment([1.0, 0.0], [1.0, 0.0], [0.5, 0.5]) == 0.25
    assert theory.optimal_probabilities([0.0, 0.0], [0.5, 0.5]) == [0.5, 0.5]


def after_some_steps(weighting):
    problem = linear_model("squares", 6, 3, 3)
    walk = theory.Walk(problem, Scheme("amsgrad", weighting, alpha=0.2), start_of(problem), 0)
    walk.take_steps(5)
    held = walk.optimizer.state[walk.theta]
    return problem, walk.theta.detach(), {key: held[key] for key in Scheme().pair.keys}


@pytest.mark.parametrize("weighting", ["gradient", "update"])
def test_which_score_is_optimal_for_which_weighting(weighting):
    """The error of a step, in the metric the library scores in, is least for the library's own score."""
    problem, theta, state = after_some_steps(weighting)
    grads, hyper, pi = problem.gradients(theta), Scheme().hyper_at(6), problem.pi
    directions, metric = own_directions(Scheme().pair, state, grads, hyper)
    carried = hyper.beta1 * state["exp_avg"]

    def error(p):
        w = (pi / p)[:, None]
        step = w * directions if weighting == "update" else carried + (1 - hyper.beta1) * w * grads
        middle = p @ step if weighting == "gradient" else 0.0  # β₁m is there for every draw: only the spread counts
        return float(p @ dual_square_norm(step - middle, metric if weighting == "update" else metric[:1]))

    if weighting == "gradient":  # in one metric for all draws, as `preconditioner="frozen"` has it
        best = dual_square_norm(grads, metric[:1]).sqrt()
        other = dual_square_norm(directions, metric[:1]).sqrt()
    else:
        best = score_all(Scheme().pair, weighting, state, grads, hyper)
        other = dual_square_norm(grads, metric).sqrt()
    p = torch.tensor(theory.optimal_probabilities(best.tolist(), pi.tolist()), dtype=torch.float64)
    least = error(p)
    assert least < error(other / other.sum())
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        mixed = 0.95 * p + 0.05 * torch.rand(6, generator=generator, dtype=torch.float64).softmax(0)
        assert error(mixed) >= least * (1 - 1e-12)


def test_update_error_is_the_squared_mean_score_at_the_optimum():
    """E_p̂[w²‖V̂^(−1/4) m‖²] = (E s)² = E s² − Var s, in a state of a real run."""
    problem, theta, state = after_some_steps("update")
    grads, hyper, pi = problem.gradients(theta), Scheme().hyper_at(6), problem.pi
    s = score_all(Scheme().pair, "update", state, grads, hyper)
    p = torch.tensor(theory.optimal_probabilities(s.tolist(), pi.tolist()), dtype=torch.float64)
    ahead = look_ahead(Scheme().pair, "update", theta, state, grads, pi / p, 0.1, hyper, problem.projection)
    error = float(p @ dual_square_norm(ahead.direction, ahead.metric))
    assert error == pytest.approx(float(pi @ s) ** 2, rel=1e-12)
    assert error == pytest.approx(float(pi @ s**2) - theory.score_variance(s.tolist(), pi.tolist()), rel=1e-12)


coordinate = st.floats(-3, 3, allow_subnormal=False)


@pytest.mark.parametrize("name", [name for name in PROJECTIONS if name != "none"])
@given(
    st.lists(st.tuples(coordinate, coordinate, st.one_of(st.just(0.0), st.floats(1e-3, 1e3))), min_size=1, max_size=5)
)
def test_projection_lemma(name, rows):
    """‖M^(1/2)(Πz₁ − Πz₂)‖ ≤ ‖M^(1/2)(z₁ − z₂)‖ for every set of the library, zeros in the metric included."""
    first, second, metric = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    size = math.sqrt(float(metric.max())) * 10
    assert theory.projection_slack(PROJECTIONS[name], first, second, metric) >= -1e-10 * size


def test_projection_lemma_needs_the_metric_of_the_norm():
    """With the Euclidean projection in its place the lemma fails: the test above can fail."""
    ball, metric = PROJECTIONS["l2"], torch.tensor([100.0, 1.0], dtype=torch.float64)

    def euclidean(point, metric):
        return ball(point, torch.ones_like(metric))

    first, second = (torch.tensor(z, dtype=torch.float64) for z in ([0.0, 0.8], [0.0, 3.0]))
    shifted = second + torch.tensor([0.3, 0.0], dtype=torch.float64)
    assert theory.projection_slack(ball, first, shifted, metric) >= 0
    slacks = [
        theory.projection_slack(euclidean, torch.tensor([0.55, y]).double(), torch.tensor([0.55, 3.0]).double(), metric)
        for y in (0.6, 1.0)
    ]
    assert min(slacks) < 0
