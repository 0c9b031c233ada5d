"""A trajectory: what is kept of a run, enough to evaluate every term and bound of the paper on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CURVES = {
    "regret": "Σ f(θ_t) − f(θ*)",
    "linear_regret": "Σ ⟨∇f(θ_t), θ_t − θ*⟩, which is never less",
    "potential": "Σ of the term of that name in Theorems 1 to 4, and so the next three",
    "error": "",
    "momentum": "the first term of the moving average, with m_{t−1}",
    "distance": "the second, with θ_t − θ*",
    "metric_trace": "tr H_t, the paper's ‖v̂_t^(1/4)‖² where eps = 0",
    "beta1_sum": "Σ β₁ₜ/√t",
    "momentum_metric": "Σ √t β₁ₜ tr H_t",
    "printed_momentum_metric": "Σ √τ β₁^(t−τ) tr H_τ over τ ≤ t, as the corollaries print it",
    "gradient_norms": "Σ_h ‖a_{1:t,h}‖₂ with a the mean of |g|: over π and, where the moments see unweighted draws, "
    "over p, whichever is larger",
    "printed_gradient_norms": "the same with the mean over π alone, as printed",
    "gradient_bound": "G, the largest |∇fᵢ,ₕ| so far",
    "moment_gradient_bound": "the largest entry the moments have seen: of w g with weighting 'gradient'",
    "reduction": "Σ α_t/(2(1−β₁ₜ)) (E_π s² − E_p[w²s²]), what p saves in the error; the bracket is Var_π(s) at p̂",
    "variance": "Σ Var_π(s) with s = ‖H^(−1/2) m‖, without a factor",
    "printed_variance": "Σ Var_π(‖H^(1/2) m‖), as Corollary 4.1 prints it",
}
"""Everything a trajectory may hold, at each recorded step; sums run over all steps up to it, recorded or not."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A recorded run, or the expectation over all runs.

    Make one with `record`, `follow`, `enumerate_draws` or `average`.
    """

    steps: Array
    """``[P]``: the steps t that were kept, the last one included."""
    curves: Mapping[str, Array]
    """``[P]`` each: some of `CURVES`."""
    dimension: int
    moments: str
    weighting: str
    alpha: float
    """α, of α_t = α/√t."""
    beta1: float
    """β₁ of the first step."""
    beta2: float
    expected: bool
    """Whether terms are expectations over the next draw, or those of the draws made."""
    uniform: bool
    """Whether all weights were 1."""
    inverse_sqrt: bool
    """Whether α_t = α/√t throughout."""
    constant_beta1: bool
    """Whether β₁ stayed as it was."""
    rising_beta1: bool
    """Whether β₁ ever rose."""
    diameter: float | None
    """D of the set; None where there is none, or none is known."""
    why_no_diameter: str
    """The reason, where there is a set but no D."""
    own_diameter: float
    """max over coordinates and pairs of steps of |θ_{s,h} − θ_{t,h}|, θ* included where it is known."""
    largest_violation: float
    """Largest (⟨∇f, x_t⟩ − Σ terms) over steps, relative to the terms' size; above rounding, the theorem failed."""

    @property
    def num_steps(self) -> int:
        """The number T of steps."""
        return int(self.steps[-1])

    @property
    def gamma(self) -> float:
        """The ratio γ = β₁/√β₂ that the corollaries need below 1."""
        if self.beta1 == 0:
            return 0.0
        return self.beta1 / math.sqrt(self.beta2) if self.beta2 > 0 else math.inf

    def get(self, name: str) -> Array:
        """A curve.

        Raises:
            ValueError: when it was not recorded, saying what to record it with.
        """
        self.need("Trajectory.get", name)
        return self.curves[name]

    def need(self, user: str, *names: str) -> None:
        """Raise a ``ValueError`` that names those of some curves that are missing, on behalf of ``user``."""
        missing = [name for name in names if name not in self.curves]
        if missing:
            raise ValueError(
                f"`{user}` needs the curves {', '.join(missing)}, which this trajectory does not have; it has "
                f"{', '.join(self.curves) or 'none'}. `record(problem=...)` keeps all of them."
            )


def average(trajectories: Sequence[Trajectory]) -> Trajectory:
    """The mean over seeds: an estimate of the expectation, curve by curve.

    Bounds are linear in the curves that depend on chance, or convex in them, so that the bound on the mean is at most
    the mean of the bounds.

    Raises:
        ValueError: when the runs are not of one kind: steps, moments, weighting, α, β.
    """
    if not trajectories:
        raise ValueError("`average(trajectories=...)` must hold at least one trajectory, got none.")
    first = trajectories[0]
    for name in ("moments", "weighting", "alpha", "beta1", "beta2", "dimension", "diameter"):
        values = {getattr(trajectory, name) for trajectory in trajectories}
        if len(values) > 1:
            raise ValueError(f"`average(trajectories=...)` must agree in {name}, got {sorted(map(str, values))}.")
    if any(not np.array_equal(trajectory.steps, first.steps) for trajectory in trajectories):
        raise ValueError("`average(trajectories=...)` must be recorded at the same steps.")
    names = [name for name in first.curves if all(name in trajectory.curves for trajectory in trajectories)]
    return replace(
        first,
        curves={name: np.mean([trajectory.curves[name] for trajectory in trajectories], axis=0) for name in names},
        expected=all(trajectory.expected for trajectory in trajectories),
        uniform=all(trajectory.uniform for trajectory in trajectories),
        inverse_sqrt=all(trajectory.inverse_sqrt for trajectory in trajectories),
        constant_beta1=all(trajectory.constant_beta1 for trajectory in trajectories),
        rising_beta1=any(trajectory.rising_beta1 for trajectory in trajectories),
        own_diameter=max(trajectory.own_diameter for trajectory in trajectories),
        largest_violation=max(trajectory.largest_violation for trajectory in trajectories),
    )
