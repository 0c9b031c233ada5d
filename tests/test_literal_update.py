"""`weighting="update"`, Algorithm 2 to the letter, is biased for constant β₁: documented by a test.

One f = −50x against 99 f = +x on [−1, 1]. The mean gradient is (99 − 50)/100 > 0, so the minimum is at −1.
Under p ∝ ‖g‖ the unweighted mean E_p[g] is (−50·50 + 99)/149 < 0. The momentum averages unweighted draws, so
with β₁ = 0.9 the drift is 0.9·E_p[g] + 0.1·E_π[g] < 0 and θ runs to the wrong end, +1.
"""

import pytest
import torch

import dasgrad

SLOPES = torch.tensor([-50.0] + [1.0] * 99, dtype=torch.float64)


def final_point(weighting: str, decay: bool, seed: int, num_steps: int = 5000) -> float:
    theta = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = dasgrad.DASGrad([theta], lr=2.0, weighting=weighting, projection=dasgrad.projections.Box(-1.0, 1.0))
    schedules = [dasgrad.InverseSqrtLR(optimizer), *([dasgrad.Beta1Decay(optimizer)] if decay else [])]
    sampler = dasgrad.AdaptiveSampler(100, 1, floor=0.01, stratified="none", seed=seed)
    sampler.refresh(SLOPES.abs())
    tail = []
    for t in range(num_steps):
        indices, weights = sampler.draw()
        batch = dasgrad.WeightedBatch(SLOPES[indices], indices, weights)
        optimizer.zero_grad()
        batch.backward(batch.data * theta, optimizer)
        optimizer.step()
        for schedule in schedules:
            schedule.step()
        if t >= num_steps - 500:
            tail.append(theta.item())
    return sum(tail) / len(tail)


@pytest.mark.parametrize("seed", range(2))
def test_constant_beta1_ends_at_the_wrong_end(seed):
    assert final_point("update", decay=False, seed=seed) > 0.8


@pytest.mark.parametrize("seed", range(2))
def test_beta1_over_t_ends_at_the_right_one(seed):
    assert final_point("update", decay=True, seed=seed) < -0.8


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("decay", [False, True])
def test_gradient_weighting_ends_at_the_right_one(seed, decay):
    assert final_point("gradient", decay=decay, seed=seed) < -0.8


def test_the_drift_by_enumeration():
    """β₁E_p[g] + (1−β₁)E_π[g]: wrong sign for the literal method, right sign for weighted gradients."""
    sampler = dasgrad.AdaptiveSampler(100, 1, floor=0.01)
    sampler.refresh(SLOPES.abs())
    p, w = sampler.probabilities, sampler.weights
    weighted, unweighted = float(p @ (w * SLOPES)), float(p @ SLOPES)
    assert weighted == pytest.approx(0.49)
    assert 0.9 * unweighted + 0.1 * weighted < 0 < weighted
