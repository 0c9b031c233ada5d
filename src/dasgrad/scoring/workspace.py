"""Buffers that live as long as a scorer: fresh large temporaries cost more in page faults than in arithmetic."""

import math

import torch
from torch import Tensor


class Workspace:
    """Hands out scratch tensors by purpose; two purposes never share memory, one purpose always does."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, purpose: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape, with the dtype and device of ``like``."""
        size = math.prod(shape)
        return self.reserve(purpose, size, like)[:size].view(shape)

    def reserve(self, purpose: str, size: int, like: Tensor) -> Tensor:
        """The same with one dimension, of at least this size."""
        key = (purpose, like.dtype, like.device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return buffer

    def clear(self) -> None:
        """Give the memory back."""
        self._buffers.clear()
