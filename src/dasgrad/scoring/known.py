"""A training pass of a kind that was followed before: followed at its layers, with autograd's word that this is all.

A tape watches every torch function, which takes longer than a step of a small model. Once a tape has found every
scored parameter used by one call of a layer with a rule, autograd itself can say that it is so again. The engine
hands a gradient on to a parameter as the very tensor that the layer's node sent, if that is all there is; a second
use of the parameter, wherever it is, makes a sum, and a sum is another tensor. So a pass is known if

- each layer is called once, with gradients, as its rule wants it, and the nodes behind its output, down to those that
  send its parameters their gradients, are of the same kinds as when it was learnt;
- its inputs are not written to before the gradient at its output arrives;
- whatever arrives at a scored parameter, in any backward pass, is what its layer's node sent there, or, where that node
  was followed by a transposition when it was learnt, the transpose of it in the same memory.

Anything else is a doubt, and what was heard is not used.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import Optimizer

from dasgrad.scoring.calls import Call, Layer, version_of
from dasgrad.scoring.collector import Collector
from dasgrad.scoring.measures import Measure

_LONGEST_ROUTE = 4
"""Nodes between a layer's output and its parameter; two are usual."""
_TRANSPOSITION = "TBackward0"


@dataclass(frozen=True)
class Route:
    """The way through the graph from a layer's output to one of its parameters."""

    kinds: tuple[Any, ...]
    """Of the nodes on the way."""
    edges: tuple[int, ...]
    """Which edge of each leads on."""

    @cached_property
    def transposed(self) -> bool:
        """Whether the last node is a transposition, and the one before it sends what arrives transposed."""
        return len(self.kinds) > 1 and self.kinds[-1].__name__ == _TRANSPOSITION

    @cached_property
    def depth(self) -> int:
        """The place among the nodes of the sender: the last one, or the one before a transposition."""
        return len(self.kinds) - (2 if self.transposed else 1)

    def sender(self, node: Any) -> Any:
        """From the node behind the output, the one that sends the parameter its gradient; None on another way."""
        depth = self.depth
        for place in range(depth):
            if type(node) is not self.kinds[place]:
                return None
            node = node.next_functions[self.edges[place]][0]
        return node if type(node) is self.kinds[depth] else None


@dataclass(frozen=True)
class Bearings:
    """Dimensions and routes of one layer."""

    dim: int
    """The dimension of its output that runs over the examples, for all of its parameters."""
    kind: Any
    """Of the node behind its output."""
    near: tuple[tuple[str, int], ...]
    """Parameters that this node itself sends their gradients, and by which edge."""
    far: tuple[tuple[str, Route], ...]
    """The others."""


@dataclass
class Remembered:
    """Measures of a pass, for the next ones, as long as they are the same."""

    options: Any = None
    """What they were made from; None where there are none."""
    measures: Mapping[str, Measure] = field(default_factory=dict)


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
    bearings: dict[int, "Bearings"] = field(default_factory=dict)
    """By the ``id`` of a layer, what its calls are compared with."""
    remembered: Remembered = field(default_factory=Remembered)
    """Its measures, where they last."""
    switches: list["Switch"] = field(default_factory=list)
    """Hooks of passes that are over, for those to come."""


