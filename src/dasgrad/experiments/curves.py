"""One run: train one method on one problem and measure it on the way.

The clock runs during training alone: drawing, stepping and scoring are on it, evaluation is not. Every method
is charged its own cost: examples whose gradients went into steps, and examples that were scored.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

import dasgrad
from dasgrad.experiments.datasets import Split
from dasgrad.experiments.draws import DrawRecorder
from dasgrad.experiments.records import COLUMNS, RunConfig

BETAS = (0.9, 0.99)
NUM_EVALUATIONS = 50

Curves = dict[str, NDArray[np.float64]]
LossFunction = Callable[[Any, Any], Tensor]


class CancelledError(Exception):
    """The run was asked to stop; nothing of it is kept."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is trained: data, a fresh model, a loss and a measure of success, both one value per example."""

    data: Split
    make_model: Callable[[], nn.Module]
    loss_fn: LossFunction
    success_fn: LossFunction

    def to(self, device: torch.device | str) -> "Problem":
        """The same problem with its data on a device."""
        return replace(self, data=self.data.to(device))


@dataclass(frozen=True)
class Method:
    """An optimizer, and whether its examples are drawn by importance or in reshuffled passes."""

    make_optimizer: Callable[[Iterator[nn.Parameter], float, float], Optimizer]
    """Of parameters, learning rate and weight decay."""
    adaptive: bool


# Each adaptive method has the moments and the bias correction of one of torch's baselines, from which it differs
# in how examples are drawn, and in nothing else.
METHODS: dict[str, Method] = {
    "adam": Method(
        lambda params, lr, decay: torch.optim.Adam(params, lr, BETAS, weight_decay=decay),
        adaptive=False,
    ),
    "amsgrad": Method(
        lambda params, lr, decay: torch.optim.Adam(params, lr, BETAS, weight_decay=decay, amsgrad=True),
        adaptive=False,
    ),
    "dasgrad": Method(
        lambda params, lr, decay: dasgrad.DASGrad(params, lr, BETAS, weight_decay=decay, bias_correction=True),
        adaptive=True,
    ),
    "dasgrad-adam": Method(
        lambda params, lr, decay: dasgrad.DASGrad(
            params, lr, BETAS, weight_decay=decay, moments="adam", bias_correction=True
        ),
        adaptive=True,
    ),
}


def evaluation_interval(num_steps: int) -> int:
    """Steps between evaluations, for about `NUM_EVALUATIONS` points on a curve."""
    return max(1, round(num_steps / NUM_EVALUATIONS))


def resolve_options(method: str, weight_decay: float) -> dict[str, Any]:
    """Every option the method runs with, library defaults included, as plain values for a record.

    They are read off the objects themselves: when a default changes, so does the configuration, and old
    records are no longer taken for new ones.
    """
    model = nn.Linear(1, 1, device="meta")  # no values, so no random numbers
    optimizer = METHODS[method].make_optimizer(model.parameters(), 1.0, weight_decay)
    kind = type(optimizer)
    options: dict[str, Any] = {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        **{name: value for name, value in optimizer.defaults.items() if name != "lr"},
        "schedule": dasgrad.InverseSqrtLR.__name__,
        "draws": "adaptive" if METHODS[method].adaptive else "reshuffled",
    }
    if METHODS[method].adaptive:
        scorer = dasgrad.ExampleScorer(model, nn.functional.mse_loss, optimizer)
        sampler = dasgrad.AdaptiveSampler(1, 1)
        options |= {name: getattr(sampler, name) for name in ("floor", "epsilon", "stratified")}
        options |= {name: getattr(scorer, name) for name in ("score", "preconditioner", "momentum", "layers")}
    return options


