"""Precision of the passes: dtype, autocast inside the losses, memory formats."""

import pytest
import torch
from torch import nn

import dasgrad
from scoring import problems

LABELS = torch.arange(12) % 3


def build():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    )


def prepared():
    """A model after two steps, in float32, its inputs, and the scorer's exact counterpart's options."""
    model = problems.seeded(build).float()
    optimizer = dasgrad.DASGrad(model.parameters())
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 2, 4, 4, generator=generator)
    problems.train(model, optimizer, inputs, LABELS, steps=2)
    return model, optimizer, inputs


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
def test_wider_and_narrower_passes(preconditioner):
    model, optimizer, inputs = prepared()

    def scores(dtype):
        scorer = dasgrad.ExampleScorer(
            model, problems.cross_entropy, optimizer, preconditioner=preconditioner, dtype=dtype
        )
        found = scorer(inputs, LABELS)
        assert scorer._engine.irregular == {}
        return found

    exact = scores("float64")
    assert exact.dtype == torch.float64
    torch.testing.assert_close(scores(None).double(), exact, rtol=1e-5, atol=0)
    narrow = scores("bfloat16")
    assert narrow.dtype == torch.float32
    error = (narrow.double() / exact - 1).abs()
    assert 1e-5 < error.max() < 0.05
    assert error.median() < 0.01


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
def test_autocast_belongs_inside_the_losses(preconditioner):
    model, optimizer, inputs = prepared()

    def losses(model, data):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return problems.cross_entropy(model(data[0]), data[1])

    options = {"optimizer": optimizer, "preconditioner": preconditioner}
    cast = dasgrad.ExampleScorer(model, losses=losses, **options)
    exact = dasgrad.ExampleScorer(model, problems.cross_entropy, dtype="float64", **options)(inputs, LABELS)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # around the scorer it has no effect
        plain = dasgrad.ExampleScorer(model, problems.cross_entropy, **options)(inputs, LABELS)
    torch.testing.assert_close(plain.double(), exact, rtol=1e-5, atol=0)
    error = (cast((inputs, LABELS)).double() / exact - 1).abs()
    assert 1e-5 < error.max() < 0.05
    assert cast._engine.irregular == {}


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
def test_channels_last_changes_nothing(preconditioner):
    model, optimizer, inputs = prepared()
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner=preconditioner)
    expected = scorer(inputs, LABELS)
    model.to(memory_format=torch.channels_last)
    found = scorer(inputs.to(memory_format=torch.channels_last), LABELS)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
