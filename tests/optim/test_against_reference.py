"""Every path of the optimizer against the paper's algorithm, step by step, on the same recorded gradients."""

import functools

import numpy as np
import pytest
import torch

import dasgrad
import helpers
from dasgrad import reference

NUM_STEPS, BATCH, DIM = 100, 3, 5
ALPHA = 0.05


def recorded(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gradients [T, B, d], a few coordinates silent at first, and positive weights [T, B]."""
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(NUM_STEPS, BATCH, DIM)) * np.exp(rng.normal(size=DIM))
    gradients[:10, :, 0] = 0.0
    return gradients, rng.gamma(2.0, 0.5, size=(NUM_STEPS, BATCH))


@functools.cache
def reference_path(moments, weighting, projection="none", *, kappa=0.1, eps=1e-8, beta2=0.99, decay=False):
    """θ after each step of the reference, [T, d]."""
    phi, psi = reference.MOMENTS[moments]
    run = reference.Algorithm1(
        theta=np.linspace(-1, 1, DIM),
        alpha=lambda t: ALPHA / t**0.5,
        phi=phi,
        psi=psi,
        beta1=(lambda t: 0.9 / t) if decay else (lambda t: 0.9),
        beta2=beta2,
        eps=eps,
        kappa=kappa,
        weighting=weighting,
        project=helpers.bisected_projection(projection),
    )
    path = []
    for gradients, weights in zip(*recorded(), strict=True):
        run.step(list(gradients), list(weights))
        path.append(run.theta)
    return np.stack(path)


def set_gradients(optimizer, params, gradients, weights) -> None:
    """Hand one recorded batch to the optimizer, as its weighting asks for; parameters are slices of d."""
    plain, weighted = gradients.mean(0), (weights[:, None] * gradients).mean(0)
    ends = np.cumsum([p.numel() for p in params])[:-1]

    def cut(vector):
        parts = zip(np.split(vector, ends), params, strict=True)
        return [torch.from_numpy(part).reshape(p.shape).clone() for part, p in parts]

    seen = plain if optimizer.weighting == "update" else weighted
    for p, grad in zip(params, cut(seen), strict=True):
        p.grad = grad
    if optimizer.weighting == "update":
        optimizer.accumulate_update_grads(cut(weighted), float(weights.mean()))


def assert_follows(path, optimizer, params, *, after_step=lambda: None, tolerance=1e-10) -> None:
    gradients, weights = recorded()
    scheduler = dasgrad.InverseSqrtLR(optimizer)
    for t in range(NUM_STEPS):
        set_gradients(optimizer, params, gradients[t], weights[t])
        optimizer.step()
        scheduler.step()
        after_step()
        flat = torch.cat([p.detach().flatten() for p in params]).numpy()
        np.testing.assert_allclose(flat, path[t], rtol=tolerance, atol=tolerance, err_msg=f"step {t + 1}")


PATHS = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "default": {},
}


def fused_exists(moments: str, weighting: str) -> bool:
    return moments in ("adam", "amsgrad") and weighting == "gradient"


CASES = [
    (path, moments, weighting)
    for path in PATHS
    for moments in helpers.MOMENTS
    for weighting in helpers.WEIGHTINGS
    if path != "fused" or fused_exists(moments, weighting)
]


@pytest.mark.parametrize("projection", helpers.PROJECTIONS)
@pytest.mark.parametrize(("path", "moments", "weighting"), CASES)
def test_every_path_equals_the_reference(path, moments, weighting, projection):
    expected = reference_path(moments, weighting, projection)
    param = torch.nn.Parameter(torch.linspace(-1, 1, DIM, dtype=torch.float64))
    optimizer = dasgrad.DASGrad(
        [param],
        lr=ALPHA,
        weight_decay=0.1,
        moments=moments,
        weighting=weighting,
        projection=helpers.PROJECTIONS[projection],
        **PATHS[path],
    )
    assert_follows(expected, optimizer, [param])


@pytest.mark.parametrize("path", ["loop", "foreach"])
@pytest.mark.parametrize("moments", helpers.MOMENTS)
@pytest.mark.parametrize("weighting", helpers.WEIGHTINGS)
def test_zero_over_zero_is_zero_without_eps(path, moments, weighting):
    expected = reference_path(moments, weighting, kappa=0.0, eps=0.0)
    param = torch.nn.Parameter(torch.linspace(-1, 1, DIM, dtype=torch.float64))
    optimizer = dasgrad.DASGrad([param], lr=ALPHA, eps=0.0, moments=moments, weighting=weighting, **PATHS[path])
    assert_follows(expected, optimizer, [param])


@pytest.mark.parametrize("path", ["loop", "foreach"])
@pytest.mark.parametrize("weighting", helpers.WEIGHTINGS)
def test_decaying_beta1_equals_the_reference(path, weighting):
    expected = reference_path("amsgrad", weighting, decay=True)
    param = torch.nn.Parameter(torch.linspace(-1, 1, DIM, dtype=torch.float64))
    optimizer = dasgrad.DASGrad([param], lr=ALPHA, weight_decay=0.1, weighting=weighting, **PATHS[path])
    decay = dasgrad.Beta1Decay(optimizer)
    assert_follows(expected, optimizer, [param], after_step=decay.step)


@pytest.mark.parametrize("path", PATHS)
def test_several_tensors_and_a_tensor_lr(path):
    expected = reference_path("amsgrad", "gradient")
    whole = torch.linspace(-1, 1, DIM, dtype=torch.float64)
    params = [torch.nn.Parameter(whole[:2].clone()), torch.nn.Parameter(whole[2:].clone().reshape(3, 1))]
    lr = torch.tensor(ALPHA, dtype=torch.float64)
    optimizer = dasgrad.DASGrad(params, lr=lr, weight_decay=0.1, **PATHS[path])
    assert_follows(expected, optimizer, params)


class HalfSquares(dasgrad.moments.Moments):
    """A pair of a user's own: plain direction, ψ = ½v + ½g²."""

    keys = ("second",)

    def advance(self, state, grad, hyper):
        return {"second": 0.5 * state["second"] + 0.5 * grad.square()}

    def psi(self, state, hyper):
        return state["second"]


@pytest.mark.parametrize("weighting", helpers.WEIGHTINGS)
def test_own_moments_object_equals_the_same_pair_in_the_reference(weighting):
    expected = reference_path("rmsprop", weighting, beta2=0.5)
    param = torch.nn.Parameter(torch.linspace(-1, 1, DIM, dtype=torch.float64))
    optimizer = dasgrad.DASGrad([param], lr=ALPHA, weight_decay=0.1, moments=HalfSquares(), weighting=weighting)
    assert_follows(expected, optimizer, [param])


@pytest.mark.parametrize("moments", helpers.MOMENTS)
def test_recursions_equal_the_sums_of_the_paper(moments):
    """φ and ψ of the reference take the whole history; `advance` must carry the same."""
    phi, psi = reference.MOMENTS[moments]
    pair = dasgrad.moments.resolve(moments)
    rng = np.random.default_rng(3)
    history = []
    state = pair.init_state(torch.zeros(DIM, dtype=torch.float64))
    for t in range(1, 21):
        history.append(rng.normal(size=DIM))
        hyper = dasgrad.moments.Hyper(0.9, 0.99, 1e-8, float(t), False)
        g = torch.from_numpy(history[-1])
        state = pair.advance(state, g, hyper)
        np.testing.assert_allclose(pair.phi(state, g, hyper), phi(history, [0.9] * t), rtol=1e-12)
        v = np.broadcast_to(pair.psi(state, hyper).numpy(), DIM)
        np.testing.assert_allclose(v, psi(history, 0.99), rtol=1e-12)
