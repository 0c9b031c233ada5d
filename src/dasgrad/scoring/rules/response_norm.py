"""Local response normalisation, y = x·s^(−β) with s = k + (α/n)·Σ x² over n neighbouring channels.

It has no parameters, but torch takes longer for it than for a convolution: sums over channels go through a pooling of
five dimensions. Here they are products with a matrix of ones around the diagonal.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dasgrad.scoring.plain import are_plain
from dasgrad.scoring.rules import DeclinedError, stand_in


@stand_in(functional.local_response_norm)
def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """``[B, channels, *spatial]`` to the same shape, equal to torch's but for rounding."""
    plain = are_plain(input) and input.is_cpu and input.dtype in (torch.float32, torch.float64)
    plain = plain and input.dim() >= 3 and input.numel() > 0 and size > 0
    if not plain or torch.get_float32_matmul_precision() != "highest":
        raise DeclinedError("in a precision or on a device that has no faster way")
    return normalise(input, size, alpha, beta, k)


def normalise(x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """The same for any floating type and device; sums are as precise as matrix products are there."""
    result: Tensor = _ResponseNorm.apply(x, size, alpha, beta, k)  # type: ignore[no-untyped-call]
    return result


class _ResponseNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
        """Channels c − n//2 to c + (n−1)//2 are summed for channel c, as many of them as there are."""
        channels = x.shape[1]
        ones = x.new_ones(channels, channels)
        band = ones.tril_((size - 1) // 2).triu_(-(size // 2))
        flat = x.flatten(2)
        squares = flat.square()
        start = x.new_full((1, 1, 1), k)
        scale = torch.baddbmm(start, band.expand(len(x), -1, -1), squares, alpha=alpha / size)
        factors = _negative_power(scale, beta, out=squares)
        ctx.save_for_backward(flat, scale, factors, band)
        ctx.slope = -2 * beta * alpha / size
        return (flat * factors).view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """g·s^(−β) − 2β(α/n)·x·Σ g·x·s^(−β−1), the sum over the channels that x_c went into."""
        flat, scale, factors, band = ctx.saved_tensors
        result = gradient.reshape(flat.shape) * factors
        shares = (result * flat).div_(scale)
        spread = torch.bmm(band.t().expand(len(flat), -1, -1), shares)
        result.addcmul_(flat, spread, value=ctx.slope)
        return result.view(gradient.shape), None, None, None, None


def _negative_power(values: Tensor, exponent: float, out: Tensor) -> Tensor:
    """values^(−exponent); the usual 3/4 by roots."""
    if exponent != 0.75:
        return torch.pow(values, -exponent, out=out)
    roots = torch.rsqrt(values, out=out)
    return roots.mul_(roots.sqrt())
