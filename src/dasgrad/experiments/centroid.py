"""Online centroid learning, R(θ) = 1/(2n) Σ‖θ − xᵢ‖²: whether the improvement grows with the features' variance.

The gradient of example i is θ − xᵢ, so the features set the gradients' variance. There are two ways to raise it.

* ``scale-V``: all features are Gaussian with variance V. Every gradient near the centroid grows alike, and a
  uniform draw wastes no more than before: the gain E[s²]/E[s]² does not depend on V.
* ``tail-V``: most examples have variance 1 and one in twenty a larger one, such that the mean variance is V. The
  gain grows with V.

The paper does not say which it had. The training loss that is reported is R(θ) − min R.
"""

import math

import torch
from torch import Tensor

from dasgrad.experiments.datasets import Split
from dasgrad.experiments.problems import Problem, make_linear
from dasgrad.experiments.registry import Experiment, Settings, register

NUM_EXAMPLES = 20_000
"""More than a run draws: online, an example hardly comes twice."""
NUM_FEATURES = 20
RARE_SHARE = 0.05
DATA_SEED = 0
"""The same data for every seed: what differs is the draws."""
SCALES = ("0.1", "1", "10", "100", "1000")
TAILS = ("1", "2", "5", "20", "100")


def make_features(case: str) -> Tensor:
    """``[2n, d]`` float32 features of mean about 1 and the variance the case has in its name."""
    kind, _, variance = case.partition("-")
    generator = torch.Generator().manual_seed(DATA_SEED)
    noise = torch.randn(2 * NUM_EXAMPLES, NUM_FEATURES, generator=generator)
    rare = torch.rand(2 * NUM_EXAMPLES, 1, generator=generator) < RARE_SHARE
    if kind == "scale":
        return 1.0 + math.sqrt(float(variance)) * noise
    rare_variance = 1.0 + (float(variance) - 1.0) / RARE_SHARE
    deviations: Tensor = torch.where(rare, math.sqrt(rare_variance), 1.0) * noise
    return 1.0 + deviations


def describe_case(case: str) -> dict[str, float | str]:
    """How the variance is made, and how large it is."""
    kind, _, variance = case.partition("-")
    return {"problem": kind, "variance": float(variance)}


def half_squared_distance(outputs: Tensor, targets: Tensor) -> Tensor:
    """½‖θ − xᵢ‖² per example."""
    return 0.5 * (outputs - targets).square().sum(1)


def is_nearer(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each example nearer to θ than to the origin: a stand-in for accuracy, which this problem has none of."""
    return ((outputs - targets).square().sum(1) < targets.square().sum(1)).to(torch.float64)


def build_problem(case: str) -> Problem:
    """θ is the weight of a linear map of the constant 1; xᵢ are the targets."""
    features = make_features(case)
    train, test = features[:NUM_EXAMPLES], features[NUM_EXAMPLES:]
    centroid = train.double().mean(0)
    least = float(0.5 * (train.double() - centroid).square().sum(1).mean())

    ones = torch.ones(NUM_EXAMPLES, 1)
    return Problem(
        Split((ones, train), (ones, test)),
        lambda seed: make_linear(1, NUM_FEATURES, bias=False),
        half_squared_distance,
        is_nearer,
        least=least,
    )


CENTROID = register(
    Experiment(
        name="centroid",
        title="Online centroid learning",
        build=build_problem,
        methods=("dasgrad", "dasgrad-paper", "adam", "amsgrad", "adam-iid", "amsgrad-iid"),
        comparisons=(
            ("dasgrad", "amsgrad"),
            ("dasgrad", "adam"),
            ("dasgrad", "amsgrad-iid"),
            ("dasgrad", "adam-iid"),
            ("dasgrad-paper", "amsgrad-iid"),
            ("dasgrad-paper", "adam-iid"),
        ),
        reference="amsgrad",
        weight_decay=0.0,
        learning_rates=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
        num_tuning_seeds=2,
        defaults=Settings(num_seeds=20, num_steps=400, batch_size=32, refresh=10),
        cases=(*(f"scale-{v}" for v in SCALES), *(f"tail-{v}" for v in TAILS)),
        describe_case=describe_case,
        num_full_seeds=100,
        num_points=20,
    )
)
