"""Small models, data and independent per-example gradients that the scoring tests share."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

cross_entropy = nn.CrossEntropyLoss(reduction="none")


def classification(n: int = 6, d: int = 3, classes: int = 2, dtype: torch.dtype = torch.float64) -> tuple:
    """Inputs and labels of different sizes, so that scores differ."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(n, d, generator=generator, dtype=torch.float64)
    inputs *= torch.linspace(0.2, 3, n, dtype=torch.float64).unsqueeze(1)
    return inputs.to(dtype), torch.arange(n) % classes


def network(d: int = 3, hidden: int = 4, classes: int = 2, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Four parameters, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(d, hidden), nn.Tanh(), nn.Linear(hidden, classes)).to(dtype)


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """A model in float64 whose initial values do not depend on other tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return build().double()


def autograd_gradients(model: nn.Module, losses: Callable[[Any, Any], Tensor], examples: list) -> dict[str, Tensor]:
    """``{name: [B, *shape]}`` by plain autograd in eval mode, one example at a time; leaves gradients behind."""
    model.eval()
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found: dict[str, list[Tensor]] = {name: [] for name in params}
    for example in examples:
        model.zero_grad()
        loss = losses(model, example).sum()
        if loss.requires_grad:
            loss.backward()
        for name, param in params.items():
            found[name].append(torch.zeros_like(param) if param.grad is None else param.grad.clone())
    return {name: torch.stack(column) for name, column in found.items()}


def pair_gradients(model: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: Any = cross_entropy) -> dict:
    """As `autograd_gradients`, for pairs."""
    examples = [(inputs[i : i + 1], targets[i : i + 1]) for i in range(len(inputs))]
    return autograd_gradients(copy.deepcopy(model), lambda m, data: loss_fn(m(data[0]), data[1]), examples)


def norms(gradients: dict[str, Tensor]) -> Tensor:
    """``[B]``: plain gradient norms."""
    return sum(g.reshape(len(g), -1).square().sum(1) for g in gradients.values()).sqrt()


def flat(gradients: dict[str, Tensor]) -> np.ndarray:
    """``[B, d]``: all parameters in one vector, for the reference."""
    return torch.cat([g.reshape(len(g), -1) for g in gradients.values()], dim=1).numpy()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, steps: int = 3) -> None:
    """A few plain full-batch steps."""
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).mean().backward()
        optimizer.step()
    optimizer.zero_grad()


PATHS = ("rules", "vmap", "loop")


def force(scorer: Any, path: str) -> None:
    """Make a scorer of gradients take one path for all of its parameters: rules are taken anyway where they can be."""
    if path != "rules" and scorer.score in ("dasgrad", "gradient"):
        engine = scorer._engine
        engine.irregular.update(dict.fromkeys(scorer._scored_parameters(), "forced by a test"))
        engine._announced.update(engine.irregular)
    scorer._engine.gradients.looping = path == "loop"
