"""Sharing work out over the threads that torch itself computes with.

torch's OpenMP threads spin for a while after each operation, ready for the next. Threads of our own would have to
compete with them for the same cores, and lose half of their time. So the work goes to torch's own threads, through the
OpenMP library that torch has loaded; where that is not the GNU one, to threads started for the purpose.
"""

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import torch

Part = Callable[[int, int], None]
"""Does the work of examples [first, last); lets go of the interpreter while it does."""
_Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _find_openmp() -> ctypes.CDLL | None:
    """The GNU OpenMP library beside torch's own libraries."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            library = ctypes.CDLL(str(path))
            library.GOMP_parallel.argtypes = [_Body, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            library.GOMP_parallel.restype = None
            library.omp_get_thread_num.restype = library.omp_get_num_threads.restype = ctypes.c_int
        except (OSError, AttributeError):
            continue
        return library
    return None


_openmp = _find_openmp()


class Threads(ctypes.Structure):
    """torch's threads for a core that shares out its work itself; null pointers where they cannot be had."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("rank", ctypes.c_void_p),
        ("size", ctypes.c_void_p),
        ("number", ctypes.c_int64),
    )


def _addresses() -> tuple[int | None, ...]:
    if _openmp is None:
        return None, None, None
    functions = (_openmp.GOMP_parallel, _openmp.omp_get_thread_num, _openmp.omp_get_num_threads)
    return tuple(ctypes.cast(function, ctypes.c_void_p).value for function in functions)


TORCH = Threads(*_addresses(), 1)
"""One of them; a core that wants more says how many."""


def share_out(part: Part, num_examples: int, num_threads: int) -> None:
    """Do all examples, in as many parts as there are threads."""
    if num_threads <= 1 or num_examples <= 1:
        part(0, num_examples)
    elif _openmp is not None:
        _by_openmp(_openmp, part, num_examples, num_threads)
    else:
        _by_own_threads(part, num_examples, num_threads)


def _by_openmp(openmp: ctypes.CDLL, part: Part, num_examples: int, num_threads: int) -> None:
    errors: list[BaseException] = []

    def body(_: object) -> None:
        try:
            rank, size = openmp.omp_get_thread_num(), openmp.omp_get_num_threads()  # it may give fewer than asked for
            part(num_examples * rank // size, num_examples * (rank + 1) // size)
        except BaseException as error:  # noqa: BLE001 - must not leave the callback; raised below
            errors.append(error)

    openmp.GOMP_parallel(_Body(body), None, num_threads, 0)
    if errors:
        raise errors[0]


def _by_own_threads(part: Part, num_examples: int, num_threads: int) -> None:
    bounds = [num_examples * k // num_threads for k in range(num_threads + 1)]
    threads = [threading.Thread(target=part, args=bounds[k : k + 2]) for k in range(1, num_threads)]
    for thread in threads:
        thread.start()
    part(*bounds[:2])
    for thread in threads:
        thread.join()
