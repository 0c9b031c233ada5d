"""A table of small convex problems on bounded sets, with their minima."""

import functools

import numpy as np
import torch

from dasgrad import projections, theory

SETS = {
    "box": projections.Box(-0.5, 0.7),
    "l2": projections.L2Ball(0.8),
    "l1": projections.L1Ball(0.9),
    "simplex": projections.Simplex(),
}


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def lines(slopes: list[float], low: float, high: float) -> theory.FiniteSum:
    """fᵢ(θ) = aᵢ θ on an interval."""
    own = torch.tensor(slopes, dtype=torch.float64)[:, None]
    return theory.FiniteSum(
        lambda x: x @ own.T,
        lambda x: own.expand(*x.shape[:-1], *own.shape),
        vector(low if own.mean() > 0 else high),
        len(slopes),
        projections.Box(low, high),
    )


def distances(sizes: list[float], centres: list[float], low: float, high: float) -> theory.FiniteSum:
    """fᵢ(θ) = aᵢ |θ − cᵢ| on an interval, whose minimum is at an end or a centre."""
    a, c = torch.tensor(sizes, dtype=torch.float64), torch.tensor(centres, dtype=torch.float64)

    def losses(x: torch.Tensor) -> torch.Tensor:
        return a * (x - c).abs()

    candidates = torch.cat([c[(c >= low) & (c <= high)], vector(low, high)])[:, None]
    best = candidates[losses(candidates).mean(-1).argmin()]
    return theory.FiniteSum(
        losses, lambda x: (a * (x - c).sign()).unsqueeze(-1), best, len(sizes), projections.Box(low, high)
    )


def linear_model(
    kind: str,
    n: int,
    d: int,
    seed: int,
    projection: projections.Projection = SETS["box"],
    target: torch.Tensor | None = None,
) -> theory.FiniteSum:
    """Least squares or logistic regression, with a few examples that carry most of the gradient."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, d, generator=generator, dtype=torch.float64)
    inputs[: max(1, n // 4)] *= 4
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    answers = inputs @ torch.randn(d, generator=generator, dtype=torch.float64) + noise
    signs = answers.sign()

    def losses(x: torch.Tensor) -> torch.Tensor:
        outputs = x @ inputs.T
        return (
            0.5 * (outputs - answers).square() if kind == "squares" else torch.nn.functional.softplus(-signs * outputs)
        )

    def gradients(x: torch.Tensor) -> torch.Tensor:
        outputs = x @ inputs.T
        slopes = outputs - answers if kind == "squares" else -signs * torch.sigmoid(-signs * outputs)
        return slopes.unsqueeze(-1) * inputs

    pi = torch.full((n,), 1 / n, dtype=torch.float64) if target is None else target
    ones = torch.ones(d, dtype=torch.float64)
    optimum = projection(torch.zeros(d, dtype=torch.float64), ones)
    step = 1 / float(torch.linalg.matrix_norm((inputs.T * pi) @ inputs, 2))
    for _ in range(200):  # near enough: the theorems hold for every point of the set
        optimum = projection(optimum - step * (pi @ gradients(optimum)), ones)
    return theory.FiniteSum(losses, gradients, optimum, n, projection, target)


@functools.cache
def random_problem(seed: int) -> theory.FiniteSum:
    """n ≤ 3, d ≤ 3, every kind of loss and of set, a target now and then."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 4))
    kind = ("squares", "logistic", "lines", "distances")[seed % 4]
    if kind == "lines":
        return lines((3 * rng.normal(size=n)).tolist(), -1.0, 1.0)
    if kind == "distances":
        return distances(rng.gamma(1.0, size=n).tolist(), rng.uniform(-1.5, 1.5, n).tolist(), -1.0, 1.0)
    projection = list(SETS.values())[(seed // 4) % len(SETS)]
    target = torch.tensor(rng.dirichlet(np.ones(n))) if seed % 3 == 0 else None
    return linear_model(kind, n, int(rng.integers(1, 4)), seed, projection, target)


def start_of(problem: theory.FiniteSum, seed: int = 0) -> torch.Tensor:
    """A point of the set."""
    generator = torch.Generator().manual_seed(seed)
    point = torch.randn(problem.dimension, generator=generator, dtype=torch.float64)
    return problem.projection(point, torch.ones_like(point))
