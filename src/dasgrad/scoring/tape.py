"""What happened in a forward pass: which layers were called how, and which parameters were used otherwise.

The squared norm of a sum is not the sum of squares. So a layer's rule may serve a parameter only when that
layer's one call is all the parameter was used for, with examples along the first dimension. The tape is a
``TorchFunctionMode``: it sees every torch function that is given a parameter, and knows inside which layer's
call. Whatever does not fit is noted in `irregular` with its reason, and goes to the exact fallback.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from dasgrad import nested
from dasgrad.scoring.forms import Form
from dasgrad.scoring.rules import Rule, find_rule

_HOST_READS = {
    Tensor.__bool__,
    Tensor.__float__,
    Tensor.__int__,
    Tensor.__index__,
    Tensor.item,
    Tensor.tolist,
    Tensor.numpy,
}
_CUTS_GRADIENT = {Tensor.detach, Tensor.detach_, torch.detach, Tensor.data.__get__}  # type: ignore[attr-defined]


@dataclass
class LayerCall:
    """One call of a layer that has a rule."""

    module: nn.Module
    rule: Rule
    names: Mapping[str, str]
    """From the layer's own parameter names to the model's, for the parameters that are scored."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    done: bool = False

    def inputs(self) -> Iterator[Any]:
        """The tensors among the arguments."""
        yield from nested.leaves((self.args, dict(self.kwargs)))

    def inputs_changed(self) -> bool:
        """Whether an input was written to since the call."""
        return [_version(leaf) for leaf in self.inputs()] != self.versions

    def forms(self, gradient: Tensor) -> Mapping[str, Form]:
        """The forms of the scored parameters by the model's names, given the gradient at the output."""
        found = self.rule.forms(self.module, *self.args, grad=gradient, **self.kwargs)
        return {self.names[key]: form for key, form in found.items() if key in self.names}

    def release(self) -> None:
        """Let go of the inputs, once they are used."""
        self.args, self.kwargs, self.versions, self.done = (), {}, [], True


Consumer = Callable[[LayerCall, Tensor], None]
"""What is done with a call and the gradient at its output."""