def reshuffled_indices(num_examples: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Batches of passes without replacement, for ever; the same for every method that asks with this seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.split(torch.randperm(num_examples, generator=generator), batch_size)


def trace(
    problem: Problem,
    config: RunConfig,
    cancelled: Callable[[], bool] = lambda: False,
    draws: DrawRecorder | None = None,
) -> Curves:
    """Train as ``config`` says and return the curves, one array for each of `COLUMNS`.

    The first point is before the first step, the last after the last one.

    Args:
        problem: with its data on ``config.device``.
        config: the run.
        cancelled: asked at every evaluation whether to give up.
        draws: told of the draws of an adaptive method, off the clock.

    Raises:
        CancelledError: when ``cancelled()`` says so.
    """
    run = _Run(problem, config, draws)
    rows = [run.measure()]
    for step in range(1, config.num_steps + 1):
        run.take_step()
        if step % config.evaluation_interval == 0 or step == config.num_steps:
            if cancelled():
                raise CancelledError(f"cancelled at step {step} of {config.num_steps}")
            rows.append(run.measure())
    table = np.array(rows, dtype=np.float64)
    return {name: table[:, k] for k, name in enumerate(COLUMNS)}


class _Run:
    """A model in training and its meters."""

    def __init__(self, problem: Problem, config: RunConfig, draws: DrawRecorder | None) -> None:
        self._problem = problem
        self._draws = draws
        self._sampler: dasgrad.AdaptiveSampler | None = None
        self._drawn: Tensor | None = None
        self._device = torch.device(config.device)
        self._clock = _Clock(self._device)
        self._step = 0
        self._num_gradients = 0
        self._num_scored = 0
        self._scoring_seconds = 0.0
        with self._clock:
            self._model = problem.make_model().to(self._device)
            method = METHODS[config.method]
            self._weight_decay = float(config.options["weight_decay"])
            self._optimizer = method.make_optimizer(self._model.parameters(), config.lr, self._weight_decay)
            self._schedule = dasgrad.InverseSqrtLR(self._optimizer)
            self._losses = self._adaptive_losses(config) if method.adaptive else self._reshuffled_losses(config)

    def _reshuffled_losses(self, config: RunConfig) -> Iterator[tuple[Tensor, int]]:
        inputs, targets = self._problem.data.train
        for batch in reshuffled_indices(len(targets), config.batch_size, config.seed):
            indices = batch.to(self._device)
            yield self._problem.loss_fn(self._model(inputs[indices]), targets[indices]).mean(), len(batch)

    def _adaptive_losses(self, config: RunConfig) -> Iterator[tuple[Tensor, int]]:
        train = self._problem.data.train
        scorer = dasgrad.ExampleScorer(self._model, self._problem.loss_fn, self._optimizer)
        sampler = dasgrad.AdaptiveSampler(len(train[1]), config.batch_size, seed=config.seed, device=self._device)
        self._sampler = sampler
        loader = dasgrad.AdaptiveLoader(train, sampler=sampler, scorer=scorer, refresh=config.refresh)
        loader.on_refresh(self._charge)
        for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
            self._drawn = batch.indices
            losses = self._problem.loss_fn(self._model(batch.inputs), batch.targets)
            yield batch.weighted_mean(losses), len(batch)

    def _charge(self, refresh: Any) -> None:
        self._num_scored += len(refresh.scores)
        self._scoring_seconds += refresh.seconds

    def take_step(self) -> None:
        """One draw, one gradient, one step, on the clock."""
        with self._clock:
            loss, num_examples = next(self._losses)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            self._schedule.step()
        self._step += 1
        self._num_gradients += num_examples
        if self._draws is not None and self._drawn is not None:
            self._draws.count(self._drawn)

    def measure(self) -> tuple[float, ...]:
        """One value for each of `COLUMNS`, off the clock."""
        if self._draws is not None and self._sampler is not None:
            self._draws.observe(self._step, self._sampler.probabilities, self._sampler.weights)
        quality: list[float] = []
        with torch.no_grad():
            for inputs, targets in (self._problem.data.train, self._problem.data.test):
                outputs = self._model(inputs)
                quality.append(float(self._problem.loss_fn(outputs, targets).to(torch.float64).mean()))
                quality.append(float(self._problem.success_fn(outputs, targets).to(torch.float64).mean()))
            squares = sum(float(param.to(torch.float64).square().sum()) for param in self._model.parameters())
            quality[0] += 0.5 * self._weight_decay * squares  # the objective has the L2 term
        cost = (self._clock.seconds, self._scoring_seconds, self._num_gradients, self._num_scored)
        return (self._step, *quality, *cost)


class _Clock:
    """Adds up the wall-clock time spent inside ``with clock:``, device work included."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self._device = device
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds += time.perf_counter() - self._started
