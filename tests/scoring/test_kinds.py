"""The other scores (gradient, last layer, loss, a function) and the precision they are computed in."""

import pytest
import torch
from torch import nn

import dasgrad
from scoring import problems

INPUTS, TARGETS = problems.classification()
ALL = ("dasgrad", "gradient", "last_layer", "loss")


def make(score, model=None, **options) -> dasgrad.ExampleScorer:
    model = problems.network() if model is None else model
    optimizer = dasgrad.DASGrad(model.parameters()) if score == "dasgrad" else None
    return dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, score=score, **options)


def test_gradient_score_is_the_gradient_norm():
    expected = problems.norms(problems.pair_gradients(problems.network(), INPUTS, TARGETS))
    torch.testing.assert_close(make("gradient")(INPUTS, TARGETS), expected, rtol=1e-12, atol=0)


def test_gradient_score_works_with_any_optimizer_and_ignores_learning_rates():
    model = problems.network()
    groups = [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, score="gradient")
    torch.testing.assert_close(scorer(INPUTS, TARGETS), make("gradient")(INPUTS, TARGETS), rtol=1e-12, atol=0)


def test_loss_score_is_the_loss():
    model = problems.network()
    expected = problems.cross_entropy(model(INPUTS), TARGETS).detach()
    torch.testing.assert_close(make("loss")(INPUTS, TARGETS), expected, rtol=1e-12, atol=0)


def test_last_layer_score_is_the_norm_of_softmax_minus_label():
    outputs = problems.network()(INPUTS).detach()
    expected = (outputs.softmax(1) - nn.functional.one_hot(TARGETS, 2)).norm(dim=1)
    torch.testing.assert_close(make("last_layer")(INPUTS, TARGETS), expected, rtol=1e-12, atol=0)


def test_a_function_as_score_needs_no_loss():
    model = problems.network()
    margin = dasgrad.ExampleScorer(model, score=lambda m, data: m(data[0]).diff(dim=1).abs().squeeze(1))
    scores = margin(INPUTS, TARGETS)
    torch.testing.assert_close(scores, model(INPUTS).diff(dim=1).abs().squeeze(1).detach())
    assert not scores.requires_grad
    torch.testing.assert_close(margin.score_dataset((INPUTS, TARGETS), 4), scores)


@pytest.mark.parametrize("score", ALL)
def test_scores_are_plain_detached_tensors(score):
    scores = make(score)(INPUTS.clone().requires_grad_(), TARGETS)
    assert scores.shape == (6,)
    assert scores.dtype == torch.float64
    assert not scores.requires_grad


@pytest.mark.parametrize("score", ALL)
def test_float64_scores_of_a_float32_model_are_the_exact_ones(score):
    single = problems.network(dtype=torch.float32)
    double = problems.network()
    double.load_state_dict(single.state_dict())
    exact = make(score, double)(INPUTS.float().double(), TARGETS)
    for dtype in (torch.float64, "float64"):
        scores = make(score, single, dtype=dtype)(INPUTS.float(), TARGETS)
        assert scores.dtype == torch.float64
        torch.testing.assert_close(scores, exact, rtol=1e-12, atol=0)
    rough = make(score, single)(INPUTS.float(), TARGETS)
    assert rough.dtype == torch.float32
    assert not torch.allclose(rough.double(), exact, rtol=1e-12, atol=0)
    torch.testing.assert_close(rough.double(), exact, rtol=1e-4, atol=1e-6)
    assert {p.dtype for p in single.parameters()} == {torch.float32}


@pytest.mark.parametrize("score", ALL)
def test_bfloat16_scores_are_close_and_summed_in_float32(score):
    model = problems.network(dtype=torch.float32)
    scores = make(score, model, dtype="bfloat16")(INPUTS.float(), TARGETS)
    assert scores.dtype == (torch.bfloat16 if score == "loss" else torch.float32)
    torch.testing.assert_close(scores.float(), make(score, model)(INPUTS.float(), TARGETS), rtol=0.05, atol=0.02)


def test_a_bfloat16_model_is_scored_as_it_is():
    model = problems.network(dtype=torch.float32).bfloat16()
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.01)
    inputs = INPUTS.bfloat16()
    problems.train(model, optimizer, inputs, TARGETS)
    scores = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer)(inputs, TARGETS)
    precise = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, dtype="float32")(inputs, TARGETS)
    torch.testing.assert_close(scores, precise, rtol=0.1, atol=0.02)


def test_repr_says_what_is_scored():
    assert repr(make("dasgrad", preconditioner="frozen")) == (
        "ExampleScorer(model=Sequential, score='dasgrad', preconditioner='frozen', momentum=False, layers='all')"
    )