class Tape(TorchFunctionMode):
    """Follows forward passes of a model inside its context; `consume` is called in the backward pass.

    Args:
        model: whose layers are followed.
        params: the scored parameters by name.
        tensors: what stands in their place during the pass, by the same names.
        consume: called once for each followed call, with the gradient at the layer's output.
    """

    def __init__(
        self, model: nn.Module, params: Mapping[str, Tensor], tensors: Mapping[str, Tensor], consume: Consumer
    ) -> None:
        super().__init__()
        self.irregular: dict[str, str] = {}
        self.reads_values = False
        self._names = {id(tensors[name]): name for name in params}
        self._consume = consume
        self._num_examples = 0
        self._stack: list[LayerCall] = []
        self._called: set[int] = set()
        self._quiet = False
        self._anchor: Tensor | None = None
        self._layers = self._find_layers(model, params)
        self._owners = {name: id(layer.module) for layer in self._layers for name in layer.names.values()}

    def _find_layers(self, model: nn.Module, params: Mapping[str, Tensor]) -> list[LayerCall]:
        """Layers with a rule that own scored parameters; a parameter with no or several owners is irregular."""
        names = {id(param): name for name, param in params.items()}
        owners: dict[str, list[str]] = {name: [] for name in params}
        layers = []
        replaced = bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)
        for path, module in model.named_modules():
            held = {key: names[id(p)] for key, p in module._parameters.items() if p is not None and id(p) in names}
            rule = None if replaced else find_rule(module)
            for name in held.values():
                owners[name].append(path or type(module).__name__)
                if rule is None:
                    self.irregular[name] = f"no rule for {type(module).__name__}"
            if held and rule is not None:
                layers.append(LayerCall(module, rule, held))
        for name, paths in owners.items():
            if len(paths) > 1:
                self.irregular[name] = f"shared by {', '.join(paths)}"
        return layers

    # --- following a forward pass ---------------------------------------------------------------------

    def follow(self, forward: Callable[[], Tensor], num_examples: int) -> Tensor:
        """The result of ``forward()``, with every call of a layer on record."""
        with self.following(num_examples):
            return forward()

    @contextmanager
    def following(self, num_examples: int) -> Iterator[None]:
        """Put calls of layers on record inside, for a batch of this size."""
        self._num_examples = num_examples
        self._called.clear()
        self._stack.clear()
        self._anchor = torch.zeros((), requires_grad=True)
        with ExitStack() as stack:
            for layer in self._layers:
                for handle in self._hook(layer):
                    stack.callback(handle.remove)
            stack.enter_context(self)
            yield

    @property
    def anchor(self) -> Tensor:
        """A leaf that all recorded outputs depend on, so that a backward pass to it passes every one."""
        assert self._anchor is not None
        return self._anchor

    def _hook(self, layer: LayerCall) -> Iterable[RemovableHandle]:
        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append(layer)

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            self._stack.pop()
            with self._quietly():
                return self._record(layer, args, kwargs, output)

        yield layer.module.register_forward_pre_hook(enter)
        # First of all hooks, so that a hook of the user's that changes the output comes after.
        yield layer.module.register_forward_hook(leave, prepend=True, with_kwargs=True)

    def _record(self, layer: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        call = LayerCall(layer.module, layer.rule, layer.names, args, kwargs)
        reason = self._misfit(call, output)
        if reason is not None:
            for name in layer.names.values():
                self.irregular.setdefault(name, reason)
            return output
        self._called.add(id(layer.module))
        call.versions = [_version(leaf) for leaf in call.inputs()]
        if not output.requires_grad:
            output = _Anchored.apply(output, self.anchor)  # type: ignore[no-untyped-call]
        output.register_hook(partial(self._arrived, call))
        return output

    def _misfit(self, call: LayerCall, output: Any) -> str | None:
        """Why a call is not what its rule is for; None when it is."""
        kind = type(call.module).__name__
        if id(call.module) in self._called:
            return f"{kind} called more than once"
        if not torch.is_grad_enabled():
            return f"{kind} called without gradients, as activation checkpointing does"
        if not isinstance(output, Tensor):
            return f"{kind} returned {type(output).__name__}"
        if not output.shape or output.shape[0] != self._num_examples:
            return f"{kind} returned a tensor without the examples along the first dimension"
        reason = call.rule.misfit(call.module, self._num_examples, *call.args, **call.kwargs)
        return None if reason is None else f"{kind} {reason}"

    def _arrived(self, call: LayerCall, gradient: Tensor) -> None:
        if call.inputs_changed():
            for name in call.names.values():
                self.irregular.setdefault(name, "the layer's input is overwritten after its call")
        elif any(name not in self.irregular for name in call.names.values()):
            with self._quietly():
                self._consume(call, gradient)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Nothing done inside is the model's doing."""
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    # --- seeing parameters used -----------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call through, and note what was done with parameters."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._quiet:
            return result
        if func in _HOST_READS:
            self.reads_values = True
        here = id(self._stack[-1].module) if self._stack else None
        for tensor in _tensors_in((args, kwargs)):
            name = self._names.get(id(tensor))
            if name is None or name in self.irregular or func in _CUTS_GRADIENT:
                continue
            if self._owners.get(name) != here and any(True for _ in _tensors_in(result)):
                what = getattr(func, "__name__", str(func))
                self.irregular[name] = f"used outside its layer, by {what}"
        return result


class _Anchored(torch.autograd.Function):
    """The first argument itself, made part of a graph that leads to the second."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None


def _version(leaf: Any) -> int:
    return leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else 0


def _tensors_in(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors_in(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from _tensors_in(value)
