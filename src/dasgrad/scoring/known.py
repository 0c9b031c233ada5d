"""A training pass of a kind that was followed before: hooks at its layers, and autograd's word that this is all.

A tape watches every torch function, which takes longer than a step of a small model. Once a tape has found every
scored parameter used by one call of a layer with a rule, autograd itself can say that it is so again. The engine
hands a gradient on to a parameter as the very tensor that the layer's node sent, if that is all there is; a second
use of the parameter, wherever it is, makes a sum, and a sum is another tensor. So a pass is known if

- each layer is called once, with gradients, as its rule wants it, and leads to its parameters through the same kinds
  of nodes as when it was learnt;
- its inputs are not written to before the gradient at its output arrives;
- whatever arrives at a scored parameter, in any backward pass, is what its layer's node sent there.

Anything else is a doubt, and what was heard is not used.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import Optimizer

from dasgrad.scoring.calls import Call, Layer

_LONGEST_ROUTE = 4
"""Nodes between a layer's output and its parameter; two are usual."""


@dataclass(frozen=True)
class Route:
    """The way through the graph from a layer's output to one of its parameters."""

    kinds: tuple[type, ...]
    """Of the nodes on the way."""
    edges: tuple[int, ...]
    """Which edge of each leads on."""

    def last_node(self, output: Tensor) -> Any:
        """The node that sends the parameter its gradient; None where the way is another one."""
        node: Any = None
        following: Any = output.grad_fn
        for kind, edge in zip(self.kinds, self.edges, strict=True):
            if type(following) is not kind:
                return None
            node = following
            following = node.next_functions[edge][0]
        return node


@dataclass(frozen=True)
class Plan:
    """What later passes of a kind must be like; all but the first two are filled in by the pass that learns."""

    params: Mapping[str, Tensor]
    """The scored parameters by name."""
    holds: tuple[Any, ...]
    """Everything whose identity the key of `structure_of` goes by, so that nothing else can have it meanwhile."""
    layers: list[Layer] = field(default_factory=list)
    """Those that own scored parameters."""
    dims: dict[str, int] = field(default_factory=dict)
    """By parameter, the dimension of its layer's output that runs over the examples."""
    routes: dict[str, Route] = field(default_factory=dict)
    """By parameter, the way to it from its layer's output."""


