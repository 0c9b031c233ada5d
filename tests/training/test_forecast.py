"""What sampling is worth on the clock: the model's arithmetic, against sums written out."""

import itertools
import math

import pytest
import torch

import dasgrad
from dasgrad.training.forecast import Noise, effective_number, second_moment_left, weights_of

SCORES = torch.tensor([0.0, 1.0, 2.0, 5.0], dtype=torch.float64)


def test_the_second_moment_left_is_that_of_the_draws():
    sampler = dasgrad.AdaptiveSampler(4, 2, floor=0.25)
    sampler.refresh(SCORES)
    expected = float((sampler.probabilities * (sampler.weights * SCORES) ** 2).sum()) / float((SCORES**2).mean())
    assert second_moment_left(SCORES, sampler.weights) == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(weights_of(SCORES, 0.25), sampler.weights)
    assert expected < 0.7


def test_equal_scores_and_zero_scores_leave_everything():
    for scores in (torch.ones(5), torch.zeros(5)):
        assert second_moment_left(scores, weights_of(scores, 0.2)) == pytest.approx(1.0)


def test_as_many_examples_as_carry_the_squares():
    assert effective_number(torch.ones(7)) == pytest.approx(7)
    assert effective_number(torch.tensor([0.0, 3.0, 0.0])) == pytest.approx(1)
    assert effective_number(torch.tensor([1.0, 2.0])) == pytest.approx(25 / 17)
    assert effective_number(torch.zeros(3)) == 0


def test_steps_follow_the_mean_square_of_a_batch():
    """‖μ‖² + tr Σ/B written out, for uniform draws and for draws that leave a share of the noise."""
    mean, noise, batch_size, left = 2.0, 30.0, 4, 0.3
    expected = (mean + left * noise / batch_size) / (mean + noise / batch_size)
    assert Noise(noise / mean, batch_size).steps_factor(left) == pytest.approx(expected)
    assert Noise(math.inf, batch_size).steps_factor(left) == left
    assert Noise(0.0, batch_size).steps_factor(left) == 1.0


def test_noise_left_from_the_second_moment():
    mean, noise, left = 2.0, 30.0, 0.3
    second_moment = (mean + left * noise) / (mean + noise)
    assert Noise(noise / mean, 4).of_second_moment(second_moment) == pytest.approx(left)
    assert Noise(math.inf, 4).of_second_moment(0.4) == 0.4
    assert Noise(0.0, 4).of_second_moment(0.4) == 1.0


def test_a_larger_batch_pays_while_noise_rules_and_steps_cost_mostly_overhead():
    free = Noise(math.inf, 32).larger_batch_factor(4, step_seconds=1.0, example_seconds=0.0)
    assert free == pytest.approx(1 / 4)
    costly = Noise(math.inf, 32).larger_batch_factor(4, step_seconds=1.0, example_seconds=1 / 32)
    assert costly == pytest.approx(1.0)
    quiet = Noise(1.0, 32).larger_batch_factor(4, step_seconds=1.0, example_seconds=1 / 32)
    assert quiet > 3.5


def test_noise_estimates_are_unbiased():
    """Halves of one example and of two, in as many chunks: the mean over all draws is tr Σ and ‖μ‖², exactly."""
    inputs = torch.tensor([[1.0, 2.0], [-3.0, 0.5], [0.25, -1.0]], dtype=torch.float64)
    targets = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
    losses = lambda model, data: (model(data[0])[:, 0] - data[1]).square()  # noqa: E731
    scorer = dasgrad.ExampleScorer(model, losses=losses, score="gradient")
    gradients = 2 * (model(inputs)[:, 0] - targets).detach()[:, None] * inputs
    mean = gradients.mean(0)
    for num_chunks in (1, 2):
        found = []
        for drawn in itertools.product(range(3), repeat=2 * num_chunks):
            rows = [torch.tensor(drawn[k : k + 2]) for k in range(0, len(drawn), 2)]
            found.append(scorer.noise((inputs[pair], targets[pair]) for pair in rows))
        noise, square = (sum(values) / len(found) for values in zip(*found, strict=True))
        assert noise == pytest.approx(float((gradients - mean).square().sum(1).mean()), rel=1e-12)
        assert square == pytest.approx(float(mean.square().sum()), rel=1e-12)
    assert model.weight.grad is None


def test_noise_needs_a_loss_and_two_examples():
    model = torch.nn.Linear(2, 1)
    own = dasgrad.ExampleScorer(model, score=lambda model, data: torch.ones(len(data)))
    with pytest.raises(ValueError, match=r"noise.*needs"):
        own.noise([torch.zeros(4, 2)])
    scorer = dasgrad.ExampleScorer(model, losses=lambda model, data: model(data)[:, 0], score="gradient")
    with pytest.raises(ValueError, match="at least 2 examples"):
        scorer.noise([torch.zeros(1, 2)])


@pytest.mark.parametrize("preconditioner", ["frozen", "own"])
def test_noise_is_measured_as_scores_are(preconditioner):
    """Σ d²/H over d = ga − gb, with H as it stands, or after a step by the mean gradient of the chunk."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(6, 2, generator=generator).double(), torch.randn(6, generator=generator).double()
    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
    losses = lambda model, data: (model(data[0])[:, 0] - data[1]).square()  # noqa: E731
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.1, moments="adam")
    for _ in range(3):
        optimizer.zero_grad()
        losses(model, (inputs, targets)).mean().backward()
        optimizer.step()
    scorer = dasgrad.ExampleScorer(model, losses=losses, optimizer=optimizer, preconditioner=preconditioner)
    noise, square = scorer.noise([(inputs, targets)])
    gradients = 2 * (model(inputs)[:, 0] - targets).detach()[:, None] * inputs
    first, second = gradients[:3].mean(0), gradients[3:].mean(0)
    curvature = optimizer.state[model.weight]["exp_avg_sq"][0]
    if preconditioner == "own":
        curvature = 0.99 * curvature + 0.01 * gradients.mean(0).square()
    metric = curvature.sqrt() + optimizer.param_groups[0]["eps"]
    assert noise == pytest.approx(float(1.5 * ((first - second).square() / metric).sum()), rel=1e-9)
    assert square == pytest.approx(float((first * second / metric).sum()), rel=1e-9)
    # That is how the scorer measures an example.
    if preconditioner == "frozen":
        expected = (gradients.square() / metric).sum(1).sqrt()
        torch.testing.assert_close(scorer((inputs, targets)), expected, rtol=1e-6, atol=0)
