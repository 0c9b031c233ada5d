"""The corollaries: derived ones hold, printed ones fail where the errata say so, and some do not apply."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import dasgrad
from dasgrad import projections, theory
from dasgrad.theory import Scheme
from dasgrad.theory.bounds import OWN_DIAMETER, VACUOUS
from theory.convex import linear_model, lines, random_problem, start_of, vector

ADAPTIVE = {"adaptive": True}
FALLING = {"beta1_power": 1.0}
SCHEMES = {
    "1.1": Scheme("sgd", alpha=0.5),
    "2.1": Scheme("sgd", alpha=0.5, **ADAPTIVE),
    "2.1, any p": Scheme("sgd", alpha=2.0, floor=0.5, epsilon=1.0, **ADAPTIVE),
    "Duchi": Scheme("adagrad", alpha=0.5),
    "3.1": Scheme("amsgrad", alpha=0.5, **FALLING),
    "3.1, β₁ = 0": Scheme("amsgrad", alpha=0.5, beta1=0.0, beta2=0.0),
    "3.1, constant β₁": Scheme("amsgrad", alpha=2.0, beta1=0.5, beta2=0.5),
    "4.1": Scheme("amsgrad", "update", alpha=0.5, **FALLING, **ADAPTIVE),
    "4.1, β₁ = 0": Scheme("amsgrad", "update", alpha=0.5, beta1=0.0, beta2=0.0, **ADAPTIVE),
    "4.1, any p": Scheme("amsgrad", "update", alpha=0.5, floor=0.3, eps=1e-3, **FALLING, **ADAPTIVE),
    "4.1, weighted gradients": Scheme("amsgrad", "gradient", alpha=0.5, beta1=0.3, beta2=0.5, **FALLING, **ADAPTIVE),
}


def holds(trajectory, bound):
    return (trajectory.get("regret") <= bound.value * (1 + 1e-12) + 1e-12).all()


@pytest.mark.parametrize("name", SCHEMES)
def test_derived_bound_holds_over_all_trajectories(name):
    for seed in range(30):
        problem = random_problem(seed)
        found = theory.enumerate_draws(problem, SCHEMES[name], start_of(problem, seed), 5)
        bound = theory.bound_of(found)
        assert holds(found, bound), (name, seed)
        # Each term of the theorem is below its own share of the bound.
        for term in ("potential", "momentum", "distance"):
            if term in bound.terms:
                assert (found.get(term) <= bound.terms[term] * (1 + 1e-12) + 1e-12).all(), (name, seed, term)
        error = bound.terms["error"] + bound.terms.get("variance", 0.0)
        assert (found.get("error") <= error * (1 + 1e-12) + 1e-12).all(), (name, seed)


def test_bounds_are_tight_at_the_first_step():
    """f = θ on [0, D] with β = 0 and D = α: regret, theorem and corollary are all D, so nothing can be left out."""
    for name in ("1.1", "2.1", "3.1, β₁ = 0", "4.1, β₁ = 0"):
        scheme = replace(SCHEMES[name], alpha=1.0)
        problem = lines([1.0, 1.0 - 1e-13], 0.0, 1.0) if scheme.adaptive else lines([1.0], 0.0, 1.0)
        found = theory.enumerate_draws(problem, scheme, vector(1.0), 1)
        bound = theory.bound_of(replace(found, uniform=not scheme.adaptive))
        assert bound.value[0] == pytest.approx(1.0)
        assert found.get("regret")[0] == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["1.1", "2.1", "3.1", "4.1", "Duchi"])
def test_mean_regret_is_below_the_derived_bound(name):
    """The one-sided 95 % limit over seeds; nothing is said of a single seed."""
    problem = linear_model("logistic", 20, 4, 2)
    runs = [theory.follow(problem, SCHEMES[name], start_of(problem), 60, seed) for seed in range(10)]
    bound = theory.bound_of(theory.average(runs))
    limit = theory.expected_regret(runs).upper_limit
    assert limit < bound.value[-1], f"slack factor {bound.value[-1] / limit:.3g}"
    assert not bound.vacuous


# --- printed forms that fail: the smallest cases of docs/errata.md -------------------------------------------


def first_failure(trajectory, bound):
    late = np.flatnonzero(trajectory.get("regret") > bound.value * (1 + 1e-9))
    return int(trajectory.steps[late[0]]) if len(late) else None


@pytest.mark.parametrize(("end", "step"), [(1.0, 25), (0.1, 12)])
def test_corollary_2_1_as_printed_lacks_the_factor_of_the_variance(end, step):
    """f = θ and 10⁻³θ, α = 1. At p̂ every draw makes the same step, so this is one trajectory."""
    scheme = Scheme("sgd", alpha=1.0, **ADAPTIVE)
    found = theory.enumerate_draws(lines([1.0, 1e-3], 0.0, end), scheme, vector(end), 30)
    assert first_failure(found, theory.corollary_2_1(found, "printed")) == step
    assert holds(found, theory.corollary_2_1(found))


def test_corollary_2_1_as_printed_lacks_alpha():
    """f = θ on [0, 1], α = 0.01: at T = 2 the regret is 1.99 and the print says 1.62; at 100, 88.1 and 14.5."""
    found = theory.enumerate_draws(lines([1.0], 0.0, 1.0), Scheme("sgd", alpha=0.01), vector(1.0), 100)
    printed = theory.corollary_2_1(found, "printed")
    assert first_failure(found, printed) == 2
    assert found.get("regret")[[1, 99]] == pytest.approx([1.99, 88.125], rel=1e-4)
    assert printed.value[[1, 99]] == pytest.approx([1.6213, 14.5], rel=1e-4)
    assert holds(found, theory.corollary_2_1(found))


def test_corollary_3_1_as_printed_multiplies_potential_and_error():
    """f = θ, −θ/100 and −θ/100 on [0, 0.6], α = 1000, β = 0: every draw jumps to an end, and R(21) = 2.81 > 2.79."""
    scheme = Scheme("amsgrad", alpha=1000.0, beta1=0.0, beta2=0.0)
    found = theory.enumerate_draws(lines([1.0, -0.01, -0.01], 0.0, 0.6), scheme, vector(0.6), 30)
    printed = theory.corollary_3_1(found, "printed")
    assert first_failure(found, printed) == 21
    assert (found.get("regret")[20], printed.value[20]) == pytest.approx((2.8093, 2.7930), abs=1e-4)
    assert holds(found, theory.corollary_3_1(found))


def test_corollary_4_1_as_printed_fails_at_the_first_step():
    """f = 3θ, −θ, −θ on [0, 0.1], α = 0.01, β = 0: the print subtracts Var‖V̂^(1/4) m‖ without a factor."""
    scheme = Scheme("amsgrad", "update", alpha=0.01, beta1=0.0, beta2=0.0, **ADAPTIVE)
    found = theory.enumerate_draws(lines([3.0, -1.0, -1.0], 0.0, 0.1), scheme, vector(0.1), 3)
    printed = theory.corollary_4_1(found, "printed")
    assert first_failure(found, printed) == 1
    assert printed.value[0] < 0 < found.get("regret")[0]
    assert holds(found, theory.corollary_4_1(found))


def test_the_variance_of_4_1_needs_the_inverse_root():
    """With the factor but V̂^(1/4) for V̂^(−1/4), steep slopes make the subtracted term too large by their square."""
    scheme = Scheme("amsgrad", "update", alpha=1.0, beta1=0.0, beta2=0.0, **ADAPTIVE)
    found = theory.enumerate_draws(lines([300.0, -100.0, -100.0], 0.0, 0.01), scheme, vector(0.01), 1)
    derived = theory.corollary_4_1(found)
    assert holds(found, derived)
    half_printed = derived.value - derived.terms["variance"] - found.get("printed_variance") / 2
    assert found.get("regret")[0] > half_printed[0]


def test_the_constant_of_3_1_and_4_1_lost_alpha():
    """Σ α_t β₁ₜ/(2(1−β₁ₜ))‖V̂^(−1/4) m_{t−1}‖² ≤ Gd/(2(1−β₁)³√(1−β₂)(1−γ)) as printed: no α on the right."""
    scheme = Scheme("amsgrad", alpha=100.0, beta1=0.1, beta2=0.5)
    found = theory.enumerate_draws(lines([1.0], -1e4, 0.0), scheme, vector(0.0), 2)
    printed = theory.corollary_3_1(found, "printed").terms["momentum"]
    assert printed[1] == pytest.approx(1.13, abs=0.01)
    assert found.get("momentum")[1] > printed[1]
    assert found.get("momentum")[1] <= theory.corollary_3_1(found).terms["momentum"][1]


def test_moving_average_as_printed_has_beta_to_the_wrong_power():
    """Σ β₁/(2α_t(1−β₁))‖V̂^(1/4)(θ_t−θ*)‖² ≤ D²/(2α(1−β₁)) Σ √t β₁^(T−t) ‖v̂_t^(1/4)‖² as printed, β₁ = 0.9.

    f = θ on [0, 1] with steps so small that θ stays at 1. While V̂ still grows (β₂ = 0.82) the print fails at T = 5;
    were it constant, what is left is Σ 0.9 √t against Σ √t 0.9^(T−t), and T = 4 is enough.
    """
    scheme = Scheme("amsgrad", alpha=1e-9, beta1=0.9, beta2=0.82)
    found = theory.enumerate_draws(lines([1.0], 0.0, 1.0), scheme, vector(1.0), 12)
    printed = theory.corollary_3_1(found, "printed").terms["distance"]
    late = np.flatnonzero(found.get("distance") > printed * (1 + 1e-9))
    assert int(found.steps[late[0]]) == 5
    roots, powers = np.sqrt(np.arange(1, 5)), 0.9 ** np.arange(3, -1, -1)
    assert 0.9 * roots.sum() > (roots * powers).sum()
    assert 0.9 * roots[:3].sum() < (roots[:3] * powers[1:]).sum()


def test_constant_beta1_makes_the_derived_bound_vacuous_and_it_says_so():
    scheme = Scheme("amsgrad", alpha=0.5, beta1=0.5, beta2=0.5)
    found = theory.follow(lines([1.0, 0.5], 0.0, 1.0), scheme, vector(1.0), 400, 0, max_points=400)
    bound = theory.bound_of(found)
    assert bound.vacuous
    assert VACUOUS in bound.remarks
    growth = np.log(bound.terms["distance"][-1] / bound.terms["distance"][99]) / np.log(4)
    assert growth == pytest.approx(1.5, abs=0.05)
    falling = theory.follow(lines([1.0, 0.5], 0.0, 1.0), replace(scheme, beta1_power=1.0), vector(1.0), 50, 0)
    assert not theory.bound_of(falling).vacuous


def test_potential_lemma_needs_beta1_that_does_not_rise():
    """β₁ = 0.9, 0, 0.9 with gradients 1, −1, 20: θ goes 1, 0, 1, 0 on [0, 1], down when 1/(1−β₁ₜ) is large.

    The potential then passes D²√T tr H_T/(2α(1−β₁)), which it does not for β₁ₜ that never rises.
    """
    theta = torch.nn.Parameter(vector(1.0))
    optimizer = dasgrad.DASGrad([theta], lr=1000.0, eps=0.0, projection=projections.Box(0.0, 1.0))
    schedule = dasgrad.InverseSqrtLR(optimizer)
    with theory.record(optimizer, optimum=vector(0.0)) as recorder:
        for beta1, grad in ((0.9, 1.0), (0.0, -1.0), (0.9, 20.0)):
            optimizer.param_groups[0]["betas"] = (beta1, 0.99)
            theta.grad = vector(grad)
            optimizer.step()
            schedule.step()
    found = recorder.trajectory()
    conclusion = 3**0.5 * found.get("metric_trace")[-1] / (2 * 1000.0 * (1 - 0.9))
    assert found.get("potential")[-1] > conclusion
    with pytest.raises(ValueError, match="β₁ that never rises"):
        theory.corollary_3_1(found)


def test_the_claim_that_the_rate_improves_does_not_follow():
    """E‖v̂_T^(1/4)‖² changes with p, too: sampling by score can raise the whole bound above uniform sampling's."""
    problem = lines([1.0, 0.01], 0.0, 1.0)
    options = {"alpha": 0.1, "beta1": 0.0, "beta2": 0.99}
    uniform = theory.enumerate_draws(problem, Scheme("amsgrad", **options), vector(1.0), 6)
    chosen = theory.enumerate_draws(problem, Scheme("amsgrad", "update", **options, **ADAPTIVE), vector(1.0), 6)
    assert chosen.get("metric_trace")[-1] > uniform.get("metric_trace")[-1]
    assert theory.corollary_4_1(chosen).value[-1] > theory.corollary_3_1(uniform).value[-1]


