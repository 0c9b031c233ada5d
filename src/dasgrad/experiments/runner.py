"""Run an experiment: choose learning rates where none are stored, then run the paired seeds, keeping each record.

A run that has its record is not repeated, so an interrupted experiment goes on where it stopped. Learning rates
are chosen on seeds of their own, by mean final training loss.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dasgrad.experiments.bars import Bar, make_bar
from dasgrad.experiments.curves import evaluation_interval, trace
from dasgrad.experiments.draws import DrawRecorder, draws_name, write_draws
from dasgrad.experiments.methods import METHODS, Scores, resolve_options
from dasgrad.experiments.problems import Problem
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
from dasgrad.experiments.tuning import Rates, choose_learning_rates, read_stored
from dasgrad.experiments.workers import default_processes, num_processes_here, start_workers

Job = tuple[RunConfig, Path]
PerformAll = Callable[[Sequence[Job]], Iterator[tuple[int, Record]]]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Everything a report on one case needs; all of it stands in the records, too."""

    experiment: Experiment
    settings: Settings
    learning_rates: dict[str, float]
    """The learning rate of each method."""
    records: dict[str, list[Record]]
    """The reported runs of each method, by seed."""
    num_resumed: int
    """How many runs were there already, of all cases."""
    case: str = ""
    stored_with: dict[str, Any] = field(default_factory=dict)
    """What stored learning rates were chosen with; empty where all were chosen in this run."""

    @property
    def title(self) -> str:
        """Of the experiment and the case."""
        return f"{self.experiment.title}, {self.case}" if self.case else self.experiment.title

    @property
    def at_grid_edge(self) -> list[str]:
        """Methods whose learning rate is the smallest or largest of their grid: a wider grid might do better."""
        grids = {method: self.experiment.grid_of(method) for method in self.learning_rates}
        return [m for m, lr in self.learning_rates.items() if lr in (min(grids[m]), max(grids[m]))]


class Interrupted(Exception):  # noqa: N818 (not an error: the user asked for it)
    """The user pressed Ctrl-C; finished runs are kept."""

    def __init__(self, num_kept: int, num_runs: int) -> None:
        super().__init__(f"interrupted after {num_kept} of {num_runs} runs")
        self.num_kept = num_kept
        self.num_runs = num_runs


def run_experiment(
    experiment: Experiment,
    settings: Settings,
    folder: Path,
    *,
    tune: bool = False,
    num_processes: int | None = None,
    quiet: bool = False,
) -> list[Outcome]:
    """Tune, run and record; one outcome for each case.

    Args:
        experiment: what to run.
        settings: how.
        folder: records are read from here and written to here.
        tune: choose all learning rates, instead of those alone that are not stored.
        num_processes: runs at a time, each on one thread; None is one per core, fewer on a GPU.
        quiet: no progress bar. Messages about unusable records are always printed.

    Raises:
        ValueError: for settings the experiment's data do not allow.
        DataError: when the data set is not on this machine; the message has the command that brings it.
        Interrupted: on Ctrl-C; what was finished is kept.
    """
    check_settings(experiment, settings)
    num_processes = default_processes(settings.device) if num_processes is None else num_processes
    if num_processes < 1:
        raise ValueError(f"`run_experiment(num_processes=...)` must be at least 1, got {num_processes!r}.")
    stored, stored_with = ({}, {}) if tune else read_stored(experiment)
    pairs = [(case, method) for case in experiment.cases for method in experiment.methods]
    untuned = [pair for pair in pairs if pair not in stored]
    tuning = [
        make_config(experiment, settings, method, lr, seed, case)
        for seed in experiment.tuning_seeds
        for case, method in untuned
        for lr in experiment.grid_of(method)
    ]
    num_runs = len(tuning) + len(pairs) * settings.num_seeds
    bar = make_bar(num_runs, experiment.name, quiet)
    try:
        with start_workers(num_processes, perform_job) as perform_all:
            session = _Session(folder, bar, perform_all)
            try:
                best = stored | choose_learning_rates(experiment, session.complete(tuning), untuned)
                # Seed by seed, so that a busy spell of the machine falls on all methods alike.
                reported = session.complete(
                    [
                        make_config(experiment, settings, method, best[case, method], seed, case)
                        for seed in range(settings.num_seeds)
                        for case, method in pairs
                    ]
                )
            except KeyboardInterrupt:
                raise Interrupted(session.num_done, num_runs) from None
    finally:
        bar.close()
    return [
        _make_outcome(experiment, settings, case, best, reported, session.num_resumed, stored_with if stored else {})
        for case in experiment.cases
    ]


