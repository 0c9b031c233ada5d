"""Runs with scoring beside training: a loader, a loop over it, the reference, scoring that is slow, held or broken."""

import contextlib
import itertools
import threading
import time

import torch
from torch import nn

import dasgrad
import helpers

N, BATCH_SIZE = 40, 4
NAME = "dasgrad-scoring"


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def build(overlap=3, refresh=8, model=None, losses=None, data=None, **options):
    inputs, targets, _ = helpers.regression(N)
    model = make_model() if model is None else model
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.02)
    given = {"loss_fn": helpers.squared_losses} if losses is None else {"losses": losses}
    scorer = dasgrad.ExampleScorer(model, optimizer=optimizer, **given)
    data = (inputs, targets) if data is None else data(inputs, targets)
    loader = dasgrad.AdaptiveLoader(
        data, BATCH_SIZE, scorer=scorer, refresh=refresh, overlap=overlap, scoring_chunk_size=16, seed=5, **options
    )
    return model, optimizer, loader


def batches_of(loader):
    return itertools.chain.from_iterable(itertools.repeat(loader))


def train(model, optimizer, loader, num_steps, each=lambda: None):
    """The draws of so many steps, and their weights."""
    drawn = []
    for batch in itertools.islice(batches_of(loader), num_steps):
        optimizer.zero_grad()
        batch.weighted_mean(helpers.squared_losses(model(batch.inputs), batch.targets)).backward()
        optimizer.step()
        drawn.append(torch.stack([batch.indices.double(), batch.weights]))
        each()
    return torch.stack(drawn)


def train_slowly(overlap, refresh, num_steps, model=None):
    """The reference: scores at step t by the live model, kept until step t + K."""
    inputs, targets, _ = helpers.regression(N)
    model = make_model() if model is None else model
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.02)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    sampler = dasgrad.AdaptiveSampler(N, BATCH_SIZE, seed=5)
    waiting, drawn = {}, []
    for step in range(1, num_steps + 1):
        if step in waiting:
            sampler.refresh(waiting.pop(step))
        if step % refresh == 0:
            waiting[step + overlap] = scorer.score_dataset((inputs, targets), 16)
        indices, weights = sampler.draw()
        optimizer.zero_grad()
        batch = dasgrad.WeightedBatch((inputs[indices], targets[indices]), indices, weights)
        batch.weighted_mean(helpers.squared_losses(model(batch.inputs), batch.targets)).backward()
        optimizer.step()
        drawn.append(torch.stack([indices.double(), weights]))
    return torch.stack(drawn)


def sleepy_losses(model, data):
    if threading.current_thread().name == NAME:
        time.sleep(0.01)
    return helpers.squared_losses(model(data[0]), data[1])


def scoring_threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@contextlib.contextmanager
def scoring_held():
    """Scoring that starts inside goes on until the function that is yielded was called."""
    allowed = threading.Event()

    def losses(model, data):
        if threading.current_thread().name == NAME:
            assert allowed.wait(30)
        return helpers.squared_losses(model(data[0]), data[1])

    try:
        yield losses, allowed.set
    finally:
        allowed.set()


def failing_losses(kind):
    def losses(model, data):
        if threading.current_thread().name == NAME:
            raise kind("broken on purpose")
        return helpers.squared_losses(model(data[0]), data[1])

    return losses
