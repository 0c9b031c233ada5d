"""Metrics that an example's own gradient enters, and others' moments: gradients are measured entry by entry."""

from dataclasses import replace

import torch
from torch import Tensor

from dasgrad.scoring import native, own
from dasgrad.scoring.forms import SparseOuter
from dasgrad.scoring.measures.base import Measure, precise
from dasgrad.scoring.own import OwnTerms, rows_of
from dasgrad.scoring.preconditioned import Preconditioner, Preconditioning, squared_norms
from dasgrad.scoring.workspace import Workspace


class ElementwiseMeasure(Measure):
    """Any fₖ: the metric with the example's own gradient in it, a user's own moments, or H = 0 somewhere."""

    def __init__(
        self, view: Preconditioning, preconditioner: Preconditioner, momentum: bool, workspace: Workspace
    ) -> None:
        super().__init__(view.param.shape, view.param.device, workspace)
        self._view = view
        self._preconditioner: Preconditioner = preconditioner
        self._momentum = momentum

        if momentum:  # without it fₖ(0) = 0
            dtype = torch.promote_types(self._view.param.dtype, torch.float32)
            nothing = torch.zeros((1, *self.shape), dtype=dtype, device=self.device)
            self._base = self._measure(nothing, view)[0].double()

    def prepare(self) -> None:
        """Nothing is kept."""

    def of_entries(self, gradients_B: Tensor) -> Tensor:
        total = self._measure(gradients_B.view(len(gradients_B), *self.shape), self._view)
        return total if self._base is None else total - self._base

    def of_rows(self, indices: Tensor, values: Tensor, columns: bool) -> Tensor:
        view = replace(
            self._view,
            param=rows_of(self._view.param.detach(), indices, columns),
            state={key: rows_of(self._view.state[key], indices, columns) for key in self._view.moments.keys},
        )
        total = self._measure(values, view)
        return total - self._measure(torch.zeros_like(values), view) if self._momentum else total

    def _measure(self, gradients_B: Tensor, view: Preconditioning) -> Tensor:
        return squared_norms(gradients_B, view, self._preconditioner, self._momentum) * view.lr_share

    def select(self, rows: slice) -> Measure:
        return ElementwiseMeasure(_select(self._view, rows), self._preconditioner, self._momentum, self.workspace)


class OwnMeasure(Measure):
    """The metric with the example's own gradient in it, for the built-in moments."""

    def __init__(self, view: Preconditioning, momentum: bool, workspace: Workspace) -> None:
        super().__init__(view.param.shape, view.param.device, workspace)
        self._view = view
        self._momentum = momentum
        self._terms: dict[torch.dtype, OwnTerms] = {}
        if momentum:
            dtype = torch.promote_types(view.param.dtype, torch.float32)
            nothing = torch.zeros((1, self.shape.numel()), dtype=dtype, device=self.device)
            self._base = own.sum_entries(self._terms_in(dtype), nothing)[0].double() * view.lr_share

    def prepare(self) -> None:
        self._terms_in(torch.promote_types(self._view.param.dtype, torch.float32))

    def of_entries(self, gradients_B: Tensor) -> Tensor:
        gradients = precise(gradients_B)
        return self._share(own.sum_entries(self._terms_in(gradients.dtype), gradients))

    def takes_outer_products(self, like: Tensor) -> bool:
        return own.takes_outer_products(precise(like))

    def of_outer_products(self, left_B: Tensor, right_B: Tensor) -> Tensor:
        left, right = precise(left_B), precise(right_B)
        return self._share(own.sum_outer_products(self._terms_in(left.dtype), left, right))

    def of_sparse_products(self, form: SparseOuter) -> Tensor | None:
        left = precise(form.left)
        if not native.supports(left):
            return None
        terms = self._terms_in(left.dtype)
        return native.own_sparse_products(left, form, terms.arrays, terms.coefficients) * self._view.lr_share

    def of_rows(self, indices: Tensor, values: Tensor, columns: bool) -> Tensor:
        values = precise(values)
        return own.sum_rows(self._terms_in(values.dtype), indices, values, columns) * self._view.lr_share

    def _share(self, total: Tensor) -> Tensor:
        share = total if self._view.lr_share == 1 else total * self._view.lr_share
        return share if self._base is None else share - self._base

    def _terms_in(self, dtype: torch.dtype) -> OwnTerms:
        if dtype not in self._terms:
            self._terms[dtype] = own.read_terms(self._view, self._momentum, dtype)
        return self._terms[dtype]

    def select(self, rows: slice) -> Measure:
        return OwnMeasure(_select(self._view, rows), self._momentum, self.workspace)


def _select(view: Preconditioning, rows: slice) -> Preconditioning:
    state = {key: view.state[key][rows] for key in view.moments.keys}
    return replace(view, param=view.param.detach()[rows], state=state)
