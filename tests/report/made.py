"""Records made up for tests of reports: losses that fall to a level of one's choice."""

from pathlib import Path
from typing import Any

import numpy as np

from dasgrad.experiments.draws import Draws, draws_name, write_draws
from dasgrad.experiments.records import Record, RunConfig, write_record

ADAPTIVE = ("dasgrad", "dasgrad-adam", "dasgrad-paper", "ap-sgd")


def make_record(method: str = "dasgrad", seed: int = 0, level: float = 0.5, **changes: Any) -> Record:
    """A run whose training loss falls from 2 to about ``level``; the seed moves all methods alike."""
    adaptive = method.startswith(ADAPTIVE)
    columns = changes.pop("columns", {})
    num_steps, points = changes.get("num_steps", 100), changes.pop("points", 11)
    config = {
        "experiment": "digits",
        "method": method,
        "lr": 0.1,
        "seed": seed,
        "num_steps": num_steps,
        "batch_size": 32,
        "refresh": 10 if adaptive else None,
        "evaluation_interval": max(1, num_steps // (points - 1)),
        "device": "cpu",
        "options": {"weight_decay": 1e-4, "betas": [0.9, 0.99]},
        **changes,
    }
    time = np.linspace(0.0, 1.0, points)
    common = np.random.default_rng(seed).normal(0.0, 0.02)
    loss = level + (2.0 - level) * np.exp(-6.0 * time) + common
    curves = {
        "step": time * num_steps,
        "train_loss": loss,
        "train_accuracy": 1.0 - loss / 4.0,
        "test_loss": loss * 1.1,
        "test_accuracy": 1.0 - loss / 3.0,
        "seconds": time * (3.0 if adaptive else 1.0),
        "scoring_seconds": time * (2.0 if adaptive else 0.0),
        "gradient_evaluations": time * num_steps * 32,
        "scored_examples": time * (5000.0 if adaptive else 0.0),
        **{name: np.asarray(values, dtype=np.float64) for name, values in columns.items()},
    }
    versions = {"dasgrad": "0.1.0", "torch": "2.0", "python": "3.12"}
    return Record(RunConfig(**config), curves, versions, {"cpu": "a processor", "cores": 2, "system": "a system"})


def put(folder: Path, record: Record) -> Path:
    """Write a record where a run would."""
    safe = record.config.file_name.replace("/", "_")
    path = folder / record.config.experiment.replace("/", "_").lstrip(".") / safe
    write_record(path, record)
    return path


def put_digits(folder: Path, num_seeds: int = 4, **levels: float) -> None:
    """Runs of several methods; names with a dash are given with an underscore."""
    for method, level in (levels or {"dasgrad": 0.4, "amsgrad": 0.5, "adam": 0.6}).items():
        for seed in range(num_seeds):
            put(folder, make_record(method.replace("_", "-"), seed, level))


def make_draws(*, pictures: bool = True) -> Draws:
    """Draws of 100 examples, 6 of them kept, at 3 evaluations."""
    ratios = np.array([[1.0] * 6, [3, 2, 1, 0.5, 0.3, 0.2], [5, 3, 1, 0.4, 0.2, 0.1]])
    return Draws(
        steps=np.array([10.0, 50.0, 100.0]),
        num_examples=100,
        levels=np.array([0.0, 0.25, 0.5, 0.75, 1.0]),
        quantiles=np.array([[1.0] * 5, [0.2, 0.4, 0.8, 1.2, 3.0], [0.1, 0.4, 0.7, 1.2, 5.0]]),
        indices=np.array([7, 3, 50, 99, 0, 42]),
        ratios=ratios,
        weights=1.0 / ratios,
        counts=np.cumsum(np.ones((3, 6), dtype=np.int64), axis=0),
        labels=np.array([0, 1, 2, 3, 4, 5]),
        pictures=np.arange(6 * 64, dtype=np.int64).reshape(6, 8, 8).astype(np.uint8) if pictures else None,
    )


def put_draws(record_path: Path, draws: Draws) -> Path:
    """Write draws beside a record."""
    path = record_path.with_name(draws_name(record_path.name))
    write_draws(path, draws)
    return path
