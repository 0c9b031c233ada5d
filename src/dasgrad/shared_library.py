"""Compiled cores: plain C functions in a library beside the Python file that uses it, loaded by ctypes.

A core knows neither Python nor torch, so one build serves every version of both. Where the package was built
without a compiler the library is absent and torch operations do its work. The environment variable
``DASGRAD_NATIVE=0``, read at import, keeps all cores from being used.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Signature = tuple[Any, list[Any]]
"""Result type and argument types."""


def load(directory: Path, name: str, signatures: Mapping[str, Signature]) -> ctypes.CDLL | None:
    """The library ``name`` in a directory with its functions declared; None where it is absent or does not fit."""
    # Two dots: with one, tools that list modules would take it for a module of Python's.
    path = directory / f"{name}.core.{'dll' if sys.platform == 'win32' else 'so'}"
    if os.environ.get("DASGRAD_NATIVE") == "0" or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        for function_name, (result, arguments) in signatures.items():
            function = getattr(library, function_name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):  # built for another machine, or by another version of the package
        return None
    return library
