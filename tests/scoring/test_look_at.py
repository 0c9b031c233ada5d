"""`ExampleScorer.look_at`: what a first call learns about a model, beforehand."""

import pytest
import torch

import dasgrad
import helpers


@pytest.mark.parametrize("score", ["dasgrad", "gradient"])
def test_looking_at_examples_leaves_nothing_for_the_first_call_to_learn(monkeypatch, score):
    inputs, targets, model = helpers.regression(20)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.05)
    plain, looked = (dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer, score=score) for _ in range(2))
    expected = plain(inputs, targets)
    looked.look_at((inputs[:3], targets[:3]))
    monkeypatch.setattr(looked._engine, "_learn", None)
    assert torch.equal(looked(inputs, targets), expected)


def test_looking_at_examples_scores_none(monkeypatch):
    inputs, targets, model = helpers.regression(20)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, score="gradient")
    monkeypatch.setattr(scorer._engine, "squares", None)
    scorer.look_at((inputs, targets))
    assert all(param.grad is None for param in model.parameters())


@pytest.mark.parametrize("score", ["last_layer", "loss"])
def test_scores_of_a_forward_pass_have_nothing_to_learn_and_are_made(monkeypatch, score):
    """What a first use costs is over after it."""
    inputs, targets, model = helpers.regression(20)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, score=score)
    numbers = []
    monkeypatch.setattr(scorer, "_chunk_scores", lambda: lambda data: numbers.append(len(data[1])))
    scorer.look_at((inputs, targets))
    assert numbers == [20]


def test_looking_takes_what_a_call_takes():
    inputs, targets, model = helpers.regression(20)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, score="gradient", dtype="float32")
    model.float()
    scorer.look_at(inputs.double(), targets.double())
    scorer.look_at(inputs[:0], targets[:0])
    with pytest.raises(ValueError, match="must be on the model's device"):
        scorer.look_at(inputs.to("meta"), targets.to("meta"))
