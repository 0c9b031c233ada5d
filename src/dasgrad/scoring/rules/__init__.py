"""Per-example gradients layer by layer: one small file a family, each rule registered by a decorator.

A rule is a function of a layer, the arguments of its call and the gradient at its output; it returns the
`dasgrad.scoring.forms` of the layer's own parameters by their names in the layer. It must hold for every
call of the layer that `takes` accepts; everything else goes to the exact fallback.

>>> import torch
>>> from torch import nn
>>> from dasgrad.scoring import forms, rules
>>> class Scale(nn.Module):
...     def __init__(self, width):
...         super().__init__()
...         self.factors = nn.Parameter(torch.ones(width))
...
...     def forward(self, x):
...         return x * self.factors
>>> @rules.rule(Scale)
... def scale(module, x, *, grad):
...     return {"factors": forms.Dense(lambda rows: grad[rows] * x[rows])}
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from dasgrad import nested
from dasgrad.scoring.forms import Form

Forms = Callable[..., Mapping[str, Form]]
"""``forms(module, *args, grad=..., **kwargs)`` with the layer's call arguments -> ``{parameter name: form}``."""
Misfit = Callable[..., str | None]
"""``misfit(module, num_examples, *args, **kwargs)``: why a call is not what a rule is for; None when it is."""
F = TypeVar("F", bound=Forms)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a class of layers is served."""

    forms: Forms
    misfit: Misfit
    name: str


_RULES: dict[type[nn.Module], Rule] = {}


def examples_first(module: nn.Module, num_examples: int, *args: Any, **kwargs: Any) -> str | None:
    """Misfit unless every tensor argument has the examples along its first dimension."""
    if all(leaf.shape and leaf.shape[0] == num_examples for leaf in nested.leaves((args, kwargs))):
        return None
    return "called without the examples along the first dimension"


def rule(*kinds: type[nn.Module], misfit: Misfit = examples_first) -> Callable[[F], F]:
    """Register a function as the rule of these classes, and of subclasses that inherit their ``forward``."""
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise TypeError(f"`rule(...)` must be given subclasses of nn.Module, got {kind!r}.")

    def register(function: F) -> F:
        for kind in kinds:
            _RULES[kind] = Rule(function, misfit, function.__name__)
        return function

    return register


def find_rule(module: nn.Module) -> Rule | None:
    """The rule of a module whose call is that of a class with one; None where it has a ``forward`` of its own."""
    if "forward" in vars(module):
        return None
    for kind in type(module).__mro__:
        if kind in _RULES:
            return _RULES[kind] if type(module).forward is kind.forward else None
    return None


def flatten_positions(values_B: Tensor) -> Tensor:
    """``[B, *positions, width]`` as ``[B, T, width]``; a 2-D tensor stays as it is."""
    return values_B if values_B.dim() == 2 else values_B.flatten(1, -2)


from dasgrad.scoring.rules import linear  # noqa: E402, F401 - registers itself
