"""The paper's lemmas as functions: Lemma 2, the optimal probabilities, and the projection lemma.

The arithmetic of Lemma 2 is written for plain numbers, one at a time, so that it also runs on fractions, exactly.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dasgrad.projections import Projection
from dasgrad.theory.ahead import square_norm


def second_moment(scores: Sequence[Any], probabilities: Sequence[Any], target: Sequence[Any]) -> Any:
    """E_p[w²s²] = Σ π²s²/p with w = π/p; examples with πs = 0 add nothing.

    Raises:
        ValueError: when an example with πs > 0 has p = 0: it would never be drawn, and the estimate be biased.

    Example:
        >>> from fractions import Fraction as F
        >>> second_moment([F(1), F(3)], [F(1, 4), F(3, 4)], [F(1, 2), F(1, 2)])
        Fraction(4, 1)
    """
    total = scores[0] * 0
    for i, (s, p, pi) in enumerate(zip(scores, probabilities, target, strict=True)):
        if pi * s == 0:
            continue
        if not p > 0:
            raise ValueError(f"`second_moment(probabilities=...)` must be positive where π s is, got {p!r} at {i}.")
        total += pi * pi * s * s / p
    return total


def excess_second_moment(scores: Sequence[Any], probabilities: Sequence[Any], target: Sequence[Any]) -> Any:
    """Σ p (πs/p − Σπs)²: by Lemma 2, how far E_p[w²s²] lies above its least value (Σπs)².

    It is a sum of squares, so no p does better than that value, and only p ∝ πs reaches it.

    Example:
        >>> from fractions import Fraction as F
        >>> excess_second_moment([F(1), F(3)], [F(1, 2), F(1, 2)], [F(1, 2), F(1, 2)])  # uniform: Var s
        Fraction(1, 1)
    """
    mean = sum(pi * s for s, pi in zip(scores, target, strict=True))
    total = scores[0] * 0
    for s, p, pi in zip(scores, probabilities, target, strict=True):
        if p > 0:
            total += p * (pi * s / p - mean) * (pi * s / p - mean)
    return total


def score_variance(scores: Sequence[Any], target: Sequence[Any]) -> Any:
    """Var_π(s) = Σπs² − (Σπs)²: what the optimal probabilities remove, Lemma 2."""
    mean = sum(pi * s for s, pi in zip(scores, target, strict=True))
    return sum(pi * s * s for s, pi in zip(scores, target, strict=True)) - mean * mean


def optimal_probabilities(scores: Sequence[Any], target: Sequence[Any]) -> list[Any]:
    """The probabilities p̂ ∝ π s, which make E_p[w²s²] least; π itself where all scores are 0.

    Which s is meant depends on what the weight multiplies. With ``"update"`` the step's square is w²‖V̂ᵢ^(−1/4) mᵢ‖²,
    so s = ‖V̂ᵢ^(−1/4) mᵢ‖. With ``"gradient"`` β₁m is the same for all draws, and in a given metric s = ‖H^(−1/2) gᵢ‖.
    """
    total = sum(pi * s for s, pi in zip(scores, target, strict=True))
    if total == 0:
        return list(target)
    return [pi * s / total for s, pi in zip(scores, target, strict=True)]


def projection_slack(projection: Projection, first: Tensor, second: Tensor, metric: Tensor) -> float:
    """‖M^(1/2)(z₁ − z₂)‖ − ‖M^(1/2)(Πz₁ − Πz₂)‖: at least 0 by the projection lemma, with M the diagonal ``metric``.

    Example:
        >>> import torch
        >>> from dasgrad.projections import Box
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> projection_slack(Box(0.0, 1.0), 3 * one, one / 2, 4 * one)
        4.0
    """
    before = square_norm(first - second, metric).sqrt()
    after = square_norm(projection(first, metric) - projection(second, metric), metric).sqrt()
    return float(before - after)
