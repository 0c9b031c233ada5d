"""The paper's theory, executable: regret, the terms of Theorems 1 to 4, and the bounds of their corollaries.

`FiniteSum` is a problem and `Scheme` a method. `follow` makes a seeded run by the library's own optimizer and sampler,
`enumerate_draws` all runs there are, `record` watches any run; each gives a `Trajectory`. Bounds are functions of one.

The statements, with proofs where the paper's had to be repaired, are in docs/theory.md; what is wrong in print is in
docs/errata.md.
"""

from dasgrad.theory.bounds import (
    Bound,
    adagrad_bound,
    bound_of,
    corollary_1_1,
    corollary_2_1,
    corollary_3_1,
    corollary_4_1,
)
from dasgrad.theory.enumeration import enumerate_draws
from dasgrad.theory.following import Walk, follow
from dasgrad.theory.lemmas import (
    excess_second_moment,
    optimal_probabilities,
    projection_slack,
    score_variance,
    second_moment,
)
from dasgrad.theory.problem import FiniteSum
from dasgrad.theory.recording import Recorder, record
from dasgrad.theory.regret import Estimate, estimate, expected_regret, fit_exponent, t_quantile
from dasgrad.theory.schemes import Scheme
from dasgrad.theory.sets import find_diameter
from dasgrad.theory.terms import Terms, evaluate_terms
from dasgrad.theory.trajectory import CURVES, Trajectory, average

__all__ = [
    "CURVES",
    "Bound",
    "Estimate",
    "FiniteSum",
    "Recorder",
    "Scheme",
    "Terms",
    "Trajectory",
    "Walk",
    "adagrad_bound",
    "average",
    "bound_of",
    "corollary_1_1",
    "corollary_2_1",
    "corollary_3_1",
    "corollary_4_1",
    "enumerate_draws",
    "estimate",
    "evaluate_terms",
    "excess_second_moment",
    "expected_regret",
    "find_diameter",
    "fit_exponent",
    "follow",
    "optimal_probabilities",
    "projection_slack",
    "record",
    "score_variance",
    "second_moment",
    "t_quantile",
]
