"""Frozen scores by way of other people's per-example gradients: Opacus, BackPACK, ``torch.func``.

None of them knows a preconditioned norm, so each materialises the gradients of a chunk and reduces them parameter by
parameter, in place: Σ g²/H is one square and one matrix-vector product. (Opacus's ghost norms are norms in no metric
but the identity, and so answer another question.) Peers are used where they import:
``pip install -c constraints.txt 'dasgrad[bench]'``, then ``pip install --no-deps -c constraints.txt
backpack-for-pytorch``.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.parts.methods import Method
from benchmarks.parts.problems import Problem


def inverse_metric(problem: Problem) -> dict[str, Tensor]:
    """1/(√v̂ + eps) of each parameter, read off the optimizer without the help of the code that is measured."""
    (group,) = problem.optimizer.param_groups
    states = {name: problem.optimizer.state[param] for name, param in problem.model.named_parameters()}
    return {name: 1.0 / (state["max_exp_avg_sq"].sqrt() + group["eps"]) for name, state in states.items()}


def norms(pairs: Iterator[tuple[Tensor, Tensor]], num_examples: int) -> Tensor:
    """√Σ g²/H over pairs of a parameter's per-example gradients, which are used up, and its 1/H."""
    squares = torch.zeros(num_examples)
    for gradients, inverse in pairs:
        squares += gradients.flatten(1).square_() @ inverse.flatten()
    return squares.sqrt_()


class PlainAttention(nn.Module):
    """Self-attention with the parameters of an `nn.MultiheadAttention`, in layers that hook-based peers know.

    Opacus's own stand-in computes another function: with ``batch_first`` its version 1.6.0 mixes heads and positions.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.batch_first, self.num_heads = attention.batch_first, attention.num_heads
        self.in_proj = nn.Linear(attention.embed_dim, 3 * attention.embed_dim)
        self.out_proj = nn.Linear(attention.embed_dim, attention.embed_dim)
        self.in_proj.weight, self.in_proj.bias = attention.in_proj_weight, attention.in_proj_bias
        self.out_proj.weight, self.out_proj.bias = attention.out_proj.weight, attention.out_proj.bias

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, None]:
        """Attention of a sequence to itself, ``[B, T, width]``, without masks."""
        heads = self.in_proj(query).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy in training mode, parameters in the same order, whose layers are all of the common kinds."""
    model = copy.deepcopy(model).train()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                setattr(module, name, PlainAttention(child))
    return model


def opacus(problem: Problem) -> Method:
    """``GradSampleModule``."""
    from opacus import GradSampleModule

    model = GradSampleModule(plain_copy(problem.model), loss_reduction="sum")
    pairs = list(zip(model.parameters(), inverse_metric(problem).values(), strict=True))

    def method(inputs: Tensor, targets: Tensor) -> Tensor:
        functional.cross_entropy(model(inputs), targets, reduction="sum").backward()
        return norms(_take(pairs, "grad_sample"), len(targets))

    return method


def backpack(problem: Problem) -> Method:
    """BackPACK's ``BatchGrad``."""
    from backpack import backpack as extended
    from backpack import extend
    from backpack.extensions import BatchGrad

    model, loss_fn = extend(plain_copy(problem.model)), extend(nn.CrossEntropyLoss(reduction="sum"))
    pairs = list(zip(model.parameters(), inverse_metric(problem).values(), strict=True))

    def method(inputs: Tensor, targets: Tensor) -> Tensor:
        with extended(BatchGrad()):
            loss_fn(model(inputs), targets).backward()
        return norms(_take(pairs, "grad_batch"), len(targets))

    return method


def _take(pairs: list[tuple[nn.Parameter, Tensor]], attribute: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Per-example gradients with their 1/H, each let go of before the next."""
    for param, inverse in pairs:
        gradients = getattr(param, attribute, None)
        if gradients is None:  # BackPACK passes over layers it does not know
            raise NotImplementedError(f"no {attribute} for a parameter of shape {tuple(param.shape)}")
        setattr(param, attribute, None)
        param.grad = None
        yield gradients, inverse


def vmap_of_grad(problem: Problem) -> Method:
    """``torch.func.vmap(torch.func.grad(...))``."""
    model, inverses = problem.model, inverse_metric(problem)
    params = {name: param.detach() for name, param in model.named_parameters()}

    def loss_of_one(params: Mapping[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model, dict(params), (example.unsqueeze(0),))
        return functional.cross_entropy(outputs, target.unsqueeze(0))

    gradients_of: Callable[..., dict[str, Tensor]] = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def method(inputs: Tensor, targets: Tensor) -> Tensor:
        # vmap would run the fused attention kernel example by example; this one it can batch.
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
            gradients = gradients_of(params, inputs, targets)
        return norms(((gradients.pop(name), inverse) for name, inverse in inverses.items()), len(targets))

    return method


PEERS: Mapping[str, Callable[[Problem], Method]] = {"Opacus": opacus, "BackPACK": backpack, "vmap(grad)": vmap_of_grad}


def importable(problem: Problem) -> dict[str, Method]:
    """Every peer that is installed and can serve this model; the others are named with the reason."""
    # Both hook-based peers are told so on every pass whose inputs are data.
    warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)
    found = {}
    for name, build in PEERS.items():
        try:
            method = build(problem)
            method(problem.inputs[:2], problem.targets[:2])
        except (ImportError, NotImplementedError) as error:
            print(f"{problem.title}: {name} left out: {str(error).splitlines()[0][:100]}", flush=True)
        else:
            found[name] = method
    return found