def test_past_draws_came_from_p():
    """f = θ among 300 zeros, β = (0.4, 0.5), T = 2: p̂ draws θ first, its gradient stays in m, and E_n|g| misses it.

    The error itself is then above what 4.1 prints for it, before any variance is subtracted.
    """
    problem = lines([1.0, *[0.0] * 300], 0.0, 1.0)
    scheme = Scheme("amsgrad", "update", alpha=1e-3, beta1=0.4, beta2=0.5, **ADAPTIVE)
    found = theory.enumerate_draws(problem, scheme, vector(1.0), 2)
    assert found.get("error")[-1] > theory.corollary_4_1(found, "printed").terms["error"][-1]
    assert found.get("error")[-1] + found.get("reduction")[-1] < theory.corollary_4_1(found).terms["error"][-1]


# --- where no bound applies ----------------------------------------------------------------------------------


AMSGRAD = Scheme("amsgrad", beta1_power=1.0)


def short_run(scheme=AMSGRAD, projection=None, **options):
    problem = replace(linear_model("squares", 4, 2, 0), projection=projection)
    return theory.follow(problem, scheme, torch.zeros(2, dtype=torch.float64), 5, 0, **options)


def test_missing_curves_are_named():
    found = short_run(projection=projections.Box(-1.0, 1.0))
    bare = replace(found, curves={"regret": found.curves["regret"]})
    with pytest.raises(ValueError, match=r"`corollary_3_1` needs the curves metric_trace, gradient_norms, moment_grad"):
        theory.corollary_3_1(bare)
    with pytest.raises(ValueError, match=r"does not have; it has regret\. `record\(problem=\.\.\.\)` keeps all"):
        bare.get("error")


