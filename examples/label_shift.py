"""Label shift: the training set has almost no 1s and 3s, the test set is balanced.

`dasgrad.targets.from_label_frequencies` aims the training objective at the test set's class mix: each example
of a rare class counts more. The gradient stays an unbiased estimate of that new objective, and the sampler
still draws what teaches most. The gain is modest here: aiming does not invent digits, and a few examples
of a class remain a few.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dasgrad

loss_fn = nn.CrossEntropyLoss(reduction="none")


def make_data(num_rare: int) -> tuple[TensorDataset, TensorDataset]:
    """The first 1200 digits, of the classes 1 and 3 only ``num_rare`` each; the rest is the test set."""
    images, digits = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(digits)
    keep = torch.arange(len(labels)) < 1200
    for rare in (1, 3):
        keep[(keep & (labels == rare)).nonzero().flatten()[num_rare:]] = False
    test = torch.arange(len(labels)) >= 1200
    return TensorDataset(inputs[keep], labels[keep]), TensorDataset(inputs[test], labels[test])


def train(dataset: TensorDataset, target: Tensor | None, num_passes: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.3)
    scheduler = dasgrad.InverseSqrtLR(optimizer)
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)
    sampler = dasgrad.AdaptiveSampler(len(dataset), batch_size=32, target=target, seed=0)
    loader = dasgrad.AdaptiveLoader(dataset, sampler=sampler, scorer=scorer, refresh=30)
    for _ in range(num_passes):
        for batch in loader:
            losses = loss_fn(model(batch.inputs), batch.targets)
            optimizer.zero_grad()
            batch.backward(losses, optimizer)
            optimizer.step()
            scheduler.step()
    return model


def main(num_passes: int = 10, num_rare: int = 8) -> dict[str, tuple[float, float]]:
    train_set, test_set = make_data(num_rare)
    labels, (inputs, truth) = train_set.tensors[1], test_set.tensors
    frequencies = torch.bincount(truth, minlength=10).double()
    target = dasgrad.targets.from_label_frequencies(labels, frequencies / frequencies.sum())
    rare = (truth == 1) | (truth == 3)
    results: dict[str, tuple[float, float]] = {}
    for name, aim in (("training mix", None), ("test mix", target)):
        outputs = train(train_set, aim, num_passes)(inputs).detach()
        loss = loss_fn(outputs, truth).mean().item()
        correct = (outputs.argmax(1) == truth).double()
        results[name] = (loss, correct.mean().item())
        print(
            f"aimed at the {name:12s} test loss {loss:.3f}  accuracy {correct.mean().item():.3f}  "
            f"on 1s and 3s {correct[rare].mean().item():.3f}  on the others {correct[~rare].mean().item():.3f}"
        )
    return results


if __name__ == "__main__":
    main()
