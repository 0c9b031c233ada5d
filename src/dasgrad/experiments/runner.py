"""Run an experiment: tune every method on one grid, then run the paired seeds, in parallel, keeping each record.

A run that has its record is not repeated, so an interrupted experiment goes on where it stopped. Learning rates
are chosen on seeds of their own, by mean final training loss.
"""

import functools
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from dasgrad.experiments.curves import METHODS, Problem, evaluation_interval, resolve_options, trace
from dasgrad.experiments.draws import DrawRecorder, draws_name, write_draws
from dasgrad.experiments.records import (
    Record,
    RecordError,
    RunConfig,
    current_versions,
    describe_machine,
    read_record,
    write_record,
)
from dasgrad.experiments.registry import Experiment, Settings, find_experiment


@dataclass(frozen=True, eq=False)
class Outcome:
    """Everything a report needs; all of it stands in the records, too."""

    experiment: Experiment
    settings: Settings
    learning_rates: dict[str, float]
    """The tuned learning rate of each method."""
    records: dict[str, list[Record]]
    """The reported runs of each method, by seed."""
    num_resumed: int
    """How many runs were there already."""

    @property
    def at_grid_edge(self) -> list[str]:
        """Methods whose best learning rate is the smallest or largest tried: a wider grid might do better."""
        edges = (min(self.experiment.learning_rates), max(self.experiment.learning_rates))
        return [method for method, lr in self.learning_rates.items() if lr in edges]


class Interrupted(Exception):  # noqa: N818 (not an error: the user asked for it)
    """The user pressed Ctrl-C; finished runs are kept."""

    def __init__(self, num_kept: int, num_runs: int) -> None:
        super().__init__(f"interrupted after {num_kept} of {num_runs} runs")
        self.num_kept = num_kept
        self.num_runs = num_runs


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_experiment(
    experiment: Experiment, settings: Settings, folder: Path, *, num_processes: int | None = None, quiet: bool = False
) -> Outcome:
    """Tune, run and record.

    Args:
        experiment: what to run.
        settings: how.
        folder: records are read from here and written to here.
        num_processes: runs at a time, each on one thread; None is one per core.
        quiet: no progress bar. Messages about unusable records are always printed.

    Raises:
        ValueError: for settings the experiment's data do not allow.
        Interrupted: on Ctrl-C; what was finished is kept.
    """
    check_settings(experiment, settings)
    num_processes = available_cores() if num_processes is None else num_processes
    if num_processes < 1:
        raise ValueError(f"`run_experiment(num_processes=...)` must be at least 1, got {num_processes!r}.")
    tuning = [
        make_config(experiment, settings, method, lr, seed)
        for seed in experiment.tuning_seeds
        for lr in experiment.learning_rates
        for method in experiment.methods
    ]
    num_runs = len(tuning) + len(experiment.methods) * settings.num_seeds
    with (
        tqdm(total=num_runs, desc=experiment.name, unit="run", smoothing=0, disable=quiet, dynamic_ncols=True) as bar,
        _workers(num_processes) as perform_all,
    ):
        session = _Session(folder, bar, perform_all)
        try:
            best = choose_learning_rates(experiment, session.complete(tuning))
            # Seed by seed, so that a busy spell of the machine falls on all methods alike.
            reported = session.complete(
                [
                    make_config(experiment, settings, method, best[method], seed)
                    for seed in range(settings.num_seeds)
                    for method in experiment.methods
                ]
            )
        except KeyboardInterrupt:
            raise Interrupted(session.num_done, num_runs) from None
    records = {method: [r for r in reported if r.config.method == method] for method in experiment.methods}
    return Outcome(experiment, settings, best, records, session.num_resumed)


def check_settings(experiment: Experiment, settings: Settings) -> None:
    """Refuse a batch larger than the training set.

    Raises:
        ValueError: naming the setting, the range and the value.
    """
    num_examples = len(experiment.build().data.train[1])
    if settings.batch_size > num_examples:
        raise ValueError(
            f"`Settings(batch_size=...)` must be an integer in [1, {num_examples}], the training examples of "
            f"{experiment.name}, got {settings.batch_size}."
        )


def make_config(experiment: Experiment, settings: Settings, method: str, lr: float, seed: int) -> RunConfig:
    """The resolved configuration of one run; the seed is the same number for every method."""
    return RunConfig(
        experiment=experiment.name,
        method=method,
        lr=lr,
        seed=seed,
        num_steps=settings.num_steps,
        batch_size=settings.batch_size,
        refresh=settings.refresh if METHODS[method].adaptive else None,
        evaluation_interval=evaluation_interval(settings.num_steps),
        device=settings.device,
        options=resolve_options(method, experiment.weight_decay),
    )


