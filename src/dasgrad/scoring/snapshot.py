"""A model and its optimizer's state as they were at one moment, in memory of their own that training leaves alone."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dasgrad.scoring.isolation import unwrap
from dasgrad.scoring.losses import LossesOfPairs

_PLAIN = (bool, int, float, complex, str, type(None))


class OptimizerValues:
    """What a score reads of an optimizer: its options and state, for the parameters of a copy."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Tensor, dict[str, Any]] = {}

    def copy_from(self, optimizer: Optimizer, twins: Mapping[int, Tensor], *, with_state: bool) -> None:
        """Take the values of now; parameters without a twin are left out."""
        self.param_groups = []
        for group in optimizer.param_groups:
            params = [param for param in group["params"] if id(param) in twins]
            options = {key: _own(value) for key, value in group.items() if key != "params"}
            self.param_groups.append({**options, "params": [twins[id(param)] for param in params]})
            for param in params if with_state else ():
                held, found = self.state.get(twins[id(param)], {}), optimizer.state.get(param, {})
                self.state[twins[id(param)]] = {key: _own(value, held.get(key)) for key, value in found.items()}


class Twin:
    """A copy of a model, of the functions that go with it, and of what is read of its optimizer.

    Parameters that are tied are tied in the copy. Compiled parts are copied as they were before, for a compiler's
    settings are not a thread's own. Of the functions, modules and methods of modules are copied with the model; others
    must reach it by their arguments alone.

    Args:
        model: whatever it holds must be what ``copy.deepcopy`` can copy.
        optimizer: None where no score reads one.
        functions: of the model, such as its losses; None is kept.
        with_state: whether the optimizer's state is read, or its options alone.

    Raises:
        TypeError: for a model that cannot be copied.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | None, functions: tuple[Any, ...], *, with_state: bool
    ) -> None:
        eager = [_eager(function) for function in functions]
        together = [model, *(function for function in eager if _module_of(function) is not None)]
        try:
            copied = copy.deepcopy(together)
        except Exception as error:
            raise TypeError(
                "scoring beside training, `AdaptiveLoader(overlap=...)`, needs a copy of the model, but "
                f"`copy.deepcopy` fails on {type(model).__name__} ({type(error).__name__}: {error}); use overlap=0."
            ) from error
        _expand(copied[0])
        self.model: nn.Module = copied[0].eval()
        remaining = iter(copied[1:])
        self.functions = tuple(f if _module_of(f) is None else next(remaining) for f in eager)
        self.optimizer = None if optimizer is None else OptimizerValues()
        self._with_state = with_state
        assert self.copy_from(model, optimizer, functions)

    def copy_from(self, model: nn.Module, optimizer: Optimizer | None, functions: tuple[Any, ...]) -> bool:
        """Take the values of now, in place; False, and nothing is copied, where the model has other tensors now."""
        lives = _modules(model, functions)
        mine = _modules(self.model, self.functions)
        sources, places = _tensors(lives), _tensors(mine)
        if len(lives) != len(mine) or not _alike(sources, places):
            return False
        with torch.no_grad():
            for source, place in zip(sources, places, strict=True):
                place.copy_(source)
                place.requires_grad_(source.requires_grad)
            for live, own in zip(lives, mine, strict=True):
                _copy_attributes(live, own)
            if optimizer is not None and self.optimizer is not None:
                twins = {id(source): place for source, place in zip(sources, places, strict=True)}
                self.optimizer.copy_from(optimizer, twins, with_state=self._with_state)
        return True


def _own(value: Any, place: Any = None) -> Any:
    """The value where it cannot change any more: in a place that fits it, or in a new one."""
    if not isinstance(value, Tensor):
        return value
    if isinstance(place, Tensor) and _alike([value], [place]):
        return place.copy_(value)
    return value.detach().clone()


def _alike(sources: list[Tensor], places: list[Tensor]) -> bool:
    if len(sources) != len(places):
        return False
    pairs = zip(sources, places, strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype and a.device == b.device for a, b in pairs)


def _copy_attributes(live: nn.Module, own: nn.Module) -> None:
    """Plain values and tensors that are no parameters or buffers; the copy's mode is its own."""
    attributes = vars(own)
    for name, value in vars(live).items():
        if isinstance(value, Tensor):
            attributes[name] = _own(value, attributes.get(name))
        elif type(value) in _PLAIN and name not in ("training", "_compiled_call_impl"):
            attributes[name] = value


def _tensors(modules: list[nn.Module]) -> list[Tensor]:
    """All parameters and buffers, tied ones once."""
    found = [t for m in modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    return list({id(tensor): tensor for tensor in found}.values())


def _modules(model: nn.Module, functions: tuple[Any, ...]) -> list[nn.Module]:
    """All modules, each once, without the wrappers of compiled ones."""
    owners = (model, *(owner for owner in map(_module_of, map(_eager, functions)) if owner is not None))
    found = {id(module): module for owner in owners for module in owner.modules() if not _is_wrapper(module)}
    return list(found.values())


def _module_of(function: Any) -> nn.Module | None:
    """The module that a function is, or is a method of."""
    if isinstance(function, LossesOfPairs):
        return _module_of(function.loss_fn)
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, nn.Module) else None


def _is_wrapper(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules


def _eager(function: Any) -> Any:
    """A function without its compilation."""
    if isinstance(function, LossesOfPairs):
        return LossesOfPairs(_eager(function.loss_fn), function.owner)
    if isinstance(function, nn.Module):
        return unwrap(function)
    return getattr(function, "_torchdynamo_orig_callable", function)


def _expand(model: nn.Module) -> None:
    """Put compiled parts back as they were before, in place."""
    for parent, name, child in list(_compiled_parts(model)):
        parent._modules[name] = unwrap(child)


def _compiled_parts(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None and _is_wrapper(child) and not _is_wrapper(parent):
                yield parent, name, child
