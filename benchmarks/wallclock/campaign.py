"""All runs of one problem: budgets by batch size, tuning, and the runs that are reported."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from benchmarks.wallclock.cases import Case
from benchmarks.wallclock.choosing import TUNED_BY, Standard, Tried, best_of_each_size, choose_config, mean_of
from benchmarks.wallclock.progress import Progress
from benchmarks.wallclock.store import Store
from benchmarks.wallclock.training import OPTIMIZERS, RunConfig, time_steps, train
from benchmarks.wallclock.workers import Workers
from dasgrad.experiments.problems import Problem

BUDGETS, TUNING_BUDGETS = (0.5, 0.7, 1.0, 1.4, 2.0), (0.5, 0.7, 1.0)
"""Of T, where the schedule depends on the budget; straight lines from T/2 to T to 2T would be too far from a curve."""
TUNING_SEED, OTHER_SEED = 2000, 1000
"""Where the seeds of tuning and those of uniform against itself start; reported ones start at 0."""
NUM_TUNING_POINTS = 8
NUM_WARM_UP_STEPS, NUM_WARM_UP_STEPS_ON_CUDA = 20, 600
"""After which `adaptive:auto` has looked for the first time."""
TIMING_ROUNDS, TIMED_STEPS = 5, 60
ANY_BATCH, BATCH_32 = "any batch", "batch 32"
AUTO, FIXED = "adaptive:auto", "adaptive:fixed"
INTERVALS = ("100", "300", "1000", "never")
"""Of which `FIXED` takes the best."""
UNIFORM, SOONEST, UNIFORM_AGAIN = "uniform", "uniform, soonest", "uniform, other seeds"
"""The one that sets the target, the one that is first there, and that one again."""


@dataclass(frozen=True)
class Settings:
    """What the command line decides."""

    optimizers: tuple[str, ...]
    """Of which uniform draws take the best, and so does `AUTO`."""
    methods: tuple[str, ...]
    schedules: tuple[str, ...]
    num_seeds: int
    num_tuning_seeds: int
    num_steps: int
    num_points: int
    """Of a run to 2T; divisible by 4, so that T/2 and T are among the points."""
    num_rates: int | None
    """How many of each grid, from its middle; None is all."""
    batch_sizes: tuple[int, ...]
    device: torch.device
    clock: str
    where: str
    captured: bool
    """Whether steps are taken in a CUDA graph, where that can be."""
    first_seed: int = 0
    """Of those that are reported."""
    num_processes: int = 1
    """Runs at a time, where processor time is what counts."""
    goal: str = "train_loss"
    """The loss that is to be reached, and that both sides are tuned for: this one or ``"test_loss"``."""


@dataclass(frozen=True)
class Choice:
    """A configuration that tuning chose for a method."""

    optimizer: str
    draws: str
    lr: float
    batch_size: int
    at_edge: bool
    """Whether the learning rate is the first or last of its grid."""


@dataclass(frozen=True)
class Finish:
    """Where uniform draws are when their budget is over, on tuning seeds."""

    moment: float
    """In seconds."""
    target: float
    """Their loss."""
    standard: Standard | None
    """What others must keep; None where they are tuned for held-out loss itself."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Reported runs of one problem, schedule and rule for batch sizes, by method and seed."""

    problem: str
    title: str
    schedule: str
    batches: str
    clock: str
    goal: str
    """``"train_loss"`` or ``"test_loss"``."""
    num_examples: int
    choices: dict[str, Choice]
    runs: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    """By method, for each seed one run, or one for each of `BUDGETS`."""


