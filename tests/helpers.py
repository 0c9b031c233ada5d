"""Tables of problems and small tools that several test files share."""

from collections.abc import Callable

import numpy as np
import torch

from dasgrad import projections, reference

MOMENTS = ("sgd", "adagrad", "rmsprop", "adam", "amsgrad")
WEIGHTINGS = ("gradient", "update")
PROJECTIONS = {
    "none": None,
    "box": projections.Box(-0.3, 0.4),
    "nonnegative": projections.NonNegative(),
    "l2": projections.L2Ball(0.8),
    "l1": projections.L1Ball(1.0),
    "simplex": projections.Simplex(),
}


def as_numpy_projection(projection: projections.Projection | None) -> reference.Project | None:
    """A projection of the library on the reference's vectors (projections have their own tests)."""
    if projection is None:
        return None
    return lambda y, h: projection(torch.from_numpy(y), torch.from_numpy(h)).numpy()


def bisected_projection(name: str) -> reference.Project | None:
    """The sets of PROJECTIONS by bisection on the multiplier, one coordinate at a time: an independent oracle."""

    def solve(x_of_mu: Callable[[float], np.ndarray], size: Callable[[np.ndarray], float], goal: float) -> np.ndarray:
        low, high = -1e6, 1e6
        for _ in range(300):
            middle = (low + high) / 2
            low, high = (middle, high) if size(x_of_mu(middle)) > goal else (low, middle)
        return x_of_mu(high)

    def l2(y: np.ndarray, h: np.ndarray) -> np.ndarray:
        if np.linalg.norm(y) <= 0.8:
            return y
        return solve(lambda mu: h * y / (h + max(mu, 0.0)), lambda x: float(np.linalg.norm(x)), 0.8)

    def l1(y: np.ndarray, h: np.ndarray) -> np.ndarray:
        if np.abs(y).sum() <= 1.0:
            return y
        return solve(
            lambda mu: np.sign(y) * np.maximum(np.abs(y) - max(mu, 0.0) / h, 0), lambda x: float(np.abs(x).sum()), 1.0
        )

    def simplex(y: np.ndarray, h: np.ndarray) -> np.ndarray:
        return solve(lambda mu: np.maximum(y - mu / h, 0), lambda x: float(x.sum()), 1.0)

    return {
        "none": None,
        "box": lambda y, h: np.minimum(np.maximum(y, -0.3), 0.4),
        "nonnegative": lambda y, h: np.maximum(y, 0.0),
        "l2": l2,
        "l1": l1,
        "simplex": simplex,
    }[name]


class Rows(torch.utils.data.Dataset):
    """A map-style data set that is not made of tensors in memory."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


def regression(n: int = 12, d: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple:
    """Inputs, targets and a linear model with a few examples that carry most of the gradient."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, d, generator=generator, dtype=dtype)
    targets = inputs @ torch.randn(d, generator=generator, dtype=dtype)
    targets[: max(1, n // 6)] += 5
    model = torch.nn.Linear(d, 1, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(torch.randn(1, d, generator=generator, dtype=dtype))
    return inputs, targets, model


def squared_losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 0.5 * (outputs.squeeze(-1) - targets).square()
