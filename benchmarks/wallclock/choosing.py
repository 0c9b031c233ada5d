"""Runs on tuning seeds → the configuration that a method is to be reported with."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from benchmarks.wallclock.crossing import first_crossings, values_at
from benchmarks.wallclock.training import RunConfig

TUNED_BY = {"train_loss": "train_loss", "test_loss": "validation_loss"}
"""The column that tuning goes by, for the loss that is to be reached: reported examples choose nothing."""
NUM_KEPT = 3
"""Configurations of each batch size that are tuned on further seeds: after the first the best third, then these."""
Run: TypeAlias = Mapping[str, Any]
Tried: TypeAlias = Mapping[RunConfig, Sequence[Run]]
"""By configuration without seed, a run for each seed."""


@dataclass(frozen=True)
class Standard:
    """The accuracy that a configuration must keep to be chosen for other draws than uniform ones.

    A training loss that comes sooner by over-fitting sooner is no gain. Who takes the configuration of uniform draws
    changes the draws alone, and may always do so.
    """

    accuracy: float
    """Of uniform draws when their budget is over, on the examples for validation."""
    moment: float
    """When that is, in seconds."""
    configs: Sequence[RunConfig]
    """Of uniform draws, chosen for them."""

    def is_uniforms(self, config: RunConfig) -> bool:
        """Whether it is one of uniform draws' but for the draws."""
        return any(
            (config.optimizer, config.lr, config.batch_size) == (one.optimizer, one.lr, one.batch_size)
            for one in self.configs
        )

    def keeps(self, config: RunConfig, runs: Sequence[Run], *, log: bool = False) -> bool:
        """Whether a configuration with these runs may be chosen."""
        accuracy = mean_of(runs, "validation_accuracy", self.moment, log=log)
        return self.is_uniforms(config) or self.accuracy <= accuracy < math.inf


def time_to(runs: Sequence[Run], target: float, column: str, *, log: bool = False) -> float:
    """Where the mean curve over runs first crosses the target, by the seconds or their logarithm.

    A training loss must do so for good, with the mean of what is left of its curve at the target, too: of few seeds one
    may dip for a moment. A held-out loss rises again where a model over-fits.
    """
    seconds, losses = (np.array([run["curves"][name] for run in runs]).mean(0) for name in ("seconds", column))
    if column == "train_loss":
        losses = np.maximum(losses, losses[::-1].cumsum()[::-1] / np.arange(len(losses), 0, -1))
    positions = np.log(seconds) if log else seconds
    found = float(first_crossings(positions[None], losses[None], np.array([target]))[0])
    return math.exp(found) if log else found


def mean_of(runs: Sequence[Run], column: str, moment: float | None, *, log: bool = False) -> float:
    """Mean of a column over runs after so many seconds, or at their ends; infinite where one is no number."""
    values = np.array([run["curves"][column] for run in runs])
    if moment is None:
        value = float(values[:, -1].mean())
    else:
        seconds = np.array([run["curves"]["seconds"] for run in runs])
        value = float(values_at(seconds, values, moment, log=log).mean())
    return value if np.isfinite(value) else math.inf


def best_of_each_size(runs: Tried, share: float, column: str, standard: Standard | None) -> dict[RunConfig, Any]:
    """That share of the configurations of every batch size, and `NUM_KEPT` at least, by their loss at the end.

    Uniform draws' own are kept as well, and once several seeds tell who keeps the standard these come first.
    """

    def rank(config: RunConfig) -> tuple[bool, float]:
        found = runs[config]
        short = standard is not None and len(found) > 1 and not standard.keeps(config, found)
        return short, mean_of(found, column, None)

    kept = {}
    for _, group in itertools.groupby(sorted(runs, key=lambda c: c.batch_size), key=lambda c: c.batch_size):
        configs = sorted(group, key=rank)
        number = max(NUM_KEPT, math.ceil(share * len(configs)))
        own = [config for config in configs[number:] if standard is not None and standard.is_uniforms(config)]
        for config in configs[:number] + own:
            kept[config] = runs[config]
    return kept


def choose_config(
    runs: Tried,
    column: str,
    moment: float,
    *,
    target: float | None = None,
    standard: Standard | None = None,
    log: bool = False,
) -> RunConfig:
    """The one that is first at the target among those that keep the standard; without a target, that of least loss.

    So it is among those that are there with the smallest budget tried, which is all that is known of them.
    """

    def rank(config: RunConfig) -> tuple[bool, float, float]:
        found = runs[config]
        short = standard is not None and not standard.keeps(config, found, log=log)
        time = 0.0 if target is None else time_to(found, target, column, log=log)
        least = np.mean([run["curves"]["seconds"][0] for run in found])
        return short, time if time > least else 0.0, mean_of(found, column, moment, log=log)

    return min(runs, key=rank)
