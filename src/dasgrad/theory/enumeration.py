"""All nᵀ trajectories at once: expectations over the sampling without chance, for small n and T."""

import torch
from torch import Tensor

from dasgrad.theory.ahead import Futures, look_ahead, score_all
from dasgrad.theory.ledger import Examples, Ledger, Step
from dasgrad.theory.problem import FiniteSum
from dasgrad.theory.schemes import Scheme
from dasgrad.theory.trajectory import Trajectory

MAX_STATES = 1_000_000


def enumerate_draws(problem: FiniteSum, scheme: Scheme, start: Tensor, num_steps: int) -> Trajectory:
    """The expectation over every sequence of draws, each weighed by its probability.

    Args:
        problem: with n examples.
        scheme: the method; batches of one.
        start: θ_1, ``[d]``.
        num_steps: T. States that are equal to the bit are taken together, so that there may be far fewer than nᵀ;
            there may be a million.

    Returns:
        A trajectory whose curves are exact expectations, and whose ``largest_violation`` is over all states.

    Raises:
        ValueError: for more states than that, and for T below 1.

    Example:
        >>> slopes = torch.tensor([[3.0], [-1.0], [-1.0]], dtype=torch.float64)
        >>> lines = FiniteSum(lambda x: x @ slopes.T, lambda x: slopes.expand(*x.shape[:-1], 3, 1),
        ...                   torch.tensor([-1.0], dtype=torch.float64), 3)
        >>> found = enumerate_draws(lines, Scheme("sgd"), torch.tensor([0.0], dtype=torch.float64), 2)
        >>> float(found.get("regret")[-1]) <= float(found.get("potential")[-1] + found.get("error")[-1])
        True
    """
    if not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(f"`enumerate_draws(num_steps=...)` must be a positive integer, got {num_steps!r}.")
    pair, pi = scheme.pair, problem.pi
    ledger = Ledger(pair, scheme.weighting, problem.projection, problem.optimum, None, max(2, num_steps))
    theta = start.reshape(1, -1)
    state = {key: torch.zeros_like(theta) for key in pair.keys}
    share = torch.ones(1, dtype=torch.float64)
    for t in range(1, num_steps + 1):
        hyper, alpha = scheme.hyper_at(t), scheme.alpha_at(t)
        grads = problem.gradients(theta)
        p = scheme.probabilities(score_all(pair, scheme.weighting, state, grads, hyper), pi)
        weights = torch.where(p > 0, pi / torch.where(p > 0, p, 1.0), 0.0)
        futures = look_ahead(pair, scheme.weighting, theta, state, grads, weights, alpha, hyper, problem.projection)
        seen = grads * weights.unsqueeze(-1) if scheme.weighting == "gradient" else grads
        step = Step(t, alpha, hyper, theta, state, share, p, weights, seen, futures)
        ledger.add(step, Examples(pi, grads, problem.excess(theta)))
        if t < num_steps:
            theta, state, share = _merge(futures, (share.unsqueeze(-1) * p).flatten())
            if len(share) * problem.num_examples > MAX_STATES:
                raise ValueError(
                    f"`enumerate_draws(num_steps=...)` must lead to at most {MAX_STATES:,} states, got "
                    f"{len(share) * problem.num_examples:,} at step {t + 1} of {num_steps}; use `follow` over seeds."
                )
    return ledger.finish()


def _merge(futures: Futures, share: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The states after a step that can be reached, each once: θ, what the moments remember, and probabilities."""
    parts = [futures.theta, *(value.expand_as(futures.theta) for value in futures.state.values())]
    rows = torch.cat([part.flatten(0, -2) for part in parts], dim=1)[share > 0]
    different, places = torch.unique(rows, dim=0, return_inverse=True)
    merged = torch.zeros(len(different), dtype=torch.float64).index_add_(0, places, share[share > 0])
    theta, *state = different.chunk(len(parts), dim=1)
    return theta, dict(zip(futures.state, state, strict=True)), merged
