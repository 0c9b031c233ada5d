"""Convolutions: gᵢ = Σ_t bᵢₜ xᵢₜᵀ, where xᵢₜ is the patch of the input that output position t looks at.

A transposed convolution is the same with input and output changed over: each input position looks at a patch
of the output. Patches are gathered a few examples at a time, where they must be: all of a chunk's would take
kernel-size times the memory of its input.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from dasgrad.scoring.forms import Dense, Form, Outer, Windows
from dasgrad.scoring.rules import examples_first, rule


def batched(module: _ConvNd, num_examples: int, input: Tensor, *args: Any, **kwargs: Any) -> str | None:
    """Misfit unless the input is ``[B, channels, *spatial]``."""
    if input.dim() != len(module.kernel_size) + 2:
        return f"called on {input.dim()} dimensions"
    return examples_first(module, num_examples, input)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d, misfit=batched)
def convolution(module: _ConvNd, input: Tensor, *, grad: Tensor) -> Mapping[str, Form]:
    """Weight ``[o, k/G, *kernel]`` and bias ``[o]`` on inputs ``[B, k, *spatial]``, in every padding mode."""
    padding: list[int] = list(module._reversed_padding_repeated_twice)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode

    def images(rows: slice) -> Tensor:
        return functional.pad(input[rows], padding, mode=mode) if any(padding) else input[rows]

    def patches(rows: slice) -> Tensor:
        return gather_patches(images(rows), module.kernel_size, module.stride, module.dilation, grad.shape[2:])

    windows = None
    if input.dim() == 4 and module.groups == 1:
        windows = Windows(images, grad.shape[2:], module.kernel_size, module.stride, module.dilation)
    return {
        "weight": Outer(lambda rows: grad[rows].flatten(2), patches, module.groups, transposed=True, windows=windows),
        "bias": summed_over_positions(grad),
    }


@rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, misfit=batched)
def transposed_convolution(
    module: _ConvTransposeNd, input: Tensor, output_size: Any = None, *, grad: Tensor
) -> Mapping[str, Form]:
    """Weight ``[k, o/G, *kernel]`` and bias ``[o]``."""
    widths: Sequence[int] = module.padding  # type: ignore[assignment] # never 'same' or 'valid' here
    padding = [width for width in reversed(widths) for _ in range(2)]

    def patches(rows: slice) -> Tensor:
        padded = functional.pad(grad[rows], padding) if any(padding) else grad[rows]
        return gather_patches(padded, module.kernel_size, module.stride, module.dilation, input.shape[2:])

    return {
        "weight": Outer(lambda rows: input[rows].flatten(2), patches, module.groups, transposed=True),
        "bias": summed_over_positions(grad),
    }


def summed_over_positions(grad: Tensor) -> Dense:
    """The gradient of a bias: that at ``[B, o, *spatial]`` summed over the last dimensions."""
    return Dense(lambda rows: grad[rows].flatten(2).sum(2))


def gather_patches(
    values: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], positions: Sequence[int]
) -> Tensor:
    """``[b, k, *spatial] -> [b, k·kernel, positions]``: what a kernel sees from each position.

    One strided copy, in any memory format; ``F.unfold`` takes nine times as long on a CPU.
    """
    by_example, by_channel, *by_place = values.stride()
    within = [step * skip for step, skip in zip(by_place, dilation, strict=True)]
    between = [step * skip for step, skip in zip(by_place, stride, strict=True)]
    windows = values.as_strided((*values.shape[:2], *kernel, *positions), (by_example, by_channel, *within, *between))
    return windows.reshape(len(values), values.shape[1] * math.prod(kernel), math.prod(positions))
