"""Linear layers at once: output and share of the scores out of one pass over the data, or the whole share in one call.

Where a layer's input is the data themselves, reading them is all the cost: logistic regression reads each
example for the forward pass and once more for (b²)ᵀH^(−1)(x²). But x²H^(−1)ᵀ does not depend on b, and can be
computed beside x Wᵀ; so can, with momentum, what its product with b is summed to. Sparse data are multiplied as they
are: torch's sum of embeddings writes down first whose every entry is. In a training step of a small model each call
takes longer than its arithmetic: there weight and bias of a layer are measured in one.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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
        if bias is not None and bias.shape != weight.shape[:1]:  # that torch expands, or refuses
            return None
        if not isinstance(x, Tensor):
            fits = x.dim() == 2 and x.num_columns == weight.shape[1] and not x.values.requires_grad
            known = fits and len(weight) <= native.FEW_OUTPUTS and native.supports(weight)
            return native.sparse_linear(x.indptr, x.indices, x.values, weight, bias) if known else None
        if x.dim() != 2 or x.requires_grad or x.dtype != weight.dtype or torch.is_autocast_enabled(x.device.type):
            return None
        quadratic, cross = self._measures[name].polynomial()
        if native.reads(x) and len(weight) <= native.FEW_OUTPUTS and quadratic is not None:
            output, squared, crossed = native.linear_with_squares(x, weight, bias, quadratic, cross)
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
