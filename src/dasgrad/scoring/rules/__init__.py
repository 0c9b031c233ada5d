"""Per-example gradients layer by layer: one small file a family, each rule registered by a decorator.

A rule is a function of a layer, the arguments of its call and the gradient at its output; it returns the
`dasgrad.scoring.forms` of the layer's own parameters by their names in the layer. It must hold for every
call of the layer that its ``misfit`` lets through; everything else goes to the exact fallback.

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

Layers that hand their parameters to one large torch function (attention, recurrent layers) are served by a
`rewrite` of that function instead.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from dasgrad import nested
from dasgrad.scoring.forms import Form

Forms = Callable[..., Mapping[str, Form]]
"""``forms(module, *args, grad=..., **kwargs)`` with the layer's call arguments -> ``{parameter name: form}``."""
Misfit = Callable[..., str | None]
"""``misfit(module, num_examples, *args, **kwargs)``: why a call is not what a rule is for; None when it is."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rule:
    """How a class of layers is served."""

    forms: Forms
    misfit: Misfit
    any_position: bool
    """Whether the first dimensions are alike to the layer, so that examples may run along the second too."""


class DeclinedError(Exception):
    """Raised by a rewrite, before it has watched anything, or a stand-in: the call is not what it is for."""


class Watcher(Protocol):
    """What a rewrite is given to report its parameters' uses."""

    def watch(
        self, output: Tensor, params: Sequence[Tensor | None], forms: Callable[[Tensor], Sequence[Form]]
    ) -> Tensor:
        """The same output, ``[B, ...]``, on record: ``forms(gradient at the output)`` are those of ``params``."""

    def compute(self, function: Any, *args: Any) -> Tensor:
        """What a torch function returns, by its stand-in where this pass takes them."""


Rewrite = Callable[..., Any]
"""``rewrite(watcher, *args, **kwargs)`` with a torch function's arguments -> what the function returns."""

_RULES: dict[type[nn.Module], Rule] = {}
_REWRITES: dict[Any, Rewrite] = {}
_STAND_INS: dict[Any, Callable[..., Any]] = {}
_REWRITTEN: set[type[nn.Module]] = set()
_HARMLESS = {"extra_repr", "reset_parameters", "_reset_parameters", "_load_from_state_dict", "_save_to_state_dict"}


def examples_first(module: nn.Module, num_examples: int, *args: Any, **kwargs: Any) -> str | None:
    """Misfit unless every tensor argument has the examples along its first dimension."""
    if all(leaf.shape and leaf.shape[0] == num_examples for leaf in nested.leaves((args, kwargs))):
        return None
    return "called without the examples along the first dimension"


def rule(*kinds: type[nn.Module], misfit: Misfit = examples_first, any_position: bool = False) -> Callable[[F], F]:
    """Register a function as the rule of these classes, and of subclasses that do not change what they compute.

    Args:
        kinds: classes of layers.
        misfit: says why a call is not what the rule is for, by default when the examples do not come first.
        any_position: whether the layer treats its first dimensions alike, as ``nn.Linear`` does; then the rule
            also serves sequence-first calls, and is given their arguments with the examples moved to the front.
    """
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise TypeError(f"`rule(...)` must be given subclasses of nn.Module, got {kind!r}.")

    def register(function: F) -> F:
        for kind in kinds:
            _RULES[kind] = Rule(function, misfit, any_position)
        return function

    return register


def rewrite(*functions: Any, owners: Sequence[type[nn.Module]]) -> Callable[[F], F]:
    """Register a rewrite of torch functions, for parameters that modules of these classes own."""

    def register(function: F) -> F:
        _REWRITES.update(dict.fromkeys(functions, function))
        _REWRITTEN.update(owners)
        return function

    return register


def stand_in(function: Any) -> Callable[[F], F]:
    """Register a faster way to compute what a torch function without parameters computes, for passes of the scorer's.

    It takes the function's arguments, and may raise `DeclinedError`.
    """

    def register(faster: F) -> F:
        _STAND_INS[function] = faster
        return faster

    return register


def find_rule(module: nn.Module) -> Rule | None:
    """The rule of a module that computes what a class with one computes; None where it overrides a part of it."""
    kind = _known_kind(module, _RULES)
    return None if kind is None else _RULES[kind]


def is_rewritten(module: nn.Module) -> bool:
    """Whether the module hands its parameters to a function that has a rewrite."""
    return _known_kind(module, _REWRITTEN) is not None


def find_rewrite(function: Any) -> Rewrite | None:
    """The rewrite of a torch function."""
    return _REWRITES.get(function)


def find_stand_in(function: Any) -> Callable[..., Any] | None:
    """The faster way to compute a torch function."""
    return _STAND_INS.get(function)


def _known_kind(module: nn.Module, known: Any) -> type[nn.Module] | None:
    own = type(module)
    kind = next((kind for kind in own.__mro__ if kind in known), None)
    if kind is None or "forward" in vars(module):
        return None
    parts = {name for base in kind.__mro__ if base not in nn.Module.__mro__ for name in vars(base)} - _HARMLESS
    methods = [name for name in parts if callable(getattr(kind, name)) and not name.startswith("__")]
    same = (inspect.getattr_static(own, name) is inspect.getattr_static(kind, name) for name in methods)
    return kind if all(same) else None


def flatten_positions(values_B: Tensor) -> Tensor:
    """``[B, *positions, width]`` as ``[B, T, width]``; a 2-D tensor stays as it is."""
    return values_B if values_B.dim() == 2 else values_B.flatten(1, -2)


from dasgrad.scoring.rules import (  # noqa: E402 - they register themselves
    attention,
    convolution,
    dot_products,
    embedding,
    linear,
    normalization,
    pooling,
    recurrent,
    response_norm,
)

__all__ = [
    "DeclinedError",
    "Rule",
    "Watcher",
    "attention",
    "convolution",
    "dot_products",
    "embedding",
    "examples_first",
    "find_rewrite",
    "find_rule",
    "find_stand_in",
    "flatten_positions",
    "is_rewritten",
    "linear",
    "normalization",
    "pooling",
    "recurrent",
    "response_norm",
    "rewrite",
    "rule",
    "stand_in",
]
