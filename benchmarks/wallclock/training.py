"""One run against the clock: train as configured, stop the clock, evaluate, go on."""

import itertools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

import dasgrad
from benchmarks.wallclock.cases import Case
from benchmarks.wallclock.drawing import Training, can_capture, capture, find_stream
from dasgrad.experiments.methods import BETAS
from dasgrad.experiments.problems import Evaluation, Problem, evaluate, summarise_evaluation

OPTIMIZERS = ("adam", "amsgrad", "adamw")
SCHEDULES = ("constant", "inverse-sqrt", "cosine")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
NUM_BEFORE_CAPTURE = 4
"""Steps after which a captured loop takes its steps in the graph."""
COLUMNS = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy")


@dataclass(frozen=True)
class RunConfig:
    """All that a run depends on."""

    problem: str
    schedule: str
    optimizer: str
    draws: str
    lr: float
    batch_size: int
    seed: int
    num_steps: int
    num_points: int
    """Evaluations after the first, which is before the first step."""
    num_examples: int
    clock: str
    """``"wall"`` or ``"cpu"``."""
    where: str
    """Device, threads and version of torch."""
    captured: bool = False
    """Whether steps are taken in a CUDA graph, where that can be."""

    def key(self) -> dict[str, Any]:
        """For the store."""
        return {"kind": "run", "columns": list(COLUMNS), **asdict(self)}


class Clock:
    """Adds up the time spent inside ``with clock:``, work of the device included.

    ``kind`` is ``"wall"``, or ``"cpu"`` for the processor time of this process: with one thread on a CPU that is what
    the wall clock would show on a quiet machine, and others' work does not disturb it.
    """

    def __init__(self, device: torch.device, kind: str = "wall") -> None:
        self.seconds = 0.0
        self._device = device
        self._now = CLOCKS[kind]
        self._started = 0.0

    def __enter__(self) -> None:
        self._wait()
        self._started = self._now()

    def __exit__(self, *error: object) -> None:
        self._wait()
        self.seconds += self._now() - self._started

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def make_optimizer(
    name: str, model: nn.Module, lr: float, weight_decay: float, *, capturable: bool = False
) -> Optimizer:
    """One of torch's, fused; the L2 term is coupled except in AdamW."""
    params, options = model.parameters(), {"fused": True, "capturable": capturable}
    if name == "adamw":
        return torch.optim.AdamW(params, lr, BETAS, weight_decay=weight_decay or 0.01, **options)
    if name in OPTIMIZERS:
        amsgrad = name == "amsgrad"
        return torch.optim.Adam(params, lr, BETAS, weight_decay=weight_decay, amsgrad=amsgrad, **options)
    raise ValueError(f"`make_optimizer(name=...)` must be one of {', '.join(OPTIMIZERS)}, got {name!r}.")


def make_schedule(name: str, optimizer: Optimizer, num_steps: int) -> LRScheduler | None:
    """A schedule that is stepped once a step; None for a constant rate."""
    if name == "constant":
        return None
    if name == "inverse-sqrt":
        return dasgrad.InverseSqrtLR(optimizer)
    if name == "cosine":
        return CosineAnnealingLR(optimizer, num_steps)
    raise ValueError(f"`make_schedule(name=...)` must be one of {', '.join(SCHEDULES)}, got {name!r}.")


def train(problem: Problem, case: Case, config: RunConfig, device: torch.device) -> dict[str, Any]:
    """Curves of a run: seconds of training and `COLUMNS`, and what was spent on scores."""
    model = problem.make_model(config.seed).to(device)
    captured = config.captured and can_capture(problem, config.draws)
    capturable = captured and device.type == "cuda"
    optimizer = make_optimizer(config.optimizer, model, config.lr, case.weight_decay, capturable=capturable)
    schedule = make_schedule(config.schedule, optimizer, config.num_steps)
    options = dict(case.scorer)
    training = Training(
        problem, model, optimizer, config.batch_size, config.seed, device, options, CLOCKS[config.clock]
    )
    clock = Clock(device, config.clock)
    with clock:
        take_steps = make_steps(training, config.draws, schedule, captured)
    curves: dict[str, list[float]] = {"seconds": [], **{name: [] for name in COLUMNS}}
    points = [round(k * config.num_steps / config.num_points) for k in range(config.num_points + 1)]
    for before, point in itertools.pairwise([0, *points]):
        with clock:
            take_steps(point - before)
        values = summarise(problem, evaluate(problem, model, case.weight_decay))
        curves["seconds"].append(clock.seconds)
        for name in COLUMNS:
            curves[name].append(values[name])
    return {"curves": curves, "scored": training.num_scored, "scoring_seconds": training.scoring_seconds}


def summarise(problem: Problem, evaluation: Evaluation) -> dict[str, float]:
    """`COLUMNS`: held-out examples are for validation and for the report in turn, so that none does both."""

    def held_out(first: int) -> dict[str, float]:
        parts = evaluation.test_losses[first::2], evaluation.test_successes[first::2]
        half = replace(evaluation, test_losses=parts[0], test_successes=parts[1])
        return summarise_evaluation(problem, half)

    validation, test = held_out(0), held_out(1)
    return {**test, **{f"validation_{what}": validation[f"test_{what}"] for what in ("loss", "accuracy")}}


def make_steps(training: Training, draws: str, schedule: LRScheduler | None, captured: bool) -> Callable[[int], object]:
    """A function that takes so many steps."""
    if captured:
        return capture(training, draws, schedule).run
    stream = find_stream(draws)(training)

    def take_steps(number: int) -> None:
        for _ in range(number):
            next(stream)
            training.optimizer.step()
            if schedule is not None:
                schedule.step()

    return take_steps


def time_steps(
    problem: Problem,
    case: Case,
    batch_size: int,
    num_steps: int,
    device: torch.device,
    clock_kind: str,
    captured: bool,
) -> float:
    """Seconds of a number of uniform steps, after a few that do not count."""
    captured = captured and can_capture(problem, "reshuffled")
    model = problem.make_model(0).to(device)
    capturable = captured and device.type == "cuda"
    optimizer = make_optimizer("adam", model, case.learning_rates[0], case.weight_decay, capturable=capturable)
    training = Training(problem, model, optimizer, batch_size, 0, device)
    take_steps = make_steps(training, "reshuffled", None, captured)
    clock = Clock(device, clock_kind)
    take_steps(max(NUM_BEFORE_CAPTURE, num_steps // 5))
    with clock:
        take_steps(num_steps)
    return clock.seconds
