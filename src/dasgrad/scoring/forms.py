"""What a rule says of a parameter's per-example gradients, without computing them all.

A rule answers with one form a parameter: the gradient of example i is given densely, as a sum of outer
products, or by the few rows it touches. How to measure a form in the optimizer's metric is
`dasgrad.scoring.measures`' business; a rule knows its layer and nothing else. Forms are lazy: their functions
are asked for a slice of examples at a time, so that temporaries stay small whatever the chunk is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Part = Callable[[slice], Tensor]
"""From a slice of the chunk's examples to a tensor whose first dimension runs over them."""


@dataclass(frozen=True, slots=True)
class Dense:
    """gᵢ as it is."""

    gradients: Part
    """``rows -> [b, *param.shape]``, or any shape with as many elements in the same order."""
    workspace: int = 0
    """Entries of the temporaries an example's gradient takes, where they are more than the gradient's own."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The right factor of a convolution in two dimensions, its patches not gathered."""

    images: Part
    """``rows -> [b, k, *spatial]``: the layer's input, padded."""
    positions: Sequence[int]
    """How many there are along each dimension."""
    kernel: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]


@dataclass(frozen=True, slots=True)
class Outer:
    """gᵢ = Σ_t bᵢₜ xᵢₜᵀ: a matrix for each example, the sum of T outer products.

    Without a dimension for t the sum has one term, and a frozen metric needs no per-example gradient at all.
    With ``num_groups`` G the parameter is G such matrices one after the other.
    """

    left: Part
    """``rows -> [b, T, G·o]`` or ``[b, o]``: gradients at the layer's output."""
    right: Part
    """``rows -> [b, T, G·k]`` or ``[b, k]``: the layer's input."""
    num_groups: int = 1
    transposed: bool = False
    """Whether parts have t last, ``[b, G·o, T]`` and ``[b, G·k, T]``, as convolutions do."""
    beside: tuple[Tensor, Tensor | None] | None = None
    """``[B, o]`` each: x²Qᵀ and xCᵀ under the measure's terms, where they were computed beside the layer's output."""
    windows: Windows | None = None
    """What right is gathered from, for measures that can do without; left is then ``[b, o, positions]``."""


@dataclass(frozen=True, slots=True)
class Rows:
    """gᵢ is zero but for a few rows of the parameter: entry e adds ``values(e)`` to row ``indices[e]``."""

    owners: Tensor
    """``[N]`` int64: the example each entry belongs to, in order."""
    indices: Tensor
    """``[N]`` int64: the row it adds to."""
    values: Callable[[slice], Tensor]
    """``entries -> [m, width]``: what a slice of the N entries adds."""
    distinct: bool = False
    """Whether no example has two entries of one row; else such entries are added first."""
    columns: bool = False
    """Whether indices run over the second dimension of a matrix, and values are columns."""


@dataclass(frozen=True, slots=True)
class SparseOuter:
    """gᵢ = bᵢ xᵢᵀ where few entries of xᵢ are not zero."""

    left: Tensor
    """``[B, o]``: gradients at the layer's output."""
    starts: Tensor
    """``[B + 1]`` int64: example i has the entries ``starts[i]:starts[i + 1]``."""
    columns: Tensor
    """``[N]`` int64."""
    values: Tensor
    """``[N]``."""
    num_columns: int
    distinct: bool
    """Whether no example has two entries in one column."""

    def entries(self) -> Rows:
        """The same, entry by entry: a column value·bᵢ each."""
        examples = torch.arange(len(self.left), device=self.left.device)
        owners = torch.repeat_interleave(examples, self.starts.diff(), output_size=self.columns.numel())
        values = self.values.to(self.left.dtype)

        def columns(entries: slice) -> Tensor:
            return self.left[owners[entries]].mul_(values[entries].unsqueeze(1))

        return Rows(owners, self.columns, columns, distinct=self.distinct, columns=True)


@dataclass(frozen=True, slots=True)
class Slice:
    """The gradient of a slice of the parameter's first dimension; several slices must not overlap."""

    rows: slice
    form: Dense | Outer | Rows | SparseOuter


Form = Dense | Outer | Rows | SparseOuter | Slice
