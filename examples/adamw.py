"""`AdaptiveLoader` with ``torch.optim.AdamW``: the optimizer stays torch's own.

The scorer reads AdamW's moments for its metric; decoupled weight decay never enters a score. One comparison
with shuffled batches on one seed: it shows use, and is no evidence either way.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dasgrad

loss_fn = nn.CrossEntropyLoss(reduction="none")


def make() -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.01)


def main(num_passes: int = 8) -> dict[str, float]:
    images, digits = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(digits)
    train, test = TensorDataset(inputs[:1400], targets[:1400]), TensorDataset(inputs[1400:], targets[1400:])
    results: dict[str, float] = {}

    def report(name: str, model: nn.Module) -> None:
        for split, (x, y) in (("training", train.tensors), ("test", test.tensors)):
            results[f"{name} {split}"] = loss_fn(model(x), y).mean().item()
        print(f"{name:8s} training loss {results[f'{name} training']:.4f}  test loss {results[f'{name} test']:.4f}")

    model, optimizer = make()
    for _ in range(num_passes):
        for x, y in DataLoader(train, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss_fn(model(x), y).mean().backward()
            optimizer.step()
    report("shuffled", model)

    model, optimizer = make()
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)
    loader = dasgrad.AdaptiveLoader(train, batch_size=32, scorer=scorer, refresh=25)
    for _ in range(num_passes):
        for batch in loader:
            losses = loss_fn(model(batch.inputs), batch.targets)
            optimizer.zero_grad()
            batch.backward(losses, optimizer)
            optimizer.step()
    report("adaptive", model)
    return results


if __name__ == "__main__":
    main()
