"""Scores against a float64 autograd loop: |s² − reference| ≤ tol·(‖a‖ + ‖b‖)², a and b its momentum and gradient."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import dasgrad
import helpers
from dasgrad import nested
from dasgrad.scoring.preconditioned import read_optimizer, squared_norms
from scoring import problems

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}
OPTIONS = st.fixed_dictionaries(
    {
        "score": st.sampled_from(["dasgrad", "dasgrad", "dasgrad", "gradient"]),
        "preconditioner": st.sampled_from(["own", "frozen"]),
        "momentum": st.booleans(),
        "moments": st.sampled_from(helpers.MOMENTS),
        "weight_decay": st.sampled_from([0.0, 0.3]),
        "dtype": st.sampled_from([torch.float64, torch.float64, torch.float32]),
    }
)
PLAIN = {"score": "dasgrad", "moments": "amsgrad", "weight_decay": 0.1, "dtype": torch.float64}
COMBINATIONS = [
    {**PLAIN, "preconditioner": preconditioner, "momentum": momentum}
    for preconditioner in ("own", "frozen")
    for momentum in (True, False)
]
SIZES = st.sampled_from([0, 1, 2, 3, 4])


def outputs_as_losses(model: nn.Module, data: Any) -> Tensor:
    """One value an example that depends on all outputs, unevenly."""
    outputs = model(data)
    flat = (outputs[0] if isinstance(outputs, tuple) else outputs).flatten(1)
    factors = torch.linspace(0.5, 2.0, flat.shape[1], dtype=flat.dtype)
    return nn.functional.softplus(flat * factors).sum(1)  # no small differences, which float32 would lose


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers around 1 in float64, the same at every call."""
    return 1 + 0.7 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def integers(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def check(
    build: Callable[[], nn.Module],
    data: Any,
    options: dict[str, Any],
    losses: Callable[[Any, Any], Tensor] = outputs_as_losses,
    irregular: Iterable[str] = (),
    prepare: Callable[[nn.Module], Any] | None = None,
) -> dasgrad.ExampleScorer:
    """Score ``data`` and compare; ``irregular`` are the parameters expected to take the slower path."""
    options = dict(options)
    dtype = options.pop("dtype", torch.float64)
    model = problems.seeded(build)
    if prepare is not None:
        prepare(model)
    optimizer = dasgrad.DASGrad(
        [p for p in model.parameters() if p.requires_grad],
        lr=0.01,
        eps=1e-3,
        moments=options.pop("moments"),
        weight_decay=options.pop("weight_decay"),
    )
    for step in range(2):
        for k, param in enumerate(model.parameters()):
            if param.requires_grad:
                param.grad = numbers(*param.shape, seed=7 * k + step)
        optimizer.step()
    optimizer.zero_grad()
    model.to(dtype)
    for state in optimizer.state.values():
        state.update({key: value.to(dtype) for key, value in state.items() if key != "step"})
    data = nested.map_leaves(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, data)
    scorer = dasgrad.ExampleScorer(model, losses=losses, optimizer=optimizer, **options)
    twin = problems.seeded(build)
    twin.load_state_dict(model.state_dict())
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        other.requires_grad_(own.requires_grad)
    expected, scale = reference(scorer, twin.double(), data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="Using padding='same' with even kernel")
        found = scorer(data)
    served_otherwise = {name.removeprefix("model.") for name in scorer._engine.irregular}
    assert served_otherwise == set(irregular), scorer._engine.irregular
    slower = [str(w.message) for w in caught if "exact but slower path" in str(w.message)]
    assert len(slower) == bool(served_otherwise and nested.count_examples(data)), [str(w.message) for w in caught]
    assert all("ExampleScorer" in str(w.message) for w in caught), [str(w.message) for w in caught]
    assert found.shape == expected.shape
    error = (found.double().square() - expected).abs()
    assert bool((error <= TOLERANCE[dtype] * scale + 1e-300).all()), (error / scale, options)
    return scorer


def reference(scorer: dasgrad.ExampleScorer, model: nn.Module, data: Any) -> tuple[Tensor, Tensor]:
    """s² and (‖a‖ + ‖b‖)² of each example, from gradients of a float64 twin by autograd, one example at a time."""
    number = nested.count_examples(data)
    data = nested.map_leaves(lambda leaf: leaf.to(torch.float64) if leaf.is_floating_point() else leaf, data)
    examples = [nested.take(data, slice(i, i + 1)) for i in range(number)]
    if not examples:
        return torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    gradients = problems.autograd_gradients(model, scorer._losses, examples)
    if scorer.score == "gradient":
        squares = problems.norms(gradients).square()
        return squares, squares
    views = read_optimizer(scorer.optimizer)
    params = dict(scorer.model.named_parameters())
    total, first, second = (torch.zeros(number, dtype=torch.float64) for _ in range(3))
    for name, g in gradients.items():
        view = views[id(params[name])]
        state = {key: view.state[key].double() for key in view.moments.keys}
        view = replace(view, param=params[name].detach().double(), state=state)
        measure = lambda g, momentum, view=view: squared_norms(g, view, scorer.preconditioner, momentum)  # noqa: E731
        total += measure(g, scorer.momentum)
        first += measure(torch.zeros_like(g), scorer.momentum)
        second += measure(g, False)
    return total, (first.sqrt() + second.sqrt()).square()