def test_gamma_of_one_or_more_has_no_bound():
    found = short_run(Scheme("amsgrad", beta1=0.9, beta2=0.5), projections.Box(-1.0, 1.0))
    with pytest.raises(ValueError, match=r"must have γ = β₁/√β₂ in \[0, 1\), got 1.273: the error's geometric"):
        theory.corollary_3_1(found)
    assert math.isinf(short_run(Scheme("amsgrad", beta1=0.9, beta2=0.0), projections.Box(-1.0, 1.0)).gamma)


@pytest.mark.parametrize("projection", [projections.NonNegative(), projections.Box(0.0, math.inf)])
def test_a_set_without_a_diameter_has_no_bound(projection):
    found = short_run(projection=projection)
    with pytest.raises(ValueError, match=r"does not apply\. .*has no diameter D, and no bound that contains D applies"):
        theory.corollary_3_1(found)
    assert theory.corollary_3_1(found, diameter=2.0).value[-1] > 0


def test_an_unconstrained_run_takes_its_own_diameter_and_says_that_this_is_no_proof():
    bound = theory.bound_of(short_run(projection=None))
    assert bound.remarks == (OWN_DIAMETER,)
    assert "not a proof" in OWN_DIAMETER


def test_a_projection_of_ones_own_needs_its_diameter():
    found = short_run(projection=lambda point, metric: point.clamp(-1, 1))
    with pytest.raises(ValueError, match=r"give `diameter` itself"):
        theory.corollary_3_1(found)


