"""Ways to draw the examples of a step. Each is an endless stream of backward passes; the caller steps.

A stream leaves the gradient of an unbiased estimate of the mean loss in the parameters, and yields the number of
examples in the step. All read their rows by the loader's own, fastest way, so that none is handicapped by it.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import dasgrad
from dasgrad import nested
from dasgrad.experiments.batches import reshuffled_indices
from dasgrad.experiments.problems import Problem

PRESAMPLED = 3
"""Examples looked at for each one of a step, in `last_layer`."""
TAU_THRESHOLD = (PRESAMPLED + 3) / 3
"""Where the paper's test says that looking pays: B + 3b < 3τb."""
TAU_MEMORY = 0.9
STEPS_A_LOOK = 20
"""Steps between looks at τ, which is kept on the device: reading it waits for all work under way."""


@dataclass
class Training:
    """A model in training, and what its way to draw has spent on scores."""

    problem: Problem
    model: nn.Module
    optimizer: Optimizer
    batch_size: int
    seed: int
    device: torch.device
    scorer: dict[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter
    num_scored: int = 0
    scoring_seconds: float = 0.0

    def losses(self, inputs: Any, targets: Tensor) -> Tensor:
        """One loss an example."""
        return self.problem.loss_fn(self.model(inputs), targets)

    def charge(self, refresh: Any) -> None:
        """Note a refresh; its time is on the clock as all else is."""
        self.num_scored += len(refresh.scores)
        self.scoring_seconds += refresh.seconds


Stream = Iterator[int]


def reshuffled(training: Training) -> Stream:
    """Passes without replacement, as people train.

    They are those of a loader without scores: as long as an adaptive method draws uniformly, it takes the same steps
    with the same seed, and all that differs is what it costs.
    """
    train = training.problem.data.train
    sampler = dasgrad.AdaptiveSampler(len(train[1]), training.batch_size, seed=training.seed, device=training.device)
    while True:
        rows, _ = sampler.draw()
        inputs, targets = nested.take_rows(train, rows)  # before the gradients go, as in a loop over a loader
        training.optimizer.zero_grad()
        training.losses(inputs, targets).mean().backward()
        yield len(rows)


Refresh = int | Literal["never", "auto"]
Score = Literal["dasgrad", "loss"]


def make_loader(training: Training, refresh: Refresh, score: Score) -> dasgrad.AdaptiveLoader:
    """`AdaptiveLoader`, rescored every ``refresh`` steps, never, or when it thinks that it pays."""
    options: dict[str, Any] = {}
    if refresh != "never":
        scorer = training.scorer if score == "dasgrad" else {}
        options["refresh"] = dasgrad.AutoRefresh(clock=training.clock) if refresh == "auto" else refresh
        options["scorer"] = dasgrad.ExampleScorer(
            training.model, training.problem.loss_fn, training.optimizer, score=score, **scorer
        )
    loader = dasgrad.AdaptiveLoader(
        training.problem.data.train,
        training.batch_size,
        seed=training.seed,
        scoring_chunk_size=training.problem.chunk_size,
        **options,
    )
    loader.on_refresh(training.charge)
    return loader


def adaptive(training: Training, refresh: Refresh, score: Score) -> Stream:
    """An ordinary loop over the loader."""
    loader = make_loader(training, refresh, score)
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        training.optimizer.zero_grad()
        batch.weighted_mean(training.losses(batch.inputs, batch.targets)).backward()
        yield len(batch)


def last_layer(training: Training) -> Stream:
    """Katharopoulos and Fleuret 2018: the norm of the loss's gradient in the outputs, once that promises to pay.

    Uniform steps watch τ = √mean(s²)/mean(s), which their backward pass gives away for free. Where τ passes the
    threshold, a step looks at three times as many examples, forward alone, and draws its own from them.
    """
    train = training.problem.data.train
    generator = torch.Generator(training.device).manual_seed(training.seed)
    rows_of = reshuffled_indices(len(train[1]), training.batch_size, training.seed, str(training.device))
    tau = torch.zeros((), device=training.device)
    looking = False
    for step in itertools.count():
        if step % STEPS_A_LOOK == 0:
            looking = float(tau) > TAU_THRESHOLD
        training.optimizer.zero_grad()
        if looking:
            rows = torch.cat([next(rows_of) for _ in range(PRESAMPLED)])
            scores = output_norms(training, *nested.take_rows(train, rows))
            training.num_scored += len(rows)
            shares = scores / scores.sum()
            drawn = torch.multinomial(shares, training.batch_size, replacement=True, generator=generator)
            weights = 1.0 / (len(rows) * shares[drawn])
            losses = training.losses(*nested.take_rows(train, rows[drawn]))
            (weights * losses).mean().backward()
        else:
            rows = next(rows_of)
            inputs, targets = nested.take_rows(train, rows)
            outputs = training.model(inputs)
            outputs.retain_grad()
            training.problem.loss_fn(outputs, targets).mean().backward()
            scores = outputs.grad.detach().flatten(1).norm(dim=1)
        scores = scores + torch.finfo(scores.dtype).tiny
        tau = TAU_MEMORY * tau + (1 - TAU_MEMORY) * scores.square().mean().sqrt() / scores.mean()
        yield training.batch_size


def output_norms(training: Training, inputs: Any, targets: Tensor) -> Tensor:
    """‖∂fᵢ/∂outputᵢ‖ from a forward pass; a little above 0, so that nothing is never drawn."""
    with torch.no_grad():
        outputs = training.model(inputs)
    outputs = outputs.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(training.problem.loss_fn(outputs, targets).sum(), outputs)
    norms: Tensor = gradient.flatten(1).norm(dim=1)
    return norms + 1e-6 * norms.mean() + torch.finfo(norms.dtype).tiny


def find_stream(draws: str) -> Callable[[Training], Stream]:
    """The way to draw of that name: ``reshuffled``, ``last-layer``, ``loss:J``, ``adaptive:J`` and so on.

    Raises:
        ValueError: for a name that is none.
    """
    if draws == "reshuffled":
        return reshuffled
    if draws == "last-layer":
        return last_layer
    refresh, score = parse(draws)
    return lambda training: adaptive(training, refresh, score)


def capture(training: Training, draws: str, scheduler: LRScheduler | None) -> dasgrad.CapturedLoop:
    """The loop that takes its steps in a graph; reshuffled passes are those of a loader without scores."""
    refresh, score = ("never", "dasgrad") if draws == "reshuffled" else parse(draws)
    loader = make_loader(training, refresh, score)
    return dasgrad.CapturedLoop(
        loader, training.model, training.problem.loss_fn, training.optimizer, scheduler=scheduler
    )


def can_capture(problem: Problem, draws: str) -> bool:
    """Not sparse rows, nor a method that looks at its own values in every step."""
    return draws != "last-layer" and all(isinstance(column, Tensor) for column in problem.data.train)


def parse(draws: str) -> tuple[Refresh, Score]:
    """How a loader rescores.

    Raises:
        ValueError: for a name that is none.
    """
    kind, _, interval = draws.partition(":")
    if kind == "adaptive" and interval == "never":
        return "never", "dasgrad"
    if kind == "adaptive" and interval == "auto":
        return "auto", "dasgrad"
    if kind in ("adaptive", "loss") and interval.isdecimal() and int(interval) > 0:
        return int(interval), "loss" if kind == "loss" else "dasgrad"
    raise ValueError(
        "a method must be adam, amsgrad, adamw, last-layer, loss:J, adaptive:J, adaptive:never, adaptive:auto or "
        f"adaptive:fixed, J a positive number of steps, got {draws!r}."
    )
