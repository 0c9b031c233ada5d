"""Maximum pooling, which torch computes on a CPU many times faster with the channels last: worth a copy there and back.

Values and the places they came from are the same, so that the gradient goes where it went.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dasgrad.scoring import native
from dasgrad.scoring.plain import are_plain
from dasgrad.scoring.rules import DeclinedError, stand_in

_FEWEST_CHANNELS = 16
"""As many as are looked at with one instruction."""


@stand_in(functional.max_pool2d)
def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """``[B, channels, height, width]``, torch's own result."""
    plain = are_plain(input) and input.is_cpu and input.dtype in (torch.float32, torch.float64) and input.dim() == 4
    if not plain or return_indices or not input.is_contiguous() or input.numel() == 0:
        raise DeclinedError("in a way that has no faster one")
    if input.shape[1] < _FEWEST_CHANNELS:
        raise DeclinedError("with too few channels")
    options = [kernel_size, kernel_size if stride is None else stride, padding, dilation, ceil_mode]
    result: Tensor = _MaxPool.apply(input, options)  # type: ignore[no-untyped-call]
    return result


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: list[Any]) -> Tensor:
        last = native.transposed(x.flatten(2)).unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)
        values, places = functional.max_pool2d(last, *options, return_indices=True)
        ctx.save_for_backward(x, places.contiguous())
        *sizes, ceil_mode = options
        ctx.options = [[size, size] if isinstance(size, int) else list(size) for size in sizes], ceil_mode
        return native.transposed(values.permute(0, 2, 3, 1).flatten(1, 2)).view(values.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, places = ctx.saved_tensors
        sizes, ceil_mode = ctx.options
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        result: Tensor = backward(gradient.contiguous(), x, *sizes, ceil_mode, places)
        return result, None
