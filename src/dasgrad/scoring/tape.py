"""Following a forward pass: which layers were called how, and which parameters were used in any other way.

Every layer that has a rule gets hooks for the length of one pass. The hook at its output makes the output part
of a graph that reaches back to an anchor, so that a backward pass to the anchor brings the gradient at every
layer's output and nothing else: no gradient of a parameter is computed.

A rule speaks of calls of its layer, and of nothing else that is done with a parameter. So the tape is a
``TorchFunctionMode`` as well: it sees every torch function that is given a parameter, and knows inside which layer's
call. Functions that have a rewrite are computed by it; tensors without examples are followed to where they meet
them. Whatever does not fit is noted in `irregular` with its reason, and goes to the exact fallback.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from dasgrad.scoring.calls import Anchored, Call, Layer
from dasgrad.scoring.carriers import Carrier, of_parameter
from dasgrad.scoring.forms import Form
from dasgrad.scoring.layout import BARE, Layout
from dasgrad.scoring.plain import is_wrapper
from dasgrad.scoring.rules import DeclinedError, Rewrite, find_rewrite, find_stand_in

_HOST_READS = {
    Tensor.__bool__,
    Tensor.__contains__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.__int__,
    Tensor.allclose,
    Tensor.equal,
    Tensor.is_nonzero,
    Tensor.item,
    Tensor.numpy,
    Tensor.tolist,
    torch.allclose,
    torch.equal,
    torch.is_nonzero,
}
_NO_USES = {
    Tensor.backward,
    Tensor.data.__get__,  # type: ignore[attr-defined]
    Tensor.detach,
    Tensor.detach_,
    Tensor.grad.__get__,  # type: ignore[union-attr]
    torch.autograd.backward,
    torch.autograd.grad,
    torch.detach,
}
"""No gradient flows through these to the parameters they are given."""
CARRIED = -1
"""Stands for the dimension of the examples, where a layer is called without them."""

Shortcut = Callable[[str, Any, Tensor, Tensor | None], Tensor | None]
"""From a weight's name, input, weight and bias to a linear layer's output, or None for the ordinary way.

