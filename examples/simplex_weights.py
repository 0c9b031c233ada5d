"""Ensemble weights on the simplex: a convex combination of experts, trained under a constraint.

Seven experts predict a noisy series, three of them useless. Their weights must be non-negative and sum to 1.
`DASGrad(projection=Simplex())` puts them back on the simplex after every step, in the metric of that step, so
weights that should be zero become exactly zero. A tenth of the data has outliers of ten times the noise, the
examples with the large gradients.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import dasgrad
from dasgrad.scoring import forms, rules


class Ensemble(nn.Module):
    """A weighted mean of experts' predictions."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.full((num_experts,), 1 / num_experts))

    def forward(self, predictions: Tensor) -> Tensor:
        """Mix ``[B, num_experts]`` predictions to ``[B]``."""
        return predictions @ self.shares


@rules.rule(Ensemble)
def share_gradients(module: Ensemble, predictions: Tensor, *, grad: Tensor) -> dict[str, forms.Form]:
    """Tell the scorer the gradient of example i: without a rule it would find it by a slower way."""
    return {"shares": forms.Dense(lambda rows: grad[rows, None] * predictions[rows])}


def make_data(num_examples: int) -> tuple[TensorDataset, Tensor]:
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0])
    predictions = torch.randn(num_examples, len(truth), generator=generator)
    noise = 0.1 * torch.randn(num_examples, generator=generator)
    noise[: num_examples // 10] *= 10
    return TensorDataset(predictions, predictions @ truth + noise), truth


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square()


def main(num_passes: int = 10) -> Tensor:
    dataset, truth = make_data(2000)
    model = Ensemble(len(truth))
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.05, projection=dasgrad.projections.Simplex())
    scheduler = dasgrad.InverseSqrtLR(optimizer)
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)
    loader = dasgrad.AdaptiveLoader(dataset, batch_size=32, scorer=scorer, refresh=50)
    for _ in range(num_passes):
        for batch in loader:
            losses = loss_fn(model(batch.inputs), batch.targets)
            optimizer.zero_grad()
            batch.backward(losses, optimizer)
            optimizer.step()
            scheduler.step()
    shares = model.shares.detach()
    print("true weights   ", "  ".join(f"{share:.3f}" for share in truth.tolist()))
    print("learned weights", "  ".join(f"{share:.3f}" for share in shares.tolist()))
    print(f"sum {shares.sum().item():.6f}, smallest {shares.min().item():.3f}")
    return shares


if __name__ == "__main__":
    main()
