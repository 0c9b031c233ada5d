"""``nn.MultiheadAttention`` and the transformer layers built on it: four projections around an attention.

Its weights go to one torch function, and its ``out_proj`` is never called. That function is computed here step
by step, as torch does, with each projection on record as the fully connected layer it is.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dasgrad.scoring.forms import Dense, Form, Outer, Slice
from dasgrad.scoring.rules import DeclinedError, Watcher, rewrite


@rewrite(functional.multi_head_attention_forward, owners=[nn.MultiheadAttention])
def multi_head_attention(
    watcher: Watcher,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Query ``[T, B, E]``, key and value ``[S, B, ·]`` -> output ``[T, B, E]`` and weights ``[B, T, S]``."""
    if query.dim() != 3:
        raise DeclinedError("called on a single sequence")
    if bias_k is not None or bias_v is not None or static_k is not None or static_v is not None or add_zero_attn:
        raise DeclinedError("with extra keys or values has no rule")
    if (training and dropout_p) or (is_causal and attn_mask is None):
        raise DeclinedError("called in a way that has no rule")
    inputs = _examples_first(query, key, value)
    if use_separate_proj_weight:
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
        projected = _project_apart(watcher, inputs, weights, in_proj_bias)
    else:
        projected = _project_packed(watcher, inputs, in_proj_weight, in_proj_bias)
    q, k, v = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in projected)
    mask, is_causal = _merged_mask(q, k, attn_mask, key_padding_mask, is_causal, need_weights)
    attention = None
    if need_weights:
        products = q @ k.transpose(-2, -1) * math.sqrt(1.0 / q.shape[-1])
        attention = (products if mask is None else products + mask).softmax(dim=-1)
        output = attention @ v
        attention = attention.mean(dim=1) if average_attn_weights else attention
    else:
        output = watcher.compute(functional.scaled_dot_product_attention, q, k, v, mask, 0.0, is_causal)
    output = output.transpose(1, 2).flatten(2)
    return _project(watcher, output, out_proj_weight, out_proj_bias).transpose(0, 1), attention


def _examples_first(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each with the examples first; tensors that were one and the same still are."""
    moved_query = query.transpose(0, 1)
    moved_key = moved_query if key is query else key.transpose(0, 1)
    return moved_query, moved_key, moved_key if value is key else value.transpose(0, 1)


def _project_packed(
    watcher: Watcher, inputs: tuple[Tensor, Tensor, Tensor], weight: Tensor | None, bias: Tensor | None
) -> Sequence[Tensor]:
    """All three projections by slices of one weight ``[3E, E]``, in one product where inputs are the same."""
    assert weight is not None
    query, key, value = inputs
    width = len(weight) // 3
    if query is key and key is value:
        return _project(watcher, query, weight, bias).chunk(3, dim=-1)
    queries = _project(watcher, query, weight, bias, slice(0, width))
    if key is value:
        return queries, *_project(watcher, key, weight, bias, slice(width, 3 * width)).chunk(2, dim=-1)
    keys = _project(watcher, key, weight, bias, slice(width, 2 * width))
    return queries, keys, _project(watcher, value, weight, bias, slice(2 * width, 3 * width))


def _project_apart(
    watcher: Watcher, inputs: tuple[Tensor, Tensor, Tensor], weights: Sequence[Tensor | None], bias: Tensor | None
) -> Sequence[Tensor]:
    """Projections by a weight each; the biases are thirds of one."""
    projected = []
    for k, (x, weight) in enumerate(zip(inputs, weights, strict=True)):
        assert weight is not None
        third = slice(k * len(weight), (k + 1) * len(weight))
        projected.append(_project(watcher, x, weight, bias, bias_rows=third))
    return projected


def _project(
    watcher: Watcher,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: slice | None = None,
    bias_rows: slice | None = None,
) -> Tensor:
    """``x @ weight[rows].T + bias[rows]`` on record."""
    bias_rows = rows if bias_rows is None else bias_rows
    used = weight if rows is None else weight[rows]
    added = bias if bias is None or bias_rows is None else bias[bias_rows]

    def forms(grad: Tensor) -> list[Form]:
        products = Outer(lambda some: grad[some], lambda some: x[some])
        sums = Dense(lambda some: grad[some].sum(1), workspace=grad[:1].numel())
        return [
            products if rows is None else Slice(rows, products),
            sums if bias_rows is None else Slice(bias_rows, sums),
        ]

    return watcher.watch(functional.linear(x, used, added), [weight, bias], forms)


def _merged_mask(
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    need_weights: bool,
) -> tuple[Tensor | None, bool]:
    """Both masks as one that is added to ``[B, heads, T, S]``, or the promise that it is causal."""
    if is_causal and key_padding_mask is None and not need_weights:
        return None, True
    mask = _as_added(attn_mask, q.dtype)
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (len(q), -1))
    padding = _as_added(key_padding_mask, q.dtype)
    if padding is not None:
        padding = padding.view(len(k), 1, 1, -1)
        mask = padding if mask is None else mask + padding
    return mask, False


def _as_added(mask: Tensor | None, dtype: torch.dtype) -> Any:
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
