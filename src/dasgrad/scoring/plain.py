"""What compiled code may be given: tensors that are numbers in memory and nothing else, and sparse rows.

A kernel sees an address. A tensor of a subclass may have none, and one of another layout has several. Inside the
transforms of ``torch.func`` a tensor stands for a batch of others, and under forward-mode differentiation, which
``no_grad`` does not switch off, it carries a tangent: torch alone knows of both.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_KINDS = (Tensor, nn.Parameter)


def are_plain(*tensors: Tensor | None) -> bool:
    """Whether all of them are numbers in memory and nothing else; None is."""
    if _are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    for each in tensors:  # a loop, for a training step that is listened to asks several times
        if each is not None and (type(each) not in _KINDS or each.layout is not torch.strided):
            return False
    return True


def is_sparse_rows(value: Any) -> bool:
    """Whether it has what `SparseRows` have, which scoring does not import; others act as tensors in their own way."""
    return hasattr(value, "indptr") and hasattr(value, "distinct")


def is_wrapper(value: Any) -> bool:
    """Whether it is a tensor that has its numbers in other tensors, as a ``DTensor``."""
    return type(value) not in _KINDS and is_traceable_wrapper_subclass(value)


def refuse_wrappers(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raises TypeError for the first of a model's parameters, or of their gradients, that cannot be measured."""
    for name, tensor in tensors.items():
        if is_wrapper(tensor):
            raise TypeError(
                f"`ExampleScorer(model=...)` must have plain tensors as {what}s, got {type(tensor).__name__} for "
                f"{name.removeprefix('model.')}; the scores 'loss' and 'last_layer' need no gradients of parameters."
            )
