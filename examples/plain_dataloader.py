"""`AdaptiveSampler` under a plain ``DataLoader`` with two workers, rescored by hand between passes.

`WithDraws` carries index and weight of each draw through the worker processes. The sampler reads nothing from
the model: scores may come from `ExampleScorer`, as here, or from anywhere else.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dasgrad


def main(num_passes: int = 5) -> list[float]:
    torch.manual_seed(0)
    images, digits = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(digits))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.01)
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)

    sampler = dasgrad.AdaptiveSampler(len(dataset), batch_size=32, floor=0.1, seed=0)
    loader = DataLoader(dasgrad.WithDraws(dataset), batch_sampler=sampler, num_workers=2)
    history: list[float] = []
    for number in range(1, num_passes + 1):
        weighted, plain = 0.0, 0.0
        for (inputs, targets), indices, weights in loader:
            batch = dasgrad.WeightedBatch((inputs, targets), indices, weights)
            losses = loss_fn(model(batch.inputs), batch.targets)
            optimizer.zero_grad()
            loss = batch.backward(losses, optimizer)  # batch.weighted_mean(losses).backward(), and its value
            optimizer.step()
            weighted += loss.item() / len(loader)
            plain += losses.mean().item() / len(loader)
        sampler.refresh(scorer.score_dataset(dataset))
        history.append(weighted)
        print(
            f"pass {number}: training loss {weighted:.3f} (unweighted mean, not the training loss: {plain:.3f}); "
            f"next weights {sampler.weights.min().item():.2f} to {sampler.weights.max().item():.2f}"
        )
    return history


if __name__ == "__main__":
    main()
