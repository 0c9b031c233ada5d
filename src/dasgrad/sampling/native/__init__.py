"""The compiled core of `SegmentTree`, where the package was built with one.

`segment_tree.cpp` becomes a library of plain C functions, loaded here by ctypes: it knows neither Python nor torch,
so one build serves every version of both. Without it, and on CUDA, the same arithmetic runs in torch operations, to
the same bits. The environment variable ``DASGRAD_NATIVE=0``, read at import, keeps it from being used.

But for `NativeTree.update`, what is called here checks nothing: whatever reaches a pointer was checked before, by
`SegmentTree` or `AdaptiveSampler`. ctypes lets other Python threads run meanwhile, so the caller also holds the lock.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dasgrad import shared_library

__all__ = ["NativeTree", "available", "bind", "within"]

_SHORT = 4096  # values; for more, torch's vectorised operations are the faster check
_CPU = torch.device("cpu")  # named wherever memory is taken, for the default device may be another
_INTEGER, _REAL, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_SIGNATURES = {
    "dasgrad_integers_within": (ctypes.c_int, [_POINTER, _INTEGER, _INTEGER, _INTEGER]),
    "dasgrad_reals_within": (ctypes.c_int, [_POINTER, _INTEGER, _REAL, _REAL]),
    "dasgrad_prefer_large_pages": (None, [_POINTER, _INTEGER]),
    "dasgrad_sum_levels": (_REAL, [_POINTER, _INTEGER, _POINTER]),
    "dasgrad_update": (_REAL, [_POINTER, _INTEGER, _POINTER, _POINTER, _INTEGER]),
    "dasgrad_find": (None, [_POINTER, _INTEGER, _POINTER, _REAL, _INTEGER, _POINTER, _POINTER]),
    "dasgrad_draw": (
        None,
        [_POINTER, _POINTER, _INTEGER, _REAL, ctypes.c_int, _POINTER, _INTEGER, _POINTER, _POINTER],
    ),
    "dasgrad_balance": (None, [_POINTER, _POINTER, _INTEGER, _REAL, _POINTER, _INTEGER, _POINTER, _POINTER]),
    "dasgrad_take_back": (None, [_POINTER, _POINTER, _INTEGER, _REAL, _POINTER, _POINTER, _INTEGER]),
}


_library = shared_library.load(Path(__file__).parent, "segment_tree", _SIGNATURES)


def available() -> bool:
    """Whether trees on the CPU run in C++."""
    return _library is not None


def bind(nodes: Tensor, num_leaves: int) -> NativeTree | None:
    """The functions of a tree that lies in `nodes`, best not written to yet; None where torch operations must do."""
    if _library is None or nodes.device.type != "cpu":
        return None
    return NativeTree(_library, nodes, num_leaves)


def within(values: Tensor, low: float, high: float) -> bool | None:
    """Whether all of `values` are in [low, high]; None if torch must tell.

    It must unless they are few, on the CPU, contiguous, and int64 or float64. Then this costs a third of torch's time.
    """
    if _library is None or not values.is_cpu or not values.is_contiguous() or values.numel() > _SHORT:
        return None
    if values.dtype is torch.float64:
        return bool(_library.dasgrad_reals_within(values.data_ptr(), values.numel(), low, high))
    if values.dtype is torch.int64:
        return bool(_library.dasgrad_integers_within(values.data_ptr(), values.numel(), int(low), int(high)))
    return None


class NativeTree:
    """A buffer in the layout of `SegmentTree`, and what C++ does with it.

    Args:
        library: the compiled core.
        nodes: the buffer, contiguous float64 on the CPU; kept alive, and never to be moved.
        num_leaves: n.
    """

    def __init__(self, library: ctypes.CDLL, nodes: Tensor, num_leaves: int) -> None:
        assert nodes.dtype == torch.float64
        assert nodes.is_contiguous()
        self._library, self._nodes, self._num_leaves = library, nodes, num_leaves
        self._address = nodes.data_ptr()
        self._find, self._update = library.dasgrad_find, library.dasgrad_update
        library.dasgrad_prefer_large_pages(self._address, nodes.numel())

    def fill(self, masses: Tensor) -> float:
        """Write all leaves and sums; return the total, which may be infinite."""
        address = masses.data_ptr() if masses.is_cpu and masses.is_contiguous() else None
        if address is None:
            self._nodes[: self._num_leaves].copy_(masses)
        return float(self._library.dasgrad_sum_levels(self._address, self._num_leaves, address))

    def update(self, indices: Any, masses: Any) -> float | None:
        """Write leaves, the last of duplicates winning, and return the total; if that is infinite, nothing was written.

        Arguments are checked here, at less cost than elsewhere. None, and nothing written: they are not equally many
        int64 and float64 in plain memory, or one of them is out of range.

        Raises:
            MemoryError: no room for a copy of the arguments.
        """
        if not (
            type(indices) is Tensor
            and type(masses) is Tensor
            and indices.dtype is torch.int64
            and masses.dtype is torch.float64
            and indices.ndim == masses.ndim == 1
            and indices.is_cpu
            and masses.is_cpu
            and indices.is_contiguous()
            and masses.is_contiguous()
            and not masses.is_neg()
        ):
            return None
        num = indices.numel()
        if num != masses.numel():
            return None
        total: float = self._update(self._address, self._num_leaves, indices.data_ptr(), masses.data_ptr(), num)
        if total >= 0:
            return total
        if total != total:
            raise MemoryError(f"`SegmentTree.update` found no room for a copy of {num} masses.")
        return None

    def find(self, prefixes: Tensor) -> Tensor:
        """Leaves under the prefixes, 1-D."""
        prefixes, num = prefixes.contiguous(), prefixes.numel()
        indices = torch.empty(num, dtype=torch.int64, device=_CPU)
        self._find(self._address, self._num_leaves, prefixes.data_ptr(), 1.0, num, indices.data_ptr(), None)
        return indices

    def sample_(self, uniforms: Tensor, total: float) -> tuple[Tensor, Tensor]:
        """Leaves under `total` times each uniform, and their masses, which take the place of the uniforms."""
        num, address = uniforms.numel(), uniforms.data_ptr()
        indices = torch.empty(num, dtype=torch.int64, device=_CPU)
        self._find(self._address, self._num_leaves, address, total, num, indices.data_ptr(), address)
        return indices, uniforms

    def draw_(
        self, target: NativeTree | None, floor: float, stratified: bool, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draws from the mixture of `floor` times `target` (None: uniform) and the rest this tree.

        Returns the indices, and the weights, which take the place of the uniforms.
        """
        num, address = uniforms.numel(), uniforms.data_ptr()
        indices = torch.empty(num, dtype=torch.int64, device=_CPU)
        self._library.dasgrad_draw(
            self._address,
            None if target is None else target._address,
            self._num_leaves,
            floor,
            stratified,
            address,
            num,
            indices.data_ptr(),
            address,
        )
        return indices, uniforms

    def balance_(self, target: NativeTree | None, floor: float, credits: Tensor, num: int) -> tuple[Tensor, Tensor]:
        """So many draws from the same mixture that use up credits, and their weights."""
        indices = torch.empty(num, dtype=torch.int64, device=_CPU)
        weights = torch.empty(num, dtype=torch.float64, device=_CPU)
        self._library.dasgrad_balance(
            self._address,
            None if target is None else target._address,
            self._num_leaves,
            floor,
            credits.data_ptr(),
            num,
            indices.data_ptr(),
            weights.data_ptr(),
        )
        return indices, weights

    def take_back_(self, target: NativeTree | None, floor: float, credits: Tensor, indices: Tensor) -> None:
        """Give the credits back that draws of these leaves used up."""
        self._library.dasgrad_take_back(
            self._address,
            None if target is None else target._address,
            self._num_leaves,
            floor,
            credits.data_ptr(),
            indices.data_ptr(),
            indices.numel(),
        )
