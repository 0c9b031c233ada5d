"""From the form of a parameter's per-example gradients to their lengths, block by block."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from dasgrad.scoring import kernels, native
from dasgrad.scoring.forms import Dense, Form, Outer, Rows, Slice, SparseOuter, Windows
from dasgrad.scoring.workspace import Workspace

_BLOCK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}
"""Entries of temporaries that are handled at once: 4 MiB in float32 on a CPU, where caches are to hold them."""
_MORE_FOR_SUMS = 4
"""Times as many where gradients are formed by batched matrix products, which want several examples at once."""


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
    def prepare(self) -> None:
        """Compute now what is kept of the optimizer's state; else that is done when it is first needed."""

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

    def of_repeated_rows(self, form: Rows, num_examples: int) -> Tensor | None:
        """The same for g by its rows, where entries of one row are to be added; None where that must be done first."""
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
            left = precise(form.left(slice(None)))
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
        at_once = self.of_repeated_rows(form, num_examples)
        if at_once is not None:
            return at_once
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
    """A tensor that may be overwritten: forms may hand out views of what they still need. Kernels and the core read."""
    return gradients if native.supports(gradients) or kernels.available(gradients) else gradients.clone()


def _factors(form: Outer, rows: slice) -> tuple[Tensor, Tensor]:
    """Both in the type of the output's gradient: under autocast a layer casts its input so, too."""
    left = form.left(rows)
    return left, form.right(rows).to(left.dtype)


def precise(values: Tensor) -> Tensor:
    """In at least float32."""
    if values.dtype is torch.float32:  # most are, and asking torch takes longer
        return values
    return values.to(torch.promote_types(values.dtype, torch.float32))