def test_bounds_refuse_other_methods_steps_and_forms():
    box = projections.Box(-1.0, 1.0)
    with pytest.raises(ValueError, match="must have moments 'sgd', got 'amsgrad'"):
        theory.corollary_1_1(short_run(projection=box))
    with pytest.raises(ValueError, match="must be drawn from the target"):
        theory.corollary_1_1(short_run(Scheme("sgd", adaptive=True), box))
    with pytest.raises(ValueError, match="must have moments sgd, adagrad or amsgrad, got 'adam'"):
        theory.bound_of(short_run(Scheme("adam"), box))
    with pytest.raises(ValueError, match="must be 'derived', got 'printed'"):
        theory.bound_of(short_run(Scheme("adagrad"), box), "printed")
    with pytest.raises(ValueError, match=r"form=\.\.\.\)` must be 'derived' or 'printed', got 'proved'"):
        theory.bound_of(short_run(Scheme("sgd"), box), "proved")
    with pytest.raises(ValueError, match="must have step sizes α/√t"):
        theory.bound_of(replace(short_run(Scheme("sgd"), box), inverse_sqrt=False))
    with pytest.raises(ValueError, match=r"diameter=\.\.\.\)` must be positive and finite, got -1"):
        theory.bound_of(short_run(Scheme("sgd"), box), diameter=-1)


