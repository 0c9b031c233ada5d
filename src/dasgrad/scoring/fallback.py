"""Per-example gradients of any model: ``torch.func`` where it works, an exact autograd loop where not.

Both give, for each parameter asked for, a tensor ``[B, *param.shape]`` whose row i is ∇fᵢ. They hold B
gradients at once, so callers cut batches into pieces of `rows_within_budget` examples.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from dasgrad import nested
from dasgrad.scoring.isolation import ignoring
from dasgrad.scoring.losses import LossFunction, LossShapeError

GRADIENT_ELEMENTS = 2**24
"""How many gradient entries are held at once: 64 MiB in float32."""

_CHECKPOINT: type = CheckpointFunction._backward_cls
"""A part of a graph that reentrant checkpointing computes in the backward pass only."""
_VMAP_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, AssertionError)


def rows_within_budget(num_params: int) -> int:
    """How many examples' gradients of ``num_params`` entries fit the budget; at least 1."""
    return max(1, GRADIENT_ELEMENTS // max(1, num_params))


def flatten_examples(values_B: Tensor) -> Tensor:
    """``[B, *shape]`` as ``[B, k]``; also for B = 0 and for an empty shape."""
    return values_B.unsqueeze(-1).flatten(1)


class PerExampleGradients:
    """Gradients of each example's loss; remembers when ``torch.func`` failed on this model, and says so once."""

    def __init__(self) -> None:
        self.looping = False

    def __call__(self, function: LossFunction, names: Sequence[str], data: Any) -> dict[str, Tensor]:
        """``{name: [B, *shape]}`` for the parameters ``names`` of ``function``."""
        tensors = function.tensors()
        if not self.looping and all(isinstance(leaf, Tensor) for leaf in nested.leaves(data)):
            try:
                return _by_vmap(function, tensors, names, data)
            except LossShapeError:
                raise
            except _VMAP_FAILURES as error:
                # If the model itself is at fault, the loop below raises the same error, unwrapped.
                gradients = _by_loop(function, tensors, names, data)
                self._announce(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
                return gradients
        if not self.looping:
            self._announce("the data are not plain tensors")
        return _by_loop(function, tensors, names, data)

    def _announce(self, reason: str) -> None:
        self.looping = True
        warnings.warn(
            f"`ExampleScorer` computes per-example gradients one by one, exactly but slowly, because "
            f"torch.func does not apply here ({reason}).",
            stacklevel=2,
        )


def _by_vmap(function: LossFunction, tensors: dict[str, Tensor], names: Sequence[str], data: Any) -> dict[str, Tensor]:
    constants = {name: tensor for name, tensor in tensors.items() if name not in set(names)}

    def loss_of_one(params: dict[str, Tensor], rows: list[Tensor]) -> Tensor:
        example = nested.replace_leaves(data, [row.unsqueeze(0) for row in rows])
        return function.call({**constants, **params}, example)[0]

    gradient = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0), randomness="different")
    params = {name: tensors[name] for name in names}
    # Layers without a batching rule are run example by example inside vmap: slower, still exact.
    with torch.no_grad(), ignoring("There is a performance drop"):
        gradients: dict[str, Tensor] = gradient(params, nested.leaves(data))
    return gradients


def _by_loop(function: LossFunction, tensors: dict[str, Tensor], names: Sequence[str], data: Any) -> dict[str, Tensor]:
    buffers = [name for name, _ in function.named_buffers()]
    rows: list[list[Tensor]] = []
    for i in range(nested.count_examples(data)):
        own = {name: tensors[name].clone() for name in buffers}  # a forward pass may write to them
        rows.append(gradients_of_one(function, names, nested.take(data, slice(i, i + 1)), {**tensors, **own})[1])
    if not rows:
        return {name: tensors[name].new_zeros((0, *tensors[name].shape)) for name in names}
    stacked = (torch.stack(column) for column in zip(*rows, strict=True))
    return dict(zip(names, stacked, strict=True))


def gradients_of_one(
    function: LossFunction, names: Sequence[str], example: Any, tensors: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch of one and its gradients, by plain autograd."""
    tensors = function.tensors() if tensors is None else tensors
    params = {name: tensors[name].detach().requires_grad_() for name in names}
    found: list[Tensor] = []

    def take_gradients(losses: Tensor) -> None:  # while the model has these parameters: see `LossFunction.call`
        found.extend(_gradients_of(losses[0], list(params.values())))

    losses = function.call({**tensors, **params}, example, take_gradients)
    return losses[0].detach(), [gradient.detach() for gradient in found]


def _gradients_of(loss: Tensor, params: list[Tensor]) -> list[Tensor]:
    if not loss.requires_grad:
        return [torch.zeros_like(param) for param in params]
    if not _is_checkpointed(loss):
        return list(torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True, materialize_grads=True))
    loss.backward()  # all that reentrant checkpointing allows
    found = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
    for param in params:
        param.grad = None
    return found


def _is_checkpointed(loss: Tensor) -> bool:
    """Whether the graph has parts that hide parameters, so that they cannot be asked for."""
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            if isinstance(node, _CHECKPOINT):
                return True
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return False
