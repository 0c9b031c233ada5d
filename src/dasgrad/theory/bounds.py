"""Corollaries 1.1, 2.1, 3.1 and 4.1 as printed and as derived, and Duchi et al.'s bound for AdaGrad.

``"printed"`` is what the paper's page says, slips included; ``"derived"`` is what its proofs give once they are
repaired (docs/theory.md has them, docs/errata.md the differences). A bound is on the *expected* regret: give it
`enumerate_draws` or the `average` over seeds, and expect nothing of a single seed.

Where eps > 0, H = √v̂ + eps takes the place of √v̂ throughout. G is the largest gradient that was met, which is all
that the proofs use.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dasgrad.theory.trajectory import Trajectory

Array = NDArray[np.float64]
Form = Literal["derived", "printed"]
OWN_DIAMETER = "D is the trajectory's own diameter, for the set has none that is known: an illustration, not a proof."
VACUOUS = "β₁ is constant: the last term grows like T^(3/2), so the bound is vacuous and promises nothing."


@dataclass(frozen=True, eq=False)
class Bound:
    """A bound on the expected regret at every recorded step."""

    statement: str
    form: Form
    terms: Mapping[str, Array]
    """``[P]`` each, with their signs: they sum to `value`. A product that was printed is one term."""
    remarks: tuple[str, ...]
    """What to know before believing it."""
    vacuous: bool
    """Whether it grows faster than T by its own form."""

    @property
    def value(self) -> Array:
        """The bound, ``[P]``."""
        total: Array = np.sum(list(self.terms.values()), axis=0)
        return total


def corollary_1_1(trajectory: Trajectory, form: Form = "derived", diameter: float | None = None) -> Bound:
    """SGD: α d G²(√T − ½) + d D²√T/(2α); printed for α = 1.

    Args:
        trajectory: of moments ``"sgd"``, drawn from π, with α/√t.
        form: ``"derived"`` or ``"printed"``.
        diameter: D, instead of the set's.

    Raises:
        ValueError: when the bound does not apply, saying why; when the trajectory lacks curves, naming them. So for
            all bounds.
    """
    D, remarks = _check("corollary_1_1", trajectory, form, diameter, "sgd", True, ("gradient_bound", "metric_trace"))
    return Bound("Corollary 1.1", form, _sgd_terms(trajectory, form, D), remarks, False)


def corollary_2_1(trajectory: Trajectory, form: Form = "derived", diameter: float | None = None) -> Bound:
    """ap-SGD: α d G²(√T − ½) − Σ (α_t/2) Var‖g‖ + d D²√T/(2α).

    The printed form lacks α and the factor α_t/2 of the variance. Away from the optimal p the derived form subtracts
    what p saves, E_π‖g‖² − E_p[w²‖g‖²], which is Var‖g‖ at the optimum and may be negative elsewhere.
    """
    saved = "variance" if form == "printed" else "reduction"
    needed = ("gradient_bound", "metric_trace", saved)
    D, remarks = _check("corollary_2_1", trajectory, form, diameter, "sgd", False, needed)
    terms = {**_sgd_terms(trajectory, form, D), "variance": -trajectory.curves[saved]}
    return Bound("Corollary 2.1", form, terms, remarks, False)


def corollary_3_1(trajectory: Trajectory, form: Form = "derived", diameter: float | None = None) -> Bound:
    """AMSGrad: D²√T tr H_T/(2α(1−β₁)) + an error of order √(1 + log T) Σ_h‖g_{1:T,h}‖ + two terms of β₁ₜ.

    As printed the first two are multiplied, a plus being lost, and E‖v̂_T^(1/4)‖² stands alone.
    """
    D, remarks = _check("corollary_3_1", trajectory, form, diameter, "amsgrad", True, _moment_curves(form))
    if form == "derived":
        return _finish("Corollary 3.1", trajectory, form, _moment_terms(trajectory, D), remarks)
    terms = _printed_moment_terms(trajectory, D)
    trace = trajectory.curves["metric_trace"]
    product = {"potential × error": terms.pop("potential") / trace * terms.pop("error"), "metric": trace}
    terms = {**product, **terms}
    return _finish("Corollary 3.1", trajectory, form, terms, remarks)


def corollary_4_1(trajectory: Trajectory, form: Form = "derived", diameter: float | None = None) -> Bound:
    """DASGrad: Corollary 3.1 less what sampling saves in the error, Σ α_t/(2(1−β₁ₜ)) Var‖V̂^(−1/4) m‖.

    With weighting ``"gradient"`` nothing is subtracted: the metric contains the weights, Lemma 2 does not apply, and
    the error's bound is that of uniform draws. What sampling buys there shows in tr H_T alone.
    """
    update = trajectory.weighting == "update"
    saved = "printed_variance" if form == "printed" else "reduction" if update else None
    needed = (*_moment_curves(form), *(() if saved is None else (saved,)))
    D, remarks = _check("corollary_4_1", trajectory, form, diameter, "amsgrad", False, needed)
    terms = _printed_moment_terms(trajectory, D) if form == "printed" else _moment_terms(trajectory, D)
    if saved is not None:
        terms["variance"] = -trajectory.curves[saved]
    return _finish("Corollary 4.1", trajectory, form, terms, remarks)


def adagrad_bound(trajectory: Trajectory, form: Form = "derived", diameter: float | None = None) -> Bound:
    """AdaGrad by Duchi, Hazan and Singer (2011), Theorem 5: (D²/(2α) + α) Σ_h ‖g_{1:T,h}‖₂.

    The paper has no bound for AdaGrad. Σ_h ‖g_{1:T,h}‖₂ is √T tr H_T here, for ψ is the mean square.
    """
    if form == "printed":
        raise ValueError("`adagrad_bound(form=...)` must be 'derived', got 'printed': the paper prints none.")
    D, remarks = _check("adagrad_bound", trajectory, form, diameter, "adagrad", False, ("metric_trace",))
    norms = np.sqrt(trajectory.steps) * trajectory.curves["metric_trace"]
    terms = {"potential": D**2 / (2 * trajectory.alpha) * norms, "error": trajectory.alpha * norms}
    return Bound("Duchi et al., Theorem 5", form, terms, remarks, False)


def bound_of(trajectory: Trajectory, form: Form = "derived", diameter: float | None = None) -> Bound:
    """The bound for the method a trajectory is of.

    Raises:
        ValueError: where there is none: Adam and RMSProp have no sub-linear bound, for V̂ may fall.
    """
    if trajectory.moments == "sgd":
        return (corollary_1_1 if trajectory.uniform else corollary_2_1)(trajectory, form, diameter)
    if trajectory.moments == "amsgrad":
        return (corollary_3_1 if trajectory.uniform else corollary_4_1)(trajectory, form, diameter)
    if trajectory.moments == "adagrad":
        return adagrad_bound(trajectory, form, diameter)
    raise ValueError(
        f"`bound_of(trajectory=...)` must have moments sgd, adagrad or amsgrad, got {trajectory.moments!r}: their H "
        "never falls, which the bounds rest on."
    )


def _finish(
    statement: str, trajectory: Trajectory, form: Form, terms: dict[str, Array], remarks: tuple[str, ...]
) -> Bound:
    vacuous = form == "derived" and trajectory.constant_beta1 and trajectory.beta1 > 0
    return Bound(statement, form, terms, (*remarks, *((VACUOUS,) if vacuous else ())), vacuous)


def _sgd_terms(trajectory: Trajectory, form: Form, D: float) -> dict[str, Array]:
    d, root, G = trajectory.dimension, np.sqrt(trajectory.steps), trajectory.curves["gradient_bound"]
    # H = 1 + eps, which only rescales α.
    alpha = 1.0 if form == "printed" else trajectory.alpha * d / trajectory.curves["metric_trace"]
    return {"potential": d * D**2 / (2 * alpha) * root, "error": alpha * d * G**2 * (root - 0.5)}


def _moment_curves(form: Form) -> tuple[str, ...]:
    if form == "printed":
        return ("metric_trace", "printed_gradient_norms", "gradient_bound", "printed_momentum_metric")
    return ("metric_trace", "gradient_norms", "moment_gradient_bound", "beta1_sum", "momentum_metric")


def _moment_terms(trajectory: Trajectory, D: float) -> dict[str, Array]:
    """As derived."""
    curves, steps, alpha, rest = trajectory.curves, trajectory.steps, trajectory.alpha, 1 - trajectory.beta1
    k = alpha / (2 * rest**2 * math.sqrt(1 - trajectory.beta2) * (1 - trajectory.gamma))
    return {
        "potential": D**2 * np.sqrt(steps) / (2 * alpha * rest) * curves["metric_trace"],
        "error": k * np.sqrt(1 + np.log(steps)) * curves["gradient_norms"],
        "momentum": k * curves["moment_gradient_bound"] * trajectory.dimension * curves["beta1_sum"],
        "distance": D**2 / (2 * alpha * rest) * curves["momentum_metric"],
    }


def _printed_moment_terms(trajectory: Trajectory, D: float) -> dict[str, Array]:
    """As printed: β₁^(T−t) for β₁ₜ, and a constant with α cancelled and a cube."""
    curves, steps, alpha, rest = trajectory.curves, trajectory.steps, trajectory.alpha, 1 - trajectory.beta1
    k = alpha / (2 * rest**2 * math.sqrt(1 - trajectory.beta2) * (1 - trajectory.gamma))
    return {
        "potential": D**2 * np.sqrt(steps) / (2 * alpha * rest) * curves["metric_trace"],
        "error": k * np.sqrt(1 + np.log(steps)) * curves["printed_gradient_norms"],
        "momentum": k / (alpha * rest) * curves["gradient_bound"] * trajectory.dimension,
        "distance": D**2 / (2 * alpha * rest) * curves["printed_momentum_metric"],
    }


def _check(
    user: str,
    trajectory: Trajectory,
    form: Form,
    diameter: float | None,
    moments: str,
    uniform: bool,
    needed: tuple[str, ...],
) -> tuple[float, tuple[str, ...]]:
    """D, and remarks; raises where the bound does not apply."""
    if form not in ("derived", "printed"):
        raise ValueError(f"`{user}(form=...)` must be 'derived' or 'printed', got {form!r}.")
    if trajectory.moments != moments:
        raise ValueError(f"`{user}(trajectory=...)` must have moments {moments!r}, got {trajectory.moments!r}.")
    if uniform and not trajectory.uniform:
        raise ValueError(
            f"`{user}(trajectory=...)` must be drawn from the target, all weights 1: use Corollary 2.1 or 4.1."
        )
    if not trajectory.inverse_sqrt:
        raise ValueError(f"`{user}(trajectory=...)` must have step sizes α/√t, as `InverseSqrtLR` gives.")
    if moments == "amsgrad" and not trajectory.gamma < 1:
        raise ValueError(
            f"`{user}(trajectory=...)` must have γ = β₁/√β₂ in [0, 1), got {trajectory.gamma:.4g}: the error's "
            "geometric series does not converge, and the bound does not apply."
        )
    if trajectory.rising_beta1:
        raise ValueError(f"`{user}(trajectory=...)` must have β₁ that never rises: the potential does not telescope.")
    trajectory.need(user, *needed)
    if diameter is not None:
        if not 0 < diameter < math.inf:
            raise ValueError(f"`{user}(diameter=...)` must be positive and finite, got {diameter!r}.")
        return diameter, ()
    if trajectory.diameter is not None:
        return trajectory.diameter, ()
    if trajectory.why_no_diameter:
        raise ValueError(f"`{user}(trajectory=...)` does not apply. {trajectory.why_no_diameter}")
    return trajectory.own_diameter, (OWN_DIAMETER,)
