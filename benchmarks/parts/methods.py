"""Ways to look at a chunk of examples: a plain training pass, and our scores, each a function of inputs and targets."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

import dasgrad
from benchmarks.parts.problems import Problem

Method = Callable[[Tensor, Tensor], Any]
"""``method(inputs, targets)`` on one chunk; the scores ``[B]`` where it has any."""

PLAIN = "forward and backward"
SCORERS: Mapping[str, Mapping[str, Any]] = {
    "frozen": {"preconditioner": "frozen"},
    "own": {"preconditioner": "own"},
    "bfloat16": {"preconditioner": "frozen", "dtype": "bfloat16"},
    "linear layers": {"preconditioner": "frozen", "layers": "linear"},
    "last layer": {"score": "last_layer"},
    "loss": {"score": "loss"},
}
"""Options of `ExampleScorer` by the names in results."""


def forward_and_backward(problem: Problem) -> Method:
    """What a training step does before the optimizer: mean loss, gradients of all parameters."""

    def method(inputs: Tensor, targets: Tensor) -> None:
        functional.cross_entropy(problem.model(inputs), targets).backward()
        for param in problem.model.parameters():
            param.grad = None

    return method


def scores(problem: Problem, name: str) -> Method:
    """Our scores under the options of that name."""
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    return dasgrad.ExampleScorer(problem.model, loss_fn, problem.optimizer, **SCORERS[name])


def computable(problem: Problem, names: Iterable[str]) -> list[str]:
    """The names whose scores torch can compute; the others are named with the reason, such as a dtype it lacks."""
    found = []
    for name in names:
        try:
            scores(problem, name)(problem.inputs[:2], problem.targets[:2])
        except NotImplementedError as error:
            print(f"{problem.title}: {name} left out: {str(error).splitlines()[0][:100]}", flush=True)
        else:
            found.append(name)
    return found
