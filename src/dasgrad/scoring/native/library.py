"""Loading the compiled core: what its functions take, and the structures they share with it."""

import ctypes
import struct
from pathlib import Path

from dasgrad import shared_library

INTEGER, POINTER = ctypes.c_int64, ctypes.c_void_p
_DENSE = (None, [POINTER, INTEGER, INTEGER, POINTER, POINTER, POINTER])
_OUTER = (None, [POINTER, POINTER, INTEGER, INTEGER, INTEGER, POINTER, POINTER, POINTER])
_QUADRATIC = (None, [POINTER, POINTER, INTEGER, INTEGER, INTEGER, POINTER, POINTER, POINTER])
_SPARSE = [POINTER] * 4 + [INTEGER] * 3
_OWN_SPARSE = (None, [*_SPARSE, POINTER, POINTER, POINTER])
_QUADRATIC_SPARSE = (None, [*_SPARSE, POINTER, POINTER, POINTER])
_LINEAR = (None, [POINTER, INTEGER, INTEGER, INTEGER, POINTER, POINTER])
_SPARSE_LINEAR = (None, [*[POINTER] * 3, *[INTEGER] * 3, *[POINTER] * 3])
_TRANSPOSE = (None, [POINTER, INTEGER, INTEGER, INTEGER, POINTER])
_NORMALISED = (None, [POINTER, POINTER, INTEGER, INTEGER, INTEGER, ctypes.c_double, POINTER])
_INVERSE = (None, [POINTER, INTEGER, ctypes.c_double, ctypes.c_double, ctypes.c_double, POINTER])


FROZEN_LAYER = struct.Struct("4P3q6d")
"""As in measures.cpp; packed, for filling in a structure of ctypes takes as long as the arithmetic of a small layer."""


class Products(ctypes.Structure):
    """As in measures.cpp."""

    _fields_ = (
        *((name, POINTER) for name in ("left", "right", "quadratic", "cross", "totals", "taps")),
        *((f"num_{what}", INTEGER) for what in ("taps", "examples", "lines", "positions", "rows", "columns")),
        *((f"left_{step}", INTEGER) for step in ("example", "line", "position", "row")),
        *((f"right_{step}", INTEGER) for step in ("example", "line", "position")),
    )


class TableRows(ctypes.Structure):
    """As in measures.cpp."""

    _fields_ = (
        *((name, POINTER) for name in ("owners", "indices", "values", "quadratic", "cross", "order", "sums", "totals")),
        *((name, INTEGER) for name in ("num_entries", "num_rows", "width", "first", "last")),
    )


class Attention(ctypes.Structure):
    """As in measures.cpp."""

    _SEQUENCES = ("query", "key", "value", "output", "query_gradient", "key_gradient", "value_gradient")
    _fields_ = (
        *(
            (f"{name}_{part}", POINTER if part == "start" else INTEGER)
            for name in _SEQUENCES
            for part in ("start", "example", "head", "position")
        ),
        ("scratch", POINTER),
        *((name, INTEGER) for name in ("first", "last", "heads", "queries", "keys", "width", "value_width")),
        ("scale", ctypes.c_double),
    )


_ATTENTION = (None, [ctypes.POINTER(Attention), INTEGER])
_ROWS = (INTEGER, [ctypes.POINTER(TableRows)])
_PRODUCTS = (None, [ctypes.POINTER(Products)])
_LAYER = (None, [ctypes.c_char_p, INTEGER, POINTER, POINTER, POINTER])
_LENGTHS = (None, [POINTER, POINTER, ctypes.c_double, INTEGER, POINTER])
library = shared_library.load(
    Path(__file__).parent,
    "measures",
    {
        "dasgrad_attention32": _ATTENTION,
        "dasgrad_attention64": _ATTENTION,
        "dasgrad_frozen_layer32": _LAYER,
        "dasgrad_frozen_layer64": _LAYER,
        "dasgrad_has_sums_of_products": (INTEGER, []),
        "dasgrad_inverse_metric32": _INVERSE,
        "dasgrad_inverse_metric64": _INVERSE,
        "dasgrad_lengths32": _LENGTHS,
        "dasgrad_lengths64": _LENGTHS,
        "dasgrad_linear_with_squares16": _LINEAR,
        "dasgrad_linear_with_squares32": _LINEAR,
        "dasgrad_linear_with_squares64": _LINEAR,
        "dasgrad_normalised_sums32": _NORMALISED,
        "dasgrad_normalised_sums64": _NORMALISED,
        "dasgrad_polynomial32": _DENSE,
        "dasgrad_polynomial64": _DENSE,
        "dasgrad_quadratic32": _QUADRATIC,
        "dasgrad_quadratic64": _QUADRATIC,
        "dasgrad_rows32": _ROWS,
        "dasgrad_rows64": _ROWS,
        "dasgrad_sparse_linear32": _SPARSE_LINEAR,
        "dasgrad_sparse_linear64": _SPARSE_LINEAR,
        "dasgrad_sums_of_products32": _PRODUCTS,
        "dasgrad_sums_of_products64": _PRODUCTS,
        "dasgrad_transpose32": _TRANSPOSE,
        "dasgrad_transpose64": _TRANSPOSE,
        "dasgrad_own_dense32": _DENSE,
        "dasgrad_own_dense64": _DENSE,
        "dasgrad_own_outer32": _OUTER,
        "dasgrad_own_outer64": _OUTER,
        "dasgrad_own_sparse32": _OWN_SPARSE,
        "dasgrad_own_sparse64": _OWN_SPARSE,
        "dasgrad_quadratic_sparse32": _QUADRATIC_SPARSE,
        "dasgrad_quadratic_sparse64": _QUADRATIC_SPARSE,
    },
)
