"""What does scoring beside training save? Logistic regression and a small network, 1 training thread, interleaved.

Each call is one whole interval of J steps with one refresh, at a J for which scoring takes about as long as the
steps: with ``overlap`` the best that can be hoped for is half the time, on a machine with a core to spare.
"""

from collections.abc import Callable
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch import Tensor, nn

import dasgrad
from benchmarks import compare_calls

NUM_EXAMPLES, NUM_INPUTS, BATCH_SIZE = 60_000, 784, 32
INTERVAL, OVERLAP = 1500, 1400
ROUNDS = 7


def trainer(data: tuple[Tensor, Tensor], model: nn.Module, overlap: int) -> Callable[[], None]:
    """A function that trains for the next J steps, from where a refresh is due to past where it took effect."""
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    optimizer = dasgrad.DASGrad(model.parameters(), lr=1e-3)
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer, preconditioner="frozen")
    loader = dasgrad.AdaptiveLoader(data, BATCH_SIZE, scorer=scorer, refresh=INTERVAL, overlap=overlap)
    batches = chain.from_iterable(repeat(loader))

    def train(num_steps: int = INTERVAL) -> None:
        for batch in islice(batches, num_steps):
            optimizer.zero_grad()
            batch.weighted_mean(loss_fn(model(batch.inputs), batch.targets)).backward()
            optimizer.step()

    train(INTERVAL - 1)  # the refresh comes first in each call, and is over before the next
    return train


def run() -> list[dict[str, Any]]:
    """One row a model."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(NUM_EXAMPLES, NUM_INPUTS, generator=generator)
    data = (inputs, torch.randint(0, 10, (NUM_EXAMPLES,), generator=generator))
    models: dict[str, Callable[[], nn.Module]] = {
        "logistic regression": lambda: nn.Linear(NUM_INPUTS, 10),
        "784-128-10": lambda: nn.Sequential(nn.Linear(NUM_INPUTS, 128), nn.ReLU(), nn.Linear(128, 10)),
    }
    return [
        compare_calls(
            f"seconds of {INTERVAL} steps and a refresh, {name}",
            "overlap=0",
            trainer(data, make(), OVERLAP),
            trainer(data, make(), 0),
            rounds=ROUNDS,
            calls_a_round=1,
        )
        for name, make in models.items()
    ]
