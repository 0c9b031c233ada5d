"""Which experiments there are: what each trains, on which grid, and the settings it runs with by default."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dasgrad.experiments.curves import Trace
from dasgrad.experiments.methods import METHODS, SCORES, Scores
from dasgrad.experiments.problems import Problem

TUNING_SEED_OFFSET = 10_000
"""Tuning seeds start here, so that no reported seed was used to choose a learning rate."""
NUM_QUICK_SEEDS = 3
QUICK_SHARE = 10
"""A quick run takes one step in so many."""


@dataclass(frozen=True)
class Settings:
    """What a user may change about an experiment."""

    num_seeds: int
    """Paired seeds that are reported, 0 to num_seeds − 1."""
    num_steps: int
    batch_size: int
    refresh: int
    """J: steps between two scorings of all examples."""
    device: str = "cpu"
    scores: Scores = "own"
    """The preconditioner of scores; ``"frozen"`` is cheaper on dense data."""

    def __post_init__(self) -> None:
        _require("num_seeds", self.num_seeds, 2, TUNING_SEED_OFFSET)  # an interval needs two
        for name in ("num_steps", "batch_size", "refresh"):
            _require(name, getattr(self, name), 1, None)
        if self.scores not in SCORES:
            raise ValueError(f"`Settings(scores=...)` must be {' or '.join(SCORES)}, got {self.scores!r}.")


@dataclass(frozen=True)
class Experiment:
    """One figure: a problem, the methods compared on it, and how their learning rates are tuned."""

    name: str
    title: str
    build: Callable[[str], Problem]
    """The problem of a case."""
    methods: tuple[str, ...]
    """Names in `methods.METHODS`."""
    comparisons: tuple[tuple[str, str], ...]
    """Pairs (method, baseline) whose paired difference is reported; best those that differ in one thing alone."""
    reference: str
    """The baseline whose final training loss is the mark to reach."""
    weight_decay: float
    """κ of the L2 term κ/2·‖θ‖²: part of the objective, and so of the training loss that is reported."""
    learning_rates: tuple[float, ...]
    """The grid, common to all methods that have none of their own."""
    num_tuning_seeds: int
    defaults: Settings
    grids: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Grids of methods whose learning rates are of another scale; independent draws take that of the same method."""
    cases: tuple[str, ...] = ("",)
    """Names of the problems, where there are several."""
    describe_case: Callable[[str], dict[str, Any]] = lambda case: {}
    """What a record's options say of a case."""
    num_full_seeds: int = 100
    """The paper's number of seeds."""
    num_points: int = 50
    """Points on a curve, about."""
    trace: Trace | None = None
    """How a run is made, where not by `curves.trace`; such an experiment runs on the CPU, with batch size and refresh
    as they are by default."""

    def __post_init__(self) -> None:
        named = (*self.methods, self.reference, *(name for pair in self.comparisons for name in pair))
        unknown = [name for name in named if name not in METHODS]
        if unknown:
            raise ValueError(f"`Experiment(methods=...)` must be among {', '.join(METHODS)}, got {unknown[0]!r}.")

    @property
    def tuning_seeds(self) -> range:
        """Seeds used to choose learning rates, and for nothing else."""
        return range(TUNING_SEED_OFFSET, TUNING_SEED_OFFSET + self.num_tuning_seeds)

    @property
    def quick(self) -> Settings:
        """Settings to see that all works: few seeds, few steps."""
        steps = max(20, self.defaults.num_steps // QUICK_SHARE)
        return replace(self.defaults, num_seeds=NUM_QUICK_SEEDS, num_steps=steps)

    @property
    def full(self) -> Settings:
        """The paper's number of seeds."""
        return replace(self.defaults, num_seeds=self.num_full_seeds)

    def grid_of(self, method: str) -> tuple[float, ...]:
        """The learning rates tried for a method."""
        return self.grids.get(method.removesuffix("-iid"), self.learning_rates)

    def restricted_to(self, methods: Sequence[str]) -> "Experiment":
        """The same experiment with some of its methods; comparisons of others are left out.

        Raises:
            ValueError: for a method the experiment does not have, listing those it has.
        """
        unknown = [name for name in methods if name not in self.methods]
        if unknown or not methods:
            got = repr(unknown[0]) if unknown else "none"
            raise ValueError(f"methods of {self.name} must be among {', '.join(self.methods)}, got {got}")
        kept = tuple(name for name in self.methods if name in methods)
        pairs = tuple(pair for pair in self.comparisons if set(pair) <= set(kept))
        reference = self.reference if self.reference in kept else kept[-1]
        return replace(self, methods=kept, comparisons=pairs, reference=reference)


EXPERIMENTS: dict[str, Experiment] = {}
"""All experiments by name; each module of an experiment puts its own here with `register`."""


def register(experiment: Experiment) -> Experiment:
    """Make an experiment known by its name.

    Raises:
        ValueError: when the name is taken.
    """
    if experiment.name in EXPERIMENTS:
        raise ValueError(f"`register(experiment=...)` must have a name of its own, got {experiment.name!r} again.")
    EXPERIMENTS[experiment.name] = experiment
    return experiment


def find_experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: for an unknown name, listing those there are.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; there is {', '.join(sorted(EXPERIMENTS))}")
    return EXPERIMENTS[name]


def _require(name: str, value: int, low: int, high: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        allowed = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"
        raise ValueError(f"`Settings({name}=...)` must be {allowed}, got {value!r}.")
