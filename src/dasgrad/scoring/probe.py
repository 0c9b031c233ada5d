"""A look at a few examples before rules are trusted: the first dimension must run over them all the way.

Rules read row i of a layer's input and output as example i's. That a tensor has B rows does not make it so:
sequence-first layers, tables of positions and reshaped batches may have B rows by chance. So the gradient of
each single loss is taken on a few examples: where it reaches another row, the layer's parameters go to the
fallback. And each loss is compared with the loss of the example alone: where they differ, examples interact,
and no per-example gradient exists.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dasgrad import nested
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.tape import LayerCall, Tape

NUM_PROBED = 3


def kind_of(data: Any) -> object:
    """What decides whether data must be probed anew: types and numbers of dimensions."""
    return tuple((leaf.dtype, leaf.dim()) for leaf in nested.leaves(data))


def find_irregular(function: LossFunction, params: Mapping[str, Tensor], data: Any) -> dict[str, str]:
    """Parameters whose layers do not have the examples along the first dimension, with the reason.

    Raises:
        ValueError: when an example's loss depends on the others of its batch.
    """
    few = nested.take(data, slice(0, min(NUM_PROBED, nested.count_examples(data))))
    tensors = function.tensors()
    reached: list[tuple[LayerCall, Tensor]] = []
    tape = Tape(function.model, params, tensors, lambda call, gradient: reached.append((call, gradient)))
    num_examples = nested.count_examples(few)
    losses = tape.follow(lambda: function.call(tensors, few), num_examples)
    if not tape.reads_values and not agrees_alone(function, few, losses):
        raise ValueError(
            "the loss of an example must not depend on the others of its batch, but it changes when the example "
            "is evaluated alone: a normalisation or a loss over the whole batch has no per-example gradients."
        )
    found: dict[str, str] = {}
    if losses.requires_grad:
        for i in range(num_examples):
            reached.clear()
            torch.autograd.grad(losses[i], tape.anchor, retain_graph=True, allow_unused=True)
            for call, gradient in reached:
                others = torch.cat([gradient[:i], gradient[i + 1 :]])
                if bool((others.nan_to_num() != 0).any()):  # 0 · NaN is no evidence
                    reason = f"{type(call.module).__name__} does not have the examples along the first dimension"
                    found.update(dict.fromkeys(call.names.values(), reason))
    return found


def agrees_alone(function: LossFunction, data: Any, losses: Tensor) -> bool:
    """Whether a few of a batch's losses are what they are when each example is evaluated alone.

    True as well for a model that is random in eval mode: there nothing can be compared.
    """
    last = len(losses) - 1
    picked = {i * last // (NUM_PROBED - 1) for i in range(NUM_PROBED)} if last >= 0 else set()
    tolerance = torch.finfo(losses.dtype).eps ** 0.5
    with torch.no_grad():
        for i in picked:
            alone = [function.call(function.tensors(), nested.take(data, slice(i, i + 1)))[0] for _ in range(2)]
            if not torch.equal(alone[0], alone[1]):
                return True
            scale = 1 + losses[i].abs()
            if not bool((alone[0] - losses[i]).abs() <= tolerance * scale) and bool(torch.isfinite(losses[i])):
                return False
    return True
