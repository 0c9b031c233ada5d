"""How long a per-example gradient is in the optimizer's metric, from its form.

For one parameter and example i a score's square gets the share Σₖ fₖ(gᵢₖ), a sum over the parameter's
entries. With a frozen metric fₖ(g) = (aₖ + c·g)²/Hₖ is a quadratic, and

    Σₖ fₖ(gₖ) = ‖H^(−1/2)a‖² + 2c⟨H^(−1)a, g⟩ + c²⟨H^(−1), g²⟩;

for g = b xᵀ each term is a matrix product over all examples at once, (b²)ᵀH^(−1)(x²) for the last. With
the example's own gradient in the metric fₖ is no polynomial: gradients are formed a few examples at a time,
in buffers that fit the cache, and measured entry by entry.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor

from dasgrad.moments import BuiltinMoments
from dasgrad.scoring import kernels, native, own
from dasgrad.scoring.forms import Dense, Form, Outer, Rows, Slice, SparseOuter, Windows
from dasgrad.scoring.own import OwnTerms, rows_of
from dasgrad.scoring.preconditioned import (
    Preconditioner,
    Preconditioning,
    inverse_metric,
    read_curvature,
    squared_norms,
)
from dasgrad.scoring.workspace import Workspace

_BLOCK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}
"""Entries of temporaries that are handled at once: 4 MiB in float32 on a CPU, where caches are to hold them."""
_MORE_FOR_SUMS = 4
"""Times as many where gradients are formed by batched matrix products, which want several examples at once."""
_SMALLEST_EPS = 1e-30
"""Below it 1/H may overflow, and 0/0 must be looked at entry by entry."""


class Measure(ABC):
    """What one parameter adds to an example's squared score: `base`, and by its gradient what a call returns."""

    def __init__(self, shape: torch.Size, device: torch.device, workspace: Workspace) -> None:
        self.shape = shape
        self.device = device
        self.workspace = workspace
        self._base: Tensor | None = None

    def base(self) -> Tensor | None:
        """Σₖ fₖ(0), 0-dim float64: the share of an example whose gradient is zero here; None is 0."""
        return self._base

    @abstractmethod
    def of_entries(self, gradients_B: Tensor) -> Tensor:
        """``[b, shape.numel()] -> [b]``: Σₖ fₖ(gₖ) − fₖ(0); may use up its argument."""

    def takes_outer_products(self, like: Tensor) -> bool:
        """Whether g = left rightᵀ can be measured without forming it, for factors of this type and device."""
        return False

    def of_outer_products(self, left_B: Tensor, right_B: Tensor) -> Tensor:
        """`of_entries` for g = left rightᵀ, ``[b, o], [b, k] -> [b]``, without forming it."""
        raise TypeError(f"{type(self).__name__} takes no outer products: ask `takes_outer_products` first.")

    def of_sums_of_products(self, left_B: Tensor, right_B: Tensor) -> Tensor | None:
        """The same for g = Σ_t left rightᵀ, ``[b, T, o], [b, T, k] -> [b]``; None where it must be formed."""
        return None

    def takes_windows(self, like: Tensor, num_channels: int) -> bool:
        """Whether a convolution's gradients can be measured without gathering patches, for factors like these."""
        return False

    def of_windows(self, left_B: Tensor, images_B: Tensor, windows: Windows) -> Tensor:
        """`of_entries` for such gradients, ``[b, o, positions], [b, k, *spatial] -> [b]``."""
        raise TypeError(f"{type(self).__name__} takes no windows: ask `takes_windows` first.")

    def of_sparse_products(self, form: SparseOuter) -> Tensor | None:
        """The same for g = left rightᵀ with a sparse right; None where it must be gone through entry by entry."""
        return None

    @abstractmethod
    def of_rows(self, indices: Tensor, values: Tensor, columns: bool) -> Tensor:
        """The same over row ``indices[e]`` alone, where g is ``values[e]``: ``[m], [m, width] -> [m]``."""

    def polynomial(self) -> tuple[Tensor | None, Tensor | None]:
        """Q and C where Σₖ fₖ(gₖ) − fₖ(0) = Σₖ Qₖ gₖ² + Cₖ gₖ, C None where it is 0; twice None where it is not so."""
        return None, None

    def curvature(self) -> native.Curvature | None:
        """What the core computes Q from, where Q is all; None where it is not so."""
        return None

    def lasts(self) -> bool:
        """Whether it measures after further steps, too: what it read is a tensor of the optimizer's state, no more."""
        return False

    @property
    def homogeneous(self) -> bool:
        """Whether a gradient c times as long has c² times the share."""
        return False

    @abstractmethod
    def select(self, rows: slice) -> "Measure":
        """The measure of a slice of the parameter's first dimension."""

    # --- from forms -----------------------------------------------------------------------------------

    def __call__(self, form: Form, num_examples: int) -> Tensor:
        """Σₖ fₖ(gᵢₖ) − fₖ(0) for all examples of a chunk, ``[B]`` in at least float32."""
        if isinstance(form, Slice):
            return self.select(form.rows)(form.form, num_examples)
        if isinstance(form, SparseOuter):
            share = self.of_sparse_products(form) if form.distinct else None
            return self._add_rows(form.entries(), num_examples) if share is None else share
        if isinstance(form, Rows):
            return self._add_rows(form, num_examples)
        if num_examples == 0:
            return torch.zeros(0, dtype=torch.float64, device=self.device)
        if isinstance(form, Dense):
            dense = form
            shares = [
                self.of_entries(_owned(dense.gradients(rows)).flatten(1))
                for rows in self._blocks(num_examples, max(self.shape.numel(), dense.workspace))
            ]
        else:
            shares = self._of_outer(form, num_examples)
        return shares[0] if len(shares) == 1 else torch.cat(shares)

    def _of_outer(self, form: Outer, num_examples: int) -> list[Tensor]:
        width = self.shape.numel() // max(1, self.shape[0])
        if form.beside is not None:
            squares, crosses = form.beside
            left = _precise(form.left(slice(None)))
            products = left * squares if crosses is None else (left * squares).add_(crosses)
            return [products.mul_(left).sum(1)]
        first = form.left(slice(0, 1))
        if first.dim() == 2:
            if self.takes_outer_products(first):
                blocks = self._blocks(num_examples, width + self.shape[0])
                return [self.of_outer_products(*_factors(form, rows)) for rows in blocks]
            blocks = self._blocks(num_examples, self.shape.numel())
            factors = (_factors(form, rows) for rows in blocks)
            return [self._of_sums(left.unsqueeze(1), right.unsqueeze(1), form) for left, right in factors]
        if not form.transposed and form.num_groups == 1:
            share = self.of_sums_of_products(*_factors(form, slice(0, num_examples)))
            if share is not None:
                return [share]
        if form.windows is not None and self.takes_windows(first, self.shape[1]):
            elements = 2 * form.windows.images(slice(0, 1)).numel()
            blocks, windows = self._blocks(num_examples, elements), form.windows
            return [self.of_windows(form.left(rows), windows.images(rows), windows) for rows in blocks]
        positions = first.shape[2 if form.transposed else 1]
        elements = self.shape.numel() + positions * (self.shape[0] + width * form.num_groups)
        elements = -(-elements // _MORE_FOR_SUMS)
        return [self._of_sums(*_factors(form, rows), form) for rows in self._blocks(num_examples, elements)]

    def _of_sums(self, left: Tensor, right: Tensor, form: Outer) -> Tensor:
        """The per-example gradients Σ_t left rightᵀ, formed in a buffer, measured."""
        if not form.transposed:
            left, right = left.transpose(1, 2), right.transpose(1, 2)
        num_examples, num_groups = len(left), form.num_groups
        left = left.unflatten(1, (num_groups, -1)).flatten(0, 1)
        right = right.unflatten(1, (num_groups, -1)).flatten(0, 1).transpose(1, 2)
        shape = (len(left), left.shape[1], right.shape[2])
        gradients = torch.bmm(left, right, out=self.workspace.take("gradients", shape, left))
        return self.of_entries(gradients.view(num_examples, -1))

    def _add_rows(self, form: Rows, num_examples: int) -> Tensor:
        total = torch.zeros(num_examples, dtype=torch.float64, device=self.device)
        if form.owners.numel() == 0:
            return total
        width = self.shape[0] if form.columns else self.shape.numel() // max(1, self.shape[0])
        if form.distinct:
            for entries in self._blocks(len(form.owners), width):
                share = self.of_rows(form.indices[entries], form.values(entries), form.columns)
                total.index_add_(0, form.owners[entries], share.double())
            return total
        owners, indices, sums = self._add_repeats(form)
        for entries in self._blocks(len(owners), width):
            share = self.of_rows(indices[entries], sums[entries], form.columns)
            total.index_add_(0, owners[entries], share.double())
        return total

    def _add_repeats(self, form: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Entries of one example and row added to one; as many as before, those left over zero.

        So their number need not be known, and a GPU not be waited for.
        """
        num_rows = self.shape[1] if form.columns else self.shape[0]
        keys, order = torch.sort(form.owners * num_rows + form.indices)
        places = torch.zeros_like(keys)
        torch.cumsum(keys[1:] != keys[:-1], 0, out=places[1:])
        found = torch.zeros_like(keys).index_copy_(0, places, keys)
        values = form.values(slice(None))
        sums = torch.zeros_like(values).index_add_(0, places, values.index_select(0, order))
        return found // num_rows, found % num_rows, sums

    def _blocks(self, number: int, elements: int) -> Iterator[slice]:
        """Slices of at most as many examples as the temporaries of ``elements`` entries each allow."""
        size = max(1, _BLOCK_ELEMENTS.get(self.device.type, 2**22) // max(1, elements))
        return (slice(k, k + size) for k in range(0, number, size))


def _owned(gradients: Tensor) -> Tensor:
    """A tensor that may be overwritten: forms may hand out views of what they still need. Kernels only read."""
    return gradients if kernels.available(gradients) else gradients.clone()


class QuadraticMeasure(Measure):
    """fₖ(g) = quadraticₖ g² + crossₖ g + constantₖ: a frozen metric, or none.

    Args:
        shape: of the parameter.
        device: of the parameter.
        workspace: buffers.
        quadratic: gives share·c²/H in the parameter's shape, when it is first needed; None is 1 everywhere.
        cross: share·2c·a/H; None without momentum.
        constant: share·a²/H; None without momentum.
    """

    def __init__(
        self,
        shape: torch.Size,
        device: torch.device,
        workspace: Workspace,
        quadratic: Callable[[], Tensor] | None = None,
        cross: Tensor | None = None,
        constant: Tensor | None = None,
    ) -> None:
        super().__init__(shape, device, workspace)
        self._read_quadratic = quadratic
        self._cross = cross
        self._constant = constant
        self._base = None if constant is None else constant.sum(dtype=torch.float64)

    @cached_property
    def _quadratic(self) -> Tensor | None:
        return None if self._read_quadratic is None else self._read_quadratic()

    def polynomial(self) -> tuple[Tensor | None, Tensor | None]:
        return self._quadratic, self._cross

    @property
    def homogeneous(self) -> bool:
        return self._cross is None

    def of_entries(self, gradients_B: Tensor) -> Tensor:
        gradients = _precise(gradients_B)
        if kernels.available(gradients):
            flat = (None if part is None else part.flatten().float() for part in (self._quadratic, self._cross))
            return kernels.quadratic_entries(gradients, *flat)
        if native.supports(gradients):
            return native.polynomial_entries(gradients, self._quadratic, self._cross)
        linear = None if self._cross is None else gradients @ self._cross.flatten().to(gradients.dtype)
        squares = gradients.square_()
        if self._quadratic is None:
            total = squares.sum(1)
        else:
            total = squares @ self._quadratic.flatten().to(gradients.dtype)
        return total if linear is None else total + linear

    def takes_outer_products(self, like: Tensor) -> bool:
        return True

    def of_outer_products(self, left_B: Tensor, right_B: Tensor) -> Tensor:
        if self._quadratic is None:
            total = _precise(left_B).square().sum(1) * _precise(right_B).square().sum(1)
        else:
            total = self._weighted_squares(left_B, right_B, self._quadratic.flatten(1))
        if self._cross is not None:
            total = total + _precise(right_B @ self._cross.flatten(1).to(right_B.dtype).t()).mul_(left_B).sum(1)
        return total

    def _weighted_squares(self, left_B: Tensor, right_B: Tensor, quadratic: Tensor) -> Tensor:
        """(left²)ᵀ Q (right²), the larger factor squared into a buffer and multiplied first."""
        quadratic = quadratic.to(left_B.dtype)
        if native.supports(left_B) and len(quadratic) <= native.FEW_OUTPUTS:
            return native.quadratic_outer_products(left_B, right_B, quadratic)
        small, large, matrix = left_B, right_B, quadratic.t()
        if left_B.shape[1] > right_B.shape[1]:
            small, large, matrix = right_B, left_B, quadratic
        squares = torch.mul(large, large, out=self.workspace.take("squares", tuple(large.shape), large))
        product = torch.mm(squares, matrix, out=self.workspace.take("products", tuple(small.shape), small))
        return _precise(product).mul_(_precise(small).square()).sum(1)

    def of_sums_of_products(self, left_B: Tensor, right_B: Tensor) -> Tensor | None:
        if not native.sums_whole_vectors(left_B, right_B.shape[2]):
            return None
        return native.sums_of_products(left_B, right_B, self._quadratic, self._cross)

    def takes_windows(self, like: Tensor, num_channels: int) -> bool:
        return native.sums_whole_vectors(like, num_channels)

    def of_windows(self, left_B: Tensor, images_B: Tensor, windows: Windows) -> Tensor:
        left, images = left_B.unflatten(2, windows.positions), images_B.to(left_B.dtype)
        right = native.transposed(images.flatten(2)).unflatten(1, images.shape[2:])
        sizes = windows.kernel, windows.stride, windows.dilation
        return native.sums_over_windows(left, right, *sizes, self._quadratic, self._cross)

    def of_sparse_products(self, form: SparseOuter) -> Tensor | None:
        left = _precise(form.left)
        return (
            native.quadratic_sparse_products(left, form, self._quadratic, self._cross)
            if native.supports(left)
            else None
        )

    def of_rows(self, indices: Tensor, values: Tensor, columns: bool) -> Tensor:
        values = _precise(values)
        squares = values.square()
        if self._quadratic is not None:
            squares = squares.mul_(rows_of(self._quadratic, indices, columns))
        total = squares.sum(1)
        if self._cross is not None:
            total = total + (values * rows_of(self._cross, indices, columns)).sum(1)
        return total

    def select(self, rows: slice) -> Measure:
        quadratic, cross, constant = self._quadratic, self._cross, self._constant
        return QuadraticMeasure(
            _sliced(self.shape, rows),
            self.device,
            self.workspace,
            None if quadratic is None else lambda: quadratic[rows],
            None if cross is None else cross[rows],
            None if constant is None else constant[rows],
        )


class FrozenMeasure(QuadraticMeasure):
    """g²/H with the metric as it stands."""

    def __init__(self, view: Preconditioning, workspace: Workspace) -> None:
        super().__init__(view.param.shape, view.param.device, workspace, partial(_inverse, view))
        self._view = view

    @cached_property
    def _curvature(self) -> native.Curvature | None:
        return read_curvature(self._view, self._view.state)

    def curvature(self) -> native.Curvature | None:
        return self._curvature

    @cached_property
    def _key_of_curvature(self) -> str | None:
        """The state's key of v, where v is as the state has it and has no correction that depends on the step."""
        view, found = self._view, self._curvature
        if found is None or view.bias_correction or not isinstance(view.moments, BuiltinMoments):
            return None
        return next((key for key in view.moments.keys if view.state.get(key) is found[0]), None)

    def lasts(self) -> bool:
        key, found = self._key_of_curvature, self._curvature
        if key is None or found is None or "_quadratic" in self.__dict__:
            return False
        return self._view.state.get(key) is found[0]


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

    def of_entries(self, gradients_B: Tensor) -> Tensor:
        gradients = _precise(gradients_B)
        return self._share(own.sum_entries(self._terms_in(gradients.dtype), gradients))

    def takes_outer_products(self, like: Tensor) -> bool:
        return own.takes_outer_products(_precise(like))

    def of_outer_products(self, left_B: Tensor, right_B: Tensor) -> Tensor:
        left, right = _precise(left_B), _precise(right_B)
        return self._share(own.sum_outer_products(self._terms_in(left.dtype), left, right))

    def of_sparse_products(self, form: SparseOuter) -> Tensor | None:
        left = _precise(form.left)
        if not native.supports(left):
            return None
        terms = self._terms_in(left.dtype)
        return native.own_sparse_products(left, form, terms.arrays, terms.coefficients) * self._view.lr_share

    def of_rows(self, indices: Tensor, values: Tensor, columns: bool) -> Tensor:
        values = _precise(values)
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


def gradient_measure(param: Tensor, workspace: Workspace) -> Measure:
    """‖gᵢ‖²."""
    return QuadraticMeasure(param.shape, param.device, workspace)


def step_measure(
    view: Preconditioning, preconditioner: Preconditioner, momentum: bool, workspace: Workspace
) -> Measure:
    """‖H^(−1/2)dᵢ‖² as the optimizer's state has it, times the share of its learning rate."""
    moments, param = view.moments, view.param
    polynomial = preconditioner == "frozen" and (isinstance(moments, BuiltinMoments) or not momentum)
    if preconditioner == "own" and isinstance(moments, BuiltinMoments):
        return OwnMeasure(view, momentum, workspace)
    if not polynomial or (view.eps < _SMALLEST_EPS and moments.keys):
        return ElementwiseMeasure(view, preconditioner, momentum, workspace)
    if not momentum:
        return FrozenMeasure(view, workspace)
    assert isinstance(moments, BuiltinMoments)
    state, inverse = _state(view), _inverse(view)
    decay = view.coupled_decay * param.detach().to(inverse.dtype)
    offset = moments.phi(moments.advance(state, decay, view.ahead), decay, view.ahead)
    slope = view.sign * moments.newest_share(view.ahead)
    cross, constant = inverse * offset * (2 * slope), inverse * offset.square()
    return QuadraticMeasure(param.shape, param.device, workspace, lambda: inverse * slope**2, cross, constant)


def _state(view: Preconditioning) -> Mapping[str, Tensor]:
    """The moments' tensors in at least float32."""
    dtype = torch.promote_types(view.param.dtype, torch.float32)
    if all(view.state[key].dtype == dtype for key in view.moments.keys):
        return view.state
    return {key: view.state[key].to(dtype) for key in view.moments.keys}


def _inverse(view: Preconditioning) -> Tensor:
    return inverse_metric(view, _state(view), torch.promote_types(view.param.dtype, torch.float32))


def _factors(form: Outer, rows: slice) -> tuple[Tensor, Tensor]:
    """Both in the type of the output's gradient: under autocast a layer casts its input so, too."""
    left = form.left(rows)
    return left, form.right(rows).to(left.dtype)


def _precise(values: Tensor) -> Tensor:
    """In at least float32."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _select(view: Preconditioning, rows: slice) -> Preconditioning:
    state = {key: view.state[key][rows] for key in view.moments.keys}
    return replace(view, param=view.param.detach()[rows], state=state)


def _sliced(shape: torch.Size, rows: slice) -> torch.Size:
    return torch.Size((len(range(*rows.indices(shape[0]))), *shape[1:]))
