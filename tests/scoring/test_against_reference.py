"""Scores against the paper's formula on the whole history of gradients, step by step."""

import numpy as np
import pytest
import torch

import dasgrad
import helpers
from dasgrad import reference
from scoring import problems

DECAYS = {
    "none": {},
    "coupled": {"weight_decay": 0.3},
    "decoupled": {"weight_decay": 0.3, "decoupled_weight_decay": True},
}
EPS = 1e-8


def step(optimizer, run, gradients, rows, weights) -> None:
    """One optimizer step on the drawn rows, and the same gradients into the reference's history."""
    weights_B = torch.tensor(weights, dtype=torch.float64)
    mean = {name: g[rows].mean(0) for name, g in gradients.items()}
    weighted = {name: torch.einsum("b,b...->...", weights_B, g[rows]) / len(rows) for name, g in gradients.items()}
    params = optimizer.param_groups[0]["params"]
    for param, name in zip(params, gradients, strict=True):
        param.grad = (mean if optimizer.weighting == "update" else weighted)[name].clone()
    if optimizer.weighting == "update":
        optimizer.accumulate_update_grads(list(weighted.values()), float(weights_B.mean()))
    run.step(list(problems.flat(gradients)[rows]), weights)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("weighting", helpers.WEIGHTINGS)
@pytest.mark.parametrize("moments", helpers.MOMENTS)
def test_scores_equal_the_reference_before_and_after_steps(moments, weighting, decay):
    inputs, targets = problems.classification()
    model = problems.network()
    optimizer = dasgrad.DASGrad(
        model.parameters(), lr=0.05, eps=EPS, moments=moments, weighting=weighting, **DECAYS[decay]
    )
    phi, psi = reference.MOMENTS[moments]
    kappa = 0.3 if decay == "coupled" else 0.0
    run = reference.Algorithm1(np.zeros(26), lambda t: 0.05, phi, psi, eps=EPS, kappa=kappa, weighting=weighting)
    for t in range(4):
        gradients = problems.pair_gradients(model, inputs, targets)
        run.theta = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
        for preconditioner in ("own", "frozen"):
            for momentum in (None, True, False):
                scorer = dasgrad.ExampleScorer(
                    model, problems.cross_entropy, optimizer, preconditioner=preconditioner, momentum=momentum
                )
                in_force = weighting == "update" if momentum is None else momentum
                assert scorer.momentum == in_force
                expected = [reference.score(run, g, preconditioner, in_force) for g in problems.flat(gradients)]
                np.testing.assert_allclose(
                    scorer(inputs, targets).numpy(),
                    expected,
                    rtol=1e-10,
                    err_msg=f"step {t}, {preconditioner}, momentum {momentum}",
                )
        step(optimizer, run, gradients, [t, (2 * t + 1) % 6], [0.5, 1.75])


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
def test_sgd_scores_are_gradient_norms_before_any_step(preconditioner):
    inputs, targets = problems.classification()
    model = problems.network()
    optimizer = dasgrad.DASGrad(model.parameters(), moments="sgd", eps=EPS)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner=preconditioner)
    expected = problems.norms(problems.pair_gradients(model, inputs, targets)) / (1 + EPS) ** 0.5
    torch.testing.assert_close(scorer(inputs, targets), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
@pytest.mark.parametrize("moments", helpers.MOMENTS)
def test_zero_over_zero_is_zero_without_eps(moments, preconditioner):
    """A coordinate no gradient has touched has H = 0 and adds nothing."""
    inputs, targets = problems.classification()
    inputs[:, 0] = 0.0
    model = problems.network()
    optimizer = dasgrad.DASGrad(model.parameters(), eps=0.0, moments=moments)
    problems.train(model, optimizer, inputs, targets)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner=preconditioner)
    scores = scorer(inputs, targets)
    assert torch.isfinite(scores).all()
    assert (scores > 0).all()


@pytest.mark.parametrize("momentum", [True, False])
@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=0.05),
        lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True),
        lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.3, betas=(0.5, 0.9), eps=1e-3),
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.05), amsgrad=True, foreach=False),
        lambda p: dasgrad.DASGrad(p, lr=0.05, moments="amsgrad", bias_correction=True),
        lambda p: dasgrad.DASGrad(p, lr=0.05, moments="adam", bias_correction=True, weight_decay=0.3),
    ],
    ids=["adam", "adam-amsgrad", "adam-l2", "adamw", "adamw-amsgrad", "dasgrad-corrected", "dasgrad-corrected-l2"],
)
def test_adams_own_metric_is_read_with_its_bias_correction(make, preconditioner, momentum):
    """H = √v̂/√(1−β₂ᵗ) + eps, by hand from the optimizer's state."""
    inputs, targets = problems.classification()
    inputs[:, 0] *= torch.tensor([3.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    model = problems.network()
    optimizer = make(model.parameters())
    problems.train(model, optimizer, inputs[:1], targets[:1], steps=2)  # v falls afterwards: v̂ is not v
    problems.train(model, optimizer, inputs[3:], targets[3:], steps=2)
    (group,) = optimizer.param_groups
    (beta1, beta2), eps = group["betas"], group["eps"]
    decoupled = isinstance(optimizer, torch.optim.AdamW)
    kappa = 0.0 if decoupled else group["weight_decay"]
    ams = group.get("amsgrad") or group.get("moments") == "amsgrad"
    total = torch.zeros(6, dtype=torch.float64)
    gradients = problems.pair_gradients(model, inputs, targets)
    for param, g in zip(group["params"], gradients.values(), strict=True):
        state = optimizer.state[param]
        t = float(state["step"])
        assert t == 4
        seen = g + kappa * param.detach()
        v_ahead = beta2 * state["exp_avg_sq"] + (1 - beta2) * seen**2
        if preconditioner == "own":
            v = torch.maximum(state["max_exp_avg_sq"], v_ahead) if ams else v_ahead
            metric = v.sqrt() / (1 - beta2 ** (t + 1)) ** 0.5 + eps
        else:
            v = state["max_exp_avg_sq"] if ams else state["exp_avg_sq"]
            metric = v.sqrt() / (1 - beta2**t) ** 0.5 + eps
        direction = beta1 * state["exp_avg"] + (1 - beta1) * seen if momentum else g
        total += (direction**2 / metric).reshape(6, -1).sum(1)
    scorer = dasgrad.ExampleScorer(
        model, problems.cross_entropy, optimizer, preconditioner=preconditioner, momentum=momentum
    )
    torch.testing.assert_close(scorer(inputs, targets), total.sqrt(), rtol=1e-10, atol=0)


class HalfSquares(dasgrad.moments.Moments):
    """A pair of a user's own: plain direction, ψ = ½v + ½g²."""

    keys = ("second",)

    def advance(self, state, grad, hyper):
        return {"second": 0.5 * state["second"] + 0.5 * grad.square()}

    def psi(self, state, hyper):
        return state["second"]


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
def test_own_moments_object_equals_the_same_pair_by_name(preconditioner):
    inputs, targets = problems.classification()
    scores = []
    for options in ({"moments": HalfSquares()}, {"moments": "rmsprop", "betas": (0.9, 0.5)}):
        model = problems.network()
        optimizer = dasgrad.DASGrad(model.parameters(), lr=0.05, **options)
        problems.train(model, optimizer, inputs, targets)
        scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner=preconditioner)
        scores.append(scorer(inputs, targets))
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-10, atol=0)
    assert scores[0].std() > 0
