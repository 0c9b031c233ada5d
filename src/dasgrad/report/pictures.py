"""Small pictures inside a page."""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of ``[H, W]`` in grey or ``[H, W, 3]`` in colour.

    Raises:
        ValueError: for another shape.
    """
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ValueError(f"`encode_png(pixels=...)` must have shape [H, W] or [H, W, 3], got {pixels.shape}.")
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, -1)
    unfiltered = np.concatenate([np.zeros((height, 1), dtype=np.uint8), rows], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(unfiltered.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def as_data_uri(pixels: NDArray[np.uint8]) -> str:
    """A picture as an address that needs no network."""
    return "data:image/png;base64," + base64.b64encode(encode_png(pixels)).decode()
