"""A small convolutional network on CIFAR-10: the third row of the paper's comparison. Meant for a GPU."""

import torch
from torch import Tensor, nn

from dasgrad.experiments.datasets import Split, load_cifar10
from dasgrad.experiments.problems import Problem, count_correct, cross_entropy
from dasgrad.experiments.registry import Experiment, Settings, register
from dasgrad.scoring.rules.response_norm import normalise


class ResponseNorm(nn.LocalResponseNorm):
    """``nn.LocalResponseNorm``, computed as the scorer does: torch's own takes longer than both convolutions."""

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W]`` to the same shape."""
        return normalise(input, self.size, self.alpha, self.beta, self.k)


def make_model(seed: int) -> nn.Module:
    """The small CIFARNET: two 5×5 convolutions with max pooling and response normalisation, two layers of ReLUs."""

    # TensorFlow's lrn(depth_radius=4, alpha=0.001/9) sums over 9 channels; torch divides alpha by that number.
    def normalise() -> nn.Module:
        return ResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            normalise(),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            normalise(),
            nn.MaxPool2d(3, 2, padding=1),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, 10),
        )


def standardise(data: Split) -> Split:
    """Pictures with mean 0 and variance 1 in each colour, by the training set's."""
    train, test = data.train[0], data.test[0]
    assert isinstance(train, Tensor)
    assert isinstance(test, Tensor)
    mean, std = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    return Split(((train - mean) / std, data.train[1]), ((test - mean) / std, data.test[1]))


def build_problem(case: str = "") -> Problem:
    """CIFAR-10, small CIFARNET, cross-entropy."""
    return Problem(standardise(load_cifar10()), make_model, cross_entropy, count_correct, chunk_size=2000)


CIFAR10 = register(
    Experiment(
        name="cifar10",
        title="Small CIFARNET on CIFAR-10",
        build=build_problem,
        methods=("dasgrad", "dasgrad-paper", "adam", "amsgrad", "adam-iid", "amsgrad-iid"),
        comparisons=(
            ("dasgrad", "amsgrad"),
            ("dasgrad", "adam"),
            ("dasgrad-paper", "amsgrad"),
            ("dasgrad-paper", "adam"),
            ("dasgrad-paper", "amsgrad-iid"),
            ("dasgrad-paper", "adam-iid"),
        ),
        reference="amsgrad",
        weight_decay=1e-4,
        learning_rates=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
        num_tuning_seeds=1,
        # 6,000 steps are about four passes. Own scores need each example's gradient in every layer: far too slow here.
        defaults=Settings(num_seeds=4, num_steps=6000, batch_size=32, refresh=300, scores="frozen"),
        num_full_seeds=10,
        num_points=20,
    )
)
