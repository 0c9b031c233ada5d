"""Domain shift: MNIST with nine in ten of the digits 1 and 3 removed from training, tested on all digits alike.

The objective is the test distribution's: πᵢ = (share of the digit in test) / (its count in training). The paper
prints wᵢ = (|Lᵢ|/m)/pᵢ, the first factor alone. That is no distribution over the training examples: it multiplies
all gradients by about n/10, which Adam's moments divide out again, and as the digits of the test set are about as
frequent as each other it corrects nothing. Both are run, side by side.
"""

import torch
from torch import Tensor

from dasgrad import targets
from dasgrad.experiments.datasets import Split, load_mnist
from dasgrad.experiments.problems import Evaluation, Problem, count_correct, cross_entropy, make_linear
from dasgrad.experiments.registry import Experiment, Settings, register

RARE = (1, 3)
KEPT_SHARE = 0.1
REMOVAL_SEED = 0


def remove_most(labels: Tensor, rare: tuple[int, ...] = RARE) -> Tensor:
    """Indices of the examples that stay, in order: all of other labels, a fixed tenth of each rare one."""
    generator = torch.Generator().manual_seed(REMOVAL_SEED)
    stays = ~torch.isin(labels, torch.tensor(rare))
    for label in rare:
        own = (labels == label).nonzero().flatten()
        order = torch.randperm(len(own), generator=generator)
        stays[own[order[: round(KEPT_SHARE * len(own))]]] = True
    return stays.nonzero().flatten()


def printed_target(labels: Tensor, frequencies: Tensor) -> Tensor:
    """The paper's |Lᵢ|/m, scaled to sum 1: what the weights as printed aim at, up to a constant factor."""
    shares = frequencies[labels]
    return shares / shares.sum()


def build_problem(case: str = "") -> Problem:
    """Unbalanced MNIST with the test set's distribution as the objective."""
    data = load_mnist()
    kept = remove_most(data.train[1])
    train = data.train[0][kept], data.train[1][kept]
    test_labels = data.test[1]
    frequencies = torch.bincount(test_labels, minlength=10).double() / len(test_labels)
    rare = torch.isin(test_labels, torch.tensor(RARE))

    def extras(evaluation: Evaluation) -> dict[str, float]:
        chosen = rare.to(evaluation.test_losses.device)
        return {
            "test_loss_rare": float(evaluation.test_losses[chosen].mean()),
            "test_accuracy_rare": float(evaluation.test_successes[chosen].mean()),
            "train_loss_uniform": float(evaluation.train_losses.mean()) + evaluation.penalty,
        }

    return Problem(
        Split(train, data.test),
        lambda seed: make_linear(784, 10),
        cross_entropy,
        count_correct,
        targets={
            "objective": targets.from_label_frequencies(train[1], frequencies),
            "printed": printed_target(train[1], frequencies),
        },
        extras=extras,
    )


SHIFT = register(
    Experiment(
        name="shift",
        title="Domain shift: MNIST with few 1s and 3s",
        build=build_problem,
        methods=("dasgrad", "dasgrad-printed-weights", "amsgrad-weighted", "amsgrad", "adam"),
        comparisons=(
            ("dasgrad", "amsgrad"),
            ("dasgrad", "adam"),
            ("dasgrad", "amsgrad-weighted"),
            ("dasgrad-printed-weights", "amsgrad"),
            ("dasgrad-printed-weights", "adam"),
        ),
        reference="amsgrad-weighted",
        weight_decay=1e-4,
        learning_rates=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        num_tuning_seeds=2,
        defaults=Settings(num_seeds=20, num_steps=2000, batch_size=32, refresh=10, scores="frozen"),
        num_full_seeds=20,
        num_points=20,
    )
)
