"""Scores out of a training step's own backward pass."""

import pytest
import torch
from torch import nn

import dasgrad
from scoring import problems

INPUTS, TARGETS = problems.classification()


def make_batch(weights=(0.5, 1.0, 2.0, 0.25, 1.5, 1.0)):
    return dasgrad.WeightedBatch((INPUTS, TARGETS), torch.arange(6), torch.tensor(weights, dtype=torch.float64))


def make_scorer(model, optimizer, **options):
    return dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, **options)


@pytest.mark.parametrize("options", [{}, {"preconditioner": "frozen"}, {"score": "gradient"}, {"momentum": True}])
@pytest.mark.parametrize("weighting", ["gradient", "update"])
def test_what_is_heard_equals_what_is_scored(weighting, options):
    model = problems.network()
    optimizer = dasgrad.DASGrad(model.parameters(), weighting=weighting, lr=0.05)
    scorer, batch = make_scorer(model, optimizer, **options), make_batch()
    for _ in range(3):
        expected = scorer(INPUTS, TARGETS)
        with scorer.listen(batch) as heard:
            optimizer.zero_grad()  # looks at param.grad, which is no use of the parameter
            batch.backward(problems.cross_entropy(model(INPUTS), TARGETS), optimizer)
        torch.testing.assert_close(heard.scores, expected, rtol=1e-10, atol=0)
        assert scorer._engine.irregular == {}
        optimizer.step()


def test_listening_changes_nothing_in_the_step():
    gradients = []
    for listening in (False, True):
        model = problems.network()
        optimizer = dasgrad.DASGrad(model.parameters())
        scorer, batch = make_scorer(model, optimizer), make_batch()
        if listening:
            with scorer.listen(batch):
                batch.weighted_mean(problems.cross_entropy(model(INPUTS), TARGETS)).backward()
            assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
        else:
            batch.weighted_mean(problems.cross_entropy(model(INPUTS), TARGETS)).backward()
        gradients.append([param.grad for param in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_scaled_loss_is_scaled_back():
    model = problems.network()
    scorer, batch = make_scorer(model, dasgrad.DASGrad(model.parameters())), make_batch()
    with scorer.listen(batch, scale=1024.0) as heard:
        (batch.weighted_mean(problems.cross_entropy(model(INPUTS), TARGETS)) * 1024.0).backward()
    torch.testing.assert_close(heard.scores, scorer(INPUTS, TARGETS), rtol=1e-10, atol=0)


def test_dropout_is_heard_as_it_fell():
    model = problems.seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))).train()
    optimizer = dasgrad.DASGrad(model.parameters(), moments="sgd", eps=0.0)
    scorer, batch = make_scorer(model, optimizer, score="gradient"), make_batch()
    torch.manual_seed(5)
    with scorer.listen(batch) as heard:
        batch.weighted_mean(problems.cross_entropy(model(INPUTS), TARGETS)).backward()
    torch.manual_seed(5)
    losses = problems.cross_entropy(model(INPUTS), TARGETS)
    expected = []
    for loss in losses:
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        expected.append(sum(g.square().sum() for g in gradients).sqrt())
    torch.testing.assert_close(heard.scores, torch.stack(expected), rtol=1e-10, atol=0)
    assert model.training


def test_a_parameter_without_a_rule_is_scored_by_the_slower_path():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.linear(x) * self.scale.exp()

    model = problems.seeded(Scaled)
    scorer, batch = make_scorer(model, dasgrad.DASGrad(model.parameters())), make_batch()
    with (
        pytest.warns(UserWarning, match="exact but slower path for 1 of its parameters"),
        scorer.listen(batch) as heard,
    ):
        batch.weighted_mean(problems.cross_entropy(model(INPUTS), TARGETS)).backward()
    torch.testing.assert_close(heard.scores, scorer(INPUTS, TARGETS), rtol=1e-10, atol=0)


def test_nothing_is_heard_inside_the_block_nor_after_an_error():
    model = problems.network()
    scorer, batch = make_scorer(model, dasgrad.DASGrad(model.parameters())), make_batch()
    with scorer.listen(batch) as heard, pytest.raises(RuntimeError, match="block is left"):
        _ = heard.scores
    with pytest.raises(KeyError), scorer.listen(batch) as heard:
        raise KeyError
    with pytest.raises(RuntimeError, match="block is left"):
        _ = heard.scores
    assert all(not module._forward_hooks for module in model.modules())


def test_bad_arguments():
    model = problems.network()
    with pytest.raises(ValueError, match=r'listen` needs score="dasgrad" or "gradient", got \'loss\''):
        make_scorer(model, None, score="loss").listen(make_batch()).__enter__()
    scorer = make_scorer(model, dasgrad.DASGrad(model.parameters()))
    with pytest.raises(ValueError, match=r"listen\(scale=...\)` must be positive, got 0"):
        scorer.listen(make_batch(), scale=0).__enter__()
