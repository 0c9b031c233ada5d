"""`SparseRows`: sparse examples that can be indexed, collated and fed to a linear layer.

A compressed-sparse-row matrix stores, for each row, the columns that are not zero and their values.
``torch.sparse_csr`` stores the same but cannot be indexed by rows, which is what a training loop does all
the time. This class can, and ``nn.Linear`` takes it as it takes a dense tensor, in time proportional to
the non-zeros.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map


class SparseRows:
    """A matrix ``[num_rows, num_columns]`` of which only the non-zeros are stored, one row an example.

    Args:
        indptr: ``[num_rows + 1]`` integers, non-decreasing from 0; row i owns the entries
            ``indptr[i]:indptr[i + 1]``.
        indices: ``[nnz]`` column of each entry, in [0, num_columns).
        values: ``[nnz]`` floating-point value of each entry.
        num_columns: width of the matrix.

    ``rows[i]`` with an integer gives one row as a `SparseRows` of shape ``[num_columns]``; a slice, a list or
    a tensor of integers, or a boolean mask gives ``[k, num_columns]``. ``torch.utils.data.default_collate``
    joins single rows. ``torch.nn.functional.linear`` (so ``nn.Linear``) accepts it, with gradients to weight
    and bias.

    Raises:
        ValueError: when the three arrays do not describe a matrix; the message names the argument.

    Example:
        >>> import torch, dasgrad
        >>> rows = dasgrad.SparseRows([0, 2, 3], [0, 4, 1], [1.0, 2.0, 3.0], num_columns=5)
        >>> rows[[1, 0]].to_dense()
        tensor([[0., 3., 0., 0., 0.],
                [1., 0., 0., 0., 2.]])
        >>> torch.nn.Linear(5, 2)(rows).shape
        torch.Size([2, 2])
    """

    _distinct = False  # for rows pickled before this was known

    def __init__(
        self,
        indptr: Tensor | Sequence[int],
        indices: Tensor | Sequence[int],
        values: Tensor | Sequence[float],
        num_columns: int,
    ) -> None:
        self.indptr = torch.as_tensor(indptr)
        self.indices = torch.as_tensor(indices)
        self.values = torch.as_tensor(values)
        self.num_columns = int(num_columns) if isinstance(num_columns, np.integer) else num_columns
        self._single = False
        self._check()
        self.indptr, self.indices = self.indptr.long(), self.indices.long()
        self._distinct = self._find_distinct()

    def _check(self) -> None:
        def require(argument: str, allowed: str, ok: bool, got: object) -> None:
            if not ok:
                raise ValueError(f"`SparseRows({argument}=...)` must be {allowed}, got {got}.")

        indptr, indices, values = self.indptr, self.indices, self.values
        for name in ("indptr", "indices"):
            array: Tensor = getattr(self, name)
            ok = array.dim() == 1 and (not array.is_floating_point() or array.numel() == 0)
            require(name, "a 1-D sequence of integers", ok, f"{array.dtype} of shape {tuple(array.shape)}")
        ok = values.dim() == 1 and (values.is_floating_point() or values.numel() == 0)
        require("values", "a 1-D sequence of floats", ok, f"{values.dtype} of shape {tuple(values.shape)}")
        ok = isinstance(self.num_columns, int) and self.num_columns >= 1
        require("num_columns", "a positive integer", ok, repr(self.num_columns))
        require("indptr", "of length num_rows + 1", indptr.numel() >= 1, "no entries")
        ok = int(indptr[0]) == 0 and bool((indptr[1:] >= indptr[:-1]).all())
        require("indptr", "non-decreasing from 0", ok, indptr.tolist()[:8])
        nnz = int(indptr[-1])
        require("indices", f"of length indptr[-1] = {nnz}", indices.numel() == nnz, indices.numel())
        require("values", f"of length indptr[-1] = {nnz}", values.numel() == nnz, values.numel())
        if nnz:
            low, high = int(indices.min()), int(indices.max())
            ok = low >= 0 and high < self.num_columns
            require("indices", f"in [0, {self.num_columns})", ok, f"{low} to {high}")

    @classmethod
    def _make(
        cls,
        indptr: Tensor,
        indices: Tensor,
        values: Tensor,
        num_columns: int,
        single: bool = False,
        distinct: bool = False,
    ) -> "SparseRows":
        """Build from parts already known to be good."""
        rows = cls.__new__(cls)
        rows.indptr, rows.indices, rows.values = indptr, indices, values
        rows.num_columns, rows._single, rows._distinct = num_columns, single, distinct
        return rows

    def _find_distinct(self) -> bool:
        """Whether no row stores a column twice: one look where columns are sorted, a sort where not."""
        owners = torch.repeat_interleave(
            torch.arange(self.indptr.numel() - 1, device=self.device), self.indptr.diff(), output_size=len(self.values)
        )
        places = owners * self.num_columns + self.indices
        if bool((places[1:] > places[:-1]).all()):
            return True
        places = places.sort().values
        return bool((places[1:] != places[:-1]).all())

    @classmethod
    def from_scipy(cls, matrix: Any, dtype: torch.dtype = torch.float32) -> "SparseRows":
        """From a SciPy sparse matrix of any format."""
        csr = matrix.tocsr()
        parts = (torch.from_numpy(np.asarray(a)) for a in (csr.indptr, csr.indices, csr.data))
        indptr, indices, values = parts
        return cls(indptr, indices, values.to(dtype), int(csr.shape[1]))

    # --- a tensor's manners ---------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """``[num_rows, num_columns]``, or ``[num_columns]`` for a single row."""
        rows = () if self._single else (self.indptr.numel() - 1,)
        return torch.Size((*rows, self.num_columns))

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one of its entries, as for a tensor."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """2, or 1 for a single row."""
        return len(self.shape)

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """The size in memory, as for a tensor."""
        return self.indptr.nbytes + self.indices.nbytes + self.values.nbytes

    @property
    def distinct(self) -> bool:
        """Whether no row stores a column twice; False as well where a larger matrix had such rows."""
        return self._distinct

    def is_floating_point(self) -> bool:
        """True: the values are floating-point numbers."""
        return True

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> "SparseRows":
        if self._single:
            raise IndexError("a single row of `SparseRows` cannot be indexed further; call `.to_dense()`.")
        num_rows = len(self)
        if isinstance(rows, np.integer | np.ndarray | Tensor) and rows.ndim == 0:
            rows = rows.item()
        if isinstance(rows, int):
            if not -num_rows <= rows < num_rows:
                raise IndexError(f"row {rows} is out of range for `SparseRows` of {num_rows} rows.")
            return self[rows % num_rows : rows % num_rows + 1]._as_single()
        if isinstance(rows, slice):
            start, stop, stride = rows.indices(num_rows)
            if stride == 1:  # neighbouring rows own neighbouring entries
                indptr = self.indptr[start : max(start, stop) + 1]
                first, last = int(indptr[0]), int(indptr[-1])
                parts = (indptr - first, self.indices[first:last], self.values[first:last])
                return self._make(*parts, self.num_columns, distinct=self._distinct)
            rows = start + stride * torch.arange(len(range(start, stop, stride)))
        if isinstance(rows, tuple):
            raise IndexError("`SparseRows` is indexed by rows alone, got a tuple; call `.to_dense()`.")
        rows = torch.as_tensor(rows, device=self.device)
        if rows.dtype == torch.bool:
            if rows.shape != (num_rows,):
                raise IndexError(f"a mask must have shape ({num_rows},), got {tuple(rows.shape)}.")
            rows = rows.nonzero().flatten()
        if rows.dim() != 1 or (rows.is_floating_point() and rows.numel()):
            raise IndexError(f"rows must be integers in one dimension, got {rows.dtype} of {tuple(rows.shape)}.")
        rows = rows.long()
        if rows.device.type == "cpu" and rows.numel():
            low, high = int(rows.min()), int(rows.max())
            if low < -num_rows or high >= num_rows:
                raise IndexError(f"rows {low} to {high} are out of range for `SparseRows` of {num_rows} rows.")
        rows = torch.where(rows < 0, rows + num_rows, rows)
        lengths = self.indptr[rows + 1] - self.indptr[rows]
        indptr = torch.zeros(len(rows) + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(lengths, 0, out=indptr[1:])
        total = int(indptr[-1])
        entries = torch.arange(total, device=self.device)
        entries += torch.repeat_interleave(self.indptr[rows] - indptr[:-1], lengths, output_size=total)
        parts = (indptr, self.indices[entries], self.values[entries])
        return self._make(*parts, self.num_columns, distinct=self._distinct)

    def _as_single(self) -> "SparseRows":
        parts = (self.indptr, self.indices, self.values)
        return self._make(*parts, self.num_columns, single=True, distinct=self._distinct)

    def to(self, *args: Any, **kwargs: Any) -> "SparseRows":
        """As ``Tensor.to``: a device, a floating dtype, or both."""
        values = self.values.to(*args, **kwargs)
        if not values.is_floating_point():
            raise ValueError(f"`SparseRows.to(dtype=...)` must be a floating dtype, got {values.dtype}.")
        move = {"device": values.device, "non_blocking": kwargs.get("non_blocking", False)}
        parts = (self.indptr.to(**move), self.indices.to(**move), values)
        return self._make(*parts, self.num_columns, self._single, self._distinct)

    def pin_memory(self) -> "SparseRows":
        """A copy in page-locked memory."""
        return self._make(
            self.indptr.pin_memory(),
            self.indices.pin_memory(),
            self.values.pin_memory(),
            self.num_columns,
            self._single,
            self._distinct,
        )

    def to_dense(self) -> Tensor:
        """The dense tensor; repeated columns of a row are added."""
        num_rows = self.indptr.numel() - 1
        dense = torch.zeros(num_rows, self.num_columns, dtype=self.dtype, device=self.device)
        owners = torch.repeat_interleave(
            torch.arange(num_rows, device=self.device), self.indptr.diff(), output_size=self.values.numel()
        )
        dense.index_put_((owners, self.indices), self.values, accumulate=True)
        return dense[0] if self._single else dense

    def __repr__(self) -> str:
        return f"SparseRows(shape={tuple(self.shape)}, nnz={self.values.numel()}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.linear:
            return _linear(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        raise TypeError(
            f"`SparseRows` is an input of linear layers alone, got torch function {name!r}; call `.to_dense()`."
        )


def _linear(input: SparseRows, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias`` in O(nnz · num_outputs)."""
    if not isinstance(input, SparseRows):
        raise TypeError("`SparseRows` is an input of linear layers alone, got it as weight or bias.")
    if weight.shape[1] != input.num_columns:
        raise ValueError(
            f"a linear layer of {weight.shape[1]} inputs cannot take `SparseRows` of {input.num_columns} columns."
        )
    output = torch.nn.functional.embedding_bag(
        input.indices,
        weight.t(),
        input.indptr,
        mode="sum",
        per_sample_weights=input.values.to(weight.dtype),
        include_last_offset=True,
    )
    output = output if bias is None else output + bias
    return output[0] if input._single else output


def _collate(batch: Sequence[SparseRows], *, collate_fn_map: Any = None) -> SparseRows:
    """Single rows joined, in order, to one matrix."""
    shapes = sorted({tuple(row.shape) for row in batch})
    if len(shapes) > 1 or len(shapes[0]) != 1:
        raise ValueError(f"`SparseRows` are collated from single rows of one length, got shapes {shapes}.")
    lengths = torch.stack([row.indptr[-1] for row in batch])
    indptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    indices = torch.cat([row.indices for row in batch])
    values = torch.cat([row.values for row in batch])
    distinct = all(row.distinct for row in batch)
    return SparseRows._make(indptr, indices, values, batch[0].num_columns, distinct=distinct)


default_collate_fn_map[SparseRows] = _collate  # torch's registry for types of one's own
