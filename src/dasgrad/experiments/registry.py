"""Which experiments there are: what each trains, on which grid, and the settings it runs with by default."""

from collections.abc import Callable
from dataclasses import dataclass

from dasgrad.experiments.curves import METHODS, Problem

TUNING_SEED_OFFSET = 10_000
"""Tuning seeds start here, so that no reported seed was used to choose a learning rate."""


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

    def __post_init__(self) -> None:
        _require("num_seeds", self.num_seeds, 2, TUNING_SEED_OFFSET)  # an interval needs two
        for name in ("num_steps", "batch_size", "refresh"):
            _require(name, getattr(self, name), 1, None)


@dataclass(frozen=True)
class Experiment:
    """One figure: a problem, the methods compared on it, and how their learning rates are tuned."""

    name: str
    title: str
    build: Callable[[], Problem]
    methods: tuple[str, ...]
    """Names in `curves.METHODS`."""
    comparisons: tuple[tuple[str, str], ...]
    """Pairs (method, baseline) whose paired difference is reported; best those that differ in one thing alone."""
    reference: str
    """The baseline whose final training loss is the mark to reach."""
    weight_decay: float
    """κ of the L2 term κ/2·‖θ‖²: part of the objective, and so of the training loss that is reported."""
    learning_rates: tuple[float, ...]
    """The grid, common to all methods."""
    num_tuning_seeds: int
    defaults: Settings

    def __post_init__(self) -> None:
        named = (*self.methods, self.reference, *(name for pair in self.comparisons for name in pair))
        unknown = [name for name in named if name not in METHODS]
        if unknown:
            raise ValueError(f"`Experiment(methods=...)` must be among {', '.join(METHODS)}, got {unknown[0]!r}.")

    @property
    def tuning_seeds(self) -> range:
        """Seeds used to choose learning rates, and for nothing else."""
        return range(TUNING_SEED_OFFSET, TUNING_SEED_OFFSET + self.num_tuning_seeds)


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
