"""Attention over sequences so short that all weights of a head stay in a cache.

torch's own way on a CPU calls a library for each small matrix product, and is no faster with two threads than with one.
As there, no weights are kept: the backward pass computes them again.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dasgrad.scoring import native
from dasgrad.scoring.rules import DeclinedError, stand_in

_MOST_WEIGHTS = 2**16
"""Of one head; with more, torch's own way goes through them in pieces that stay nearer."""


@stand_in(functional.scaled_dot_product_attention)
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Query ``[B, heads, T, E]``, key ``[B, heads, S, E]``, value ``[B, heads, S, V]`` to ``[B, heads, T, V]``."""
    parts = (query, key, value)
    plain = all(part.device.type == "cpu" and part.dim() == 4 and part.numel() > 0 for part in parts)
    plain = plain and query.dtype == key.dtype == value.dtype and query.dtype in (torch.float32, torch.float64)
    if not plain or attn_mask is not None or dropout_p or is_causal or enable_gqa:
        raise DeclinedError("in a way that has no faster one")
    if query.shape[:2] != key.shape[:2] or key.shape[:3] != value.shape[:3]:
        raise DeclinedError("of shapes that are spread out")
    if not native.attends(query) or query.shape[2] * key.shape[2] > _MOST_WEIGHTS:
        raise DeclinedError("that torch computes as fast")
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    result: Tensor = _Attention.apply(query, key, value, scale)  # type: ignore[no-untyped-call]
    return result


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        parts = [_side_by_side(part) for part in (query, key, value)]
        ctx.save_for_backward(*parts)
        ctx.scale = scale
        output = _positions_first(query, value.shape[3])
        native.attention([*parts, output], scale)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # with `create_graph`
            raise RuntimeError("attention has no second derivative while examples are scored on a CPU.")
        with torch._C.DisableTorchFunction():  # no function of interest to a tape, which follows backward passes, too
            parts = ctx.saved_tensors
            results = [_positions_first(part, part.shape[3]) for part in parts]
            native.attention([*parts, _side_by_side(gradient)], ctx.scale, results)
        return *results, None


def _side_by_side(part: Tensor) -> Tensor:
    return part if part.stride(3) == 1 else part.contiguous()


def _positions_first(like: Tensor, width: int) -> Tensor:
    """``[B, heads, T, width]``, in memory as ``[B, T, heads, width]``: so layers take and give it."""
    num_examples, num_heads, num_positions, _ = like.shape
    return like.new_empty(num_examples, num_positions, num_heads, width).transpose(1, 2)
