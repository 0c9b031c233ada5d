"""Regret against its bounds: SGD, ap-SGD, AdaGrad, AMSGrad and DASGrad as the theorems assume them, batches of one.

A record's training loss is R(t)/t, the regret per step, and its test loss the excess f(θ) − f(θ*) of the moment. Terms
and bounds are columns of their own; terms are expectations over the next draw, so the theorem can be checked at every
step and not only in the mean over seeds. Steps are on the clock together with all that is measured of them.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dasgrad import theory
from dasgrad.experiments.batches import describe_draws
from dasgrad.experiments.convex import CASES, ConvexProblem, build_problem, describe_case
from dasgrad.experiments.curves import CancelledError, Curves
from dasgrad.experiments.draws import DrawRecorder
from dasgrad.experiments.methods import METHODS
from dasgrad.experiments.problems import Problem
from dasgrad.experiments.records import COLUMNS, DRAW_COLUMNS, RunConfig
from dasgrad.experiments.registry import Experiment, Settings, register
from dasgrad.theory.bounds import Form
from dasgrad.theory.terms import NAMES

TERM_COLUMNS = tuple(f"{name}_term" for name in NAMES)
METHOD_NAMES = tuple(name for name, method in METHODS.items() if method.scheme is not None)


def trace(
    problem: Problem,
    config: RunConfig,
    cancelled: Callable[[], bool] = lambda: False,
    draws: DrawRecorder | None = None,
) -> Curves:
    """As `curves.trace`, for a `ConvexProblem`: curves of regret, its terms and its bounds.

    Raises:
        CancelledError: when ``cancelled()`` says so.
    """
    convex = cast(ConvexProblem, problem)
    finite_sum, start, scheme = convex.finite_sum, convex.start, METHODS[config.method].scheme
    assert finite_sum is not None
    assert start is not None
    assert scheme is not None
    beta1, beta2 = config.options["betas"]
    scheme = replace(scheme, alpha=config.lr, beta1=beta1, beta2=beta2)
    walk = theory.Walk(finite_sum, scheme, start, config.seed)
    points = [*range(0, config.num_steps, config.evaluation_interval), config.num_steps]
    rows: list[dict[str, float]] = []
    started = time.perf_counter()
    with theory.record(walk.optimizer, walk.sampler, problem=finite_sum, max_points=config.num_steps + 2) as recorder:
        for step in points:
            while recorder.num_steps < step:
                walk.take_steps(1)
                if draws is not None:
                    draws.count(walk.drawn)
            if step and cancelled():
                raise CancelledError(f"cancelled at step {step} of {config.num_steps}")
            rows.append(
                {
                    "step": step,
                    "test_loss": float(finite_sum.excess(walk.theta.detach())),
                    "train_accuracy": math.nan,
                    "test_accuracy": math.nan,
                    "seconds": time.perf_counter() - started,
                    "scoring_seconds": 0.0,
                    "gradient_evaluations": step,
                    "scored_examples": step * finite_sum.num_examples if scheme.adaptive else 0,
                    **(describe_draws(walk.sampler, 1.0) if scheme.adaptive else {}),
                }
            )
            if draws is not None:
                draws.observe(step, walk.sampler.probabilities, walk.sampler.weights)
    trajectory = recorder.trajectory()
    own = _theory_columns(trajectory, np.array(points))
    own["train_loss"] = own["regret"] / np.maximum(points, 1)
    own["train_loss"][0] = rows[0]["test_loss"]
    named = [*COLUMNS, *(DRAW_COLUMNS if scheme.adaptive else ())]
    measured = {name: np.array([row[name] for row in rows], np.float64) for name in named if name != "train_loss"}
    both = {**measured, **own}
    return {name: both[name] for name in (*named, *(name for name in own if name not in named))}


def _theory_columns(trajectory: theory.Trajectory, steps: NDArray[np.int64]) -> Curves:
    """Regret, terms and bounds after so many steps; all are 0 before the first."""
    curves = {name: trajectory.get(name) for name in ("regret", "linear_regret")}
    curves |= {column: trajectory.get(name) for column, name in zip(TERM_COLUMNS, NAMES, strict=True)}
    curves["metric_trace"] = trajectory.get("metric_trace")
    forms: tuple[Form, ...] = ("derived", "printed")
    for form in forms:
        try:
            bound = theory.bound_of(trajectory, form)
        except ValueError:  # Adam has none, AdaGrad none in print
            continue
        curves[f"{form}_bound"] = bound.value
        if form == "derived":
            curves |= {f"{name}_bound": values for name, values in bound.terms.items()}
            curves["vacuous"] = np.full_like(bound.value, bound.vacuous)
    found = {name: np.concatenate([[0.0], values])[steps] for name, values in curves.items()}
    found["violation"] = np.full(len(steps), trajectory.largest_violation)
    return found


THEORY = register(
    Experiment(
        name="theory",
        title="Regret, per step as the loss",
        build=functools.cache(build_problem),
        methods=METHOD_NAMES,
        comparisons=(
            ("ap-sgd-theory", "sgd-theory"),
            ("dasgrad-theory", "amsgrad-theory"),
            ("dasgrad-paper-theory", "amsgrad-theory"),
            ("dasgrad-constant-theory", "amsgrad-theory"),
        ),
        reference="amsgrad-theory",
        weight_decay=0.0,
        learning_rates=(0.05, 0.15, 0.5, 1.5, 5.0),
        num_tuning_seeds=2,
        defaults=Settings(num_seeds=6, num_steps=1000, batch_size=1, refresh=1),
        cases=CASES,
        describe_case=describe_case,
        num_full_seeds=50,
        trace=trace,
    )
)
