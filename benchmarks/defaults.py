"""Which defaults? Final training loss on `digits` for each choice of score, floor and stratification.

Logistic regression with an L2 term; AMSGrad's and Adam's moments, with bias correction as in torch. The same
optimizer on reshuffled epochs is the peer; every variant has the same steps, batch size, schedule and seeds, and its
best learning rate of one grid, chosen on other seeds. ``ours`` and ``peer`` are mean final training losses over the
reported seeds.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, Literal

import torch
from sklearn.datasets import load_digits
from torch import nn

import dasgrad

NUM_STEPS, BATCH_SIZE, REFRESH = 800, 32, 10
WEIGHT_DECAY = 1e-4
RATES = {"amsgrad": (0.25, 0.5, 1.0, 2.0), "adam": (0.25, 0.5, 1.0, 2.0)}
TUNING_SEEDS, SEEDS = range(1000, 1010), range(20)


@dataclass(frozen=True)
class Variant:
    """One way to sample; None in ``score`` is the uniform peer."""

    name: str
    score: str | None = "dasgrad"
    preconditioner: str = "own"
    momentum: bool = False
    floor: float = 0.3
    stratified: Literal["none", "batch", "pass", "run"] = "run"


VARIANTS = [
    Variant("uniform, reshuffled", score=None),
    Variant("own"),
    Variant("own, momentum", momentum=True),
    Variant("frozen", preconditioner="frozen"),
    Variant("frozen, momentum", preconditioner="frozen", momentum=True),
    Variant("gradient norm", score="gradient"),
    Variant("own, floor 0.05", floor=0.05),
    Variant("own, floor 0.1", floor=0.1),
    Variant("own, floor 0.2", floor=0.2),
    Variant("own, floor 0.5", floor=0.5),
    Variant("own, floor 0.7", floor=0.7),
    Variant("own, draws spread over a pass", stratified="pass"),
    Variant("own, draws spread over a batch", stratified="batch"),
    Variant("own, independent draws", stratified="none"),
]


def final_loss(moments: str, variant: Variant, lr: float, seed: int) -> float:
    """Full training loss after all steps, L2 term included."""
    torch.set_num_threads(1)
    digits = load_digits()
    inputs, targets = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    model, loss_fn = nn.Linear(64, 10), nn.CrossEntropyLoss(reduction="none")
    for param in model.parameters():
        nn.init.zeros_(param)
    optimizer = dasgrad.DASGrad(
        model.parameters(), lr=lr, weight_decay=WEIGHT_DECAY, moments=moments, bias_correction=True
    )
    scheduler = dasgrad.InverseSqrtLR(optimizer)
    batches = (
        reshuffled(inputs, targets, seed)
        if variant.score is None
        else adaptive(inputs, targets, model, loss_fn, optimizer, variant, seed)
    )
    for batch in batches:
        losses = loss_fn(model(batch.inputs), batch.targets)
        optimizer.zero_grad()
        batch.backward(losses, optimizer)
        optimizer.step()
        scheduler.step()
        if scheduler.last_epoch == NUM_STEPS:
            break
    with torch.no_grad():
        squares = sum(float(param.square().sum()) for param in model.parameters())
        return float(loss_fn(model(inputs), targets).mean()) + 0.5 * WEIGHT_DECAY * squares


def reshuffled(inputs: torch.Tensor, targets: torch.Tensor, seed: int) -> Any:
    """Epochs in a fresh order each, all weights 1."""
    generator, ones = torch.Generator().manual_seed(seed), torch.ones(BATCH_SIZE)
    while True:
        order = torch.randperm(len(inputs), generator=generator)
        for rows in torch.split(order, BATCH_SIZE):
            yield dasgrad.WeightedBatch((inputs[rows], targets[rows]), rows, ones[: len(rows)])


def adaptive(
    inputs: torch.Tensor,
    targets: torch.Tensor,
    model: nn.Module,
    loss_fn: Callable[..., torch.Tensor],
    optimizer: dasgrad.DASGrad,
    variant: Variant,
    seed: int,
) -> Any:
    """Passes of an `AdaptiveLoader` with the variant's options."""
    options: Any = {"score": variant.score, "preconditioner": variant.preconditioner, "momentum": variant.momentum}
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer, **options)
    sampler = dasgrad.AdaptiveSampler(
        len(inputs), BATCH_SIZE, floor=variant.floor, stratified=variant.stratified, seed=seed
    )
    loader = dasgrad.AdaptiveLoader((inputs, targets), sampler=sampler, scorer=scorer, refresh=REFRESH)
    while True:
        yield from loader


def run() -> list[dict[str, Any]]:
    """Rows of every variant against the uniform peer, on both problems."""
    rows = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for moments, rates in RATES.items():
            losses = {}
            for variant in VARIANTS:
                tuned = {lr: sum(pool.map(partial(final_loss, moments, variant, lr), TUNING_SEEDS)) for lr in rates}
                best = min(tuned, key=tuned.__getitem__)
                reported = list(pool.map(partial(final_loss, moments, variant, best), SEEDS))
                losses[variant.name] = torch.tensor(reported)
                print(f"{moments}: {variant.name}, lr {best}: {losses[variant.name].mean():.5f}", flush=True)
            peer_name = VARIANTS[0].name
            peer = losses[peer_name]
            for name, ours in losses.items():
                rows.append(
                    {
                        "metric": f"{moments}: {name}",
                        "ours": float(ours.mean()),
                        "peer": float(peer.mean()),
                        "peer_name": peer_name,
                        "ratio": float(ours.mean() / peer.mean()),
                        "paired_standard_error": float((ours - peer).std() / len(ours) ** 0.5),
                    }
                )
    return rows
