"""What is trained: data, a fresh model, a loss, and what the objective averages over."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dasgrad.experiments.datasets import Split

LossFunction = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model on all examples: one value each, in float64."""

    train_losses: Tensor
    train_successes: Tensor
    test_losses: Tensor
    test_successes: Tensor
    penalty: float
    """κ/2·‖θ‖²."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is trained; loss and measure of success give one value per example."""

    data: Split
    make_model: Callable[[int], nn.Module]
    """Of the seed; leaves the global random state alone."""
    loss_fn: LossFunction
    success_fn: LossFunction
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    """Distributions over the training examples by name, ``[n]`` each. ``"objective"`` is what is to be minimised,
    Σ πᵢ fᵢ(θ); where it is missing that is the plain mean."""
    test_target: Tensor | None = None
    """What loss and accuracy on the test set are averaged over; None is their plain mean."""
    least: float = 0.0
    """The minimum of the objective where it is known, which is subtracted from the training loss."""
    extras: Callable[[Evaluation], Mapping[str, float]] = lambda evaluation: {}
    """Columns of the experiment's own."""
    chunk_size: int = 65_536
    """Examples scored or evaluated at once."""

    @property
    def num_examples(self) -> int:
        """n, of training."""
        return len(self.data.train[1])

    def to(self, device: torch.device | str) -> "Problem":
        """The same problem with its data on a device."""
        targets = {name: target.to(device) for name, target in self.targets.items()}
        test_target = None if self.test_target is None else self.test_target.to(device)
        return replace(self, data=self.data.to(device), targets=targets, test_target=test_target)

    def target_of(self, name: str) -> Tensor | None:
        """The target of that name, None for the uniform one.

        Raises:
            ValueError: for a name the problem does not have.
        """
        if name not in ("uniform", "objective", *self.targets):
            raise ValueError(f"`Problem(targets=...)` must have {name!r}, got {', '.join(self.targets) or 'none'}.")
        return self.targets.get(name)


def evaluate(problem: Problem, model: nn.Module, weight_decay: float) -> Evaluation:
    """Losses and successes of a model on all training and test examples."""
    values: list[Tensor] = []
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for inputs, targets in (problem.data.train, problem.data.test):
            losses, successes = [], []
            for start in range(0, len(targets), problem.chunk_size):
                rows = slice(start, start + problem.chunk_size)
                outputs = model(inputs[rows])
                losses.append(problem.loss_fn(outputs, targets[rows]).double())
                successes.append(problem.success_fn(outputs, targets[rows]).double())
            values += [torch.cat(losses), torch.cat(successes)]
        squares = sum(float(param.double().square().sum()) for param in model.parameters())
    model.train(was_training)
    return Evaluation(values[0], values[1], values[2], values[3], 0.5 * weight_decay * squares)


def summarise_evaluation(problem: Problem, evaluation: Evaluation) -> dict[str, float]:
    """Loss and accuracy of training and test, and the problem's own columns.

    The training loss is the objective, with its L2 term, above its minimum where that is known; accuracy on the
    training set is averaged as the loss is.
    """

    def average(values: Tensor, target: Tensor | None) -> float:
        return float(values.mean() if target is None else target @ values)

    train, test = problem.target_of("objective"), problem.test_target
    return {
        "train_loss": average(evaluation.train_losses, train) + evaluation.penalty - problem.least,
        "train_accuracy": average(evaluation.train_successes, train),
        "test_loss": average(evaluation.test_losses, test),
        "test_accuracy": average(evaluation.test_successes, test),
        **problem.extras(evaluation),
    }


# --- logistic regression, which several problems share ---------------------------------------------------


def make_linear(num_inputs: int, num_outputs: int, bias: bool = True) -> nn.Module:
    """A linear map from zero: the loss is convex, so nothing is lost, and every seed starts alike."""
    # Made without values, which leaves the global random state alone.
    model = nn.Linear(num_inputs, num_outputs, bias=bias, device="meta").to_empty(device="cpu")
    for param in model.parameters():
        nn.init.zeros_(param)
    return model


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per example."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each example whose largest output is its class, else 0."""
    return (outputs.argmax(1) == targets).to(torch.float64)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per example, of one output each, positive for class 1."""
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.to(outputs.dtype), reduction="none")


def count_right_signs(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each example whose output is positive for class 1 and not for class 0, else 0."""
    return ((outputs[:, 0] > 0) == (targets == 1)).to(torch.float64)
