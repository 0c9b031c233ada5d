"""The compiled core of measures, where the package was built with one.

Without it the same formulas run in torch operations, in several passes over blocks that fit the cache.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dasgrad.scoring.forms import SparseOuter
from dasgrad.scoring.native import threads
from dasgrad.scoring.native.library import FROZEN_LAYER, INTEGER, POINTER, Attention, Products, TableRows, library
from dasgrad.scoring.plain import are_plain
from dasgrad.scoring.workspace import Workspace

FEW_OUTPUTS = 32
"""Up to so many outputs `quadratic_outer_products` is faster than a matrix product."""
_WORTH_A_THREAD = 2**19
"""Entries below which starting a thread costs more than it saves."""
Arrays = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
Coefficients = tuple[float, float, float, float]
Rows = Callable[[int], int]
"""The address of a row."""
_BITS = {torch.float32: 32, torch.float64: 64}


def supports(tensor: Tensor) -> bool:
    """Whether the core is there, and for tensors of this kind, device and type."""
    return library is not None and tensor.dtype in _BITS and tensor.is_cpu and are_plain(tensor)


def own_entries(gradients_B: Tensor, arrays: Arrays, coefficients: Coefficients) -> Tensor:
    """``[b, n] -> [b]`` float64; arrays and coefficients as in `dasgrad.scoring.own`."""
    gradients, size = gradients_B.contiguous(), arrays[0].numel()
    _check(gradients, arrays)
    assert gradients.shape[1] == size
    function = getattr(library, f"dasgrad_own_dense{_BITS[gradients.dtype]}")
    terms = _pointers(arrays), (ctypes.c_double * 4)(*coefficients)

    start = _rows(gradients)

    def part(first: int, last: int, totals: Rows) -> None:
        function(start(first), last - first, size, *terms, totals(first))

    return _in_threads(part, len(gradients), size)


def own_outer_products(left_B: Tensor, right_B: Tensor, arrays: Arrays, coefficients: Coefficients) -> Tensor:
    """``[b, o], [b, k] -> [b]`` float64."""
    left, right, size = left_B.contiguous(), right_B.contiguous(), arrays[0].numel()
    shape = left.shape[1], right.shape[1]
    _check(left, arrays)
    assert right.dtype == left.dtype
    assert shape[0] * shape[1] == size
    function = getattr(library, f"dasgrad_own_outer{_BITS[left.dtype]}")
    terms = _pointers(arrays), (ctypes.c_double * 4)(*coefficients)

    lefts, rights = _rows(left), _rows(right)

    def part(first: int, last: int, totals: Rows) -> None:
        function(lefts(first), rights(first), last - first, *shape, *terms, totals(first))

    return _in_threads(part, len(left), size)


def polynomial_entries(gradients_B: Tensor, quadratic: Tensor | None, cross: Tensor | None) -> Tensor:
    """``[b, n], [n], [n] -> [b]`` float64: Σₖ Qₖgₖ² + Cₖgₖ; without Q it is 1, without C 0."""
    gradients, size = gradients_B.contiguous(), gradients_B.shape[1]
    terms = [None if part is None else part.to(gradients.dtype).contiguous() for part in (quadratic, cross)]
    assert all(part is None or (part.is_cpu and part.numel() == size) for part in terms)
    assert quadratic is not None or cross is None
    function = getattr(library, f"dasgrad_polynomial{_BITS[gradients.dtype]}")
    start = _rows(gradients)
    pointers = [None if part is None else part.data_ptr() for part in terms]

    def part(first: int, last: int, totals: Rows) -> None:
        function(start(first), last - first, size, *pointers, totals(first))

    return _in_threads(part, len(gradients), size)


def normalised_sums(inputs_B: Tensor, gradients_B: Tensor, eps: float) -> Tensor:
    """``[b, T, k], [b, T, k] -> [b, k]``: Σ_t g x̂, with x̂ = (x − mean)/√(variance + eps) over the last dimension."""
    inputs, gradients = inputs_B.contiguous(), gradients_B.contiguous()
    assert inputs.shape == gradients.shape
    assert inputs.dtype == gradients.dtype
    num_examples, num_positions, width = inputs.shape
    sums = inputs.new_empty(num_examples, width)
    function = getattr(library, f"dasgrad_normalised_sums{_BITS[inputs.dtype]}")
    starts, sources, targets = _rows(inputs), _rows(gradients), _rows(sums)

    def part(first: int, last: int) -> None:
        function(starts(first), sources(first), last - first, num_positions, width, eps, targets(first))

    threads.share_out(part, num_examples, _worthwhile_threads(4 * inputs.numel()))
    return sums


def polynomial_rows(
    owners: Tensor,
    indices: Tensor,
    values: Tensor,
    quadratic: Tensor | None,
    cross: Tensor | None,
    num_rows: int,
    num_examples: int,
) -> Tensor:
    """``[N], [N], [N, width] -> [B]`` float64: `polynomial_entries` of gradients that are zero but for some rows.

    Entry e adds ``values[e]`` to row ``indices[e]`` of the gradient of example ``owners[e]``, which ascend; Q and C are
    ``[num_rows, width]``.
    """
    owners, indices, values = owners.contiguous(), indices.contiguous(), values.contiguous()
    terms = [None if part is None else part.to(values.dtype).contiguous() for part in (quadratic, cross)]
    num_entries, width = values.shape
    assert owners.dtype == indices.dtype == torch.int64
    assert len(owners) == len(indices) == num_entries
    assert all(part is None or (part.is_cpu and part.numel() == num_rows * width) for part in terms)
    assert quadratic is not None or cross is None
    function = getattr(library, f"dasgrad_rows{_BITS[values.dtype]}")
    scratch = torch.empty_like(indices), values.new_empty(num_examples, width)
    arrays = [None if part is None else part.data_ptr() for part in (owners, indices, values, *terms, *scratch)]
    fit: list[int] = []

    def part(first: int, last: int, totals: Rows) -> None:
        fit.append(function(TableRows(*arrays, totals(0), num_entries, num_rows, width, first, last)))

    totals = _in_threads(part, num_examples, width * num_entries // max(1, num_examples))
    if not all(fit):
        raise IndexError(f"a rule names a row outside of a parameter with {num_rows} rows.")
    return totals


_has_sums_of_products = library is not None and bool(library.dasgrad_has_sums_of_products())
_BYTES_OF_VECTOR = 64


def sums_whole_vectors(like: Tensor, num_columns: int) -> bool:
    """Whether `sums_of_products` is there for factors of this device and type, and so many columns."""
    return _has_sums_of_products and supports(like) and num_columns * like.element_size() % _BYTES_OF_VECTOR == 0


def sums_of_products(left_B: Tensor, right_B: Tensor, quadratic: Tensor | None, cross: Tensor | None) -> Tensor:
    """``[b, T, o], [b, T, k], [o, k], [o, k] -> [b]`` float64: `polynomial_entries` of g = leftᵀright, never formed."""
    right = right_B if right_B.stride(2) == 1 else right_B.contiguous()
    assert right.shape[:2] == left_B.shape[:2]
    return _sums_over_taps(left_B.unsqueeze(1), right.unsqueeze(1), [0], quadratic, cross)


def sums_over_windows(
    left_B: Tensor,
    right_B: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    quadratic: Tensor | None,
    cross: Tensor | None,
) -> Tensor:
    """``[b, o, *positions], [b, *spatial, k], [o, k, *kernel] -> [b]`` float64: the same of a convolution's gradients.

    Positions have two dimensions, and so has what a kernel sees of right from them.
    """
    right, (height, width) = right_B.contiguous(), left_B.shape[2:]
    lines, columns = ([step * each for each in range(size)] for step, size in zip(dilation, kernel, strict=True))
    seen = right[:, : height * stride[0] : stride[0], : width * stride[1] : stride[1]]
    assert lines[-1] + (height - 1) * stride[0] < right.shape[1]
    assert columns[-1] + (width - 1) * stride[1] < right.shape[2]
    taps = [line * right.stride(1) + column * right.stride(2) for line in lines for column in columns]
    terms = (None if part is None else part.flatten(2).permute(2, 0, 1) for part in (quadratic, cross))
    return _sums_over_taps(left_B.permute(0, 2, 3, 1), seen, taps, *terms)


def _sums_over_taps(
    left: Tensor, right: Tensor, taps: Sequence[int], quadratic: Tensor | None, cross: Tensor | None
) -> Tensor:
    """Factors ``[b, lines, T, ·]``, terms ``[taps, o, k]``; right is read from each tap on, and must reach so far."""
    num_examples, *sizes, num_columns = *left.shape, right.shape[3]
    num_entries = len(taps) * sizes[2] * num_columns
    terms = [None if part is None else part.to(left.dtype).contiguous() for part in (quadratic, cross)]
    assert left.dtype == right.dtype
    assert all(part is None or (part.is_cpu and part.numel() == num_entries) for part in terms)
    assert quadratic is not None or cross is None
    function = getattr(library, f"dasgrad_sums_of_products{_BITS[left.dtype]}")
    starts, places = (_rows(left), _rows(right)), (INTEGER * len(taps))(*taps)
    pointers = [None if part is None else part.data_ptr() for part in terms]
    steps = *left.stride(), *right.stride()[:3]

    def part(first: int, last: int, totals: Rows) -> None:
        arrays = *(start(first) for start in starts), *pointers, totals(first), ctypes.addressof(places)
        function(Products(*arrays, len(taps), last - first, *sizes, num_columns, *steps))

    return _in_threads(part, num_examples, sizes[0] * sizes[1] * num_entries // 8)


def quadratic_outer_products(left_B: Tensor, right_B: Tensor, quadratic: Tensor) -> Tensor:
    """``[b, o], [b, k], [o, k] -> [b]`` float64: (left²)ᵀ Q (right²), for few outputs o."""
    left, right, quadratic = left_B.contiguous(), right_B.contiguous(), quadratic.contiguous()
    num_rows, num_columns = quadratic.shape
    assert left.dtype == right.dtype == quadratic.dtype
    assert (left.shape[1], right.shape[1]) == (num_rows, num_columns)
    function = getattr(library, f"dasgrad_quadratic{_BITS[right.dtype]}")

    lefts, rights, matrix = _rows(left), _rows(right), quadratic.data_ptr()

    def part(first: int, last: int, totals: Rows) -> None:
        function(lefts(first), rights(first), last - first, num_rows, num_columns, matrix, None, totals(first))

    return _in_threads(part, len(right), num_columns * num_rows // 8)


def reads(data: Tensor) -> bool:
    """Whether `linear_with_squares` is there for data of this device and type."""
    return supports(data) or (library is not None and data.dtype == torch.bfloat16 and data.is_cpu and are_plain(data))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[B, k], [o, k], [o] -> [B, o]``, for few outputs o: x Wᵀ + b in the type of x."""
    return linear_with_squares(x, weight, bias, None)[0]


