"""Tables of vectors: gᵢ is zero but for the rows that example i looks up, and is never made dense."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dasgrad.scoring.forms import Form, Rows
from dasgrad.scoring.rules import examples_first, rule


def _plain_table(module: Any, num_examples: int, *args: Any, **kwargs: Any) -> str | None:
    if module.max_norm is not None:
        return "with max_norm rewrites its table in the forward pass"
    if module.scale_grad_by_freq:
        return "with scale_grad_by_freq scales gradients by counts over the batch"
    return None


def _plain_lookup(module: nn.Embedding, num_examples: int, input: Tensor) -> str | None:
    return _plain_table(module, num_examples) or examples_first(module, num_examples, input)


@rule(nn.Embedding, misfit=_plain_lookup, any_position=True)
def embedding(module: nn.Embedding, input: Tensor, *, grad: Tensor) -> Mapping[str, Form]:
    """Weight ``[rows, width]``, indices ``[B, *positions]``; the row ``padding_idx`` gets no gradient."""
    indices, owners = _flatten_entries(input)
    values = grad.reshape(-1, module.embedding_dim)
    kept = _not_padding(indices, module.padding_idx)

    def entries(some: slice) -> Tensor:
        return values[some] if kept is None else values[some].masked_fill(~kept[some].unsqueeze(1), 0.0)

    return {"weight": Rows(owners, indices, entries, distinct=input.dim() == 1)}


def _plain_bag(
    module: nn.EmbeddingBag,
    num_examples: int,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> str | None:
    if module.mode == "max":
        return "with mode='max' has no rule"
    if input.dim() == 2:
        reason = examples_first(module, num_examples, input, per_sample_weights)
    else:
        bags = -1 if offsets is None else len(offsets) - int(module.include_last_offset)
        reason = None if bags == num_examples else "called without one bag an example"
    return _plain_table(module, num_examples) or reason


@rule(nn.EmbeddingBag, misfit=_plain_bag)
def embedding_bag(
    module: nn.EmbeddingBag,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
    *,
    grad: Tensor,
) -> Mapping[str, Form]:
    """Sums and means of rows; bags as the rows of ``input``, or one after the other from ``offsets`` on."""
    if input.dim() == 2:
        indices, owners = _flatten_entries(input)
    else:
        assert offsets is not None
        starts = offsets[:-1] if module.include_last_offset else offsets
        indices = input.long()
        places = torch.arange(len(indices), device=indices.device)
        owners = torch.searchsorted(starts.long().contiguous(), places, right=True) - 1
    kept = _not_padding(indices, module.padding_idx)
    factors = None if per_sample_weights is None else per_sample_weights.reshape(-1).to(grad.dtype)
    if kept is not None:
        factors = kept.to(grad.dtype) if factors is None else factors * kept.to(grad.dtype)
    if module.mode == "mean":
        ones = torch.ones_like(indices, dtype=grad.dtype) if kept is None else kept.to(grad.dtype)
        sizes = grad.new_zeros(len(grad)).index_add_(0, owners, ones)
        shares = sizes.clamp_(min=1).reciprocal_()[owners]
        factors = shares if factors is None else factors * shares

    def entries(some: slice) -> Tensor:
        values = grad[owners[some]]
        return values if factors is None else values.mul_(factors[some].unsqueeze(1))

    return {"weight": Rows(owners, indices, entries)}


def _flatten_entries(input: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of all examples one after the other, ``[N]`` int64, and the example of each."""
    places = input.flatten(1) if input.dim() > 1 else input.unsqueeze(1)
    owners = torch.arange(len(input), device=input.device).unsqueeze(1).expand(places.shape)
    return places.reshape(-1).long(), owners.reshape(-1)


def _not_padding(indices: Tensor, padding_idx: int | None) -> Tensor | None:
    return None if padding_idx is None else indices != padding_idx
