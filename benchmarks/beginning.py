"""When should adaptive draws begin? What AMSGrad remembers of its first steps, on IMDB's logistic regression.

AMSGrad divides by the largest second moment of a gradient so far, and Adam by a recent one. Adaptive draws leave less
noise in the gradient: where they begin early, AMSGrad's denominators stay small for good, which is a larger learning
rate. Draws begin at some step and all examples are scored every J steps from then on; batch, rate and seeds are the
same for all. ``ours`` and ``peer`` are mean training losses after all steps, ``peer`` of reshuffled passes;
``step_size`` is the geometric mean over parameters of what the gradient is multiplied by in a step at the end, over
that of reshuffled passes. Nothing is timed.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch

import dasgrad
from benchmarks.parts.report import Row
from benchmarks.wallclock.cases import CASES
from benchmarks.wallclock.training import make_optimizer
from dasgrad.experiments.problems import evaluate, summarise_evaluation

OPTIMIZERS = ("amsgrad", "adam")
LEARNING_RATE, BATCH_SIZE = 0.02, 32
EVALUATED = (625, 1250, 2500, 4000)
SEEDS = range(5)


@dataclass(frozen=True)
class Draws:
    """From which step on, and how often all examples are scored; never by default."""

    begin: int = EVALUATED[-1]
    interval: int = 1

    def __str__(self) -> str:
        never = self.begin >= EVALUATED[-1]
        return "reshuffled" if never else f"adaptive from step {self.begin} on, J = {self.interval}"


UNIFORM = Draws()
VARIANTS = (UNIFORM, Draws(16, 75), Draws(75, 75), Draws(300, 75), Draws(600, 75), Draws(50, 300), Draws(300, 300))


def train(name: str, draws: Draws, seed: int) -> tuple[list[float], float]:
    """Training losses at `EVALUATED`, and the mean logarithm of what gradients are multiplied by at the end."""
    torch.set_num_threads(1)
    case = CASES["imdb"]
    problem = case.build()
    model = problem.make_model(seed)
    optimizer = make_optimizer(name, model, LEARNING_RATE, case.weight_decay)
    scorer = dasgrad.ExampleScorer(model, problem.loss_fn, optimizer, **case.scorer)
    loader = dasgrad.AdaptiveLoader(
        problem.data.train,
        BATCH_SIZE,
        scorer=scorer,
        scoring_chunk_size=problem.chunk_size,
        seed=seed,
        refresh=sys.maxsize,
    )
    losses: list[float] = []
    while len(losses) < len(EVALUATED):
        for batch in loader:
            optimizer.zero_grad()
            batch.weighted_mean(problem.loss_fn(model(batch.inputs), batch.targets)).backward()
            optimizer.step()
            if loader.num_steps in EVALUATED:
                values = summarise_evaluation(problem, evaluate(problem, model, case.weight_decay))
                losses.append(values["train_loss"])
                if len(losses) == len(EVALUATED):
                    break
            if loader.num_steps >= draws.begin and (loader.num_steps - draws.begin) % draws.interval == 0:
                loader.refresh()
    moments = [state.get("max_exp_avg_sq", state["exp_avg_sq"]) for state in optimizer.state.values()]
    roots = torch.cat([moment.flatten() for moment in moments]).sqrt()
    return losses, float(-(roots + optimizer.defaults["eps"]).log().mean())


def run() -> list[Row]:
    """Rows of every variant against reshuffled passes, for both optimizers."""
    rows: list[Row] = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for name in OPTIMIZERS:
            runs = {draws: [pool.submit(train, name, draws, seed) for seed in SEEDS] for draws in VARIANTS}
            uniform: tuple[torch.Tensor, float] | None = None
            for draws, futures in runs.items():
                found = [future.result() for future in futures]
                losses_SP = torch.tensor([losses for losses, _ in found])
                logarithm = sum(value for _, value in found) / len(found)
                uniform = uniform or (losses_SP, logarithm)
                rows.append(_make_row(name, draws, losses_SP, logarithm, uniform))
                print(f"{rows[-1]['metric']}: {rows[-1]['ours']:.4f}", flush=True)
    return rows


def _make_row(
    name: str, draws: Draws, losses_SP: torch.Tensor, logarithm: float, uniform: tuple[torch.Tensor, float]
) -> Row:
    means, peer = losses_SP.mean(0).tolist(), float(uniform[0].mean(0)[-1])
    after: dict[str, Any] = {f"after_{step}": loss for step, loss in zip(EVALUATED, means, strict=True)}
    return {
        "metric": f"{name}: {draws}",
        "ours": means[-1],
        "peer": peer,
        "peer_name": str(UNIFORM),
        "ratio": means[-1] / peer,
        **after,
        "standard_error": float(losses_SP[:, -1].std() / len(losses_SP) ** 0.5),
        "step_size": float(torch.tensor(logarithm - uniform[1]).exp()),
    }
