"""One step ahead: what every possible draw would do to the parameters, all draws at once.

Expectations over the next draw are sums over n futures, so that theory needs no chance. The arithmetic is the
library's own: `Moments.advance` broadcasts over futures, and projections over rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dasgrad.moments import Hyper, Moments
from dasgrad.optim.dasgrad import Weighting
from dasgrad.projections import Projection
from dasgrad.theory.sets import project_rows


@dataclass(frozen=True, eq=False)
class Futures:
    """The step from each of some states by each of n draws; a single draw each makes n = 1."""

    theta: Tensor
    """``[..., n, d]``: θ_{t+1}."""
    direction: Tensor
    """``[..., n, d]``: u, by which θ̂_{t+1} = θ_t − α_t u/H: w m with weighting ``"update"``, m with ``"gradient"``."""
    metric: Tensor
    """``[..., n, d]``: H_t, after the draw's own gradient."""
    state: dict[str, Tensor]
    """``[..., n, d]`` each: what the moments remember."""
    own: Tensor | None = None
    """``[..., n, d]``: m without any weight, where weights have not gone into it."""


def divide(a: Tensor, b: Tensor) -> Tensor:
    """A / b with 0/0 := 0."""
    return torch.where(a == 0, 0.0, a / b)


def square_norm(x: Tensor, metric: Tensor) -> Tensor:
    """The square ‖H^(1/2) x‖² along the last dimension."""
    return (metric * x.square()).sum(-1)


def dual_square_norm(x: Tensor, metric: Tensor) -> Tensor:
    """The square ‖H^(−1/2) x‖² along the last dimension, 0/0 := 0."""
    return divide(x.square(), metric).sum(-1)


def own_directions(moments: Moments, state: Mapping[str, Tensor], grads: Tensor, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Each example's own m and H, ``[..., n, d]`` each, from its gradient without a weight, as the paper prints."""
    ahead = moments.advance({key: value.unsqueeze(-2) for key, value in state.items()}, grads, hyper)
    metric = moments.metric(ahead, hyper).expand_as(grads)
    return moments.phi(ahead, grads, hyper).expand_as(grads), metric


def score_all(
    moments: Moments, weighting: Weighting, state: Mapping[str, Tensor], grads: Tensor, hyper: Hyper
) -> Tensor:
    """The library's scores, ``[..., n]``: ‖H^(−1/2) m‖ for ``"update"``, ‖H^(−1/2) g‖ for ``"gradient"``, own H each.

    Args:
        moments: φ and ψ.
        weighting: what the weight multiplies.
        state: of the moments, ``[..., d]`` each.
        grads: of all examples, ``[..., n, d]``.
        hyper: of the step to come.
    """
    direction, metric = own_directions(moments, state, grads, hyper)
    return dual_square_norm(direction if weighting == "update" else grads, metric).sqrt()


def look_ahead(
    moments: Moments,
    weighting: Weighting,
    theta: Tensor,
    state: Mapping[str, Tensor],
    grads: Tensor,
    weights: Tensor,
    alpha: float,
    hyper: Hyper,
    projection: Projection | None,
) -> Futures:
    """Algorithm 1's step with a batch of one, for every draw.

    Args:
        moments: φ and ψ.
        weighting: what the weight multiplies.
        theta: ``[..., d]``.
        state: of the moments before the step, ``[..., d]`` each.
        grads: of all examples at θ, ``[..., n, d]``.
        weights: π/p, ``[..., n]``.
        alpha: α_t.
        hyper: β₁ₜ, β₂, eps and t.
        projection: onto Θ, in the metric H.
    """
    before = {key: value.unsqueeze(-2) for key, value in state.items()}
    seen = grads * weights.unsqueeze(-1) if weighting == "gradient" else grads
    ahead = moments.advance(before, seen, hyper)
    own = None
    direction = moments.phi(ahead, seen, hyper).expand_as(grads)
    if weighting == "update":
        own, direction = direction, direction * weights.unsqueeze(-1)
    metric = moments.metric(ahead, hyper).to(grads.dtype).expand_as(grads)
    moved = theta.unsqueeze(-2) - alpha * divide(direction, metric)
    return Futures(project_rows(projection, moved, metric), direction, metric, ahead, own)
