"""The running sums behind a trajectory. Memory does not grow with steps beyond a fixed number of points.

A ledger sees one step at a time: one state with all its futures (`follow`, `record` with a problem), one state with the
draw that was made (`record` alone), or all states there are with their probabilities (`enumerate_draws`).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dasgrad.moments import Hyper, Moments
from dasgrad.projections import Projection
from dasgrad.theory.ahead import Futures, dual_square_norm, own_directions, square_norm
from dasgrad.theory.sets import find_diameter
from dasgrad.theory.terms import NAMES, Terms, evaluate_terms
from dasgrad.theory.trajectory import Trajectory

HAS_MOMENTUM = ("adam", "amsgrad")


@dataclass(frozen=True, eq=False)
class Step:
    """One step from N states of probability ``share``; n draws from each."""

    t: int
    alpha: float
    hyper: Hyper
    theta: Tensor
    """``[N, d]``."""
    state: dict[str, Tensor]
    """``[N, d]`` each: of the moments, before the step."""
    share: Tensor
    """``[N]``, of sum 1."""
    p: Tensor
    """``[N, n]``, of sum 1 over draws."""
    weights: Tensor
    """``[N, n]``."""
    seen: Tensor
    """``[N, n, d]``: gradients as the moments see them."""
    futures: Futures

    def expect(self, values: Tensor) -> float:
        """The expectation of ``[N, n]`` values over states and draws."""
        return float(self.share @ (self.p * values).sum(-1))


@dataclass(frozen=True, eq=False)
class Examples:
    """What is known of a step beside the step itself, where the problem is."""

    pi: Tensor
    """``[n]``."""
    grads: Tensor
    """``[N, n, d]``: of all examples, unweighted."""
    excess: Tensor
    """``[N]``: f(θ_t) − f(θ*)."""


class Ledger:
    """Adds up steps; `finish` gives the trajectory.

    Args:
        moments: φ and ψ.
        weighting: what the weight multiplies.
        projection: onto Θ.
        optimum: θ*, ``[d]``; without it there are no terms.
        diameter: D, where it is known and the projection does not tell.
        max_points: at most so many points are kept; every second one is dropped when there would be more.
    """

    def __init__(
        self,
        moments: Moments,
        weighting: str,
        projection: Projection | None,
        optimum: Tensor | None,
        diameter: float | None,
        max_points: int,
    ) -> None:
        if not isinstance(max_points, int) or isinstance(max_points, bool) or max_points < 2:
            raise ValueError(f"`record(max_points=...)` must be an integer of at least 2, got {max_points!r}.")
        if diameter is not None and not 0 < diameter < math.inf:
            raise ValueError(f"`record(diameter=...)` must be positive and finite, got {diameter!r}.")
        self._moments, self._weighting, self._optimum = moments, weighting, optimum
        self._diameter, self._why = diameter, ""
        if diameter is None:
            try:
                self._diameter = find_diameter(projection)
            except ValueError as error:
                self._why = str(error)
        self._max_points, self._stride = max_points, 1
        self._rows: list[dict[str, float]] = []
        self._last: dict[str, float] = {}
        self._squares: dict[str, Tensor] = {}
        self._low: Tensor | None = optimum
        self._high: Tensor | None = optimum
        self._first: tuple[float, float, float, int] | None = None
        self._beta1 = 0.0
        self._uniform = self._inverse_sqrt = self._constant_beta1 = True
        self._rising_beta1 = False
        self._violation = -math.inf
        self._expected = True

    @property
    def num_steps(self) -> int:
        """Steps seen."""
        return int(self._last.get("step", 0))

    def add(self, step: Step, examples: Examples | None) -> None:
        """Take in the next step; everything about all examples is optional."""
        has_momentum = self._moments.name in HAS_MOMENTUM
        beta1 = step.hyper.beta1 if has_momentum else 0.0
        self._note_setting(step, beta1)
        self._widen(step.theta)
        self._expected &= examples is not None
        before, row = self._last, {"step": float(step.t)}
        trace = step.expect(step.futures.metric.sum(-1))
        root = math.sqrt(step.t)
        sums = {"beta1_sum": beta1 / root, "momentum_metric": root * beta1 * trace}
        if self._optimum is not None:
            momentum = step.state["exp_avg"] if has_momentum else torch.zeros_like(step.theta)
            every = evaluate_terms(step.futures, step.theta, momentum, self._optimum, step.alpha, beta1)
            terms = every.expect(step.p)
            sums |= {name: float(step.share @ getattr(terms, name)) for name in NAMES}
            if examples is not None:
                sums |= self._compare(step, examples, terms)
        largest = {"moment_gradient_bound": float(step.seen.abs().max())}
        means = {"gradient_norms": self._mean_sizes(step, examples)}
        if examples is not None:
            sums |= self._save_by_sampling(step, examples, beta1)
            largest["gradient_bound"] = float(examples.grads.abs().max())
            means["printed_gradient_norms"] = step.share @ (examples.pi @ examples.grads.abs())
        elif self._weighting == "update" or self._uniform:
            largest["gradient_bound"] = largest["moment_gradient_bound"]
        row |= {name: before.get(name, 0.0) + value for name, value in sums.items()}
        row |= {name: max(before.get(name, 0.0), value) for name, value in largest.items()}
        for name, mean in means.items():
            self._squares[name] = self._squares.get(name, torch.zeros_like(mean)) + mean.square()
            row[name] = float(self._squares[name].sqrt().sum())
        row["metric_trace"] = trace
        base = self._first[1] if self._first else 0.0
        row["printed_momentum_metric"] = base * before.get("printed_momentum_metric", 0.0) + root * trace
        self._keep(row)

    def _compare(self, step: Step, examples: Examples, terms: Terms) -> dict[str, float]:
        """Regret, its linear form, and the worst state of this step in the theorem's inequality."""
        full = examples.pi @ examples.grads
        linear = (full * (step.theta - self._optimum)).sum(-1)  # type: ignore[operator]
        scale = terms.potential.abs() + terms.error + terms.momentum + terms.distance + linear.abs()
        gap = torch.where(scale > 0, (linear - terms.total) / scale, 0.0)
        self._violation = max(self._violation, float(gap.max()))
        return {"regret": float(step.share @ examples.excess), "linear_regret": float(step.share @ linear)}

    def _mean_sizes(self, step: Step, examples: Examples | None) -> Tensor:
        """a_h: the mean of |g_h| that bounds the error; see Corollary 4.1 in docs/theory.md."""
        drawn = step.share @ (step.p.unsqueeze(-2) @ step.seen.abs()).squeeze(-2)
        if examples is None or self._weighting == "gradient":
            return drawn
        return torch.maximum(drawn, step.share @ (examples.pi @ examples.grads.abs()))

    def _save_by_sampling(self, step: Step, examples: Examples, beta1: float) -> dict[str, float]:
        direction, metric = step.futures.own, step.futures.metric
        if direction is None:
            direction, metric = own_directions(self._moments, step.state, examples.grads, step.hyper)
        square = dual_square_norm(direction, metric)
        printed = square_norm(direction, metric)
        found = {
            "variance": float(step.share @ _variance(examples.pi, square)),
            "printed_variance": float(step.share @ _variance(examples.pi, printed)),
        }
        # The weight leaves the metric alone where it multiplies the update, or where there is no metric to speak of.
        if self._weighting == "update" or self._moments.name == "sgd":
            saved = (examples.pi * square).sum(-1) - (step.p * step.weights.square() * square).sum(-1)
            found["reduction"] = step.alpha / (2 * (1 - beta1)) * float(step.share @ saved)
        return found

    def _note_setting(self, step: Step, beta1: float) -> None:
        if self._first is None:
            self._first = (step.alpha, beta1, step.hyper.beta2, step.theta.shape[-1])
        elif beta1 > self._beta1:
            self._rising_beta1 = True
        self._beta1 = beta1
        alpha, first_beta1, _, _ = self._first
        self._constant_beta1 &= beta1 == first_beta1
        self._inverse_sqrt &= math.isclose(step.alpha * math.sqrt(step.t), alpha, rel_tol=1e-9)
        self._uniform = self._uniform and bool((step.weights - 1).abs().max() < 1e-12)

    def _widen(self, points: Tensor) -> None:
        low, high = points.amin(0), points.amax(0)
        self._low = low if self._low is None else torch.minimum(self._low, low)
        self._high = high if self._high is None else torch.maximum(self._high, high)

    def _keep(self, row: dict[str, float]) -> None:
        self._last = row
        if int(row["step"]) % self._stride == 0:
            self._rows.append(row)
        if len(self._rows) > self._max_points:
            self._stride *= 2
            self._rows = [kept for kept in self._rows if int(kept["step"]) % self._stride == 0]

    def finish(self) -> Trajectory:
        """What was recorded so far.

        Raises:
            ValueError: when there was no step.
        """
        if self._first is None or self._low is None or self._high is None:
            raise ValueError("`Recorder.trajectory` needs at least one recorded step, got none.")
        rows = [*self._rows, *([self._last] if not self._rows or self._rows[-1] is not self._last else [])]
        alpha, beta1, beta2, dimension = self._first
        names = [name for name in self._last if name != "step"]
        return Trajectory(
            steps=np.array([row["step"] for row in rows]),
            curves={name: np.array([row[name] for row in rows]) for name in names},
            dimension=dimension,
            moments=self._moments.name or type(self._moments).__name__,
            weighting=self._weighting,
            alpha=alpha,
            beta1=beta1,
            beta2=beta2,
            expected=self._expected,
            uniform=self._uniform,
            inverse_sqrt=self._inverse_sqrt,
            constant_beta1=self._constant_beta1,
            rising_beta1=self._rising_beta1,
            diameter=self._diameter,
            why_no_diameter=self._why,
            own_diameter=float((self._high - self._low).max()),
            largest_violation=self._violation,
        )


def _variance(pi: Tensor, squares: Tensor) -> Tensor:
    """Var_π of the roots of ``[N, n]`` squares, ``[N]``."""
    return (pi * squares).sum(-1) - (pi * squares.sqrt()).sum(-1).square()
