"""Fully connected layers: gᵢ = Σ_t bᵢₜ xᵢₜᵀ, of rank one where there is one position only."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from dasgrad.scoring.forms import Dense, Form, Outer, Rows
from dasgrad.scoring.rules import flatten_positions, rule


@rule(nn.Linear, NonDynamicallyQuantizableLinear, any_position=True)
def linear(module: nn.Linear, input: Any, *, grad: Tensor) -> Mapping[str, Form]:
    """Weight ``[o, k]`` and bias ``[o]`` on inputs ``[B, *positions, k]``, dense or `SparseRows`."""
    b = flatten_positions(grad)
    bias = Dense(lambda rows: b[rows] if b.dim() == 2 else b[rows].sum(1))
    if not isinstance(input, Tensor):
        return {"weight": _columns_of_sparse_rows(input, b), "bias": bias}
    x = flatten_positions(input)
    return {"weight": Outer(lambda rows: b[rows], lambda rows: x[rows]), "bias": bias}


def _columns_of_sparse_rows(input: Any, b: Tensor) -> Rows:
    """gᵢ has the column value·bᵢ for each entry that row i stores: time and memory go with the entries."""
    examples = torch.arange(len(b), device=b.device)
    owners = torch.repeat_interleave(examples, input.indptr.diff(), output_size=input.indices.numel())
    values = input.values.to(b.dtype)

    def columns(entries: slice) -> Tensor:
        return b[owners[entries]].mul_(values[entries].unsqueeze(1))

    return Rows(owners, input.indices, columns, distinct=bool(input.distinct), columns=True)
