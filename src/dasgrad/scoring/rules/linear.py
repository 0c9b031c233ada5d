"""Fully connected layers: gᵢ = Σ_t bᵢₜ xᵢₜᵀ, of rank one where there is one position only."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from dasgrad.scoring.forms import Dense, Form, Outer, SparseOuter
from dasgrad.scoring.plain import is_sparse_rows
from dasgrad.scoring.rules import examples_first, flatten_positions, rule


def _misfit(module: nn.Linear, num_examples: int, input: Any) -> str | None:
    if not isinstance(input, Tensor) and not is_sparse_rows(input):
        return f"called on {type(input).__name__}"
    return examples_first(module, num_examples, input)


@rule(nn.Linear, NonDynamicallyQuantizableLinear, misfit=_misfit, any_position=True)
def linear(module: nn.Linear, input: Any, *, grad: Tensor) -> Mapping[str, Form]:
    """Weight ``[o, k]`` and bias ``[o]`` on inputs ``[B, *positions, k]``, dense or `SparseRows`."""
    b = flatten_positions(grad)
    bias = Dense(lambda rows: b[rows] if b.dim() == 2 else b[rows].sum(1))
    if not isinstance(input, Tensor):
        parts = (input.indptr, input.indices, input.values, input.num_columns, bool(input.distinct))
        return {"weight": SparseOuter(b, *parts), "bias": bias}
    x = flatten_positions(input)
    return {"weight": Outer(lambda rows: b[rows], lambda rows: x[rows]), "bias": bias}
