"""What a tape has on record: uses of parameters, each waiting for the gradient at its output."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dasgrad import nested
from dasgrad.scoring.carriers import Carrier
from dasgrad.scoring.forms import Form, Part
from dasgrad.scoring.rules import Rule
from dasgrad.scoring.rules.linear import linear


@dataclass
class Call:
    """One use of some parameters, by a layer with a rule or by a rewritten function.

    ``forms(gradient)`` gives the forms of the parameters in the order of ``names``, None where the rule does
    not name one, from the gradient at the output with the examples first.
    """

    kind: str
    """Of the layer, for messages."""
    names: Sequence[str]
    """The scored parameters among those used."""
    build: Callable[[Tensor], Sequence[Form | None]] | None
    leaves: list[Any]
    """The tensors it was called with."""
    dims: tuple[int, ...] = (0,)
    """Where in the output the examples may be; one dimension, once that is known."""
    carried: bool = False
    """Whether the parameters are without examples up to here, where they meet them."""
    anchored: bool = False
    """Whether its output is known to lead to the tape's anchor."""
    arrived: bool = False
    versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = [version_of(leaf) for leaf in self.leaves]

    def inputs_changed(self) -> bool:
        """Whether an input was written to since the call."""
        return [version_of(leaf) for leaf in self.leaves] != self.versions

    def forms(self, gradient: Tensor) -> dict[str, Form | None]:
        """The forms by the parameters' names, given the gradient at the output."""
        assert self.build is not None
        return dict(zip(self.names, self.build(to_front(gradient, self.dims[0])), strict=True))

    def release(self) -> None:
        """Let go of the inputs, once they are used."""
        self.build, self.leaves, self.versions = None, [], []


@dataclass(frozen=True)
class Layer:
    """A module with a rule that owns scored parameters."""

    module: nn.Module
    rule: Rule
    names: Mapping[str, str]
    """From the layer's own parameter names to the model's."""

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self.module).__name__

    def dims(self, output: Tensor, num_examples: int) -> tuple[int, ...]:
        """The dimensions of an output that may run over the examples."""
        allowed = (0, 1) if self.rule.any_position and output.dim() > 2 else (0,)
        return tuple(dim for dim in allowed if output.dim() > dim and output.shape[dim] == num_examples)

    def matrix_of(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor, num_examples: int
    ) -> Tensor | None:
        """The input, where this is a linear layer called with a row an example; None elsewhere."""
        if self.rule.forms is not linear or kwargs or len(args) != 1 or type(args[0]) is not Tensor:
            return None
        x = args[0]
        return x if x.dim() == output.dim() == 2 and x.shape[0] == output.shape[0] == num_examples else None

    def misfit(self, num_examples: int, dim: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Why a call with the examples along ``dim`` is not what the rule is for; None when it is."""
        args, kwargs = _arguments_to_front(args, kwargs, dim)
        reason = self.rule.misfit(self.module, num_examples, *args, **kwargs)
        return None if reason is None else f"{self.kind} {reason}"

    def call(self, dims: tuple[int, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """A call of this layer, to be put on record."""

        def build(gradient: Tensor) -> list[Form | None]:
            front_args, front_kwargs = _arguments_to_front(args, kwargs, dims[0])
            found = self.rule.forms(self.module, *front_args, grad=gradient, **front_kwargs)
            return [found.get(key) for key in self.names]

        return Call(self.kind, list(self.names.values()), build, nested.leaves((args, dict(kwargs))), dims)

    def carrier(
        self, output: Tensor, num_examples: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str
    ) -> Carrier | None:
        """The output of a call without examples, which is that of each of them; None where that has no rule."""
        if not self.rule.any_position:
            return None

        def for_each(number: int) -> tuple[Any, Any]:
            spread: tuple[Any, Any] = nested.map_leaves(
                lambda leaf: leaf.expand(number, *leaf.shape), (args, dict(kwargs))
            )
            return spread

        if not all(isinstance(leaf, Tensor) for leaf in nested.leaves((args, dict(kwargs)))):
            return None
        each_args, each_kwargs = for_each(num_examples)
        if self.rule.misfit(self.module, num_examples, *each_args, **each_kwargs) is not None:
            return None

        def build(gradients: Part, number: int) -> list[Form | None]:
            each_args, each_kwargs = for_each(number)
            found = self.rule.forms(self.module, *each_args, grad=gradients(slice(0, number)), **each_kwargs)
            return [found.get(key) for key in self.names]

        leaves = nested.leaves((args, dict(kwargs)))
        return Carrier(self.kind, list(self.names.values()), output, output, build, reason, leaves)


class Anchored(torch.autograd.Function):
    """The first argument, made part of a graph that leads to the second.

    A tensor that no graph leads to is returned itself; another is copied, for the graph may hold on to it.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        """The same values."""
        ctx.through = output.requires_grad
        if output.requires_grad or output._is_view():  # some views may not be written to
            return output.clone()
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        """The same gradient, where it is asked for."""
        return (gradient if ctx.through else None), None


def to_front(values: Any, dim: int) -> Any:
    """With dimension ``dim`` first; as it is where ``dim`` is 0 or there is no such dimension."""
    return values.transpose(0, dim) if dim and isinstance(values, Tensor) and values.dim() > dim else values


def _arguments_to_front(args: tuple[Any, ...], kwargs: Mapping[str, Any], dim: int) -> tuple[Any, Any]:
    if dim == 0:
        return args, kwargs
    front: tuple[Any, Any] = nested.map_leaves(lambda leaf: to_front(leaf, dim), (args, dict(kwargs)))
    return front


def version_of(leaf: Any) -> int:
    """How often a tensor was written to."""
    return leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else 0