def choose_learning_rates(experiment: Experiment, records: Sequence[Record]) -> dict[str, float]:
    """Each method's learning rate of least mean final training loss; a run that diverged rules its rate out.

    Raises:
        ValueError: when every learning rate of a method diverged.
    """
    best = {}
    for method in experiment.methods:
        means = {}
        for lr in experiment.learning_rates:
            finals = [r.final("train_loss") for r in records if (r.config.method, r.config.lr) == (method, lr)]
            mean = sum(finals) / len(finals)
            means[lr] = mean if math.isfinite(mean) else math.inf
        best[method] = min(means, key=lambda lr: means[lr])
        if math.isinf(means[best[method]]):
            raise ValueError(f"{method} diverged at every learning rate of {experiment.learning_rates}.")
    return best


def perform(config: RunConfig, path: Path, cancelled: Callable[[], bool] = lambda: False) -> Record:
    """Do one run and write its record."""
    problem = _load_problem(config.experiment, config.device)
    _warm_up(config.experiment, config.method, config.device)
    inputs, targets = problem.data.train
    # One seed shows what is drawn; its file comes first, so that a record is never without it.
    draws = DrawRecorder(len(targets)) if METHODS[config.method].adaptive and config.seed == 0 else None
    record = Record(config, trace(problem, config, cancelled, draws), current_versions(), describe_machine())
    if draws is not None:
        write_draws(path.with_name(draws_name(path.name)), draws.finish(inputs, targets))
    write_record(path, record)
    return record


@functools.cache
def _load_problem(experiment: str, device: str) -> Problem:
    return find_experiment(experiment).build().to(device)


@functools.cache
def _warm_up(experiment: str, method: str, device: str) -> None:
    """Take a few steps unrecorded: what torch sets up on first use is no cost of the first run's method."""
    defaults = replace(find_experiment(experiment).defaults, num_steps=4, refresh=2, device=device)
    trace(_load_problem(experiment, device), make_config(find_experiment(experiment), defaults, method, 0.1, 0))


Job = tuple[RunConfig, Path]
PerformAll = Callable[[Sequence[Job]], Iterator[tuple[int, Record]]]
"""Does all jobs; yields the position and record of each as it is done."""


class _Session:
    """Finds the records that are there and has the others made."""

    def __init__(self, folder: Path, bar: Any, perform_all: PerformAll) -> None:
        self._folder = folder
        self._bar = bar
        self._perform_all = perform_all
        self.num_done = 0
        self.num_resumed = 0

    def complete(self, configs: Sequence[RunConfig]) -> list[Record]:
        """The records of all configurations, in their order."""
        paths = [self._folder / config.file_name for config in configs]
        records = [self._find(path, config) for path, config in zip(paths, configs, strict=True)]
        num_found = sum(record is not None for record in records)
        self.num_resumed += num_found
        self.num_done += num_found
        if not self._bar.disable:
            self._bar.initial += num_found  # or the time left would count them as work done in no time
        self._bar.update(num_found)
        missing = [k for k, record in enumerate(records) if record is None]
        for position, record in self._perform_all([(configs[k], paths[k]) for k in missing]):
            records[missing[position]] = record
            self.num_done += 1
            self._bar.update(1)
        return [record for record in records if record is not None]

    def _find(self, path: Path, config: RunConfig) -> Record | None:
        try:
            return read_record(path, config)
        except FileNotFoundError:
            return None
        except RecordError as error:
            tqdm.write(f"{error}; this run is done again.", file=sys.stderr)
            return None


# --- processes ----------------------------------------------------------------------------------------

_stop: Any = None  # in a worker: the event by which the parent asks runs to stop


@contextmanager
def _workers(num_processes: int) -> Iterator[PerformAll]:
    """Processes to run in; on the way out of an error, runs under way are given up."""
    if num_processes == 1:
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield lambda jobs: ((k, perform(*job)) for k, job in enumerate(jobs))
        finally:
            torch.set_num_threads(num_threads)
        return
    # Spawned, not forked: torch's threads and CUDA do not survive a fork.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    executor = ProcessPoolExecutor(num_processes, context, _start_worker, (stop,))

    def perform_all(jobs: Sequence[Job]) -> Iterator[tuple[int, Record]]:
        futures = {executor.submit(_perform_in_worker, *job): k for k, job in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.result()

    try:
        yield perform_all
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)


def _perform_in_worker(config: RunConfig, path: Path) -> Record:
    return perform(config, path, _stop.is_set)


def _start_worker(stop: Any) -> None:
    global _stop
    _stop = stop
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Do not stay behind when the parent is killed; records are written whole or not at all."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