def _make_outcome(
    experiment: Experiment,
    settings: Settings,
    case: str,
    rates: Rates,
    reported: Sequence[Record],
    num_resumed: int,
    stored_with: dict[str, Any],
) -> Outcome:
    of_method: dict[str, list[Record]] = {method: [] for method in experiment.methods}
    for record in reported:
        if record.config.case == case:
            of_method[record.config.method].append(record)
    chosen = {method: rates[case, method] for method in experiment.methods}
    return Outcome(experiment, settings, chosen, of_method, num_resumed, case, stored_with)


def check_settings(experiment: Experiment, settings: Settings) -> None:
    """Refuse a batch larger than the training set, and what an experiment with a trace of its own does not have.

    Raises:
        ValueError: naming the setting, the range and the value.
        DataError: when the data set is not on this machine.
    """
    if experiment.trace is not None:
        for name in ("batch_size", "refresh", "device"):
            only, got = getattr(experiment.defaults, name), getattr(settings, name)
            if got != only:
                raise ValueError(f"`Settings({name}=...)` must be {only!r} in {experiment.name}, got {got!r}.")
        return
    num_examples = _load_problem(experiment.name, experiment.cases[0], "cpu").num_examples
    if settings.batch_size > num_examples:
        raise ValueError(
            f"`Settings(batch_size=...)` must be an integer in [1, {num_examples}], the training examples of "
            f"{experiment.name}, got {settings.batch_size}."
        )


def make_config(
    experiment: Experiment, settings: Settings, method: str, lr: float, seed: int, case: str = ""
) -> RunConfig:
    """The resolved configuration of one run; the seed is the same number for every method."""
    return RunConfig(
        experiment=experiment.name,
        method=method,
        lr=lr,
        seed=seed,
        num_steps=settings.num_steps,
        batch_size=settings.batch_size,
        refresh=settings.refresh if METHODS[method].adaptive else None,
        evaluation_interval=evaluation_interval(settings.num_steps, experiment.num_points),
        device=settings.device,
        # A case may set options of its own; most only describe their problem.
        options={**resolve_options(method, experiment.weight_decay, settings.scores), **experiment.describe_case(case)},
        case=case,
    )


def perform(config: RunConfig, path: Path, cancelled: Callable[[], bool] = lambda: False) -> Record:
    """Do one run and write its record."""
    problem = _load_problem(config.experiment, config.case, config.device)
    _warm_up(config.experiment, config.case, config.method, config.device, config.options.get("preconditioner", "own"))
    # One seed shows what is drawn; its file comes first, so that a record is never without it.
    draws = DrawRecorder(problem.num_examples) if METHODS[config.method].adaptive and config.seed == 0 else None
    own_trace = find_experiment(config.experiment).trace or trace
    curves = own_trace(problem, config, cancelled, draws)
    if draws is not None:
        write_draws(path.with_name(draws_name(path.name)), draws.finish(*problem.data.train))
    machine = {**describe_machine(config.device), "processes": num_processes_here()}
    record = Record(config, curves, current_versions(), machine)
    write_record(path, record)
    return record


def perform_job(job: Job, cancelled: Callable[[], bool]) -> Record:
    """`perform`, as workers call it."""
    return perform(*job, cancelled)


@functools.lru_cache(maxsize=16)
def _load_problem(experiment: str, case: str, device: str) -> Problem:
    return find_experiment(experiment).build(case).to(device)


@functools.cache
def _warm_up(experiment: str, case: str, method: str, device: str, scores: Scores) -> None:
    """Take a few steps unrecorded: what torch sets up on first use is no cost of the first run's method."""
    known = find_experiment(experiment)
    defaults = replace(known.defaults, num_steps=4, refresh=2, device=device, scores=scores)
    config = make_config(known, defaults, method, 0.1, 0, case)
    (known.trace or trace)(_load_problem(experiment, case, device), config, lambda: False, None)


class _Session:
    """Finds the records that are there and has the others made."""

    def __init__(self, folder: Path, bar: Bar, perform_all: PerformAll) -> None:
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
        self._bar.found(num_found)
        missing = [k for k, record in enumerate(records) if record is None]
        for position, record in self._perform_all([(configs[k], paths[k]) for k in missing]):
            records[missing[position]] = record
            self.num_done += 1
            self._bar.advance()
        return [record for record in records if record is not None]

    def _find(self, path: Path, config: RunConfig) -> Record | None:
        try:
            return read_record(path, config)
        except FileNotFoundError:
            return None
        except RecordError as error:
            self._bar.write(f"{error}; this run is done again.")
            return None
