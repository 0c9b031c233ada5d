"""Linear layers at once: output and share of the scores out of one pass over the data, or the whole share in one call.

Where a layer's input is the data themselves, reading them is all the cost: logistic regression reads each
example for the forward pass and once more for (b²)ᵀH^(−1)(x²). But x²H^(−1)ᵀ does not depend on b, and can be
computed beside x Wᵀ; so can, with momentum, what its product with b is summed to. Sparse data are multiplied as they
are: torch's sum of embeddings writes down first whose every entry is. In a training step of a small model each call
takes longer than its arithmetic: there weight and bias of a layer are measured in one.

Scores that need a forward pass alone take the same products, without the squares, where torch's own are no faster.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dasgrad.scoring import kernels, native
from dasgrad.scoring.measures import Measure
from dasgrad.scoring.plain import are_plain, is_sparse_rows

_SMALL = 2**18
"""Entries of a weight that stay in a core's cache while it goes through the examples a few at a time."""

# Where the core computes a layer's output alone, without the squares, in less time than torch or at most a tenth more:
# the two were measured in turn on 16,384 examples, or 4,096 sparse ones, by one and two cores with AVX-512.
_LEAST = 128
"""Inputs of a layer below which torch is faster."""
_WHOLE, _LEAST_RAGGED = 16, 384
"""The same for numbers of inputs that leave a part of a vector, which is gone through one by one."""
_LEAST_HALF, _FEW_HALF = 768, 10
"""For bfloat16, which torch multiplies by instructions of its own: least inputs, most outputs."""
_FEW_FOR_SPARSE = 8
"""Most outputs on sparse rows, which are gone through once for each."""


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
        if not _is_product(x, weight, bias):
            return None
        if not isinstance(x, Tensor):
            return _multiply(x, weight, bias)
        quadratic, cross = self._measures[name].polynomial()
        if kernels.available(x) and len(weight) <= kernels.MOST_OUTPUTS:
            output, squares = kernels.linear_with_squares(x, weight, bias, quadratic if cross is None else None)
            if squares is not None:
                self.products[name] = (squares, None)
            return output
        if quadratic is None:
            return _multiply(x, weight, bias)
        if not native.reads(x) or len(weight) > native.FEW_OUTPUTS:
            return None
        output, squares, crosses = native.linear_with_squares(x, weight, bias, quadratic, cross)
        assert squares is not None
        self.products[name] = (squares, crosses)
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
        result = _linear(*args, **(kwargs or {})) if func is nn.functional.linear else None
        return func(*args, **(kwargs or {})) if result is None else result


def _linear(input: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """With the arguments' names in torch."""
    return _multiply(input, weight, bias) if _is_product(input, weight, bias) else None


def _is_product(x: Any, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a layer's output is x Wᵀ + b of numbers as they are in memory, through which no gradient goes.

    False for what torch expands, converts, follows or refuses.
    """
    if not isinstance(x, Tensor) and not is_sparse_rows(x):
        return False
    numbers = x if isinstance(x, Tensor) else x.values
    given = (numbers, weight) if bias is None else (numbers, weight, bias)
    if not are_plain(*given) or (torch.is_grad_enabled() and any(each.requires_grad for each in given)):
        return False
    if x.dim() != 2 or weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        return False
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        return False
    if any(each.device != x.device for each in given):
        return False
    return numbers is not x or (x.dtype == weight.dtype and not torch.is_autocast_enabled(x.device.type))


def _multiply(x: Any, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """The output of such a layer by the core; None where that is not there, or torch is faster."""
    if isinstance(x, Tensor):
        return native.linear(x, weight, bias) if native.reads(x) and _pays(x, len(weight)) else None
    pays = native.supports(weight) and len(weight) <= _FEW_FOR_SPARSE
    return native.sparse_linear(x.indptr, x.indices, x.values, weight, bias) if pays else None


def _pays(x: Tensor, num_outputs: int) -> bool:
    """Whether the core is not slower than torch where the output is all it computes."""
    num_inputs, half = x.shape[1], x.dtype == torch.bfloat16
    ragged = num_inputs % _WHOLE != 0
    least = _LEAST_HALF if half else _LEAST_RAGGED if ragged else _LEAST
    return num_inputs >= least and num_outputs <= (_FEW_HALF if half else native.FEW_OUTPUTS)
