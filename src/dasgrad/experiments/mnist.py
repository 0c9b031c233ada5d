"""Logistic regression on MNIST: the first row of the paper's comparison, dense features."""

from dasgrad.experiments.datasets import load_mnist
from dasgrad.experiments.problems import Problem, count_correct, cross_entropy, make_linear
from dasgrad.experiments.registry import Experiment, Settings, register

METHODS = (
    "dasgrad",
    "dasgrad-paper",
    "ap-sgd",
    *("adam", "amsgrad", "rmsprop", "adagrad", "sgd"),
    *("adam-iid", "amsgrad-iid", "rmsprop-iid", "adagrad-iid", "sgd-iid"),
)
COMPARISONS = (
    ("dasgrad", "amsgrad"),
    ("dasgrad", "adam"),
    ("dasgrad-paper", "amsgrad"),
    ("dasgrad-paper", "adam"),
    ("dasgrad-paper", "amsgrad-iid"),
    ("dasgrad-paper", "adam-iid"),
    ("ap-sgd", "sgd"),
    ("ap-sgd", "sgd-iid"),
)


def build_problem(case: str = "") -> Problem:
    """MNIST, linear model, cross-entropy."""
    return Problem(load_mnist(), lambda seed: make_linear(784, 10), cross_entropy, count_correct)


MNIST = register(
    Experiment(
        name="mnist",
        title="Logistic regression on MNIST",
        build=build_problem,
        methods=METHODS,
        comparisons=COMPARISONS,
        reference="amsgrad",
        weight_decay=1e-4,
        learning_rates=(0.003, 0.01, 0.03, 0.1, 0.3),
        grids={
            "sgd": (0.1, 0.3, 1.0, 3.0, 10.0),
            "ap-sgd": (0.1, 0.3, 1.0, 3.0, 10.0),
        },
        num_tuning_seeds=2,
        defaults=Settings(num_seeds=20, num_steps=2000, batch_size=32, refresh=10, scores="frozen"),
        num_full_seeds=100,
        num_points=20,
    )
)
