"""Normalisation layers: y = x̂·weight + bias, so gᵢ = Σ_t bᵢₜ x̂ᵢₜ for the weight and Σ_t bᵢₜ for the bias.

x̂ is computed again from the layer's input a few examples at a time, so nothing is kept for it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dasgrad.scoring import native
from dasgrad.scoring.forms import Dense, Form
from dasgrad.scoring.rules import examples_first, rule


def _keeps_examples(module: nn.Module, num_examples: int, input: Tensor) -> str | None:
    if input.dim() <= len(getattr(module, "normalized_shape", ())):
        return "normalises over the examples"
    return examples_first(module, num_examples, input)


@rule(nn.LayerNorm, nn.RMSNorm, misfit=_keeps_examples, any_position=True)
def last_dimensions(module: Any, input: Tensor, *, grad: Tensor) -> Mapping[str, Form]:
    """Over the last dimensions, weight and bias of ``normalized_shape``; inputs ``[B, *positions, *shape]``."""
    shape = list(module.normalized_shape)

    def normalised(rows: slice) -> Tensor:
        if isinstance(module, nn.RMSNorm):
            return functional.rms_norm(input[rows], shape, None, module.eps)
        return functional.layer_norm(input[rows], shape, None, None, module.eps)

    positions = tuple(range(1, input.dim() - len(shape)))
    forms = _scale_and_shift(grad, normalised, positions)
    if isinstance(module, nn.LayerNorm) and len(shape) == 1 and positions and _in_core(input, grad):

        def weights(rows: slice) -> Tensor:
            return native.normalised_sums(input[rows].flatten(1, -2), grad[rows].flatten(1, -2), module.eps)

        forms["weight"] = Dense(weights)
    return forms


def _in_core(input: Tensor, grad: Tensor) -> bool:
    return native.supports(input) and input.dtype == grad.dtype


def _has_channels(module: nn.Module, num_examples: int, input: Tensor) -> str | None:
    if input.dim() < 2 or (isinstance(module, _InstanceNorm) and input.dim() == module._get_no_batch_dim()):
        return f"called on {input.dim()} dimensions"
    return examples_first(module, num_examples, input)


@rule(nn.GroupNorm, misfit=_has_channels)
def group_norm(module: nn.GroupNorm, input: Tensor, *, grad: Tensor) -> Mapping[str, Form]:
    """Over groups of channels, weight and bias ``[channels]``; inputs ``[B, channels, *spatial]``."""

    def normalised(rows: slice) -> Tensor:
        return functional.group_norm(input[rows], module.num_groups, None, None, module.eps)

    return _scale_and_shift(grad, normalised, tuple(range(2, input.dim())))


def _uses_running_statistics(module: _BatchNorm, num_examples: int, input: Tensor) -> str | None:
    if module.training or module.running_mean is None:
        return "normalises over the batch"
    return _has_channels(module, num_examples, input)


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, misfit=_uses_running_statistics)
def batch_norm(module: _BatchNorm, input: Tensor, *, grad: Tensor) -> Mapping[str, Form]:
    """By running statistics, as in eval mode; weight and bias ``[channels]``; inputs ``[B, channels, *spatial]``."""
    assert module.running_mean is not None
    assert module.running_var is not None
    mean, variance = module.running_mean, module.running_var

    def normalised(rows: slice) -> Tensor:
        return functional.batch_norm(input[rows], mean.to(input.dtype), variance.to(input.dtype), eps=module.eps)

    return _scale_and_shift(grad, normalised, tuple(range(2, input.dim())))


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, misfit=_has_channels)
def instance_norm(module: _InstanceNorm, input: Tensor, *, grad: Tensor) -> Mapping[str, Form]:
    """Over each channel of an example, or by running statistics where it tracks them and is in eval mode."""
    mean, variance = module.running_mean, module.running_var
    own = module.training or not module.track_running_stats or mean is None or variance is None

    def normalised(rows: slice) -> Tensor:
        if own or mean is None or variance is None:
            return functional.instance_norm(input[rows], eps=module.eps)
        return functional.batch_norm(input[rows], mean.to(input.dtype), variance.to(input.dtype), eps=module.eps)

    return _scale_and_shift(grad, normalised, tuple(range(2, input.dim())))


def _scale_and_shift(
    grad: Tensor, normalised: Callable[[slice], Tensor], positions: tuple[int, ...]
) -> dict[str, Form]:
    """Weight and bias of y = x̂·weight + bias, each summed over the dimensions ``positions``."""

    def total(values: Tensor) -> Tensor:
        return values.sum(positions) if positions else values

    size = 3 * (grad[:1].numel())
    return {
        "weight": Dense(lambda rows: total(normalised(rows).mul_(grad[rows])), size),
        "bias": Dense(lambda rows: total(grad[rows]), size if positions else 0),
    }
