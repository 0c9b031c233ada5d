"""Triton kernels for the places where plain operations leave much to a GPU's memory bandwidth.

Each has plain torch operations as its oracle, which serve wherever Triton or CUDA is missing:

* `linear_with_squares`: x Wᵀ and x² Qᵀ in one reading of x, for a linear layer under a frozen metric;
* `own_outer_products`: Σₖ fₖ of outer products with the example's own gradient in the metric, never formed;
* `own_entries` and `quadratic_entries`: Σₖ fₖ of gradients that are there, in one reading.
"""

import functools
import importlib.util
from types import ModuleType

import torch
from torch import Tensor

from dasgrad.scoring.plain import are_plain

Arrays = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
Coefficients = tuple[float, float, float, float]
MOST_OUTPUTS = 64
"""Widest layer for which one program holds all outputs of its rows."""


def available(tensor: Tensor) -> bool:
    """Whether the kernels run on tensors of this kind, device and type."""
    return tensor.is_cuda and tensor.dtype == torch.float32 and are_plain(tensor) and _has_triton()


@functools.cache
def _has_triton() -> bool:
    """CPU builds of torch come without it."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _bodies() -> ModuleType:
    """Not imported before there is work on a GPU: whoever imports this may fork, and processes use CUDA after that."""
    from dasgrad.scoring import triton_kernels

    return triton_kernels


def _whole(number: int, part: int) -> int:
    """Parts that hold the number."""
    return -(-number // part)


def _power_of_2(number: int) -> int:
    """The least one that is no less."""
    return 1 << (number - 1).bit_length()


def linear_with_squares(
    x: Tensor, weight: Tensor, bias: Tensor | None, quadratic: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """``[B, k], [o, k], [o], [o, k] -> [B, o], [B, o]``: x Wᵀ + b and x² Qᵀ, in float32 unless tf32 is allowed.

    Without Q the output alone.
    """
    num_rows, num_inputs, num_outputs = x.shape[0], x.shape[1], weight.shape[0]
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty(num_rows, num_outputs, device=x.device, dtype=torch.float32)
    s = None if quadratic is None else torch.empty_like(y)
    outputs = max(16, _power_of_2(num_outputs))
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    rows, inputs, warps, stages = (64, 32, 4, 4) if precision == "tf32x3" else (64, 64, 4, 4)
    if s is None:
        rows, inputs, warps, stages = 128, 64, 8, 3
    _bodies().linear_with_squares[(_whole(num_rows, rows),)](
        x, weight, weight if quadratic is None else quadratic.contiguous(),
        weight if bias is None else bias.contiguous(), y, y if s is None else s, num_rows, num_inputs, num_outputs,
        ROWS=rows, INPUTS=inputs, OUTPUTS=outputs, BIAS=bias is not None, SQUARES=s is not None, PRECISION=precision,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y, s


def own_outer_products(left: Tensor, right: Tensor, arrays: Arrays, coefficients: Coefficients) -> Tensor:
    """``[B, o], [B, k] -> [B]``; arrays and coefficients as in `dasgrad.scoring.own`."""
    left, right = left.contiguous(), right.contiguous()
    floor, past, decay, offset = arrays
    out = torch.empty(len(left), device=left.device, dtype=torch.float32)
    rows, num_outputs = 16, left.shape[1]
    _bodies().own_outer_products[(_whole(len(left), rows),)](
        left, right, floor, past, past if decay is None else decay, past if offset is None else offset, out,
        *coefficients, len(left), num_outputs, right.shape[1],
        ROWS=rows, INPUTS=64, UNROLLED=num_outputs if num_outputs <= 16 else 0, DECAY=decay is not None,
        MOMENTUM=offset is not None, GUARD=coefficients[3] == 0, num_warps=4,
    )  # fmt: skip
    return out


def own_entries(gradients: Tensor, arrays: Arrays, coefficients: Coefficients) -> Tensor:
    """``[B, n] -> [B]``."""
    floor, past, decay, offset = arrays
    sums = _RowSums(gradients)
    _bodies().own_entries[sums.grid](
        gradients.contiguous(), floor, past, past if decay is None else decay, past if offset is None else offset,
        sums.parts, *coefficients, *sums.sizes, ROWS=sums.rows, ENTRIES=sums.entries, DECAY=decay is not None,
        MOMENTUM=offset is not None, GUARD=coefficients[3] == 0, num_warps=4,
    )  # fmt: skip
    return sums.total()


def quadratic_entries(gradients: Tensor, quadratic: Tensor | None, cross: Tensor | None) -> Tensor:
    """``[B, n], [n], [n] -> [B]``: Σₖ quadraticₖ gₖ² + crossₖ gₖ."""
    sums = _RowSums(gradients)
    _bodies().quadratic_entries[sums.grid](
        gradients.contiguous(), gradients if quadratic is None else quadratic.contiguous(),
        gradients if cross is None else cross.contiguous(), sums.parts, *sums.sizes, ROWS=sums.rows,
        ENTRIES=sums.entries, QUADRATIC=quadratic is not None, CROSS=cross is not None, num_warps=4,
    )  # fmt: skip
    return sums.total()


class _RowSums:
    """How the rows of a matrix are shared out over programs, and the partial sums these leave."""

    def __init__(self, matrix: Tensor) -> None:
        num_rows, size = matrix.shape
        self.entries = min(512, max(8, _power_of_2(size)))
        self.rows = 2048 // self.entries
        num_parts = max(1, min(64, size // (4 * self.entries)))
        self.parts = torch.empty(num_rows, num_parts, device=matrix.device, dtype=torch.float32)
        self.grid = (_whole(num_rows, self.rows), num_parts)
        self.sizes = (num_rows, size, num_parts)

    def total(self) -> Tensor:
        return self.parts.sum(1) if self.parts.shape[1] > 1 else self.parts[:, 0]
