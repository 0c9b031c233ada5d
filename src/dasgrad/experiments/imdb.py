"""Logistic regression on IMDB: the second row of the paper's comparison, sparse features.

Bags of the 10,000 most frequent words, log(1 + count), one output: sparse rows from end to end.
"""

from dasgrad.experiments.datasets import load_imdb
from dasgrad.experiments.mnist import COMPARISONS, METHODS
from dasgrad.experiments.problems import Problem, binary_cross_entropy, count_right_signs, make_linear
from dasgrad.experiments.registry import Experiment, Settings, register

NUM_WORDS = 10_000


def build_problem(case: str = "") -> Problem:
    """Sparse bags of words, linear model, binary cross-entropy."""
    data = load_imdb(NUM_WORDS, values="log")
    num_columns = data.train[0].shape[1]
    return Problem(data, lambda seed: make_linear(num_columns, 1), binary_cross_entropy, count_right_signs)


IMDB = register(
    Experiment(
        name="imdb",
        title="Logistic regression on IMDB",
        build=build_problem,
        methods=METHODS,
        comparisons=COMPARISONS,
        reference="amsgrad",
        weight_decay=1e-4,
        learning_rates=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        grids={
            "sgd": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
            "ap-sgd": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
        },
        num_tuning_seeds=2,
        # Frozen scores divide by eps where a word has not been seen yet, and such reviews take all the mass.
        defaults=Settings(num_seeds=20, num_steps=2000, batch_size=32, refresh=10, scores="own"),
        num_full_seeds=100,
        num_points=20,
    )
)
