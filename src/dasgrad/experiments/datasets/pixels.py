"""Pictures as tensors."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def from_pixels(pixels: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    """Pixels from 0 to 255 as they are for ``torch.uint8``, scaled to [0, 1] for a floating dtype.

    Raises:
        ValueError: for another dtype.
    """
    if dtype == torch.uint8:
        return torch.from_numpy(pixels.copy())
    if not dtype.is_floating_point:
        raise ValueError(f"`dtype` must be torch.uint8 or a floating dtype, got {dtype}.")
    scaled = torch.from_numpy(pixels.astype(np.float32)).div_(255)
    return scaled.to(dtype)
