"""Fully connected layers: gᵢ = Σ_t bᵢₜ xᵢₜᵀ, of rank one where there is one position only."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from dasgrad.scoring.forms import Dense, Form, Outer
from dasgrad.scoring.rules import flatten_positions, rule


@rule(nn.Linear, NonDynamicallyQuantizableLinear)
def linear(module: nn.Linear, input: Tensor, *, grad: Tensor) -> Mapping[str, Form]:
    """Weight ``[o, k]`` and bias ``[o]`` on inputs ``[B, *positions, k]``."""
    x, b = flatten_positions(input), flatten_positions(grad)
    return {
        "weight": Outer(lambda rows: b[rows], lambda rows: x[rows]),
        "bias": Dense(lambda rows: b[rows] if b.dim() == 2 else b[rows].sum(1)),
    }
