"""Linear layers at once: output and share of the scores out of one pass over the data, or the whole share in one call.

Where a layer's input is the data themselves, reading them is all the cost: logistic regression reads each
example for the forward pass and once more for (b²)ᵀH^(−1)(x²). But x²H^(−1)ᵀ does not depend on b, and can be
computed beside x Wᵀ; so can, with momentum, what its product with b is summed to. Sparse data are multiplied as they
are: torch's sum of embeddings writes down first whose every entry is. In a training step of a small model each call
takes longer than its arithmetic: there weight and bias of a layer are measured in one.

Scores that need a forward pass alone take the same products, without the squares.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dasgrad.scoring import kernels, native
from dasgrad.scoring.measures import Measure

_SMALL = 2**18
"""Entries of a weight that stay in a core's cache while it goes through the examples a few at a time."""


class LinearShortcut:
    """Computes outputs of linear layers, and keeps x²Qᵀ and xCᵀ for when their gradients arrive.

    Attributes:
        products: ``[B, o]`` each, by the name of the layer's weight.
    """

    def __init__(self, measures: Mapping[str, Measure]) -> None:
        self._measures = measures
        self.products: dict[str, tuple[Tensor, Tensor | None]] = {}

    def __call__(self, name: str, x: Any, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """The layer's output on a tensor or `SparseRows`; None where the ordinary way must do, or does as well."""
        if not isinstance(x, Tensor):
            return _multiply_sparse(x, weight, bias)
        if not _are_data(x, weight, bias):
            return None
        quadratic, cross = self._measures[name].polynomial()
        if native.reads(x) and len(weight) <= native.FEW_OUTPUTS:
            cross = None if quadratic is None else cross
            output, squared, crossed = native.linear_with_squares(x, weight, bias, quadratic, cross)
            if squared is not None:
                self.products[name] = (squared, crossed)
        elif kernels.available(x) and len(weight) <= kernels.MOST_OUTPUTS:
            output, squares = kernels.linear_with_squares(x, weight, bias, quadratic if cross is None else None)
            if squares is not None:
                self.products[name] = (squares, None)
        else:
            return None
        return output

    def read_layer(self, names: Mapping[str, str]) -> tuple[native.Curvature, native.Curvature | None] | None:
        """What the core needs of weight and bias of a small linear layer; None for any other.

        Args:
            names: of the scored ones among them, as measures know them.
        """
        if "weight" not in names:
            return None
        measure = self._measures[names["weight"]]
        if measure.shape.numel() > _SMALL:
            return None
        weight = measure.curvature()
        bias = self._measures[names["bias"]].curvature() if "bias" in names else None
        if weight is None or ("bias" in names and bias is None):
            return None
        return weight, bias


class ForwardShortcut(TorchFunctionMode):
    """Computes linear layers of few outputs by the compiled core inside, where no gradient goes through them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function's result, by the core or the ordinary way."""
        result = _multiply(*args, **(kwargs or {})) if func is nn.functional.linear else None
        return func(*args, **(kwargs or {})) if result is None else result


def _multiply(input: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """A linear layer's output, which no gradient goes through; None where the ordinary way must do."""
    if torch.is_grad_enabled() and (weight.requires_grad or (bias is not None and bias.requires_grad)):
        return None
    if not isinstance(input, Tensor):
        return _multiply_sparse(input, weight, bias)
    known = _are_data(input, weight, bias) and native.reads(input) and len(weight) <= native.FEW_OUTPUTS
    return native.linear(input, weight, bias) if known else None


def _are_data(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether they are a batch of rows as they are, through which no gradient goes, and a layer that fits them."""
    plain = x.dim() == 2 and x.dtype == weight.dtype and not torch.is_autocast_enabled(x.device.type)
    return plain and _fit(x.shape[1], weight, bias) and not (x.requires_grad and torch.is_grad_enabled())


def _multiply_sparse(x: Any, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    fits = x.dim() == 2 and _fit(x.num_columns, weight, bias) and not x.values.requires_grad
    known = fits and len(weight) <= native.FEW_OUTPUTS and native.supports(weight)
    return native.sparse_linear(x.indptr, x.indices, x.values, weight, bias) if known else None


def _fit(num_inputs: int, weight: Tensor, bias: Tensor | None) -> bool:
    """False for what torch expands, or refuses."""
    return weight.dim() == 2 and weight.shape[1] == num_inputs and (bias is None or bias.shape == weight.shape[:1])