@pytest.mark.parametrize(
    ("projection", "diameter"),
    [
        (projections.Box(-1.0, torch.tensor([0.5, 2.0])), 3.0),
        (projections.L2Ball(0.4), 0.8),
        (projections.L1Ball(2.0), 4.0),
        (projections.Simplex(), 1.0),
        (None, None),
    ],
)
def test_diameters(projection, diameter):
    assert theory.find_diameter(projection) == diameter


@pytest.mark.parametrize("d", [1, 4])
def test_regret_of_sgd_grows_like_d_and_not_like_its_root(d):
    """f = Σ_h θ_h on [0, 1]^d: the paper says O(√(dT)) in section 5, against its own Corollary 1.1."""
    problem = theory.FiniteSum(
        lambda x: x.sum(-1, keepdim=True),
        lambda x: torch.ones_like(x).unsqueeze(-2),
        torch.zeros(d, dtype=torch.float64),
        1,
        projections.Box(0.0, 1.0),
    )
    found = theory.enumerate_draws(problem, Scheme("sgd", alpha=0.1), torch.ones(d, dtype=torch.float64), 20)
    one = theory.enumerate_draws(lines([1.0], 0.0, 1.0), Scheme("sgd", alpha=0.1), vector(1.0), 20)
    assert found.get("regret")[-1] == pytest.approx(d * one.get("regret")[-1])


def test_lemma_2_needs_the_exact_probabilities():
    """With a floor, or with scores of an earlier step, sampling saves less than the variance; it may even lose."""
    problem = linear_model("squares", 8, 2, 7)
    options = {"alpha": 0.5, "adaptive": True}
    exact = theory.follow(problem, Scheme("sgd", **options), start_of(problem), 10, 0)
    floored = theory.follow(problem, Scheme("sgd", floor=0.5, **options), start_of(problem), 10, 0)
    variances = [np.diff(run.get("variance"), prepend=0.0) / np.sqrt(run.steps) / 4 for run in (exact, floored)]
    assert exact.get("reduction")[-1] == pytest.approx(variances[0].sum(), rel=1e-9)
    assert floored.get("reduction")[-1] < 0.95 * variances[1].sum()
    stale = theory.Walk(problem, Scheme("sgd", alpha=0.5), start_of(problem), 0)
    stale.sampler.refresh([1.0, *[0.001] * 7])  # what somebody once believed
    with theory.record(stale.optimizer, stale.sampler, problem=problem) as recorder:
        stale.take_steps(5)
    assert recorder.trajectory().get("reduction")[-1] < 0
