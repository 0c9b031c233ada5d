"""The compiled core of scores with the example's own gradient in the metric, where the package was built with one.

Without it the same formula runs in torch operations, several passes over blocks that fit the cache.
"""

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dasgrad import shared_library

_WORTH_A_THREAD = 2**19
"""Entries below which starting a thread costs more than it saves."""
_INTEGER, _POINTER = ctypes.c_int64, ctypes.c_void_p
_DENSE = (None, [_POINTER, _INTEGER, _INTEGER, _POINTER, _POINTER, _POINTER])
_OUTER = (None, [_POINTER, _POINTER, _INTEGER, _INTEGER, _INTEGER, _POINTER, _POINTER, _POINTER])
_library = shared_library.load(
    Path(__file__).parent,
    "own",
    {
        "dasgrad_own_dense32": _DENSE,
        "dasgrad_own_dense64": _DENSE,
        "dasgrad_own_outer32": _OUTER,
        "dasgrad_own_outer64": _OUTER,
    },
)
_BITS = {torch.float32: 32, torch.float64: 64}


class OwnTerms:
    """The arrays and coefficients of `own.cpp` for one parameter, and what C++ computes with them.

    Args:
        floor, past: ``param.shape``, contiguous, float32 or float64, on the CPU.
        decay, offset: the same, or None.
        gain, slope, sign, eps: the coefficients.
    """

    def __init__(
        self,
        floor: Tensor,
        past: Tensor,
        decay: Tensor | None,
        offset: Tensor | None,
        *,
        gain: float,
        slope: float,
        sign: float,
        eps: float,
    ) -> None:
        tensors = (floor, past, decay, offset)
        self._kept = tensors  # alive as long as their addresses are used
        self._size = floor.numel()
        self._bits = _BITS[floor.dtype]
        self.dtype = floor.dtype
        self._arrays = (_POINTER * 4)(*(None if t is None else t.data_ptr() for t in tensors))
        self._coefficients = (ctypes.c_double * 4)(gain, slope, sign, eps)

    def of_entries(self, gradients_B: Tensor) -> Tensor:
        """``[b, n] -> [b]`` float64."""
        gradients = gradients_B.contiguous()
        assert gradients.shape[1] == self._size
        assert gradients.dtype == self.dtype
        function = getattr(_library, f"dasgrad_own_dense{self._bits}")

        def part(first: int, last: int, totals: Tensor) -> None:
            rows, out = gradients[first:last], totals[first:last]
            function(rows.data_ptr(), last - first, self._size, self._arrays, self._coefficients, out.data_ptr())

        return _in_threads(part, len(gradients), self._size)

    def of_outer_products(self, left_B: Tensor, right_B: Tensor) -> Tensor:
        """``[b, o], [b, k] -> [b]`` float64."""
        left, right = left_B.contiguous(), right_B.contiguous()
        num_rows, num_columns = left.shape[1], right.shape[1]
        assert num_rows * num_columns == self._size
        assert left.dtype == right.dtype == self.dtype
        function = getattr(_library, f"dasgrad_own_outer{self._bits}")

        def part(first: int, last: int, totals: Tensor) -> None:
            pointers = (left[first:last].data_ptr(), right[first:last].data_ptr())
            shape = (last - first, num_rows, num_columns)
            function(*pointers, *shape, self._arrays, self._coefficients, totals[first:last].data_ptr())

        return _in_threads(part, len(left), self._size)


def supports(tensor: Tensor) -> bool:
    """Whether the core is there, and for tensors of this device and type."""
    return _library is not None and tensor.device.type == "cpu" and tensor.dtype in _BITS


def _in_threads(part: Callable[[int, int, Tensor], None], num_examples: int, size: int) -> Tensor:
    """Totals of all examples, shared out over as many threads as torch uses; ctypes lets go of the interpreter."""
    totals = torch.empty(num_examples, dtype=torch.float64)
    num_threads = max(1, min(torch.get_num_threads(), num_examples * size // _WORTH_A_THREAD))
    bounds = [num_examples * k // num_threads for k in range(num_threads + 1)]
    threads = [threading.Thread(target=part, args=(bounds[k], bounds[k + 1], totals)) for k in range(1, num_threads)]
    for thread in threads:
        thread.start()
    part(bounds[0], bounds[1], totals)
    for thread in threads:
        thread.join()
    return totals
