"""A frozen metric, or none: fₖ is a quadratic, and most forms are measured by matrix products over all examples."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial

import torch
from torch import Tensor

from dasgrad.moments import BuiltinMoments
from dasgrad.scoring import kernels, native
from dasgrad.scoring.forms import Rows, SparseOuter, Windows
from dasgrad.scoring.measures.base import Measure, precise
from dasgrad.scoring.own import rows_of
from dasgrad.scoring.preconditioned import Preconditioning, inverse_metric, read_curvature
from dasgrad.scoring.workspace import Workspace


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

    def prepare(self) -> None:
        self.polynomial()

    def polynomial(self) -> tuple[Tensor | None, Tensor | None]:
        return self._quadratic, self._cross

    @property
    def homogeneous(self) -> bool:
        return self._cross is None

    def of_entries(self, gradients_B: Tensor) -> Tensor:
        gradients = precise(gradients_B)
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
            total = precise(left_B).square().sum(1) * precise(right_B).square().sum(1)
        else:
            total = self._weighted_squares(left_B, right_B, self._quadratic.flatten(1))
        if self._cross is not None:
            total = total + precise(right_B @ self._cross.flatten(1).to(right_B.dtype).t()).mul_(left_B).sum(1)
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
        return precise(product).mul_(precise(small).square()).sum(1)

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
        left = precise(form.left)
        return (
            native.quadratic_sparse_products(left, form, self._quadratic, self._cross)
            if native.supports(left)
            else None
        )

    def of_repeated_rows(self, form: Rows, num_examples: int) -> Tensor | None:
        if form.columns or self.device.type != "cpu":
            return None
        values = precise(form.values(slice(None)))
        if not native.supports(values):
            return None
        polynomial = self._quadratic, self._cross
        return native.polynomial_rows(form.owners, form.indices, values, *polynomial, self.shape[0], num_examples)

    def of_rows(self, indices: Tensor, values: Tensor, columns: bool) -> Tensor:
        values = precise(values)
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
        super().__init__(view.param.shape, view.param.device, workspace, partial(inverse_of, view))
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


def state_of(view: Preconditioning) -> Mapping[str, Tensor]:
    """The moments' tensors in at least float32."""
    dtype = torch.promote_types(view.param.dtype, torch.float32)
    if all(view.state[key].dtype == dtype for key in view.moments.keys):
        return view.state
    return {key: view.state[key].to(dtype) for key in view.moments.keys}


def inverse_of(view: Preconditioning) -> Tensor:
    """lr_share/H in at least float32."""
    return inverse_metric(view, state_of(view), torch.promote_types(view.param.dtype, torch.float32))


def _sliced(shape: torch.Size, rows: slice) -> torch.Size:
    return torch.Size((len(range(*rows.indices(shape[0]))), *shape[1:]))
