"""Convex problems with known minima on bounded sets, for regret to be measured against its bounds.

``least-squares``, ``logistic`` and ``centroid`` have heavy tails: a few examples carry most of the gradient. In
``sparse`` feature j is there in about one of j examples, the setting AdaGrad was made for. On ``adam-fails``, slopes
3, −1 and −1 with β = (0, 0.1), Adam goes to the wrong end; on ``update-fails``, one slope of −50 among 99 of 1, the
paper's weighting with a constant β₁ does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dasgrad import projections
from dasgrad.experiments.datasets import Split
from dasgrad.experiments.problems import Problem, make_linear
from dasgrad.theory import FiniteSum

NUM_EXAMPLES = 50
NUM_FEATURES = 5
NUM_SPARSE_FEATURES = 50
DATA_SEED = 0
CASES = ("least-squares", "logistic", "centroid", "sparse", "adam-fails", "update-fails")
COUNTEREXAMPLES = {"adam-fails": (3.0, -1.0, -1.0), "update-fails": (-50.0, *[1.0] * 99)}
BETAS = {"adam-fails": (0.0, 0.1)}
"""Where they are not the methods' own."""


@dataclass(frozen=True, eq=False)
class ConvexProblem(Problem):
    """A problem that also knows all its gradients, its set and its minimum."""

    finite_sum: FiniteSum | None = None
    start: Tensor | None = None
    """θ_1, a point of the set."""


def describe_case(case: str) -> dict[str, Any]:
    """What a case changes about the methods."""
    return {"betas": list(BETAS[case])} if case in BETAS else {}


def build_problem(case: str) -> ConvexProblem:
    """The data of a case, and everything theory needs of it, in float64."""
    if case in COUNTEREXAMPLES:
        slopes = torch.tensor(COUNTEREXAMPLES[case], dtype=torch.float64)[:, None]
        zeros = torch.zeros(len(slopes), dtype=torch.float64)
        return _build_linear(slopes, zeros, lambda o, y: o, lambda o, y: torch.ones_like(o), curvature=0.0)
    generator = torch.Generator().manual_seed(DATA_SEED)
    if case == "centroid":
        return _build_centroid(generator)
    if case == "sparse":
        return _build_sparse(generator)
    inputs = _heavy_tailed(generator)
    truth = 1.5 * torch.randn(NUM_FEATURES, generator=generator, dtype=torch.float64)  # partly outside the box
    noise = torch.randn(NUM_EXAMPLES, generator=generator, dtype=torch.float64)
    if case == "least-squares":
        return _build_linear(inputs, inputs @ truth + noise, _half_square, lambda o, y: o - y, curvature=1.0)
    return _build_linear(inputs, (inputs @ truth + noise).sign(), _logistic, _logistic_slope, curvature=0.25)


def _heavy_tailed(generator: torch.Generator) -> Tensor:
    """One example in ten is five times as long as the others."""
    inputs = torch.randn(NUM_EXAMPLES, NUM_FEATURES, generator=generator, dtype=torch.float64)
    inputs[: NUM_EXAMPLES // 10] *= 5
    return inputs.div_(NUM_FEATURES**0.5)


def _build_sparse(generator: torch.Generator) -> ConvexProblem:
    shares = 1 / torch.arange(1, NUM_SPARSE_FEATURES + 1, dtype=torch.float64)
    drawn = torch.rand(NUM_EXAMPLES, NUM_SPARSE_FEATURES, generator=generator, dtype=torch.float64)
    inputs = (drawn < shares).double()
    truth = torch.randn(NUM_SPARSE_FEATURES, generator=generator, dtype=torch.float64)
    return _build_linear(inputs, (inputs @ truth).sign(), _logistic, _logistic_slope, curvature=0.25)


def _build_centroid(generator: torch.Generator) -> ConvexProblem:
    """½‖θ − xᵢ‖², with θ the weight of a linear map of the constant 1."""
    points = _heavy_tailed(generator) + 0.3
    box = projections.Box(-1.0, 1.0)
    finite_sum = FiniteSum(
        lambda x: 0.5 * (x.unsqueeze(-2) - points).square().sum(-1),
        lambda x: x.unsqueeze(-2) - points,
        points.mean(0).clamp(-1, 1),
        NUM_EXAMPLES,
        box,
    )
    ones = torch.ones(NUM_EXAMPLES, 1, dtype=torch.float64)
    return ConvexProblem(
        Split((ones, points), (ones, points)),
        lambda seed: make_linear(1, NUM_FEATURES, bias=False).double(),
        lambda o, y: 0.5 * (o - y).square().sum(1),
        lambda o, y: torch.full((len(y),), torch.nan, dtype=torch.float64),
        least=finite_sum.minimum,
        finite_sum=finite_sum,
        start=torch.ones(NUM_FEATURES, dtype=torch.float64),
    )


def _build_linear(
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    slope: Callable[[Tensor, Tensor], Tensor],
    curvature: float,
) -> ConvexProblem:
    """A loss of x·θ for θ in [−1, 1]ᵈ; ``curvature`` bounds its second derivative."""
    n, d = inputs.shape

    def losses(theta: Tensor) -> Tensor:
        return loss(theta @ inputs.T, targets)

    def gradients(theta: Tensor) -> Tensor:
        return slope(theta @ inputs.T, targets).unsqueeze(-1) * inputs

    smoothness = curvature * float(torch.linalg.matrix_norm(inputs.T @ inputs / n, 2))
    optimum = minimise(lambda theta: gradients(theta).mean(-2), d, smoothness)
    finite_sum = FiniteSum(losses, gradients, optimum, n, projections.Box(-1.0, 1.0))
    return ConvexProblem(
        Split((inputs, targets), (inputs, targets)),
        lambda seed: make_linear(d, 1, bias=False).double(),
        lambda o, y: loss(o[:, 0], y),
        lambda o, y: torch.full((len(y),), torch.nan, dtype=torch.float64),  # there is no accuracy to speak of
        least=finite_sum.minimum,
        finite_sum=finite_sum,
        start=torch.zeros(d, dtype=torch.float64),
    )


def minimise(gradient: Callable[[Tensor], Tensor], dimension: int, smoothness: float, num_steps: int = 5000) -> Tensor:
    """The minimum over [−1, 1]ᵈ by projected descent with Nesterov's momentum, restarted where it turns back."""
    theta = ahead = torch.zeros(dimension, dtype=torch.float64)
    if smoothness == 0:  # linear
        return -gradient(theta).sign()
    momentum = 1.0
    for _ in range(num_steps):
        grad = gradient(ahead)
        new = (ahead - grad / smoothness).clamp(-1, 1)
        if float(grad @ (new - theta)) > 0:
            momentum, ahead = 1.0, theta
            continue
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = new + (momentum - 1) / following * (new - theta)
        if torch.equal(new, theta):
            break
        theta, momentum = new, following
    return theta


def duality_gap(problem: FiniteSum) -> float:
    """⟨∇f(θ*), θ* − x⟩ at most, over x in [−1, 1]ᵈ: no point of the box is better than θ* by more."""
    grad = problem.pi @ problem.gradients(problem.optimum)
    return float(grad @ problem.optimum + grad.abs().sum())


def _half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square()


def _logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.softplus(-targets * outputs)


def _logistic_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    return -targets * torch.sigmoid(-targets * outputs)
