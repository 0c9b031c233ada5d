"""The sum of several forms: what a parameter that is used more than once gets from each of its uses.

The square of a sum is not the sum of squares, so the parts are added before they are measured: densely, a few
examples at a time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dasgrad.scoring.forms import Dense, Form, Outer, Rows, Slice, SparseOuter


def add(forms: Sequence[Form], shape: torch.Size, num_examples: int) -> Dense:
    """The form of Σ over ``forms``, all of one parameter of this shape."""

    def gradients(rows: slice) -> Tensor:
        rows = slice(rows.start, min(rows.stop, num_examples))
        total = densify(forms[0], rows, shape)
        for form in forms[1:]:
            total += densify(form, rows, shape)
        return total

    return Dense(gradients, workspace=2 * shape.numel())


def densify(form: Form, rows: slice, shape: torch.Size) -> Tensor:
    """``[b, *shape]``: the gradients of a slice of the examples, as a new tensor."""
    if isinstance(form, Slice):
        length = len(range(*form.rows.indices(shape[0])))
        part = densify(form.form, rows, torch.Size((length, *shape[1:])))
        whole = part.new_zeros((len(part), *shape))
        whole[:, form.rows] = part
        return whole
    if isinstance(form, Dense):
        return form.gradients(rows).reshape(-1, *shape).clone()
    if isinstance(form, Outer):
        left, right = form.left(rows), form.right(rows)
        if left.dim() == 2:
            left, right = left.unsqueeze(1), right.unsqueeze(1)
        if not form.transposed:
            left, right = left.transpose(1, 2), right.transpose(1, 2)
        left = left.unflatten(1, (form.num_groups, -1))
        right = right.unflatten(1, (form.num_groups, -1))
        products: Tensor = left @ right.transpose(2, 3)
        return products.reshape(-1, *shape)
    return _scatter(form.entries() if isinstance(form, SparseOuter) else form, rows, shape)


def _scatter(form: Rows, rows: slice, shape: torch.Size) -> Tensor:
    """Entries added where they belong; owners are in order, as rules give them."""
    bounds = torch.tensor([rows.start, rows.stop], device=form.owners.device)
    first, last = torch.searchsorted(form.owners.contiguous(), bounds).tolist()
    entries = slice(first, last)
    values = form.values(entries)
    if form.columns:
        flat = values.new_zeros(rows.stop - rows.start, shape[1], shape[0])
    else:
        flat = values.new_zeros(rows.stop - rows.start, shape[0], shape.numel() // max(1, shape[0]))
    places = (form.owners[entries] - rows.start, form.indices[entries])
    flat.index_put_(places, values.reshape(len(values), flat.shape[2]), accumulate=True)
    return flat.transpose(1, 2) if form.columns else flat.reshape(-1, *shape)
