"""Small runs with ``refresh="auto"``: data with much or nothing to win, a loader, a loop over it, a made-up clock."""

import itertools
import math

import torch
from torch import nn

import dasgrad
from dasgrad.training import AutoRefresh, Costs

NUM_EXAMPLES, BATCH_SIZE = 400, 8
CHEAP, DEAR = Costs(step=1.0, example=1e-4), Costs(step=1.0, example=100.0)


def losses_of(outputs, targets):
    return (outputs[:, 0] - targets).square()


def make_data(rare):
    """Targets of a linear model with noise: that of a few examples much larger, or all gradients about as long."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(NUM_EXAMPLES, 3, generator=generator)
    noise = torch.randn(NUM_EXAMPLES, generator=generator)
    if rare:
        return inputs, inputs.sum(1) + torch.where(torch.arange(NUM_EXAMPLES) % 20 == 0, 30 * noise, 0.1 * noise)
    inputs = inputs / inputs.norm(dim=1, keepdim=True)
    return inputs, inputs.sum(1) + 100 * noise.sign()


LAVISH = {"most_scoring": math.inf}
"""Options of an `AutoRefresh` that decides by its forecast alone, whatever was spent."""


def build(auto, rare=True, seed=0, data=None, score="gradient", **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.01)
    loss_fn = None if callable(score) else losses_of
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer, score=score)
    data = make_data(rare) if data is None else data
    loader = dasgrad.AdaptiveLoader(data, BATCH_SIZE, scorer=scorer, refresh=auto, seed=seed, **options)
    return model, optimizer, loader


def train(model, optimizer, loader, num_steps, each=lambda batch: None):
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for batch in itertools.islice(batches, num_steps):
        optimizer.zero_grad()
        batch.weighted_mean(losses_of(model(batch.inputs), batch.targets)).backward()
        optimizer.step()
        each(batch)


def build_timed(rare=True, options=None, **rest):
    """A run by a clock on which a step takes a second, and all else as long as a test lets it: ``now[0]``."""
    now = [0.0]
    auto = AutoRefresh(clock=lambda: now[0], **(options or {}))
    parts = build(auto, rare, **rest)

    def take_a_second(*args):
        now[0] += 1.0

    parts[1].register_step_pre_hook(take_a_second)
    return auto, parts, now
