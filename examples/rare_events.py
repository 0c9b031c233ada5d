"""Rare events: one example in a hundred is positive, and predictions are to be probabilities.

Oversampling positives, or giving them a larger weight, trains for a world in which they are common, and every
prediction comes out too high. Adaptive draws take informative examples more often too, but undo it by importance
weights: the probabilities stay those of the data. Without the weights they do not.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dasgrad

METHODS = ("uniform", "adaptive", "adaptive, unweighted", "oversampled", "class weights")
NUM_FEATURES, BATCH_SIZE = 8, 64


def make_data(num_examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels, of which about 1 % are positive."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_examples, NUM_FEATURES, generator=generator)
    truth = torch.sigmoid(inputs @ torch.linspace(1.0, 0.2, NUM_FEATURES) - 6.0)
    return inputs, torch.bernoulli(truth, generator=generator)


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")


def one_pass(method: str, dataset: TensorDataset, loader: dasgrad.AdaptiveLoader, model: nn.Module) -> Iterator[Tensor]:
    """One loss a step, examples drawn and weighted as the method has it."""
    inputs, labels = dataset.tensors
    share = float(labels.mean())
    balance = torch.where(labels == 1, 0.5 / share, 0.5 / (1 - share))  # both classes count as much
    if method.startswith("adaptive"):
        for batch in loader:
            losses = loss_fn(model(batch.inputs), batch.targets)
            yield losses.mean() if method == "adaptive, unweighted" else batch.weighted_mean(losses)
    elif method == "oversampled":
        for rows in torch.multinomial(balance, len(labels), replacement=True).split(BATCH_SIZE):
            yield loss_fn(model(inputs[rows]), labels[rows]).mean()
    else:
        weights = balance if method == "class weights" else torch.ones_like(labels)
        for rows in torch.randperm(len(labels)).split(BATCH_SIZE):
            yield (weights[rows] * loss_fn(model(inputs[rows]), labels[rows])).mean()


def train(method: str, dataset: TensorDataset, seed: int, num_passes: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Linear(NUM_FEATURES, 1)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.5)
    scheduler = dasgrad.InverseSqrtLR(optimizer)
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)
    loader = dasgrad.AdaptiveLoader(dataset, BATCH_SIZE, scorer=scorer, refresh=30, seed=seed)
    for _ in range(num_passes):
        for loss in one_pass(method, dataset, loader, model):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    return model


def main(num_examples: int = 10_000, num_passes: int = 8, seed: int = 0) -> dict[str, tuple[float, float]]:
    (inputs, labels), (test_inputs, test_labels) = make_data(num_examples, seed), make_data(20_000, seed + 10_000)
    results = {}
    for method in METHODS:
        model = train(method, TensorDataset(inputs, labels), seed, num_passes)
        predicted = model(test_inputs)[:, 0].sigmoid().detach()
        ratio, brier = float(predicted.mean() / labels.mean()), float((predicted - test_labels).square().mean())
        results[method] = (ratio, brier)
        print(f"{method:21s} mean prediction {ratio:5.2f} × the base rate  Brier score {brier:.4f}")
    return results


if __name__ == "__main__":
    main()
