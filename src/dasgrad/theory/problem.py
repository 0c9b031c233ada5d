"""What theory is about: a finite sum f(θ) = Σ πᵢ fᵢ(θ) of convex functions over a convex set."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dasgrad.projections import Projection
from dasgrad.targets import check_simplex


@dataclass(frozen=True, eq=False)
class FiniteSum:
    """A convex objective with all its examples' losses and gradients, in float64.

    Args:
        losses: ``[..., d]`` points to ``[..., n]`` losses fᵢ.
        gradients: ``[..., d]`` points to ``[..., n, d]`` (sub)gradients ∇fᵢ.
        optimum: θ*, ``[d]``, the point regret is measured against. The theorems hold for every point of the set, so
            one that is near the minimum will do; regret is then that against it.
        num_examples: n.
        projection: onto the set Θ; None is all of ℝᵈ.
        target: π, ``[n]``; None is uniform.

    Raises:
        ValueError: for an optimum that is not ``[d]`` float64, or a target that is no distribution over n examples.

    Example:
        >>> slopes = torch.tensor([[3.0], [-1.0], [-1.0]], dtype=torch.float64)
        >>> lines = FiniteSum(lambda x: x @ slopes.T, lambda x: slopes.expand(*x.shape[:-1], 3, 1),
        ...                   torch.tensor([-1.0], dtype=torch.float64), 3)
        >>> lines.excess(torch.tensor([1.0], dtype=torch.float64))
        tensor(0.6667, dtype=torch.float64)
    """

    losses: Callable[[Tensor], Tensor]
    gradients: Callable[[Tensor], Tensor]
    optimum: Tensor
    num_examples: int
    projection: Projection | None = None
    target: Tensor | None = None

    def __post_init__(self) -> None:
        if self.optimum.ndim != 1 or self.optimum.dtype != torch.float64:
            raise ValueError(
                f"`FiniteSum(optimum=...)` must have shape [d] and dtype float64, got shape "
                f"{tuple(self.optimum.shape)} and {self.optimum.dtype}."
            )
        if self.target is not None:
            if self.target.shape != (self.num_examples,):
                raise ValueError(
                    f"`FiniteSum(target=...)` must have shape ({self.num_examples},), got {tuple(self.target.shape)}."
                )
            check_simplex(self.target, "FiniteSum(target=...)")

    @property
    def dimension(self) -> int:
        """The number d of parameters."""
        return len(self.optimum)

    @functools.cached_property
    def pi(self) -> Tensor:
        """The target π, ``[n]`` float64."""
        if self.target is None:
            return torch.full((self.num_examples,), 1.0 / self.num_examples, dtype=torch.float64)
        return self.target

    @functools.cached_property
    def minimum(self) -> float:
        """The least value f(θ*)."""
        return float(self.objective(self.optimum))

    def objective(self, theta: Tensor) -> Tensor:
        """The objective f(θ) = Σ πᵢ fᵢ(θ), ``[...]``."""
        return self.losses(theta) @ self.pi

    def excess(self, theta: Tensor) -> Tensor:
        """The excess f(θ) − f(θ*), ``[...]``: what a step adds to the regret."""
        return self.objective(theta) - self.minimum
