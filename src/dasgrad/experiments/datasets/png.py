"""A reader for the PNG pictures that a mirror keeps CIFAR-10 in: 8 bits, RGB, not interlaced."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = 3
NONE, SUB, UP, AVERAGE, PAETH = range(5)


def decode_png(content: bytes) -> NDArray[np.uint8]:
    """The pixels ``[height, width, 3]`` of a picture.

    Raises:
        ValueError: for anything but 8-bit RGB without interlacing, and for a picture cut short.
        zlib.error: for damaged pixels.
    """
    width, height, packed = _read_chunks(content)
    stride = width * CHANNELS
    filtered = np.frombuffer(zlib.decompress(packed), np.uint8)
    if filtered.size != height * (1 + stride):
        raise ValueError(f"a picture of {width} × {height} pixels has {filtered.size} bytes")
    rows = filtered.reshape(height, 1 + stride)
    return _undo_filters(rows[:, 0], rows[:, 1:].reshape(height, width, CHANNELS))


def _read_chunks(content: bytes) -> tuple[int, int, bytes]:
    if not content.startswith(SIGNATURE):
        raise ValueError("not a PNG picture")
    width = height = 0
    parts: list[bytes] = []
    start = len(SIGNATURE)
    while start + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, start)
        body = content[start + 8 : start + 8 + length]
        if kind == b"IHDR":
            width, height, *layout = struct.unpack(">IIBBBBB", body)
            if layout != [8, 2, 0, 0, 0]:
                raise ValueError(f"a PNG picture must have 8-bit RGB without interlacing, got {layout}")
        elif kind == b"IDAT":
            parts.append(body)
        elif kind == b"IEND":
            return width, height, b"".join(parts)
        start += 12 + length
    raise ValueError("a PNG picture is cut short")


def _undo_filters(filters: NDArray[np.uint8], filtered: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each row was stored as differences to its left neighbours or to the row above, as its filter says."""
    pixels = filtered.copy()
    beside = filters == SUB  # these need no other row, so they are done at once: nearly all rows here are such
    pixels[beside] = np.cumsum(filtered[beside], axis=1, dtype=np.uint8)
    for k in np.flatnonzero(filters > SUB):
        above = pixels[k - 1] if k else np.zeros_like(pixels[0])
        pixels[k] = _undo_row(int(filters[k]), filtered[k], above)
    return pixels


def _undo_row(kind: int, filtered: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if kind == UP:
        return filtered + above
    if kind not in (AVERAGE, PAETH):
        raise ValueError(f"a row of a PNG picture has the unknown filter {kind}")
    row = np.zeros_like(filtered)
    for channel in range(CHANNELS):
        left = upper_left = 0
        for k, (difference, up) in enumerate(
            zip(filtered[:, channel].tolist(), above[:, channel].tolist(), strict=True)
        ):
            guess = (left + up) // 2 if kind == AVERAGE else _predict_paeth(left, up, upper_left)
            left, upper_left = (difference + guess) % 256, up
            row[k, channel] = left
    return row


def _predict_paeth(left: int, up: int, upper_left: int) -> int:
    """Of the three neighbours the one nearest to ``left + up − upper_left``; the order decides ties."""
    estimate = left + up - upper_left
    return min((left, up, upper_left), key=lambda value: abs(estimate - value))
