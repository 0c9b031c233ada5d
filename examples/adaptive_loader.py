"""An ordinary training loop with `AdaptiveLoader`, beside uniform AMSGrad.

Both take the paper's α/√t and choose α from one grid. The last line is the honest rival: uniform AMSGrad with
as much time as DASGrad took, scoring included. A step of this small model costs next to nothing, so there is
little time to win here. One seed shows how the code is used, no more; `make reproduce` compares many seeds.
"""

import time
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dasgrad

Train = Callable[[TensorDataset, float, int], nn.Module]
LEARNING_RATES = (0.3, 1.0, 3.0)
loss_fn = nn.CrossEntropyLoss(reduction="none")


def train_uniform(dataset: TensorDataset, lr: float, num_passes: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=lr)  # without weights this is AMSGrad
    scheduler = dasgrad.InverseSqrtLR(optimizer)
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    for _ in range(num_passes):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).mean().backward()
            optimizer.step()
            scheduler.step()
    return model


def train_adaptive(dataset: TensorDataset, lr: float, num_passes: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=lr)
    scheduler = dasgrad.InverseSqrtLR(optimizer)
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)
    loader = dasgrad.AdaptiveLoader(dataset, batch_size=32, scorer=scorer, refresh=50)
    for _ in range(num_passes):
        for batch in loader:
            losses = loss_fn(model(batch.inputs), batch.targets)
            optimizer.zero_grad()
            batch.weighted_mean(losses).backward()
            optimizer.step()
            scheduler.step()
    return model


def measure(name: str, train: Train, dataset: TensorDataset, num_passes: int) -> tuple[float, float]:
    inputs, targets = dataset.tensors
    runs: list[tuple[float, float, float]] = []
    for lr in LEARNING_RATES:
        started = time.perf_counter()
        model = train(dataset, lr, num_passes)
        seconds = time.perf_counter() - started
        runs.append((loss_fn(model(inputs), targets).mean().item(), seconds, lr))
    loss, seconds, lr = min(runs)
    print(f"{name:27s} {num_passes:3d} passes  α {lr:<4g} training loss {loss:.4f}  {seconds:.2f} s")
    return loss, seconds


def main(num_passes: int = 12) -> tuple[float, float]:
    images, digits = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(digits))
    uniform, uniform_seconds = measure("uniform AMSGrad", train_uniform, dataset, num_passes)
    adaptive, adaptive_seconds = measure("DASGrad", train_adaptive, dataset, num_passes)
    affordable = max(num_passes, round(num_passes * adaptive_seconds / uniform_seconds))
    measure("uniform AMSGrad, same time", train_uniform, dataset, affordable)
    return uniform, adaptive


if __name__ == "__main__":
    main()
