"""Scores that need no parameter gradients: the loss, and the gradient at the model's output."""

from typing import Any

import torch
from torch import Tensor, nn

from dasgrad.scoring.fallback import flatten_examples
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.shortcut import ForwardShortcut


def loss_scores(function: LossFunction, data: Any) -> Tensor:
    """sᵢ = fᵢ(θ), which must not be negative: the sampler refuses negative scores."""
    with ForwardShortcut():
        return function.now(data)


def last_layer_scores(function: LossFunction, data: Any) -> Tensor:
    """sᵢ = ‖∂fᵢ/∂outputᵢ‖: proportional to a bound on the gradient norm of a network with a linear head.

    Raises:
        ValueError: when the model returns something else than one tensor, or is called more than once.
    """
    outputs: list[Tensor] = []

    def cut(module: nn.Module, args: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise ValueError(
                '`ExampleScorer(score="last_layer")` needs a model whose output is one tensor, '
                f"got {type(output).__name__}."
            )
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    handle = function.model.register_forward_hook(cut)
    try:
        with ForwardShortcut():
            losses = function.call(function.tensors(), data)
    finally:
        handle.remove()
    if len(outputs) != 1:
        raise ValueError(
            f'`ExampleScorer(score="last_layer")` needs a loss that calls the model once, got {len(outputs)} calls.'
        )
    if len(losses) == 0:
        return losses.detach()
    (gradient,) = torch.autograd.grad(losses.sum(), outputs)
    precise = torch.promote_types(gradient.dtype, torch.float32)
    scores: Tensor = torch.linalg.vector_norm(flatten_examples(gradient.to(precise)), dim=1)
    return scores
