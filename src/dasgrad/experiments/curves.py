"""One run: train one method on one problem and measure it on the way.

The clock runs during training alone: drawing, stepping and scoring are on it, evaluation is not. Every method
is charged its own cost: examples whose gradients went into steps, and examples that were scored.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import dasgrad
from dasgrad.experiments.batches import describe_draws, independent_indices, reshuffled_indices
from dasgrad.experiments.draws import DrawRecorder
from dasgrad.experiments.methods import METHODS, sampler_options
from dasgrad.experiments.problems import Problem, evaluate, summarise_evaluation
from dasgrad.experiments.records import COLUMNS, DRAW_COLUMNS, RunConfig

Curves = dict[str, NDArray[np.float64]]
Trace = Callable[[Problem, RunConfig, Callable[[], bool], DrawRecorder | None], Curves]
"""`trace`, or what an experiment has in its place."""


class CancelledError(Exception):
    """The run was asked to stop; nothing of it is kept."""


def evaluation_interval(num_steps: int, num_points: int = 50) -> int:
    """Steps between evaluations, for about ``num_points`` points on a curve."""
    return max(1, round(num_steps / num_points))


def trace(
    problem: Problem,
    config: RunConfig,
    cancelled: Callable[[], bool] = lambda: False,
    draws: DrawRecorder | None = None,
) -> Curves:
    """Train as ``config`` says and return the curves: `COLUMNS`, `DRAW_COLUMNS` for adaptive draws, the problem's own.

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
    points = [*range(0, config.num_steps, config.evaluation_interval), config.num_steps]
    rows = []
    for before, step in itertools.pairwise([0, *points]):
        run.take_steps(step - before)
        if step and cancelled():
            raise CancelledError(f"cancelled at step {step} of {config.num_steps}")
        rows.append(run.measure())
    own = [name for name in rows[0] if name not in (*COLUMNS, *DRAW_COLUMNS)]
    adaptive = DRAW_COLUMNS if METHODS[config.method].adaptive else ()
    return {name: np.array([row[name] for row in rows], np.float64) for name in (*COLUMNS, *adaptive, *own)}


class _Run:
    """A model in training and its meters."""

    def __init__(self, problem: Problem, config: RunConfig, draws: DrawRecorder | None) -> None:
        self._problem = problem
        self._draws = draws
        self._drawn: list[Tensor] = []  # since the last evaluation, where somebody wants to know
        self._sampler: dasgrad.AdaptiveSampler | None = None
        self._config = config
        self._device = torch.device(config.device)
        self._clock = _Clock(self._device)
        self._step = 0
        self._num_gradients = 0
        self._num_scored = 0
        self._scoring_seconds = 0.0
        self._last_refresh = math.nan
        with self._clock:
            self._model = problem.make_model(config.seed).to(self._device)
            method = METHODS[config.method]
            self._weight_decay = float(config.options["weight_decay"])
            self._optimizer: Optimizer = method.make_optimizer(self._model.parameters(), config.lr, self._weight_decay)
            self._schedule: LRScheduler | None = dasgrad.InverseSqrtLR(self._optimizer) if method.falling else None
            target = problem.target_of(method.target)
            self._backward = self._adaptive(target) if method.adaptive else self._uniform(target)

    def _uniform(self, target: Tensor | None) -> Iterator[int]:
        """Backward passes of uniform batches, without end; gives the number of examples in each."""
        config, (inputs, targets) = self._config, self._problem.data.train
        draw = reshuffled_indices if METHODS[config.method].draws == "reshuffled" else independent_indices
        weights = None if target is None else (target * len(target)).float()
        for indices in draw(len(targets), config.batch_size, config.seed, config.device):
            self._optimizer.zero_grad()
            losses = self._problem.loss_fn(self._model(inputs[indices]), targets[indices])
            (losses if weights is None else weights[indices] * losses).mean().backward()
            yield len(indices)

    def _adaptive(self, target: Tensor | None) -> Iterator[int]:
        """The same of adaptive ones."""
        config, train = self._config, self._problem.data.train
        options = {"seed": config.seed, "device": self._device, **sampler_options(config.method)}
        sampler = dasgrad.AdaptiveSampler(len(train[1]), config.batch_size, target=target, **options)
        scorer = dasgrad.ExampleScorer(
            self._model, self._problem.loss_fn, self._optimizer, preconditioner=config.options["preconditioner"]
        )
        loader = dasgrad.AdaptiveLoader(
            train,
            sampler=sampler,
            scorer=scorer,
            refresh=config.refresh,
            scoring_chunk_size=self._problem.chunk_size,
        )
        loader.on_refresh(self._charge)
        self._sampler = sampler
        return self._adaptive_steps(loader)

    def _adaptive_steps(self, loader: dasgrad.AdaptiveLoader) -> Iterator[int]:
        for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
            self._optimizer.zero_grad()
            batch.backward(self._problem.loss_fn(self._model(batch.inputs), batch.targets), self._optimizer)
            if self._draws is not None:
                self._drawn.append(batch.indices)
            yield len(batch)

    def _charge(self, refresh: Any) -> None:
        self._num_scored += len(refresh.scores)
        self._scoring_seconds += refresh.seconds
        self._last_refresh = refresh.step

    def take_steps(self, num_steps: int) -> None:
        """Draws, gradients and steps, on the clock."""
        with self._clock:
            for _ in range(num_steps):
                self._num_gradients += next(self._backward)
                self._optimizer.step()
                if self._schedule is not None:
                    self._schedule.step()
        self._step += num_steps

    def measure(self) -> dict[str, float]:
        """A value for every column, off the clock."""
        evaluation = evaluate(self._problem, self._model, self._weight_decay)
        values: dict[str, float] = {
            "step": self._step,
            **summarise_evaluation(self._problem, evaluation),
            "seconds": self._clock.seconds,
            "scoring_seconds": self._scoring_seconds,
            "gradient_evaluations": self._num_gradients,
            "scored_examples": self._num_scored,
        }
        if self._sampler is not None:
            values |= describe_draws(self._sampler, self._step + 1 - self._last_refresh)
            self._report_draws(self._sampler)
        return values

    def _report_draws(self, sampler: dasgrad.AdaptiveSampler) -> None:
        if self._draws is not None:
            if self._drawn:
                self._draws.count(torch.cat(self._drawn))
            self._drawn.clear()
            self._draws.observe(self._step, sampler.probabilities, sampler.weights)


class _Clock:
    """Adds up the wall-clock time spent inside ``with clock:``, device work included."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self._device = device
        self._started = 0.0

    def __enter__(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds += time.perf_counter() - self._started
