"""What do exact scores cost? Against a plain forward and backward pass, and against others' per-example gradients.

Four models (`benchmarks.parts.problems`), on two threads. Times are microseconds an example: every method walks over
the same examples in chunks of its own best size, all take turns in one process, and the ratio is the median of the
rounds' ratios. Peers give the same numbers to 1e-4, or the benchmark ends with an error; their fastest is the one to
beat. Memory is the peak above what a fresh process held before one chunk, the same chunk for all, activations
included; the median of three processes, for how well an allocator uses memory again is a matter of chance.
``python -m benchmarks scores A B`` takes two of the four models.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import dasgrad
from benchmarks.parts import memory, methods, peers, problems
from benchmarks.parts.methods import PLAIN, Method
from benchmarks.parts.problems import Problem
from benchmarks.parts.report import Row
from benchmarks.parts.turns import race, row

NUM_THREADS = 2
NUM_PROCESSES = 3
"""Whose median peak of memory counts."""
TOLERANCE, BFLOAT16_TOLERANCE = 1e-4, 0.02


@dataclass(frozen=True)
class Plan:
    """How much of what is measured on one model, and the bars."""

    num_examples: int
    chunk_sizes: tuple[int, ...]
    num_slow_examples: int
    """For races with methods that materialise gradients."""
    slow_chunk_sizes: tuple[int, ...]
    memory_chunk_size: int
    frozen_bar: float
    peer_bar: float
    bfloat16_bar: float | None = None
    own_bar: float | None = None
    step_batch_size: int = 128


PLANS: Mapping[str, Plan] = {
    "A": Plan(
        16_384,
        (256, 1024, 4096, 16_384),
        16_384,
        (64, 256, 1024, 4096, 16_384),
        1024,
        1.6,
        1 / 8,
        0.9,
        own_bar=4.0,
    ),
    "B": Plan(8_192, (256, 1024, 4096), 512, (32, 128, 512), 256, 1.6, 1 / 8, 0.9),
    "C": Plan(512, (32, 128, 512), 128, (16, 32, 64, 128), 128, 1.5, 1 / 2.5, own_bar=2.0),
    "D": Plan(1_024, (32, 64, 128, 512), 256, (16, 32, 64, 128, 256), 128, 1.3, 1 / 1.2),
}
MEMORY_BAR, STEP_BAR = 1 / 5, 1.4


def check_agreement(problem: Problem, found: Mapping[str, Method], num_examples: int) -> None:
    """Raises ArithmeticError where a method's scores are not those of our ``frozen``."""
    inputs, targets = problem.inputs[:num_examples], problem.targets[:num_examples]
    expected: Tensor = methods.scores(problem, "frozen")(inputs, targets)
    for name, method in found.items():
        error = float((method(inputs, targets) / expected - 1).abs().max())
        if not error <= TOLERANCE:
            raise ArithmeticError(f"{problem.title}: {name} differs from our scores by {error:.1e} of their size.")
    for name in methods.computable(problem, ["bfloat16"]):
        rough: Tensor = methods.scores(problem, name)(inputs, targets)
        error = float((rough / expected - 1).abs().median())
        if not error <= BFLOAT16_TOLERANCE:
            raise ArithmeticError(f"{problem.title}: {name} scores are off by {error:.1e} of their size in the median.")


def against_training(problem: Problem, plan: Plan) -> list[Row]:
    """Exact scores and the cheaper tiers against a plain forward and backward pass."""
    names = ["frozen", "bfloat16", "last layer", "loss"]
    if not _all_linear(problem.model):
        names.append("linear layers")
    names = methods.computable(problem, names)
    calls = {PLAIN: methods.forward_and_backward(problem)}
    calls |= {name: methods.scores(problem, name) for name in names}
    times = race(calls, problem.inputs, problem.targets, plan.chunk_sizes)
    bars = {"frozen": plan.frozen_bar, "bfloat16": plan.bfloat16_bar}
    return [
        row(f"{problem.title}: {name}, µs an example", times[name], times[PLAIN], PLAIN, bars.get(name))
        for name in names
    ]


def _all_linear(model: nn.Module) -> bool:
    """Whether scores of the linear layers are the whole scores."""
    linear = sum(p.numel() for m in model.modules() if isinstance(m, nn.Linear) for p in m.parameters())
    return linear == sum(p.numel() for p in model.parameters())


