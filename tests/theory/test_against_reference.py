"""Theory sees the algorithm the library runs: one step ahead against `dasgrad.reference`, `ExampleScorer` and a run."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import dasgrad
import helpers
from dasgrad import reference, theory
from dasgrad.theory import Scheme
from dasgrad.theory.ahead import score_all
from theory.convex import linear_model, start_of

NAMES = ("sgd", "adagrad", "rmsprop", "adam", "amsgrad")


def as_reference(problem, scheme, start):
    phi, psi = reference.MOMENTS[scheme.moments]
    return reference.Algorithm1(
        start.numpy(),
        scheme.alpha_at,
        phi,
        psi,
        beta1=lambda t: scheme.hyper_at(t).beta1,
        beta2=scheme.beta2,
        eps=scheme.eps,
        weighting=scheme.weighting,
        project=helpers.as_numpy_projection(problem.projection),
    )


@pytest.mark.parametrize("weighting", ["gradient", "update"])
@pytest.mark.parametrize("moments", NAMES)
def test_enumerated_regret_is_that_of_the_specification(moments, weighting):
    """Every sequence of draws by plain loops, each with its probability, against the tree."""
    problem = linear_model("squares", 2, 2, 4)
    scheme = Scheme(moments, weighting, alpha=0.4, beta1_power=0.5, eps=1e-8, adaptive=True, floor=0.2, epsilon=0.1)
    start, pi = start_of(problem), problem.pi.tolist()
    expected = np.zeros(4)
    momentum = weighting == "update"
    for draws in itertools.product(range(2), repeat=4):
        run, probability = as_reference(problem, scheme, start), 1.0
        for t, i in enumerate(draws):
            theta = torch.from_numpy(run.theta)
            expected[t] += probability * float(problem.excess(theta)) / 2 ** (4 - t)
            grads = problem.gradients(theta).numpy()
            scores = [reference.score(run, g, "own", momentum) for g in grads]
            p = reference.probabilities(scores, pi, scheme.epsilon, scheme.floor)
            run.step([grads[i]], [pi[i] / p[i]])
            probability *= p[i]
    found = theory.enumerate_draws(problem, scheme, start, 4)
    np.testing.assert_allclose(found.get("regret"), np.cumsum(expected), rtol=1e-10)


@pytest.mark.parametrize("weighting", ["gradient", "update"])
def test_scores_are_those_of_the_example_scorer(weighting):
    inputs, targets, model = helpers.regression()
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.1, weighting=weighting)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader((inputs, targets), batch_size=4, scorer=scorer, refresh=2)
    for batch in loader:
        optimizer.zero_grad()
        batch.backward(helpers.squared_losses(model(batch.inputs), batch.targets), optimizer)
        optimizer.step()
    theta = model.weight.detach()[0]
    grads = (inputs @ theta - targets)[:, None] * inputs
    held, scheme = optimizer.state[model.weight], Scheme(eps=1e-8)
    state = {key: held[key][0] for key in scheme.pair.keys}
    found = score_all(scheme.pair, weighting, state, grads, scheme.hyper_at(4))
    torch.testing.assert_close(found, scorer(inputs, targets).to(found), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weighting", ["gradient", "update"])
@pytest.mark.parametrize("moments", ["sgd", "adagrad", "amsgrad"])
def test_the_future_that_is_drawn_is_the_one_that_comes(moments, weighting):
    """Terms of the draws made, from the optimizer's own state, against those looked ahead: p a single example."""
    problem = linear_model("squares", 3, 2, 5)
    one = replace(
        problem,
        losses=lambda x: problem.losses(x)[..., :1],
        gradients=lambda x: problem.gradients(x)[..., :1, :],
        num_examples=1,
        target=None,
    )
    scheme, start = Scheme(moments, weighting, alpha=0.3, beta1_power=0.5, eps=1e-8), start_of(problem)
    ahead = theory.follow(one, scheme, start, 12, 0)
    walk = theory.Walk(one, scheme, start, 0)
    with theory.record(walk.optimizer, optimum=problem.optimum) as recorder:
        walk.take_steps(12)
    made = recorder.trajectory()
    for name in ("potential", "error", "momentum", "distance", "metric_trace", "gradient_norms"):
        np.testing.assert_allclose(made.get(name), ahead.get(name), rtol=1e-9, atol=1e-12, err_msg=name)
