"""Tensors without examples, on their way to meet them: tables of positions, class tokens, scales.

A parameter, or what a layer makes of constants alone, has no dimension for the examples, and the gradient at it
is a sum over them. It is told apart where it meets a tensor that has one: gᵢ for c in ``x + c`` is row i of the
gradient at the sum, for c in ``x · c`` that row times xᵢ, summed over the dimensions along which c is repeated, and
for c in ``x @ c`` the product of xᵢᵀ and that row.
On its way there a carrier may be looked at through views.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dasgrad.scoring.forms import Dense, Form, Part

_ADDING = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
_MULTIPLYING = {torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__}
_MATRIX_PRODUCTS = {torch.matmul, torch.mm, torch.mv, Tensor.matmul, Tensor.mm, Tensor.mv, Tensor.__matmul__}
_EXPANDING = {torch.broadcast_to, Tensor.broadcast_to, Tensor.expand, Tensor.expand_as}
_VIEWING = {
    Tensor.__getitem__,
    Tensor.contiguous,
    Tensor.flatten,
    Tensor.permute,
    Tensor.reshape,
    Tensor.squeeze,
    Tensor.to,
    Tensor.transpose,
    Tensor.unsqueeze,
    Tensor.view,
    torch.squeeze,
    torch.transpose,
    torch.unsqueeze,
}

View = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Carrier:
    """A tensor that depends on some parameters and on no example."""

    kind: str
    names: Sequence[str]
    """The scored parameters it depends on."""
    tensor: Tensor
    origin: Tensor
    """What it is a view of: the parameter itself, or the output of a layer."""
    build: Callable[[Part, int], Sequence[Form | None]]
    """From the gradients at ``origin``, ``rows -> [b, *origin.shape]``, and their number to the forms of ``names``."""
    reason: str = ""
    """Why a layer's call is not what its rule is for."""
    leaves: Sequence[Any] = ()
    """The tensors the layer was called with."""
    views: tuple[View, ...] = ()

    def through(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> "Carrier | None":
        """The carrier that is a view of this one; None where ``func`` makes no view."""
        others = any(isinstance(value, Tensor) for value in (*args[1:], *kwargs.values()))
        if func not in _VIEWING or others or not args or args[0] is not self.tensor:
            return None
        return replace(self, tensor=result, views=(*self.views, lambda values: func(values, *args[1:], **kwargs)))

    def meet(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, num_examples: int
    ) -> Callable[[Tensor], Sequence[Form | None]] | None:
        """From the gradient at ``result``, where this meets the examples, to the forms; None where it does not."""
        if func in _MATRIX_PRODUCTS:
            return self._meet_in_product(args, kwargs, result, num_examples)
        padded = (*(1 for _ in range(result.dim() - self.tensor.dim())), *self.tensor.shape)
        if not padded or len(padded) > result.dim() or padded[0] != 1 or result.shape[0] != num_examples:
            return None
        factor: Tensor | None = None
        if func in _MULTIPLYING and len(args) == 2 and not kwargs:
            factor = args[0] if args[1] is self.tensor else args[1]
            if not isinstance(factor, Tensor) or factor is self.tensor:
                return None
            factor = factor.detach().expand(result.shape)
        elif not (func in _ADDING and len(args) == 2 and not kwargs) and func not in _EXPANDING:
            return None
        repeated = [dim for dim in range(1, result.dim()) if padded[dim] == 1 and result.shape[dim] != 1]

        def forms(grad: Tensor) -> Sequence[Form | None]:
            def at_origin(rows: slice) -> Tensor:
                values = grad[rows] if factor is None else grad[rows] * factor[rows]
                values = values.sum(repeated) if repeated else values
                return self._through_views(values.reshape(-1, *self.tensor.shape))

            return self.build(at_origin, num_examples)

        return forms

    def _meet_in_product(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, num_examples: int
    ) -> Callable[[Tensor], Sequence[Form | None]] | None:
        """For ``x @ c`` with c a matrix or a vector."""
        if kwargs or len(args) != 2 or args[1] is not self.tensor or self.tensor.dim() > 2:
            return None
        factor = args[0].detach()
        if factor is self.tensor or factor.dim() < 2 or len(factor) != num_examples:
            return None
        width = 1 if self.tensor.dim() == 1 else self.tensor.shape[1]

        def forms(grad: Tensor) -> Sequence[Form | None]:
            def at_origin(rows: slice) -> Tensor:
                left = factor[rows].reshape(len(factor[rows]), -1, factor.shape[-1])
                products: Tensor = left.transpose(1, 2) @ grad[rows].reshape(len(left), -1, width)
                return self._through_views(products.reshape(-1, *self.tensor.shape))

            return self.build(at_origin, num_examples)

        return forms

    def _through_views(self, values_B: Tensor) -> Tensor:
        """``[b, *tensor.shape] -> [b, *origin.shape]``: gradients at the origin."""
        if not self.views:
            return values_B

        def looked_at(origin: Tensor) -> Tensor:
            for view in self.views:
                origin = view(origin)
            return origin

        back = torch.func.vjp(looked_at, self.origin.detach())[1]
        gradients: Tensor = torch.func.vmap(lambda value: back(value)[0])(values_B)
        return gradients


def of_parameter(name: str, kind: str, param: Tensor) -> Carrier:
    """A parameter that no layer with a rule owns."""

    def build(gradients: Part, num_examples: int) -> list[Form]:
        return [Dense(lambda rows: gradients(rows).reshape(-1, max(1, param.numel())), workspace=2 * param.numel())]

    return Carrier(kind, [name], param, param, build)
