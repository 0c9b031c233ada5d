"""Triton kernels for the places where plain operations leave much to a GPU's memory bandwidth.

Each has plain torch operations as its oracle, which serve wherever Triton or CUDA is missing:

* `linear_with_squares`: x Wᵀ and x² Qᵀ in one reading of x, for a linear layer under a frozen metric;
* `own_outer_products`: Σₖ fₖ of outer products with the example's own gradient in the metric, never formed;
* `own_entries` and `quadratic_entries`: Σₖ fₖ of gradients that are there, in one reading.
"""

import importlib.util

import torch
from torch import Tensor

if importlib.util.find_spec("triton") is not None and torch.cuda.is_available():
    import triton

    from dasgrad.scoring import triton_kernels as bodies
else:  # CPU builds of torch come without it
    triton = None

Arrays = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
Coefficients = tuple[float, float, float, float]
MOST_OUTPUTS = 64
"""Widest layer for which one program holds all outputs of its rows."""


def available(tensor: Tensor) -> bool:
    """Whether the kernels run on tensors of this device and type."""
    return triton is not None and tensor.is_cuda and tensor.dtype == torch.float32


def linear_with_squares(x: Tensor, weight: Tensor, quadratic: Tensor) -> tuple[Tensor, Tensor]:
    """``[B, k], [o, k], [o, k] -> [B, o], [B, o]``: x Wᵀ and x² Qᵀ, in full float32 unless tf32 is allowed."""
    num_rows, num_inputs, num_outputs = x.shape[0], x.shape[1], weight.shape[0]
    x, weight, quadratic = x.contiguous(), weight.contiguous(), quadratic.contiguous()
    y = torch.empty(num_rows, num_outputs, device=x.device, dtype=torch.float32)
    s = torch.empty_like(y)
    outputs = max(16, triton.next_power_of_2(num_outputs))
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    rows, inputs = 64, 64 if precision == "tf32" else 32
    bodies.linear_with_squares[(triton.cdiv(num_rows, rows),)](
        x, weight, quadratic, y, s, num_rows, num_inputs, num_outputs,
        ROWS=rows, INPUTS=inputs, OUTPUTS=outputs, PRECISION=precision, num_warps=4, num_stages=4,
    )  # fmt: skip
    return y, s


def own_outer_products(left: Tensor, right: Tensor, arrays: Arrays, coefficients: Coefficients) -> Tensor:
    """``[B, o], [B, k] -> [B]``; arrays and coefficients as in `dasgrad.scoring.own`."""
    left, right = left.contiguous(), right.contiguous()
    floor, past, decay, offset = arrays
    out = torch.empty(len(left), device=left.device, dtype=torch.float32)
    rows = 16
    bodies.own_outer_products[(triton.cdiv(len(left), rows),)](
        left, right, floor, past, past if decay is None else decay, past if offset is None else offset, out,
        *coefficients, len(left), left.shape[1], right.shape[1],
        ROWS=rows, INPUTS=64, DECAY=decay is not None, MOMENTUM=offset is not None,
        GUARD=coefficients[3] == 0, num_warps=4,
    )  # fmt: skip
    return out


def own_entries(gradients: Tensor, arrays: Arrays, coefficients: Coefficients) -> Tensor:
    """``[B, n] -> [B]``."""
    floor, past, decay, offset = arrays
    out, grid, sizes = _row_sums(gradients)
    bodies.own_entries[grid](
        gradients.contiguous(), floor, past, past if decay is None else decay, past if offset is None else offset, out,
        *coefficients, *sizes, ROWS=_ROWS, ENTRIES=_ENTRIES, DECAY=decay is not None, MOMENTUM=offset is not None,
        GUARD=coefficients[3] == 0, num_warps=4,
    )  # fmt: skip
    return out.sum(1)


def quadratic_entries(gradients: Tensor, quadratic: Tensor | None, cross: Tensor | None) -> Tensor:
    """``[B, n], [n], [n] -> [B]``: Σₖ quadraticₖ gₖ² + crossₖ gₖ."""
    out, grid, sizes = _row_sums(gradients)
    bodies.quadratic_entries[grid](
        gradients.contiguous(), gradients if quadratic is None else quadratic.contiguous(),
        gradients if cross is None else cross.contiguous(), out, *sizes,
        ROWS=_ROWS, ENTRIES=_ENTRIES, QUADRATIC=quadratic is not None, CROSS=cross is not None, num_warps=4,
    )  # fmt: skip
    return out.sum(1)


_ROWS, _ENTRIES = 4, 512


def _row_sums(gradients: Tensor) -> tuple[Tensor, tuple[int, int], tuple[int, int, int]]:
    """Partial sums to be filled, the grid of programs that fill them, and the sizes they are told."""
    num_rows, size = gradients.shape
    num_parts = max(1, min(64, size // (4 * _ENTRIES)))
    out = torch.empty(num_rows, num_parts, device=gradients.device, dtype=torch.float32)
    return out, (triton.cdiv(num_rows, _ROWS), num_parts), (num_rows, size, num_parts)