class Campaign:
    """Measures one problem; whatever is in the store is not measured again."""

    def __init__(
        self, name: str, case: Case, problem: Problem, settings: Settings, store: Store, progress: Progress
    ) -> None:
        self._name, self._case, self._problem = name, case, problem
        self._settings, self._store, self._progress = settings, store, progress
        self._steps: dict[int, int] = {}
        processes = settings.num_processes
        self._workers = Workers(processes, problem, case) if processes > 1 else None
        self._warm = False

    def measure(self) -> list[Comparison]:
        """Tune, then run what is reported."""
        self._steps = self._find_budgets()
        wholes = {schedule: self._tune(schedule) for schedule in self._settings.schedules}
        comparisons = [
            Comparison(
                self._name,
                self._case.title,
                schedule,
                batches,
                self._settings.clock,
                self._settings.goal,
                self._problem.num_examples,
                choices,
            )
            for schedule, by_batches in wholes.items()
            for batches, choices in by_batches.items()
        ]
        plan: list[tuple[Comparison, str, list[RunConfig]]] = []
        first = self._settings.first_seed
        for seed in range(first, first + self._settings.num_seeds):  # seeds outermost, methods inside
            for comparison in comparisons:
                names = list(comparison.choices)
                turn = seed % len(names)  # nobody always comes after the same other
                for method in names[turn:] + names[:turn]:
                    own = OTHER_SEED + seed if method == UNIFORM_AGAIN else seed
                    configs = self._report_configs(comparison.schedule, comparison.choices[method], own)
                    plan.append((comparison, method, configs))
        found = self._run("report", [config for *_, configs in plan for config in configs])
        for comparison, method, configs in plan:
            comparison.runs.setdefault(method, []).append([found[config] for config in configs])
        return comparisons

    # --- budgets --------------------------------------------------------------------------------------

    def _find_budgets(self) -> dict[int, int]:
        """T of each batch size: as many steps as take the same time."""
        settings = self._settings
        sizes = settings.batch_sizes
        key = {
            "kind": "budget",
            "problem": self._name,
            "num_steps": settings.num_steps,
            "batch_sizes": list(sizes),
            "num_examples": self._problem.num_examples,
            "clock": settings.clock,
            "where": settings.where,
            "captured": settings.captured,
        }
        found = self._store.find(key)
        if found is None:
            seconds: dict[int, list[float]] = {size: [] for size in sizes}
            for _ in range(TIMING_ROUNDS):
                for size in sizes:
                    num_steps = min(TIMED_STEPS, settings.num_steps)
                    arguments = (size, num_steps, settings.device, settings.clock, settings.captured)
                    seconds[size].append(self._call(time_steps, *arguments))
            medians = {size: statistics.median(values) for size, values in seconds.items()}
            found = [max(8, round(settings.num_steps * medians[sizes[0]] / medians[size])) for size in sizes]
            self._store.add(key, found)
        return dict(zip(sizes, found, strict=True))

    # --- tuning ---------------------------------------------------------------------------------------

    def _tune(self, schedule: str) -> dict[str, dict[str, Choice]]:
        """The choice of every method, by rule for batch sizes."""
        settings = self._settings
        sides = [(name, "reshuffled") for name in settings.optimizers]
        by_optimizer = self._tuning_runs(schedule, sides, settings.batch_sizes)
        moment = statistics.mean(run["curves"]["seconds"][-1] for runs in by_optimizer.values() for run in runs)
        found = {}
        for batches, sizes in self._batch_rules().items():
            log = schedule == "cosine"
            tried = {config: runs for config, runs in by_optimizer.items() if config.batch_size in sizes}
            best = choose_config(tried, self._column, moment, log=log)
            target = mean_of(tried[best], self._column, moment, log=log)
            soonest = choose_config(tried, self._column, moment, target=target, log=log)
            finish = Finish(moment, target, None)
            if settings.goal == "train_loss":
                accuracy = mean_of(tried[best], "validation_accuracy", moment, log=log)
                finish = replace(finish, standard=Standard(accuracy, moment, (best, soonest)))
            choices = {UNIFORM: self._choice(best)}
            choices[SOONEST] = choices[UNIFORM_AGAIN] = self._choice(soonest)
            for method in sorted(settings.methods, key=lambda name: name == FIXED):  # which needs the choice of `AUTO`
                choices[method] = self._tune_method(schedule, method, choices, tried, finish, sizes)
            found[batches] = choices
        return found

    def _tune_method(
        self,
        schedule: str,
        method: str,
        choices: dict[str, Choice],
        by_optimizer: Tried,
        finish: Finish,
        sizes: Sequence[int],
    ) -> Choice:
        """By the time to the loss that uniform draws have at the end of their budget."""

        def choose(runs: Tried, standard: Standard | None) -> Choice:
            moment, target, log = finish.moment, finish.target, schedule == "cosine"
            chosen = choose_config(runs, self._column, moment, target=target, standard=standard, log=log)
            return self._choice(chosen)

        if method in OPTIMIZERS:
            return choose({config: runs for config, runs in by_optimizer.items() if config.optimizer == method}, None)
        if method == FIXED:  # in which steps, and else as `AUTO`
            auto = choices.get(AUTO, choices[UNIFORM])
            sides = [(auto.optimizer, f"adaptive:{interval}") for interval in INTERVALS]
            return choose(self._tuning_runs(schedule, sides, (auto.batch_size,), rates=(auto.lr,)), None)
        optimizers = self._settings.optimizers if method == AUTO else (choices[UNIFORM].optimizer,)
        sides = [(name, method) for name in optimizers]
        return choose(self._tuning_runs(schedule, sides, sizes, standard=finish.standard), finish.standard)

    def _batch_rules(self) -> dict[str, tuple[int, ...]]:
        sizes = self._settings.batch_sizes
        if sizes == (32,):
            return {BATCH_32: sizes}
        return {ANY_BATCH: sizes, **({BATCH_32: (32,)} if 32 in sizes else {})}

    def _rates(self, schedule: str) -> tuple[float, ...]:
        rates, wanted = self._case.rates(schedule), self._settings.num_rates
        if wanted is None or wanted >= len(rates):
            return rates
        start = (len(rates) - wanted) // 2
        return rates[start : start + wanted]

    def _tuning_runs(
        self,
        schedule: str,
        sides: Sequence[tuple[str, str]],
        sizes: Sequence[int],
        *,
        rates: Sequence[float] | None = None,
        standard: Standard | None = None,
    ) -> dict[RunConfig, list[dict[str, Any]]]:
        """Runs of all configurations of optimizers and ways to draw, by configuration without seed.

        Those that do badly on the first seed, or do not keep the standard on several, are spared the others.
        """
        configs = [
            self._config(schedule, optimizer, draws, lr, size, 0, self._steps[size], NUM_TUNING_POINTS)
            for size in sizes
            for lr in (self._rates(schedule) if rates is None else rates)
            for optimizer, draws in sides
        ]
        stage = f"tune {schedule}"
        found: dict[RunConfig, list[dict[str, Any]]] = {config: [] for config in configs}
        for seed in range(TUNING_SEED, TUNING_SEED + self._settings.num_tuning_seeds):
            runs = self._run(stage, [replace(config, seed=seed) for config in found])
            for config in found:
                found[config].append(runs[replace(config, seed=seed)])
            share = 1 / 3 if seed == TUNING_SEED else 0.0
            found = best_of_each_size(found, share, self._column, standard)
        return self._by_budgets(stage, found) if schedule == "cosine" else found

    def _by_budgets(
        self, stage: str, found: dict[RunConfig, list[dict[str, Any]]]
    ) -> dict[RunConfig, list[dict[str, Any]]]:
        """For each run, whose budget is T, the curve through its end and those of runs with a smaller budget."""

        def shorter(config: RunConfig, seed: int) -> list[RunConfig]:
            steps = [max(1, round(share * config.num_steps)) for share in TUNING_BUDGETS[:-1]]
            return [replace(config, seed=seed, num_steps=number, num_points=1) for number in steps]

        seeds = range(TUNING_SEED, TUNING_SEED + self._settings.num_tuning_seeds)
        runs = self._run(stage, [one for config in found for seed in seeds for one in shorter(config, seed)])
        curves: dict[RunConfig, list[dict[str, Any]]] = {}
        for config, whole in found.items():
            before = [[runs[one] for one in shorter(config, seed)] for seed in seeds]
            curves[config] = [_through_ends([*ends, run]) for ends, run in zip(before, whole, strict=True)]
        return curves

    def _choice(self, config: RunConfig) -> Choice:
        rates = self._rates(config.schedule)
        at_edge = config.lr in (rates[0], rates[-1])
        return Choice(config.optimizer, config.draws, config.lr, config.batch_size, at_edge)

    @property
    def _column(self) -> str:
        return TUNED_BY[self._settings.goal]

    # --- runs -----------------------------------------------------------------------------------------

    def _report_configs(self, schedule: str, choice: Choice, seed: int) -> list[RunConfig]:
        steps = self._steps[choice.batch_size]
        common = (schedule, choice.optimizer, choice.draws, choice.lr, choice.batch_size, seed)
        if schedule == "cosine":
            return [self._config(*common, max(1, round(steps * share)), 1) for share in BUDGETS]
        return [self._config(*common, 2 * steps, self._settings.num_points)]

    def _config(
        self,
        schedule: str,
        optimizer: str,
        draws: str,
        lr: float,
        batch_size: int,
        seed: int,
        num_steps: int,
        num_points: int,
    ) -> RunConfig:
        return RunConfig(
            problem=self._name,
            schedule=schedule,
            optimizer=optimizer,
            draws=draws,
            lr=lr,
            batch_size=batch_size,
            seed=seed,
            num_steps=num_steps,
            num_points=num_points,
            num_examples=self._problem.num_examples,
            clock=self._settings.clock,
            where=self._settings.where,
            captured=self._settings.captured,
        )

    def _run(self, stage: str, configs: Sequence[RunConfig]) -> dict[RunConfig, dict[str, Any]]:
        """What each configuration gave, from the store or measured now."""
        missing = [config for config in dict.fromkeys(configs) if self._store.find(config.key()) is None]
        self._progress.start(f"{self._name}, {stage}", sum(config.num_steps * config.batch_size for config in missing))
        if missing:
            self._warm_up(missing[0])
        for config, found in self._perform(missing):
            self._store.add(config.key(), found)
            what = (
                f"{config.optimizer}, {config.draws}, lr {config.lr:g}, batch {config.batch_size}, seed {config.seed}"
            )
            self._progress.advance(config.num_steps * config.batch_size, what)
        return {config: self._store.find(config.key()) for config in configs}

    def _perform(self, configs: Sequence[RunConfig]) -> Iterator[tuple[RunConfig, dict[str, Any]]]:
        if self._workers is not None:
            yield from self._workers.train_all(configs)
        else:
            for config in configs:
                yield config, train(self._problem, self._case, config, self._settings.device)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(problem, case, *arguments)``, in one of the processes where there are any."""
        if self._workers is not None:
            return self._workers.call(function, *arguments)
        return function(self._problem, self._case, *arguments)

    def close(self) -> None:
        """End the processes, if there are any."""
        if self._workers is not None:
            self._workers.close()

    def _warm_up(self, config: RunConfig) -> None:
        """A few steps of every kind off the books before the first run: compilers, caches, allocators.

        A method that cannot run fails here, before hours of others.
        """
        if self._warm:
            return
        self._warm = True
        for draws in _warmed(method for method in self._settings.methods if method not in OPTIMIZERS):
            late = draws == AUTO and self._settings.device.type == "cuda"
            num_steps = NUM_WARM_UP_STEPS_ON_CUDA if late else NUM_WARM_UP_STEPS
            for size in self._settings.batch_sizes:
                short = replace(config, draws=draws, batch_size=size, num_steps=num_steps, num_points=1)
                self._call(train, short, self._settings.device)


def _warmed(methods: Iterable[str]) -> list[str]:
    """Ways to draw that between them do all that these methods do within a few steps; to score all is one."""
    draws = ["reshuffled"]
    for method in methods:
        kind, _, interval = method.partition(":")
        draws += [f"{kind}:2"] if interval else []
        draws += [] if interval.isdecimal() or method == FIXED else [method]
    return list(dict.fromkeys(draws))


def _through_ends(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The ends of runs of rising budgets as one curve."""
    names = runs[0]["curves"]
    return {"curves": {name: [run["curves"][name][-1] for run in runs] for name in names}}
