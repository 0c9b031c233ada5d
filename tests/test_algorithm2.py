"""The whole of Algorithm 2: loader, sampler, scorer and optimizer together against the reference."""

import numpy as np
import pytest
import torch

import dasgrad
import helpers
from dasgrad import reference

N, BATCH, NUM_STEPS, INTERVAL = 12, 3, 40, 4


def sampler_uniforms(seed: int, stratified: str) -> list[list[float]]:
    """The uniforms that the sampler's own generator will give, step by step."""
    twin = dasgrad.AdaptiveSampler(N, BATCH, seed=seed, stratified=stratified)
    rows = []

    def record(u: torch.Tensor, *, stratified: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Of one batch, or of several made ahead, which are then stratified already."""
        assert len(u) == BATCH or not stratified
        rows.extend(((torch.arange(len(u)) + u) / BATCH if stratified else u).reshape(-1, BATCH).tolist())
        return torch.zeros(len(u), dtype=torch.int64), torch.ones(len(u))

    twin._locate_ = record
    for _ in range(NUM_STEPS):
        twin.draw()
    return rows[:NUM_STEPS]


@pytest.mark.parametrize("moments", helpers.MOMENTS)
@pytest.mark.parametrize("weighting", helpers.WEIGHTINGS)
@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
@pytest.mark.parametrize("stratified", ["none", "batch", "pass"])
def test_the_library_walks_the_path_of_the_reference(moments, weighting, preconditioner, stratified):
    inputs, targets, model = helpers.regression(N)
    raw = torch.arange(1, N + 1, dtype=torch.float64)
    target, lam, epsilon, kappa = raw / raw.sum(), 0.2, 0.01, 0.05
    x, y = inputs.numpy(), targets.numpy()
    phi, psi = reference.MOMENTS[moments]
    run = reference.Algorithm1(
        theta=model.weight.detach().numpy()[0].copy(),
        alpha=lambda t: 0.05 / t**0.5,
        phi=phi,
        psi=psi,
        kappa=kappa,
        weighting=weighting,
        project=helpers.bisected_projection("l2"),
    )
    expected = reference.algorithm2(
        run,
        lambda i, theta: (x[i] @ theta - y[i]) * x[i],
        sampler_uniforms(7, stratified),
        n=N,
        J=INTERVAL,
        epsilon=epsilon,
        lam=lam,
        pi=target.tolist(),
        preconditioner=preconditioner,
    )

    optimizer = dasgrad.DASGrad(
        model.parameters(),
        lr=0.05,
        weight_decay=kappa,
        moments=moments,
        weighting=weighting,
        projection=helpers.PROJECTIONS["l2"],
    )
    scheduler = dasgrad.InverseSqrtLR(optimizer)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer, preconditioner=preconditioner)
    sampler = dasgrad.AdaptiveSampler(
        N, BATCH, target=target, floor=lam, epsilon=epsilon, stratified=stratified, seed=7
    )
    loader = dasgrad.AdaptiveLoader((inputs, targets), sampler=sampler, scorer=scorer, refresh=INTERVAL)
    t = 0
    while t < NUM_STEPS:
        for batch in loader:
            assert batch.indices.tolist() == expected.indices[t]
            np.testing.assert_allclose(batch.weights, expected.weights[t], rtol=1e-9)
            np.testing.assert_allclose(sampler.probabilities, expected.p[t], rtol=1e-9)
            optimizer.zero_grad()
            batch.backward(helpers.squared_losses(model(batch.inputs), batch.targets), optimizer)
            optimizer.step()
            scheduler.step()
            t += 1
            np.testing.assert_allclose(model.weight.detach()[0], expected.theta[t], rtol=1e-9, atol=1e-10)


def test_own_scores_are_the_size_of_the_literal_step():
    """Algorithm 2, B = 1: ‖H^(1/2) step‖ = α w sᵢ for each example, which is what p follows."""
    inputs, targets, _ = helpers.regression(N)
    x, y = inputs.numpy(), targets.numpy()
    phi, psi = reference.MOMENTS["amsgrad"]

    def fresh():
        run = reference.Algorithm1(np.ones(3), lambda t: 0.1, phi, psi, weighting="update", kappa=0.1)
        for i in (3, 5, 1):
            run.step([(x[i] @ run.theta - y[i]) * x[i]], [1.0])
        return run

    for i in range(N):
        run = fresh()
        g_i = (x[i] @ run.theta - y[i]) * x[i]
        s_i = reference.score(run, g_i, "own", momentum=True)
        before = run.theta
        run.step([g_i], [0.7])
        length = np.linalg.norm(np.sqrt(run.metric(run.g)) * (run.theta - before))
        assert length == pytest.approx(0.1 * 0.7 * s_i, rel=1e-12)


def test_sampling_by_the_score_is_optimal_for_its_weighting():
    """No other p on the simplex gives a smaller second moment of w·s; with a target the optimum is ∝ π s."""
    rng = np.random.default_rng(0)
    s, pi = rng.gamma(0.5, size=20), rng.dirichlet(np.ones(20))
    best = pi * s / (pi @ s)

    def second_moment(p):
        return np.sum(p * (pi / p * s) ** 2)

    assert second_moment(best) == pytest.approx((pi @ s) ** 2)
    for _ in range(200):
        mix = rng.uniform(0, 1)
        other = (1 - mix) * best + mix * rng.dirichlet(np.ones(20))
        assert second_moment(other) >= second_moment(best)