def linear_with_squares(
    x: Tensor, weight: Tensor, bias: Tensor | None, quadratic: Tensor | None, cross: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """``[B, k], [o, k], [o], [o, k], [o, k] -> [B, o]`` three times, for few outputs o.

    x Wᵀ + b in the type of x, and in at least float32 x² Qᵀ where Q is given and x Cᵀ where C is.
    """
    dtype = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    x, (num_outputs, num_inputs) = x.contiguous(), weight.shape
    matrices = [None if part is None else part.to(dtype).contiguous() for part in (weight, bias, quadratic, cross)]
    assert x.shape[1] == num_inputs
    assert all(part is None or part.is_cpu for part in matrices)
    assert all(part is None or part.shape == weight.shape for part in (quadratic, cross))
    outputs = x.new_empty(len(x), num_outputs, dtype=dtype)
    squares, crosses = (None if part is None else torch.empty_like(outputs) for part in (quadratic, cross))
    function = getattr(library, f"dasgrad_linear_with_squares{16 if x.dtype == torch.bfloat16 else _BITS[dtype]}")
    terms = _pointers(matrices)
    starts = [_rows(x), *(None if part is None else _rows(part) for part in (outputs, squares, crosses))]

    def part(first: int, last: int, totals: Rows) -> None:
        rows, *results = (None if start is None else start(first) for start in starts)
        function(rows, last - first, num_inputs, num_outputs, terms, (POINTER * 3)(*results))

    _in_threads(part, len(x), num_inputs * num_outputs // 4)
    return outputs.to(x.dtype), squares, crosses


def sparse_linear(starts: Tensor, columns: Tensor, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``[B + 1], [N], [N], [o, k], [o] -> [B, o]``, for few outputs o: x Wᵀ + b in the type of the weight.

    Row i of x has the entries ``starts[i]:starts[i + 1]`` of columns and values.
    """
    (num_outputs, num_inputs), num_examples = weight.shape, len(starts) - 1
    starts, columns, values = starts.contiguous(), columns.contiguous(), values.to(weight.dtype).contiguous()
    weight, bias = weight.contiguous(), None if bias is None else bias.to(weight.dtype).contiguous()
    assert starts.dtype == columns.dtype == torch.int64
    assert all(part is None or part.is_cpu for part in (starts, columns, values, weight, bias))
    outputs = weight.new_empty(num_examples, num_outputs)
    function = getattr(library, f"dasgrad_sparse_linear{_BITS[weight.dtype]}")
    terms = weight.data_ptr(), None if bias is None else bias.data_ptr()
    firsts, results, entries = _rows(starts), _rows(outputs), (columns.data_ptr(), values.data_ptr())

    def part(first: int, last: int) -> None:
        function(firsts(first), *entries, last - first, num_outputs, num_inputs, *terms, results(first))

    threads.share_out(part, num_examples, _worthwhile_threads(num_outputs * len(columns)))
    return outputs


def transposed(matrices_B: Tensor) -> Tensor:
    """``[b, m, n] -> [b, n, m]`` in memory; for numbers of four bytes in a fraction of the time of torch's own copy."""
    matrices, (number, num_rows, num_columns) = matrices_B.contiguous(), matrices_B.shape
    if library is None or not matrices.is_cpu or matrices.element_size() not in (4, 8):
        return matrices.transpose(1, 2).contiguous()
    result = matrices.new_empty(number, num_columns, num_rows)
    function = library.dasgrad_transpose32 if matrices.element_size() == 4 else library.dasgrad_transpose64
    sources, targets = _rows(matrices), _rows(result)

    def part(first: int, last: int) -> None:
        function(sources(first), last - first, num_rows, num_columns, targets(first))

    threads.share_out(part, number, _worthwhile_threads(matrices.numel()))
    return result


def attends(like: Tensor) -> bool:
    """Whether `attention` is there for sequences of this device and type."""
    return _has_sums_of_products and supports(like)


def attention(sequences: Sequence[Tensor], scale: float, gradients: Sequence[Tensor] = ()) -> None:
    """softmax(scale q kᵀ) v of all heads; ``sequences`` are query, key, value, output, each ``[B, heads, T, ·]``.

    With ``gradients``, of query, key and value, these are filled, and the last sequence is the output's gradient. All
    have the numbers of a position side by side.
    """
    query, key, value, _ = sequences
    (num_examples, num_heads, num_queries, width), num_keys, value_width = query.shape, key.shape[2], value.shape[3]
    everything = [*sequences, *gradients]
    assert all(each.stride(3) == 1 and each.dtype == query.dtype and each.is_cpu for each in everything)
    places = [(each.data_ptr(), *each.stride()[:3]) for each in everything]
    places += [(0, 0, 0, 0)] * (7 - len(places))
    numbers, most = [entry for place in places for entry in place], max(num_queries, num_keys)
    keys, inner, outer = (size + _BYTES_OF_VECTOR for size in (num_keys, width, value_width))
    size = num_queries * (2 * keys + inner) + 2 * (most + inner + outer) * (keys + inner + outer)
    function = getattr(library, f"dasgrad_attention{_BITS[query.dtype]}")

    def part(first: int, last: int) -> None:
        scratch = query.new_empty(size)
        sizes = first, last, num_heads, num_queries, num_keys, width, value_width
        function(Attention(*numbers, scratch.data_ptr(), *sizes, scale), bool(gradients))

    number = num_examples * num_heads
    threads.share_out(part, number, _worthwhile_threads(number * num_queries * num_keys * (width + value_width) // 8))


def inverse_metric(curvature: Tensor, scale: float, eps: float, share: float) -> Tensor:
    """share/(scale·√v + eps) for a contiguous v."""
    assert curvature.is_contiguous()
    inverse = torch.empty_like(curvature)
    function = getattr(library, f"dasgrad_inverse_metric{_BITS[curvature.dtype]}")
    function(curvature.data_ptr(), curvature.numel(), scale, eps, share, inverse.data_ptr())
    return inverse


_TORCH_THREADS = ctypes.addressof(threads.TORCH)
Curvature = tuple[Tensor, tuple[float, float, float]]
"""A contiguous v, and scale, eps and share of `inverse_metric`."""


class LinearTotals:
    """``[B]`` float64: adds up, linear layer by layer, (left²)ᵀ(Q right² + q), Q and q inverse metrics."""

    def __init__(self, num_examples: int, dtype: torch.dtype, workspace: Workspace) -> None:
        assert library is not None
        self._num_examples = num_examples
        self._dtype = dtype
        self._workspace = workspace
        self._num_threads = torch.get_num_threads()
        wide = dtype is torch.float64
        self._measure = library.dasgrad_frozen_layer64 if wide else library.dasgrad_frozen_layer32
        self._take_roots = library.dasgrad_lengths64 if wide else library.dasgrad_lengths32
        # Of each thread, where a vector may begin.
        self._totals = torch.zeros(self._num_threads * (-(-num_examples // 8) * 8), dtype=torch.float64)

    @property
    def values(self) -> Tensor:
        """Of all layers so far."""
        return self._totals[: self._num_examples]

    def lengths(self, weights: Tensor, scale: float) -> Tensor | None:
        """``[B]``: √total / (scale · weight); None for weights that are not of the layers' type."""
        if weights.dtype is not self._dtype or not weights.is_cpu or not weights.is_contiguous():
            return None
        assert weights.shape == (self._num_examples,)
        lengths = torch.empty_like(weights)
        self._take_roots(self._totals.data_ptr(), weights.data_ptr(), scale, self._num_examples, lengths.data_ptr())
        return lengths

    def add(self, left: Tensor, right: Tensor, weight: Curvature, bias: Curvature | None) -> bool:
        """Measure a layer; False, and nothing is added, where it is of another type.

        Args:
            left: ``[B, o]``, the gradient at its output.
            right: ``[B, k]``, its input.
            weight: what is known of its weight.
            bias: and of its bias, if that is to be measured.
        """
        (curvature, coefficients), (of_bias, of_bias_coefficients) = weight, bias or (None, weight[1])
        dtype = self._dtype
        if not (left.dtype is right.dtype is curvature.dtype is dtype) or not (
            of_bias is None or of_bias.dtype is dtype
        ):
            return False
        left, right = left.contiguous(), right.contiguous()
        num_examples, num_columns = right.shape
        num_rows = left.shape[1]
        assert left.is_cpu
        assert left.shape[0] == num_examples == self._num_examples
        assert curvature.shape == (num_rows, num_columns)
        assert curvature.is_contiguous()
        assert of_bias is None or (of_bias.shape == (num_rows,) and of_bias.is_contiguous())
        size = num_rows * num_columns
        packed = FROZEN_LAYER.pack(
            left.data_ptr(), right.data_ptr(), curvature.data_ptr(), 0 if of_bias is None else of_bias.data_ptr(),
            num_rows, num_columns, min(self._num_threads, _worthwhile_threads(num_examples * size * 2)),
            *coefficients, *of_bias_coefficients,
        )  # fmt: skip
        inverse = self._workspace.reserve("inverse metrics", size + num_rows, curvature)
        self._measure(packed, num_examples, inverse.data_ptr(), self._totals.data_ptr(), _TORCH_THREADS)
        return True


def own_sparse_products(left_B: Tensor, right: SparseOuter, arrays: Arrays, coefficients: Coefficients) -> Tensor:
    """``[b, o], sparse [b, k] -> [b]`` float64, less the shares of zero gradients."""
    _check(left_B, arrays)
    function = getattr(library, f"dasgrad_own_sparse{_BITS[left_B.dtype]}")
    return _of_sparse(function, left_B, right, (_pointers(arrays), (ctypes.c_double * 4)(*coefficients)))


def quadratic_sparse_products(
    left_B: Tensor, right: SparseOuter, quadratic: Tensor | None, cross: Tensor | None
) -> Tensor:
    """``[b, o], sparse [b, k] -> [b]`` float64: Σₖ Qₖgₖ² + crossₖgₖ of g = left rightᵀ; None is 1 and 0."""
    terms = [None if part is None else part.to(left_B.dtype).contiguous() for part in (quadratic, cross)]
    function = getattr(library, f"dasgrad_quadratic_sparse{_BITS[left_B.dtype]}")
    return _of_sparse(function, left_B, right, [None if part is None else part.data_ptr() for part in terms])


def _of_sparse(function: Any, left_B: Tensor, right: SparseOuter, terms: Sequence[Any]) -> Tensor:
    left, starts, columns = left_B.contiguous(), right.starts.contiguous(), right.columns.contiguous()
    values = right.values.to(left.dtype).contiguous()
    assert starts.dtype == columns.dtype == torch.int64
    assert len(starts) == len(left) + 1
    entries, shape = (columns.data_ptr(), values.data_ptr()), (left.shape[1], right.num_columns)
    firsts, lefts = _rows(starts), _rows(left)

    def part(first: int, last: int, totals: Rows) -> None:
        function(firsts(first), *entries, lefts(first), last - first, *shape, *terms, totals(first))

    return _in_threads(part, len(left), left.shape[1] * max(1, len(columns) // max(1, len(left))))


def _check(factor: Tensor, arrays: Arrays) -> None:
    """What C++ relies on."""
    for array in arrays:
        assert array is None or (array.dtype == factor.dtype and array.is_cpu and array.is_contiguous())


def _pointers(arrays: Sequence[Tensor | None]) -> Any:
    return (POINTER * len(arrays))(*(None if array is None else array.data_ptr() for array in arrays))


def _rows(matrix: Tensor) -> Rows:
    """Where each row of a contiguous tensor begins."""
    start, step = matrix.data_ptr(), matrix.stride(0) * matrix.element_size()
    return lambda row: start + row * step


def _in_threads(part: Callable[[int, int, Rows], None], num_examples: int, size: int) -> Tensor:
    """Totals of all examples, shared out over as many threads as torch uses."""
    totals = torch.empty(num_examples, dtype=torch.float64)
    places = _rows(totals)
    num_threads = _worthwhile_threads(num_examples * size)
    threads.share_out(lambda first, last: part(first, last, places), num_examples, num_threads)
    return totals


def _worthwhile_threads(num_entries: int) -> int:
    return max(1, min(torch.get_num_threads(), num_entries // _WORTH_A_THREAD))