Where a tape has one, functions are computed by their stand-ins, too.
"""
Consumer = Callable[[Call, Tensor], None]
"""What is done with a call and the gradient at its output."""


@dataclass(frozen=True)
class _Rewriting:
    """The function that is being computed by its rewrite."""

    kind: str
    leaves: list[Any]
    again: bool
    watched: set[str]


class Tape(TorchFunctionMode):
    """Follows one forward and backward pass of a model.

    Args:
        layout: of the model that is followed, with the scored parameters.
        tensors: what stands in their place during the pass, by the same names.
        consume: called in the backward pass for each call on record, with the gradient at its output.
        dims: by parameter, the dimension of its layer's output that runs over the examples; None where that
            is not known yet, and calls go on record with all that may be.
        anchor_all: whether to lead outputs to the anchor even if they are part of a graph already.
    """

    def __init__(
        self,
        layout: Layout,
        tensors: Mapping[str, Tensor],
        consume: Consumer,
        dims: Mapping[str, int] | None = None,
        anchor_all: bool = False,
    ) -> None:
        super().__init__()
        self.irregular = dict(layout.irregular)
        self.calls: list[Call] = []
        self.repeated: set[str] = set()  # parameters with several uses
        self.reads_values = False
        self.shortcut: Shortcut | None = None
        self.layers = layout.layers
        self._names = {id(tensors[name]): name for name in layout.params}
        self._consume = consume
        self._dims = dims
        self._anchor_all = anchor_all
        self._anchor: Tensor | None = None
        self._num_examples = 0
        self._stack: list[Layer] = []
        self._used: set[str] = set()
        self._skipped: set[str] = set()
        self._forward = True
        self._rewriting = _Rewriting("", [], False, set())
        self._owners = layout.owners
        self._carriers: dict[int, Carrier] = {}
        self._unmet: dict[str, str] = {}
        for name, kind in layout.bare:
            self._carry(of_parameter(name, kind, tensors[name]))

    # --- following a pass -----------------------------------------------------------------------------

    def follow(
        self,
        forward: Callable[[Callable[[Tensor], None]], Tensor],
        backward: Callable[[Tensor], None],
        num_examples: int,
    ) -> Tensor:
        """The losses that ``forward(then)`` returns, with every use of a parameter on record.

        ``forward`` calls ``then`` with the losses, and ``then`` calls ``backward``: checkpointed parts of a model
        are computed again in the backward pass, which therefore belongs inside.
        """

        def then(losses: Tensor) -> None:
            self._forward = False
            backward(losses)
            self._note(self._skipped - self._used, "used without gradients, as by reentrant checkpointing")
            for name, reason in self._unmet.items():
                self._note([name], reason)

        with self.following(num_examples):
            return forward(then)

    @contextmanager
    def following(self, num_examples: int) -> Iterator[None]:
        """Put uses of parameters on record inside, for a batch of this size."""
        self._num_examples = num_examples
        self._anchor = torch.zeros((), requires_grad=True)
        with ExitStack() as stack:
            stack.callback(self._release)
            for layer in self.layers:
                for handle in self._hook(layer):
                    stack.callback(handle.remove)
            stack.enter_context(self)
            yield

    def bring_gradients(self, losses: Tensor, retain_graph: bool = False) -> None:
        """Hand the gradients of Σ losses to `consume`, call by call; those it does not depend on are left out."""
        assert self._anchor is not None
        if losses.requires_grad:
            # Reentrant checkpointing refuses to work towards given tensors. The engine is called by itself, for
            # under autograd.grad this mode would not see what checkpointing computes again.
            towards = () if self._skipped else (self._anchor,)
            _engine_run_backward(
                (losses,),
                (torch.ones_like(losses),),
                retain_graph,
                False,
                towards,
                allow_unreachable=True,
                accumulate_grad=bool(self._skipped),
            )

    def _release(self) -> None:
        """Let go of all tensors and of the consumer, which knows the tape: both may outlive the pass, in no cycle."""
        self._consume = _drop
        for call in self.calls:
            call.release()
        self._carriers.clear()
        self._rewriting = _Rewriting("", [], False, set())

    @property
    def lost(self) -> bool:
        """Whether a gradient may have been missed because a graph does not lead to the anchor."""
        return any(not call.arrived and not call.anchored for call in self.calls)

    def _hook(self, layer: Layer) -> Iterable[RemovableHandle]:
        def enter(module: nn.Module, args: Any) -> None:
            if self._forward:
                self._stack.append(layer)

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if self._forward:
                self._stack.pop()
            with torch._C.DisableTorchFunction():
                return self._record(layer, args, kwargs, output)

        yield layer.module.register_forward_pre_hook(enter)
        # First of all hooks, so that a hook of the user's that changes the output comes after.
        yield layer.module.register_forward_hook(leave, prepend=True, with_kwargs=True)

    def _record(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        names = set(layer.names.values())
        reason, dims = self._fit(layer, args, kwargs, output)
        if reason is not None and isinstance(output, Tensor) and not output.requires_grad:
            carrier = layer.carrier(output, self._num_examples, args, kwargs, reason)
            if carrier is not None:
                self._carry(carrier)
                return output
        stage = self._stage(names, layer.kind)
        if stage != "record":
            return self._lead_to_anchor(output) if stage == "again" and reason is None else output
        if reason is not None:
            self._note(names, reason)
            return output
        return self._put(layer.call(dims, args, kwargs), output)

    def _fit(
        self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> tuple[str | None, tuple[int, ...]]:
        """Why a call is not what its rule is for, or None and where the examples may be in its output."""
        if not isinstance(output, Tensor):
            return f"{layer.kind} returned {type(output).__name__}", ()
        dims = layer.dims(output, self._num_examples)
        if self._dims is not None:
            known = {self._dims.get(name) for name in layer.names.values()}
            if len(known) != 1 or None in known:
                return f"{layer.kind} was not called on the examples looked at first", ()
            dims = tuple(dim for dim in dims if dim in known)
            if dims and (reason := layer.misfit(self._num_examples, dims[0], args, kwargs)) is not None:
                return reason, ()
        if not dims:
            return f"{layer.kind} returned a tensor without the examples along the first dimension", ()
        return None, dims

    def _stage(self, names: set[str], kind: str) -> Literal["record", "again", "other"]:
        """Whether a use goes on record, is computed again by checkpointing, or is none that counts.

        Reentrant checkpointing calls layers without gradients, and once more in the backward pass: there they
        are put on record, if they were not called in any other way.
        """
        if not torch.is_grad_enabled():
            if self._forward:
                self._note(names & (self._skipped | self._used), f"{kind} called with and without gradients")
                self._skipped |= names
            return "other"
        if self._forward:
            self._note(names & self._skipped, f"{kind} called with and without gradients")
            self.repeated |= names & self._used
        elif not names.isdisjoint(self._used):
            return "again"
        self._used |= names
        return "record"

    def _put(self, call: Call, output: Tensor) -> Tensor:
        """Put a call on record, and have its output lead to the anchor."""
        call.anchored = self._anchor_all or not output.requires_grad
        output = self._lead_to_anchor(output)
        output.register_hook(partial(self._arrived, call))
        self.calls.append(call)
        return output

    def _lead_to_anchor(self, output: Tensor) -> Tensor:
        if output.requires_grad and not self._anchor_all:
            return output
        led: Tensor = Anchored.apply(output, self._anchor)  # type: ignore[no-untyped-call]
        return led

    def _arrived(self, call: Call, gradient: Tensor) -> None:
        call.arrived = True
        with torch._C.DisableTorchFunction():
            if call.inputs_changed():
                self._note(call.names, "the layer's input is overwritten after its call")
            elif is_wrapper(gradient):
                self._note(call.names, f"{call.kind} returned a {type(gradient).__name__}")
            elif any(name not in self.irregular for name in call.names):
                self._consume(call, gradient)

    def _note(self, names: Iterable[str], reason: str) -> None:
        for name in names:
            self.irregular.setdefault(name, reason)

    # --- seeing parameters used -----------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call through, or the function's rewrite, and note what was done with parameters."""
        kwargs = kwargs or {}
        rewrite = find_rewrite(func)
        if rewrite is not None:
            return self._call_rewrite(rewrite, func, args, kwargs)
        result = None if self.shortcut is None else self._by_shortcut(func, args, kwargs)
        if result is None:
            result = func(*args, **kwargs)
        if self._carriers and func not in _NO_USES:
            met = [self._carriers[id(t)] for t in _tensors_in((args, kwargs)) if id(t) in self._carriers]
            if met:
                result = self._follow_carriers(met, func, args, kwargs, result)
        if not self._forward:
            return result
        if func in _HOST_READS:
            self.reads_values = True
        here = id(self._stack[-1].module) if self._stack else BARE
        for name in self._names_in(args, kwargs):
            if name in self.irregular or func in _NO_USES:
                continue
            if self._owners[name].isdisjoint({here, BARE}) and _tensors_in(result):
                what = getattr(func, "__name__", str(func))
                self.irregular[name] = f"used outside its layer, by {what}"
        return result

    def _by_shortcut(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function returns, computed in a faster way; None where there is none."""
        if func is nn.functional.linear:
            return self._linear_by_shortcut(*args, **kwargs)
        faster = find_stand_in(func)
        if faster is None:
            return None
        try:
            with torch._C.DisableTorchFunction():
                return faster(*args, **kwargs)
        except DeclinedError:
            return None

    def _linear_by_shortcut(self, input: Any, weight: Any, bias: Any = None) -> Tensor | None:
        name = self._names.get(id(weight))
        if name is None or name in self.irregular or not self._forward or not self._stack:
            return None
        if self.shortcut is None or id(self._stack[-1].module) not in self._owners[name] or name in self._used:
            return None
        with torch._C.DisableTorchFunction():
            return self.shortcut(name, input, weight, bias)

    def _carry(self, carrier: Carrier) -> None:
        """Follow a tensor without examples, until it meets them; if it does not, its parameters are irregular."""
        self._carriers[id(carrier.tensor)] = carrier
        self._unmet.update(dict.fromkeys(carrier.names, carrier.reason or f"no rule for {carrier.kind}"))

    def _follow_carriers(
        self, met: list[Carrier], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        met = [carrier for carrier in met if any(name not in self.irregular for name in carrier.names)]
        if not met or not _tensors_in(result) or all(result is each.tensor for each in met):
            return result
        carrier, *others = met
        view = forms = None
        if not others and isinstance(result, Tensor):
            forms = carrier.meet(func, args, kwargs, result, self._num_examples)
            view = carrier.through(func, args, kwargs, result) if forms is None else None
        if view is not None:
            self._carriers[id(result)] = view
        elif forms is None:
            for each in met:
                self._note(each.names, each.reason or f"used outside a layer, by {getattr(func, '__name__', func)}")
        else:
            return self._meet_examples(carrier, forms, args, result)
        return result

    def _meet_examples(
        self, carrier: Carrier, forms: Callable[[Tensor], Sequence[Form | None]], args: tuple[Any, ...], result: Tensor
    ) -> Tensor:
        for name in carrier.names:
            self._unmet.pop(name, None)
            if self._dims is not None and self._dims.get(name) != CARRIED:
                self._note([name], f"{carrier.kind} was not called so on the examples looked at first")
        stage = self._stage(set(carrier.names), carrier.kind)
        if stage == "other":
            return result
        result = result.clone() if result._is_view() else result  # of the parameter itself, maybe
        if stage == "again":
            return self._lead_to_anchor(result)
        leaves = [*carrier.leaves, *(leaf for leaf in args if isinstance(leaf, Tensor))]
        return self._put(Call(carrier.kind, carrier.names, forms, leaves, carried=True), result)

    def _call_rewrite(self, rewrite: Rewrite, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = set(self._names_in(args, kwargs))
        kind = str(func.__name__)
        stage = self._stage(names, kind) if names else "other"
        if stage == "other":
            return func(*args, **kwargs)
        self._rewriting = _Rewriting(kind, list(_tensors_in((args, kwargs))), stage == "again", set())
        try:
            result = rewrite(self, *args, **kwargs)
        except DeclinedError as declined:
            self._note(names, f"{kind} {declined}")
            return func(*args, **kwargs)
        self._note(names - self._rewriting.watched, f"used by {kind} in a way that has no rule")
        return result

    def watch(
        self, output: Tensor, params: Sequence[Tensor | None], forms: Callable[[Tensor], Sequence[Form]]
    ) -> Tensor:
        """Put a use of parameters inside a rewritten function on record; see `dasgrad.scoring.rules.Watcher`."""
        names = [self._names.get(id(param)) for param in params]
        found = [name for name in names if name is not None]
        now = self._rewriting
        now.watched.update(found)
        if not found:
            return output
        if output.shape[0] != self._num_examples:
            self._note(found, f"{now.kind} called without the examples along its batch dimension")
            return output
        if now.again:
            return self._lead_to_anchor(output)

        def build(gradient: Tensor) -> list[Form]:
            pairs = zip(names, forms(gradient), strict=True)
            return [form for name, form in pairs if name is not None]

        return self._put(Call(now.kind, found, build, now.leaves), output)

    def compute(self, function: Any, *args: Any) -> Any:
        """What a function returns inside a rewritten one, by its stand-in where this pass takes them."""
        result = None if self.shortcut is None else self._by_shortcut(function, args, {})
        return function(*args) if result is None else result

    def _names_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        names, found = self._names, list[str]()
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, tuple | list | dict):
                found += [names[id(tensor)] for tensor in _tensors_in(value) if id(tensor) in names]
            elif id(value) in names:
                found.append(names[id(value)])
        return found


def _drop(call: Call, gradient: Tensor) -> None:
    """The consumer after the pass."""


def _tensors_in(values: Any) -> list[Tensor]:
    """All tensors in nested arguments; a loop, for it is called with every function that is followed."""
    found, waiting = list[Tensor](), [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            waiting.extend(reversed(value))
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
    return found
