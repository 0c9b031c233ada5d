"""The right-hand sides of Theorems 1 to 4: potential, error, and two terms of the moving average.

With u the direction of the step (θ̂_{t+1} = θ_t − α_t u/H_t) and x = θ − θ*, one step of the general method has

    ‖x_{t+1}‖²_H ≤ ‖x_t‖²_H − 2 α_t ⟨u, x_t⟩ + α_t² ‖u‖²_{1/H},    E[u | θ_t] = β₁ₜ m_{t−1} + (1 − β₁ₜ) ∇f(θ_t),

and Young's inequality on −β₁ₜ⟨m_{t−1}, x_t⟩ gives

    ⟨∇f(θ_t), x_t⟩ ≤ E[potential + error + momentum + distance | θ_t].

Theorem 4 is this for any p and AMSGrad's moments, Theorem 3 for p = π, Theorem 2 for H = I and β₁ = 0, Theorem 1 for
both. It holds for every other pair (φ, ψ) of the library, too: what may fail for Adam is that the terms stay small.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dasgrad.theory.ahead import Futures, dual_square_norm, square_norm

NAMES = ("potential", "error", "momentum", "distance")


@dataclass(frozen=True, eq=False)
class Terms:
    """The four terms, of any common shape."""

    potential: Tensor
    """(‖x_t‖²_H − ‖x_{t+1}‖²_H) / (2α_t(1−β₁ₜ))."""
    error: Tensor
    """α_t/(2(1−β₁ₜ)) · ‖u‖²_{1/H}: with ``"update"`` that is w²‖V̂^(−1/4) m‖²."""
    momentum: Tensor
    """α_t β₁ₜ/(2(1−β₁ₜ)) · ‖m_{t−1}‖²_{1/H}."""
    distance: Tensor
    """β₁ₜ/(2α_t(1−β₁ₜ)) · ‖x_t‖²_H."""

    @property
    def total(self) -> Tensor:
        """The whole right-hand side."""
        return self.potential + self.error + self.momentum + self.distance

    def expect(self, p: Tensor) -> "Terms":
        """The expectation over draws of probabilities ``[..., n]``."""
        return Terms(*((p * getattr(self, name)).sum(-1) for name in NAMES))


def evaluate_terms(
    futures: Futures, theta: Tensor, momentum: Tensor, optimum: Tensor, alpha: float, beta1: float
) -> Terms:
    """The terms of one step for every draw, ``[..., n]``.

    Args:
        futures: of the step.
        theta: θ_t, ``[..., d]``.
        momentum: m_{t−1}, ``[..., d]``.
        optimum: θ*, ``[d]``.
        alpha: α_t.
        beta1: β₁ₜ; 0 for moments without momentum.
    """
    H = futures.metric
    before = square_norm((theta - optimum).unsqueeze(-2).expand_as(H), H)
    after = square_norm(futures.theta - optimum, H)
    rest = 1 - beta1
    return Terms(
        potential=(before - after) / (2 * alpha * rest),
        error=alpha / (2 * rest) * dual_square_norm(futures.direction, H),
        momentum=alpha * beta1 / (2 * rest) * dual_square_norm(momentum.unsqueeze(-2).expand_as(H), H),
        distance=beta1 / (2 * alpha * rest) * before,
    )


def stack_terms(steps: list[Terms]) -> Terms:
    """Terms of many steps as ``[T, ...]``."""
    return Terms(*(torch.stack([getattr(step, name) for step in steps]) for name in NAMES))