class KnownPass:
    """Follows one training pass as a plan has it.

    Args:
        plan: with routes, or without where this pass is to learn them.
        num_examples: B.
        consume: called for each layer with the gradient at its output.

    Attributes:
        doubt: why this is not the pass that the plan speaks of; None where it is.
    """

    repeated: frozenset[str] = frozenset()

    def __init__(self, plan: Plan, num_examples: int, consume: Callable[[Call, Tensor], None]) -> None:
        self.doubt: str | None = None
        self.irregular: dict[str, str] = {}
        self._plan = plan
        self._learning = not plan.routes
        self._num_examples = num_examples
        self._consume = consume
        self._calls: dict[int, Call] = {}
        self._sent: dict[str, Tensor] = {}
        self._arrived: set[str] = set()
        self._open = False

    @contextmanager
    def following(self) -> Iterator[None]:
        """The forward pass and its backward pass belong inside."""
        handles: list[Any] = []
        self._open = True
        try:
            for layer in self._plan.layers:
                # First of all hooks, so that a hook of the user's that changes the output comes after.
                hook = partial(self._called, layer)
                handles.append(layer.module.register_forward_hook(hook, prepend=True, with_kwargs=True))
            for name, param in self._plan.params.items():
                handles.append(param.register_hook(partial(self._check_arrival, name)))
            yield
            if not self._arrived:
                self._doubt("no gradient arrived at any parameter")
        finally:
            self._open = False
            for handle in handles:
                handle.remove()
            for call in self._calls.values():
                call.release()
            self._sent.clear()

    @property
    def sure(self) -> bool:
        """Whether what was heard may be used."""
        return self.doubt is None and not self.irregular

    def _doubt(self, reason: str) -> None:
        self.doubt = self.doubt or reason

    def _called(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A hook on a layer's forward pass."""
        if self.doubt is not None:
            return
        with torch._C.DisableTorchFunction():
            if id(layer) in self._calls:
                self._doubt(f"{layer.kind} called again")
            elif not isinstance(output, Tensor):
                self._doubt(f"{layer.kind} returned {type(output).__name__}")
            else:
                self._record(layer, args, kwargs, output)

    def _record(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        dims = {self._plan.dims.get(name) for name in layer.names.values()}
        dim = dims.pop()
        if dim is None or dims or dim not in layer.dims(output, self._num_examples):
            self._doubt(f"{layer.kind} returned a tensor without the examples where they were")
        elif (reason := layer.misfit(self._num_examples, dim, args, kwargs)) is not None:
            self._doubt(reason)
        else:
            if self._learning:
                self._learn(layer, output)
            self._watch_routes(layer, output)
            if self.doubt is None:
                call = self._calls[id(layer)] = layer.call((dim,), args, kwargs)
                output.register_hook(partial(self._take, call))

    def _learn(self, layer: Layer, output: Tensor) -> None:
        params = {id(self._plan.params[name]): name for name in layer.names.values()}
        for name, route in _find_routes(output, params):
            if name in self._plan.routes:
                self._doubt(f"{layer.kind} uses a parameter twice")
            self._plan.routes[name] = route

    def _watch_routes(self, layer: Layer, output: Tensor) -> None:
        for name in layer.names.values():
            route = self._plan.routes.get(name)
            node = None if route is None else route.last_node(output)
            if route is None or node is None:
                self._doubt(f"{layer.kind} leads to its parameters in another way, or not at all")
                return
            node.register_hook(partial(self._note_sent, name, route.edges[-1]))

    # --- in the backward pass -------------------------------------------------------------------------

    def _take(self, call: Call, gradient: Tensor) -> None:
        """A hook on the gradient at a layer's output."""
        if not self._open or self.doubt is not None:
            return
        if call.inputs_changed():
            self._doubt(f"the input of {call.kind} is overwritten after its call")
            return
        with torch._C.DisableTorchFunction():
            self._consume(call, gradient)

    def _note_sent(self, name: str, edge: int, sent: tuple[Tensor | None, ...], received: Any) -> None:
        """A hook on a node: what it sends to a parameter is held, so that the engine cannot add to it in place."""
        value = sent[edge]
        if self._open and value is not None:
            self._sent[name] = value

    def _check_arrival(self, name: str, gradient: Tensor) -> None:
        """A hook on a parameter: its gradient must be what was sent."""
        if self._sent.pop(name, None) is not gradient:
            self._doubt(f"{name.removeprefix('model.')} is used outside its layer's call")
        self._arrived.add(name)


def _find_routes(output: Tensor, params: Mapping[int, str]) -> Iterator[tuple[str, Route]]:
    """All short ways from an output to the parameters, given by ``id``."""
    waiting: list[tuple[Any, tuple[type, ...], tuple[int, ...]]] = [(output.grad_fn, (), ())]
    while waiting:
        node, kinds, edges = waiting.pop()
        if (variable := getattr(node, "variable", None)) is not None:
            if id(variable) in params:
                yield params[id(variable)], Route(kinds, edges)
        elif node is not None and len(kinds) < _LONGEST_ROUTE:
            kinds = (*kinds, type(node))
            waiting += [(following, kinds, (*edges, k)) for k, (following, _) in enumerate(node.next_functions)]


def structure_of(model: nn.Module, optimizer: Optimizer | None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What a plan is for, as a key, and the objects it goes by: modules, their modes, parameters, what is stepped."""
    holds: list[Any] = []
    key: list[Any] = [bool(torch_module._global_forward_hooks), bool(torch_module._global_forward_pre_hooks)]
    seen: set[int] = set()
    waiting: list[Any] = [model]
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        holds.append(module)
        key += (id(module), type(module), module.training, "forward" in module.__dict__)
        for param in module._parameters.values():
            holds.append(param)
            key += (id(param), param is not None and param.requires_grad)
        waiting.extend(module._modules.values())
    for group in () if optimizer is None else optimizer.param_groups:
        key.append(None)
        key += map(id, group["params"])
        holds += group["params"]
    return tuple(key), tuple(holds)
