"""Adaptive draws keep probabilities calibrated where oversampling and class weights lose it.

20 fixed seeds, so the outcome is the same every time. How often the test would err with seeds of its own: "on every
seed" has the chance 2⁻²⁰ < 10⁻⁶ for a method that is no better than the other, each seed then being the toss of a coin;
bounds on means lie at least 5 standard errors from what is expected, so a method that is as it should be fails with a
chance below 10⁻⁶ each.
"""

import importlib.util
from pathlib import Path

import numpy as np

NUM_SEEDS = 20
EXAMPLE = Path(__file__).parents[1] / "examples" / "rare_events.py"


def measure():
    """By method: ratio of mean prediction and base rate, and Brier score on new data, ``[seeds]`` each."""
    spec = importlib.util.spec_from_file_location("rare_events", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [module.main(num_examples=4_000, num_passes=8, seed=seed) for seed in range(NUM_SEEDS)]
    return {method: np.array([result[method] for result in found]).T for method in module.METHODS}


def five_errors(values):
    """Five standard errors of a mean over seeds."""
    return 5 * values.std(ddof=1) / np.sqrt(len(values))


def test_weighted_adaptive_draws_alone_keep_calibration():  # one test: the runs take half a minute
    results = measure()
    (uniform_ratios, uniform_brier), (ratios, brier) = results["uniform"], results["adaptive"]

    # The base rate, up to what optimisation has left to do, and no other than with uniform draws.
    assert abs(ratios.mean() - 1) + five_errors(ratios) < 0.25
    assert abs((ratios - uniform_ratios).mean()) < five_errors(ratios - uniform_ratios)
    assert (brier - uniform_brier).mean() + five_errors(brier - uniform_brier) < 0.05 * uniform_brier.mean()

    for method in ("oversampled", "class weights"):
        assert (results[method][0] > 10 * ratios).all()
        assert (results[method][1] > 5 * brier).all()

    # It is the weights that keep it.
    unweighted_ratios, unweighted_brier = results["adaptive, unweighted"]
    assert (unweighted_ratios > 1.25 * ratios).all()
    assert (unweighted_brier - brier).mean() > five_errors(unweighted_brier - brier)