def against_peers(problem: Problem, plan: Plan) -> list[Row]:
    """Exact scores against per-example gradients of others, fastest first; `own` against `frozen`."""
    others = peers.importable(problem)
    check_agreement(problem, others, plan.slow_chunk_sizes[0])
    inputs, targets = problem.inputs[: plan.num_slow_examples], problem.targets[: plan.num_slow_examples]
    calls = {"frozen": methods.scores(problem, "frozen"), "own": methods.scores(problem, "own"), **others}
    times = race(calls, inputs, targets, plan.slow_chunk_sizes)
    found = [row(f"{problem.title}: own, µs an example", times["own"], times["frozen"], "frozen", plan.own_bar)]
    fastest = sorted(others, key=lambda name: times[name].microseconds)
    for name in fastest:
        bar = plan.peer_bar if name == fastest[0] else None
        found.append(row(f"{problem.title}: frozen, µs an example", times["frozen"], times[name], name, bar))
    return found


def memory_rows(problem: Problem, plan: Plan) -> list[Row]:
    """Peak memory of one chunk above what a fresh process held before it, the median of a few, least first."""
    others = list(peers.importable(problem))
    names = ["frozen", "own", PLAIN, *others]
    size = plan.memory_chunk_size
    peaks = {name: [memory.measure(problem.key, name, size) for _ in range(NUM_PROCESSES)] for name in names}
    mebibytes = {name: statistics.median(found) / 2**20 for name, found in peaks.items()}
    least = min(others, key=mebibytes.__getitem__)

    def line(ours: str, peer: str) -> Row:
        return {
            "metric": f"{problem.title}: {ours}, peak MiB for a chunk of {plan.memory_chunk_size}",
            "ours": mebibytes[ours],
            "peer": mebibytes[peer],
            "peer_name": peer,
            "ratio": mebibytes[ours] / mebibytes[peer],
            "bar": MEMORY_BAR if (ours, peer) == ("frozen", least) else None,
        }

    return [*(line("frozen", name) for name in sorted([*others, PLAIN], key=mebibytes.__getitem__)), line("own", PLAIN)]


def free_scores(problem: Problem, plan: Plan) -> list[Row]:
    """A training step that also yields its batch's scores against one that does not.

    Takes ``ExampleScorer.listen(batch)``, a context around a training step's forward and backward pass that has
    ``scores`` after it; left out, with a word, where the scorer has no such method.
    """
    scorer: Any = dasgrad.ExampleScorer(
        problem.model, nn.CrossEntropyLoss(reduction="none"), problem.optimizer, preconditioner="frozen"
    )
    if not hasattr(scorer, "listen"):
        print(f"{problem.title}: a training step's own scores left out: ExampleScorer has no `listen`", flush=True)
        return []

    def descend(inputs: Tensor, targets: Tensor) -> None:
        problem.optimizer.zero_grad()
        functional.cross_entropy(problem.model(inputs), targets, reduction="none").mean().backward()

    def plain(inputs: Tensor, targets: Tensor) -> None:
        descend(inputs, targets)
        problem.optimizer.step()

    inputs, targets = problem.inputs[: plan.step_batch_size], problem.targets[: plan.step_batch_size]
    # As a loader gives it, whether scores are taken or not.
    batch = dasgrad.WeightedBatch((inputs, targets), torch.arange(len(targets)), torch.ones(len(targets)))

    def listening(inputs: Tensor, targets: Tensor) -> None:
        with scorer.listen(batch) as heard:
            descend(inputs, targets)
        assert len(heard.scores) == len(targets)
        problem.optimizer.step()

    calls = {"listening": listening, "plain": plain}
    times = race(calls, inputs, targets, (plan.step_batch_size,))
    metric = f"{problem.title}: a step of {plan.step_batch_size} with its scores, µs an example"
    return [row(metric, times["listening"], times["plain"], "a step without", STEP_BAR)]


def run(*keys: str) -> list[Row]:
    """Rows of the models named, by default of all four."""
    torch.set_num_threads(NUM_THREADS)
    rows = []
    unknown = set(keys) - set(PLANS)
    if unknown:
        raise SystemExit(f"models must be among {', '.join(PLANS)}, got {', '.join(sorted(unknown))}.")
    for key in keys or PLANS:
        plan = PLANS[key]
        problem = problems.build(key, plan.num_examples)
        for measure in (against_training, against_peers, memory_rows, free_scores):
            part = measure(problem, plan)
            rows += part
            for line in part:
                fastest = f", fastest {line['ratio_of_fastest']:.3g}" if "ratio_of_fastest" in line else ""
                print(f"{line['metric']}: {line['ratio']:.3g} of {line['peer_name']}{fastest}", flush=True)
    return rows
