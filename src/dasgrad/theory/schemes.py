"""A method as the theorems assume it: moments, weighting, α/√t, β₁/t^power, and p that follows fresh scores."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dasgrad.moments import Hyper, Moments, resolve
from dasgrad.optim import Beta1Decay, DASGrad, InverseSqrtLR
from dasgrad.optim.dasgrad import Weighting
from dasgrad.projections import Projection


@dataclass(frozen=True)
class Scheme:
    """One of the methods of Theorems 1 to 4, or a relative of theirs.

    Example:
        >>> sgd = Scheme("sgd", alpha=0.5)
        >>> dasgrad = Scheme("amsgrad", "update", alpha=0.5, beta1_power=1.0, adaptive=True)
    """

    moments: str = "amsgrad"
    weighting: Weighting = "gradient"
    alpha: float = 1.0
    """α of α_t = α/√t."""
    beta1: float = 0.9
    beta1_power: float = 0.0
    """β₁ₜ = β₁/t^power; 0 is constant."""
    beta2: float = 0.99
    eps: float = 0.0
    adaptive: bool = False
    """Whether p follows scores that are computed at every step (J = 1); else p = π."""
    floor: float = 0.0
    epsilon: float = 1e-12
    """ε of the sampler, which refuses ε = λ = 0; so small that p is the optimum to rounding."""

    def __post_init__(self) -> None:
        resolve(self.moments)
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"`Scheme(alpha=...)` must be positive and finite, got {self.alpha!r}.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`Scheme({name}=...)` must be in [0, 1), got {getattr(self, name)!r}.")
        if not 0 <= self.beta1_power < math.inf:
            raise ValueError(f"`Scheme(beta1_power=...)` must be finite and at least 0, got {self.beta1_power!r}.")

    @property
    def pair(self) -> Moments:
        """The moments φ and ψ."""
        return resolve(self.moments)

    def alpha_at(self, t: int) -> float:
        """The step size α_t."""
        return self.alpha / math.sqrt(t)

    def hyper_at(self, t: int) -> Hyper:
        """What φ and ψ are told at step t."""
        return Hyper(self.beta1 / t**self.beta1_power, self.beta2, self.eps, t, bias_correction=False)

    def probabilities(self, scores: Tensor, pi: Tensor) -> Tensor:
        """What examples are drawn with, ``[..., n]``; π where all masses are 0 or the scheme is not adaptive."""
        if not self.adaptive:
            return pi.expand_as(scores)
        mass = pi * (scores + self.epsilon)
        total = mass.sum(-1, keepdim=True)
        mixed = (1 - self.floor) * mass / torch.where(total > 0, total, 1.0) + self.floor * pi
        return torch.where(total > 0, mixed, pi)

    def make_optimizer(
        self, theta: Tensor, projection: Projection | None
    ) -> tuple[DASGrad, list[InverseSqrtLR | Beta1Decay]]:
        """The library's optimizer for a parameter, and the schedules to step after it."""
        optimizer = DASGrad(
            [theta],
            self.alpha,
            (self.beta1, self.beta2),
            self.eps,
            moments=self.moments,
            weighting=self.weighting,
            projection=projection,
        )
        schedules: list[InverseSqrtLR | Beta1Decay] = [InverseSqrtLR(optimizer)]
        if self.beta1_power > 0:
            schedules.append(Beta1Decay(optimizer, self.beta1_power))
        return optimizer, schedules
