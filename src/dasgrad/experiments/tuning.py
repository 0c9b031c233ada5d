"""Learning rates: chosen on a grid by seeds of their own, and stored, so that a run need not choose them again.

The files in ``tuned`` are made by ``dasgrad run NAME --tune --store`` and hold, beside the rates, what they were chosen
with. They are read for other numbers of steps, too: a report says for which ones they were chosen.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dasgrad import atomic
from dasgrad.experiments.records import Record, current_versions
from dasgrad.experiments.registry import Experiment, Settings, find_experiment

FOLDER = Path(__file__).parent / "tuned"
Rates = dict[tuple[str, str], float]
"""By case and method."""


def choose_learning_rates(
    experiment: Experiment, records: Sequence[Record], wanted: Sequence[tuple[str, str]] | None = None
) -> Rates:
    """Learning rates of least mean final training loss; a run that diverged rules its rate out.

    Args:
        experiment: whose grids were tried.
        records: of all its tuning seeds and rates.
        wanted: cases and methods; None is all of them.

    Raises:
        ValueError: when every learning rate of a method diverged.
    """
    if wanted is None:
        wanted = [(case, method) for case in experiment.cases for method in experiment.methods]
    finals: dict[tuple[str, str, float], list[float]] = {}
    for record in records:
        config = record.config
        finals.setdefault((config.case, config.method, config.lr), []).append(record.final("train_loss"))
    best: Rates = {}
    for case, method in wanted:
        means = {}
        for lr in experiment.grid_of(method):
            own = finals[case, method, lr]
            mean = sum(own) / len(own)
            means[lr] = mean if math.isfinite(mean) else math.inf
        best[case, method] = min(means, key=lambda lr: means[lr])
        if math.isinf(means[best[case, method]]):
            raise ValueError(f"{method} diverged at every learning rate of {experiment.grid_of(method)}.")
    return best


def read_stored(experiment: Experiment) -> tuple[Rates, dict[str, Any]]:
    """The stored learning rates of an experiment, and what they were chosen with; empty where there are none.

    Raises:
        ValueError: when the file is not one of these, naming it.
    """
    path = FOLDER / f"{experiment.name}.json"
    if not path.exists():
        return {}, {}
    try:
        stored = json.loads(path.read_text(encoding="utf8"))
        rates = {
            (case, method): float(lr)
            for case, methods in stored["learning_rates"].items()
            for method, lr in methods.items()
        }
        return rates, dict(stored["chosen_with"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no learning rates ({error!r}); --tune --store makes it anew") from error


def write_stored(experiment: Experiment, settings: Settings, rates: Rates) -> Path:
    """Store learning rates for later runs, beside those of other methods that are stored already; returns the file."""
    known = read_stored(experiment)[0] | rates
    order = {name: k for k, name in enumerate(find_experiment(experiment.name).methods)}  # all, not those run
    by_case: dict[str, dict[str, float]] = {}
    for case, method in sorted(known, key=lambda key: (key[0], order.get(key[1], len(order)), key[1])):
        by_case.setdefault(case, {})[method] = known[case, method]
    content = {
        "experiment": experiment.name,
        "chosen_with": {
            "num_steps": settings.num_steps,
            "batch_size": settings.batch_size,
            "refresh": settings.refresh,
            "scores": settings.scores,
            "weight_decay": experiment.weight_decay,
            "num_tuning_seeds": experiment.num_tuning_seeds,
            **{name: current_versions()[name] for name in ("dasgrad", "torch")},
        },
        "learning_rates": by_case,
    }
    path = FOLDER / f"{experiment.name}.json"
    atomic.write(path, (json.dumps(content, indent=2) + "\n").encode())
    return path
