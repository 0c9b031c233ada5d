"""Distribution matching: one training set, several tasks, and weights that aim it at one of them.

A task is a mixture of digits; the question, whether a digit is odd, is the same in all. The training set is a mixture
of its own. A linear map cannot answer for all digits, so that each task has an optimum of its own, found here by
Newton's method. The training loss that is reported is how far a run is from the optimum of the task it aims at,
and ``excess_on_NAME`` how far from those of all. The test set is weighted to the task, too.
"""

import functools

import torch
from torch import Tensor

from dasgrad import targets
from dasgrad.experiments.datasets import Split, load_mnist
from dasgrad.experiments.problems import Evaluation, Problem, binary_cross_entropy, count_right_signs, make_linear
from dasgrad.experiments.registry import Experiment, Settings, register

WEIGHT_DECAY = 1e-3
NUM_EXAMPLES = 10_000
NEWTON_STEPS = 12
TRAINING_MIXTURE = (0.25, 0.05, 0.25, 0.05, 0.15, 0.05, 0.05, 0.05, 0.05, 0.05)
TASKS = {
    "balanced": (0.1,) * 10,
    "small": (0.18, 0.18, 0.18, 0.18, 0.18, 0.02, 0.02, 0.02, 0.02, 0.02),
    "large": (0.02, 0.02, 0.02, 0.02, 0.02, 0.18, 0.18, 0.18, 0.18, 0.18),
    "odd": (0.04, 0.16, 0.04, 0.16, 0.04, 0.16, 0.04, 0.16, 0.04, 0.16),
}
"""Shares of the digits 0 to 9."""


def shrink(inputs: Tensor) -> Tensor:
    """Pictures of 14×14 pixels out of 28×28, means of four."""
    return torch.nn.functional.avg_pool2d(inputs.reshape(-1, 1, 28, 28), 2).flatten(1)


def choose_mixture(labels: Tensor, mixture: tuple[float, ...], num_examples: int) -> Tensor:
    """Indices of the first examples of each digit, as many as the mixture has of it, or as there are."""
    parts = []
    for digit, share in enumerate(mixture):
        parts.append((labels == digit).nonzero().flatten()[: max(1, round(share * num_examples))])
    return torch.cat(parts).sort().values


def least_loss(inputs: Tensor, answers: Tensor, target: Tensor) -> float:
    """The minimum of Σ πᵢ fᵢ(θ) + κ/2·‖θ‖², by Newton's method in float64."""
    rows = torch.cat([inputs.double(), torch.ones(len(inputs), 1, dtype=torch.float64)], dim=1)
    signs = 2.0 * answers.double() - 1.0
    theta = torch.zeros(rows.shape[1], dtype=torch.float64)
    ridge = WEIGHT_DECAY * torch.eye(len(theta), dtype=torch.float64)
    for _ in range(NEWTON_STEPS):
        wrong = torch.sigmoid(-signs * (rows @ theta))
        gradient = -rows.T @ (target * signs * wrong) + WEIGHT_DECAY * theta
        hessian = rows.T @ ((target * wrong * (1 - wrong))[:, None] * rows) + ridge
        theta -= torch.linalg.solve(hessian, gradient)
    losses = torch.nn.functional.softplus(-signs * (rows @ theta))
    return float(target @ losses + 0.5 * WEIGHT_DECAY * theta.square().sum())


@functools.cache
def load_tasks() -> tuple[Split, Tensor, dict[str, Tensor], dict[str, float]]:
    """Examples with their answers, the digits of the test set, the target of each task and its least loss."""
    data = load_mnist()
    kept = choose_mixture(data.train[1], TRAINING_MIXTURE, NUM_EXAMPLES)
    assert isinstance(data.train[0], Tensor)
    assert isinstance(data.test[0], Tensor)
    inputs, digits = shrink(data.train[0][kept]), data.train[1][kept]
    tasks = {name: targets.from_task_mixture(digits, mixture) for name, mixture in TASKS.items()}
    least = {name: least_loss(inputs, digits % 2, target) for name, target in tasks.items()}
    test = shrink(data.test[0]), data.test[1] % 2
    return Split((inputs, digits % 2), test), data.test[1], tasks, least


def build_problem(case: str) -> Problem:
    """Odd or even, with one task's distribution as the objective."""
    split, digits, tasks, least = load_tasks()

    def extras(evaluation: Evaluation) -> dict[str, float]:
        losses, penalty = evaluation.train_losses, evaluation.penalty
        return {
            f"excess_on_{name}": float(target.to(losses.device) @ losses) + penalty - least[name]
            for name, target in tasks.items()
        }

    return Problem(
        split,
        lambda seed: make_linear(split.train[0].shape[1], 1),
        binary_cross_entropy,
        count_right_signs,
        targets={"objective": tasks[case]},
        test_target=targets.from_task_mixture(digits, TASKS[case]),
        least=least[case],
        extras=extras,
    )


MULTITASK = register(
    Experiment(
        name="multitask",
        title="Distribution matching: one training set, several tasks",
        build=build_problem,
        methods=("dasgrad", "amsgrad-weighted", "amsgrad"),
        comparisons=(("dasgrad", "amsgrad"), ("dasgrad", "amsgrad-weighted")),
        reference="amsgrad-weighted",
        weight_decay=WEIGHT_DECAY,
        learning_rates=(0.03, 0.1, 0.3, 1.0, 3.0),
        num_tuning_seeds=2,
        defaults=Settings(num_seeds=20, num_steps=1000, batch_size=32, refresh=10, scores="frozen"),
        cases=tuple(TASKS),
        describe_case=lambda case: {"task": case},
        num_full_seeds=20,
        num_points=20,
    )
)
