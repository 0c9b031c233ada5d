"""Which layers own the scored parameters, and who else does: what a tape must know of a model before a pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from dasgrad.scoring.calls import Layer
from dasgrad.scoring.rules import find_rule, is_rewritten

BY_REWRITE, BARE = -1, -2
"""Stand for the layer that owns a parameter, where only rewritten functions may use it, and where none owns it."""


@dataclass(frozen=True)
class Layout:
    """A model as it is now: good for as many passes as it stays so."""

    params: Mapping[str, Tensor]
    """The scored parameters by name."""
    layers: list[Layer] = field(default_factory=list)
    """Those with a rule that own scored parameters."""
    owners: dict[str, set[int]] = field(default_factory=dict)
    """By parameter, the ``id`` of each module that owns it, or what stands for it."""
    bare: list[tuple[str, str]] = field(default_factory=list)
    """Parameters of modules without a rule, with the module's kind: carriers of themselves."""
    irregular: dict[str, str] = field(default_factory=dict)
    """Parameters no rule may serve, with the reason."""


def find_layout(model: nn.Module, params: Mapping[str, Tensor]) -> Layout:
    """Go through a model's modules."""
    found = Layout(params, owners={name: set() for name in params})
    names = {id(param): name for name, param in params.items()}
    replaced = bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)
    for module in model.modules():
        held = {key: names[id(p)] for key, p in module._parameters.items() if p is not None and id(p) in names}
        if not held:
            continue
        rule = None if replaced else find_rule(module)
        bare = rule is None and not is_rewritten(module)
        for name in held.values():
            found.owners[name].add(BARE if bare else BY_REWRITE if rule is None else id(module))
            if bare:
                found.bare.append((name, type(module).__name__))
            if list(held.values()).count(name) > 1:
                found.irregular.setdefault(name, f"{type(module).__name__} has it under two names")
        if rule is not None:
            found.layers.append(Layer(module, rule, held))
    for name, owners in found.owners.items():
        if BARE in owners and len(owners) > 1:
            found.irregular.setdefault(name, "shared by a module without a rule")
    return found