class Forward:
    """Stands among a layer's attributes as its ``forward`` while passes are followed, and tells them of calls.

    With a hook of any kind torch calls a module in a way that takes longer, in a small step, than what is told then.

    Args:
        module: the layer.
        own: its attribute of this name, if it has one.
    """

    def __init__(self, module: nn.Module, own: Any) -> None:
        self.own = own
        self.followers: list[tuple[Switch, Layer]] = []
        self._module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer returns."""
        module, own = self._module, self.own
        output = type(module).forward(module, *args, **kwargs) if own is None else own(*args, **kwargs)
        for switch, layer in self.followers:
            if switch.known is not None:
                switch.known.called(layer, args, kwargs, output)
        return output


class Switch:
    """What a plan's passes follow layers and parameters by, put on and taken off again at little cost.

    torch's own function registers hooks on parameters once. From then on they are entered into the dictionaries torch
    looks at, and taken out again, so that nothing of them is left on a model between passes.
    """

    def __init__(self, plan: Plan) -> None:
        self.known: KnownPass | None = None
        self._layers = plan.layers
        self._params: list[tuple[Tensor, int, Any]] = []
        for name, param in plan.params.items():
            hook = partial(self._arrived, name)
            self._params.append((param, param.register_hook(hook).id, hook))
        self.off()

    def on(self, known: "KnownPass") -> None:
        """Let this pass follow what happens."""
        self.known = known
        for layer in self._layers:
            attributes = layer.module.__dict__
            forward = attributes.get("forward")
            if type(forward) is not Forward:  # as it is where blocks are nested
                forward = attributes["forward"] = Forward(layer.module, forward)
            forward.followers.append((self, layer))
        for param, number, hook in self._params:
            hooks: Any = param._backward_hooks
            if hooks is None:  # somebody took away all hooks, and what they were kept in
                hooks = param._backward_hooks = OrderedDict()
            hooks[number] = hook

    def off(self) -> None:
        """Leave nothing behind."""
        self.known = None
        for layer in self._layers:
            attributes = layer.module.__dict__
            forward = attributes.get("forward")
            if type(forward) is Forward:  # not where somebody has put something else there
                forward.followers = [follower for follower in forward.followers if follower[0] is not self]
                if not forward.followers:
                    del attributes["forward"]
                    if forward.own is not None:
                        attributes["forward"] = forward.own
        for param, number, _ in self._params:
            hooks: Any = param._backward_hooks
            if hooks is not None:
                hooks.pop(number, None)

    def _arrived(self, name: str, gradient: Tensor) -> None:
        assert self.known is not None
        self.known.arrived(name, gradient)


class KnownPass:
    """Follows one training pass as a plan has it: a context for the forward pass and its backward pass.

    Args:
        plan: with routes, or without where this pass is to learn them.
        num_examples: B.
        collector: takes each layer's call with the gradient at its output.

    Attributes:
        doubt: why this is not the pass that the plan speaks of; None where it is.
    """

    def __init__(self, plan: Plan, num_examples: int, collector: Collector) -> None:
        self.doubt: str | None = None
        self._plan = plan
        self._learning = not plan.routes
        self._num_examples = num_examples
        self._collector = collector
        self._calls: dict[int, Call | None] = {}
        self._sent: dict[str, Tensor] = {}
        self._any_arrived = False
        self._switch: Switch | None = None

    def __enter__(self) -> "KnownPass":
        switches = self._plan.switches
        self._switch = switches.pop() if switches else Switch(self._plan)  # one is in use where blocks are nested
        self._switch.on(self)
        return self

    def __exit__(self, error: Any, *details: Any) -> None:
        assert self._switch is not None
        self._switch.off()
        self._plan.switches.append(self._switch)
        self._switch = None
        if not self._any_arrived and error is None:
            self._doubt("no gradient arrived at any parameter")
        if self._sent:
            self._doubt("a gradient was sent to a parameter and did not arrive")
        for call in self._calls.values():
            if call is not None:
                call.release()
        self._sent.clear()

    @property
    def sure(self) -> bool:
        """Whether what was heard may be used."""
        return self.doubt is None and not self._collector.irregular

    def _doubt(self, reason: str) -> None:
        self.doubt = self.doubt or reason

    def called(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Take note of a layer's forward pass."""
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
        bearings = self._plan.bearings.get(id(layer)) or self._take_bearings(layer, output)
        node: Any = output.grad_fn
        if bearings is None or type(node) is not bearings.kind:
            self._doubt(f"{layer.kind} leads to its parameters in another way, or not at all")
            return
        dim = bearings.dim
        matrix = layer.matrix_of(args, kwargs, output, self._num_examples) if dim == 0 else None
        if matrix is not None:
            self._calls[id(layer)] = None
            take: Any = self._take_matrix
            what: tuple[Any, ...] = (layer, matrix, version_of(matrix))
        elif dim not in layer.dims(output, self._num_examples):
            self._doubt(f"{layer.kind} returned a tensor without the examples where they were")
            return
        elif (reason := layer.misfit(self._num_examples, dim, args, kwargs)) is not None:
            self._doubt(reason)
            return
        else:
            call = self._calls[id(layer)] = layer.call((dim,), args, kwargs)
            take, what = self._take, (call,)
        for name, route in bearings.far:
            sender = route.sender(node)
            if sender is None:
                self._doubt(f"{layer.kind} leads to its parameters in another way, or not at all")
                return
            sender.register_hook(partial(self._note_sent, ((name, route.edges[route.depth]),)))
        node.register_hook(partial(self._passed, bearings.near, output.output_nr, take, what))

    def _take_bearings(self, layer: Layer, output: Tensor) -> Bearings | None:
        """Look up, or learn, what a layer's calls are compared with; None where there is no such thing."""
        plan, names = self._plan, layer.names.values()
        if self._learning:
            self._learn(layer, output)
        dims = {plan.dims.get(name) for name in names}
        dim = dims.pop()
        routes = [(name, plan.routes[name]) for name in names if name in plan.routes]
        if dims or dim is None or len(routes) < len(names):
            return None
        near = tuple((name, route.edges[0]) for name, route in routes if route.depth == 0)
        far = tuple((name, route) for name, route in routes if route.depth > 0)
        found = plan.bearings[id(layer)] = Bearings(dim, routes[0][1].kinds[0], near, far)
        return found

    def _learn(self, layer: Layer, output: Tensor) -> None:
        params = {id(self._plan.params[name]): name for name in layer.names.values()}
        for name, route in _find_routes(output, params):
            if name in self._plan.routes:
                self._doubt(f"{layer.kind} uses a parameter twice")
            self._plan.routes[name] = route

    # --- in the backward pass -------------------------------------------------------------------------

    def _passed(
        self,
        watched: Sequence[tuple[str, int]],
        number: int,
        take: Any,
        what: tuple[Any, ...],
        sent: tuple[Tensor | None, ...],
        received: tuple[Tensor | None, ...],
    ) -> None:
        """A hook on the node behind a layer's output, ``number`` among those of the node."""
        self._note_sent(watched, sent, received)
        gradient = received[number]
        if self._switch is not None and self.doubt is None and gradient is not None:
            with torch._C.DisableTorchFunction():
                take(*what, gradient)

    def _note_sent(
        self, watched: Sequence[tuple[str, int]], sent: tuple[Tensor | None, ...], received: tuple[Tensor | None, ...]
    ) -> None:
        """A hook on a node: what it sends to a parameter is held, so that the engine cannot add to it in place."""
        if self._switch is not None:
            for name, edge in watched:
                value = sent[edge]
                if value is not None:
                    self._sent[name] = value

    def _take(self, call: Call, gradient: Tensor) -> None:
        if call.inputs_changed():
            self._doubt(f"the input of {call.kind} is overwritten after its call")
        else:
            self._collector(call, gradient)

    def _take_matrix(self, layer: Layer, x: Tensor, version: int, gradient: Tensor) -> None:
        if version_of(x) != version:
            self._doubt(f"the input of {layer.kind} is overwritten after its call")
        else:
            self._collector.take_matrix(layer, x, gradient)

    def arrived(self, name: str, gradient: Tensor) -> None:
        """Compare the gradient of a parameter with what was sent to it."""
        sent, route = self._sent.pop(name, None), self._plan.routes.get(name)
        if (
            sent is None
            or route is None
            or not (_is_transpose(gradient, sent) if route.transposed else gradient is sent)
        ):
            self._doubt(f"{name.removeprefix('model.')} is used outside its layer's call")
        self._any_arrived = True


def _is_transpose(gradient: Tensor, sent: Tensor) -> bool:
    """Whether a matrix is another one's transpose, in its memory."""
    return (
        gradient.layout == sent.layout == torch.strided
        and gradient.data_ptr() == sent.data_ptr()
        and gradient.shape == sent.shape[::-1]
        and gradient.stride() == sent.stride()[::-1]
    )


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
    facts: list[Any] = [bool(torch_module._global_forward_hooks), bool(torch_module._global_forward_pre_hooks)]
    seen: set[int] = set()
    waiting: list[Any] = [model]
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        params, forward = module._parameters.values(), module.__dict__.get("forward")
        holds.append(module)
        holds += params
        facts += (type(module), module.training, forward is not None and type(forward) is not Forward, len(params))
        for param in params:
            facts.append(param is not None and param.requires_grad)
        waiting += module._modules.values()
    for group in () if optimizer is None else optimizer.param_groups:
        holds += group["params"]
        facts.append(len(group["params"]))
    return (*map(id, holds), *facts), tuple(holds)
