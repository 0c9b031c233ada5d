"""What do draws and weights cost beside a training step? Whole steps of logistic regression, batch 32, interleaved.

Two questions: tensors in memory, against reshuffled direct indexing; a map-style data set through ``DataLoader``,
against ``WeightedRandomSampler`` with the default collate. No refresh falls into the measurement.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

import dasgrad
from benchmarks import compare_calls

NUM_EXAMPLES, NUM_INPUTS, BATCH_SIZE = 60_000, 784, 32


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """A map-style data set."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


def reshuffled(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Direct indexing in a fresh order each epoch."""
    while True:
        for rows in torch.split(torch.randperm(len(inputs)), BATCH_SIZE):
            yield inputs[rows], targets[rows]


def endless(loader: Any) -> Iterator[Any]:
    """Pass after pass."""
    while True:
        yield from loader


def refreshed(dataset: Any, scores: Tensor) -> dasgrad.AdaptiveLoader:
    """A loader whose probabilities are not uniform."""
    loader = dasgrad.AdaptiveLoader(dataset, BATCH_SIZE)
    loader.sampler.refresh(scores)
    return loader


def stepper(batches: Iterator[Any], weighted: bool) -> Callable[[], None]:
    """A function that takes one training step on the next batch."""
    model, loss_fn = nn.Linear(NUM_INPUTS, 10), nn.CrossEntropyLoss(reduction="none" if weighted else "mean")
    optimizer = dasgrad.DASGrad(model.parameters(), lr=1e-3)

    def step() -> None:
        batch = next(batches)
        if weighted:
            loss = batch.weighted_mean(loss_fn(model(batch.inputs), batch.targets))
        else:
            loss = loss_fn(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def run() -> list[dict[str, Any]]:
    """One row a question."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(NUM_EXAMPLES, NUM_INPUTS, generator=generator)
    targets = torch.randint(0, 10, (NUM_EXAMPLES,), generator=generator)
    scores = torch.rand(NUM_EXAMPLES, generator=generator)
    rows = Rows(inputs, targets)
    weighted = WeightedRandomSampler(scores.tolist(), NUM_EXAMPLES)
    return [
        compare_calls(
            "seconds a step, tensors in memory",
            "reshuffled direct indexing",
            stepper(endless(refreshed((inputs, targets), scores)), weighted=True),
            stepper(reshuffled(inputs, targets), weighted=False),
        ),
        compare_calls(
            "seconds a step, DataLoader",
            "DataLoader with WeightedRandomSampler",
            stepper(endless(refreshed(rows, scores)), weighted=True),
            stepper(endless(DataLoader(rows, BATCH_SIZE, sampler=weighted)), weighted=False),
        ),
    ]
