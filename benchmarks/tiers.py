"""How much noise does each kind of score leave in the gradient? On real data, along a uniform training run.

A score s is turned into probabilities p as `AdaptiveSampler` does it, under a floor of 0.2, and the variance of one
draw's weighted gradient is computed over all training examples,

    V(p) = Σᵢ πᵢ² sᵢ*²/pᵢ − ‖μ‖²,    sᵢ* = ‖H^(−1/2)gᵢ‖,    μ = E_π[H^(−1/2)gᵢ],

with exact norms s* in float64. The least of any p is (E_π s*)² − ‖μ‖², at p ∝ s* and no floor; uniform draws have
E_π s*² − ‖μ‖². ``ours`` is V, ``peer`` that minimum, and ``ratio_to_uniform`` the share of uniform's variance that is
left. Once in the optimizer's metric H, in which the step is taken, and once with H = 1. Before the first step the two
are the same but for a factor. All models are trained by AMSGrad on reshuffled epochs of batches of 32.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import dasgrad
from benchmarks.parts.problems import cifar_cnn
from benchmarks.parts.report import Row
from dasgrad.experiments import datasets

FLOOR, BATCH_SIZE, CHUNK_SIZE, SEED = 0.2, 32, 256, 0
NUM_EXAMPLES = 4_000  # of the larger data sets

TIERS: Mapping[str, Mapping[str, Any]] = {
    "frozen": {"preconditioner": "frozen"},
    "own": {"preconditioner": "own"},
    "gradient": {"score": "gradient"},
    "frozen, bfloat16": {"preconditioner": "frozen", "dtype": "bfloat16"},
    "linear layers": {"preconditioner": "frozen", "layers": "linear"},
    "last layer": {"score": "last_layer"},
    "loss": {"score": "loss"},
}
"""Options of `ExampleScorer` by the names in results."""


@dataclass(frozen=True)
class Problem:
    """A data set and a model for it."""

    name: str
    load: Callable[[], tuple[Tensor, Tensor]]
    """Inputs and targets of the training examples, in memory."""
    make_model: Callable[[], nn.Module]
    lr: float
    num_steps: int


def digits() -> tuple[Tensor, Tensor]:
    """Inputs ``[1437, 64]`` and targets."""
    return _dense(datasets.load_digits())


def mnist() -> tuple[Tensor, Tensor]:
    """The first images, ``[n, 784]``, and targets."""
    inputs, targets = _dense(datasets.load_mnist())
    return inputs[:NUM_EXAMPLES], targets[:NUM_EXAMPLES]


def cifar10() -> tuple[Tensor, Tensor]:
    """The first images, ``[n, 3, 32, 32]``, and targets."""
    inputs, targets = _dense(datasets.load_cifar10())
    return inputs[:NUM_EXAMPLES].clone(), targets[:NUM_EXAMPLES].clone()


def _dense(split: datasets.Split) -> tuple[Tensor, Tensor]:
    inputs, targets = split.train
    assert isinstance(inputs, Tensor)
    return inputs, targets


def digits_cnn() -> nn.Module:
    """A convolution and two fully connected layers, on images of 8×8."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


PROBLEMS = (
    Problem("digits, logistic regression", digits, lambda: nn.Linear(64, 10), lr=1e-2, num_steps=2_000),
    Problem(
        "digits, MLP 64-64-32-10",
        digits,
        lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
        lr=1e-3,
        num_steps=2_000,
    ),
    Problem("digits, CNN", digits, digits_cnn, lr=1e-3, num_steps=2_000),
    Problem("MNIST, logistic regression", mnist, lambda: nn.Linear(784, 10), lr=1e-3, num_steps=2_000),
    Problem(
        "MNIST, MLP 784-256-128-10",
        mnist,
        lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
        lr=1e-3,
        num_steps=1_000,
    ),
    Problem("CIFAR-10, CNN of the paper", cifar10, cifar_cnn, lr=5e-4, num_steps=600),
)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per example."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def train(problem: Problem, data: tuple[Tensor, Tensor]) -> Iterator[tuple[str, nn.Module, dasgrad.DASGrad]]:
    """Model and optimizer at the start, after one epoch, and when trained."""
    inputs, targets = data
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = problem.make_model()
    optimizer = dasgrad.DASGrad(model.parameters(), lr=problem.lr)
    yield "start", model, optimizer
    generator, step = torch.Generator().manual_seed(SEED), 0
    while step < problem.num_steps:
        for rows in torch.randperm(len(targets), generator=generator).split(BATCH_SIZE):
            optimizer.zero_grad()
            cross_entropy(model(inputs[rows]), targets[rows]).mean().backward()
            optimizer.step()
            step += 1
        if step <= len(targets) // BATCH_SIZE + 1:
            yield "one epoch", model, optimizer
    yield "trained", model, optimizer


def squared_mean(model: nn.Module, optimizer: dasgrad.DASGrad, data: tuple[Tensor, Tensor], in_metric: bool) -> float:
    """‖μ‖² in float64: the mean gradient of all examples, in the optimizer's metric or in none."""
    precise = copy.deepcopy(model).double()
    inputs, targets = data
    for rows, labels in zip(inputs.split(CHUNK_SIZE), targets.split(CHUNK_SIZE), strict=True):
        rows = rows.double() if rows.is_floating_point() else rows
        (cross_entropy(precise(rows), labels).sum() / len(targets)).backward()
    total = 0.0
    (group,) = optimizer.param_groups
    for param, copied in zip(model.parameters(), precise.parameters(), strict=True):
        assert copied.grad is not None
        metric = torch.ones((), dtype=torch.float64)
        if in_metric:
            largest = optimizer.state.get(param, {}).get("max_exp_avg_sq", torch.zeros(()))
            metric = largest.double().sqrt() + group["eps"]
        total += float((copied.grad.square() / metric).sum())
    return total


def score(model: nn.Module, optimizer: dasgrad.DASGrad, data: tuple[Tensor, Tensor], **options: Any) -> Tensor:
    """Scores ``[n]`` in float64."""
    scorer = dasgrad.ExampleScorer(model, cross_entropy, optimizer, **options)
    return scorer.score_dataset(data, CHUNK_SIZE).double()


def variance(norms: Tensor, probabilities: Tensor, squared_mean: float) -> float:
    """V(p) under a uniform target."""
    return float((norms.square() / probabilities).sum()) / len(norms) ** 2 - squared_mean


def probabilities_of(scores: Tensor) -> Tensor:
    """What `AdaptiveSampler` would draw with."""
    sampler = dasgrad.AdaptiveSampler(len(scores), 1, floor=FLOOR)
    sampler.refresh(scores)
    return sampler.probabilities


def run(*names: str) -> list[Row]:
    """One row a problem, metric, time and tier, of the data sets named, by default all."""
    rows = []
    for problem in PROBLEMS:
        if names and problem.name.split(",")[0].lower() not in names:
            continue
        data = problem.load()
        num_examples = len(data[1])
        for when, model, optimizer in train(problem, data):
            found = {"uniform": torch.full((num_examples,), 1.0 / num_examples, dtype=torch.float64)}
            linear = {p for m in model.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
            for name, options in TIERS.items():
                if name == "linear layers" and linear == set(model.parameters()):
                    continue
                try:
                    found[name] = probabilities_of(score(model, optimizer, data, **options))
                except NotImplementedError as error:  # torch has no such kernel
                    print(f"{problem.name}: no {name} ({error})")
            for metric, options in (("H", TIERS["frozen"]), ("1", TIERS["gradient"])):
                norms = score(model, optimizer, data, **options, dtype=torch.float64)
                mean = squared_mean(model, optimizer, data, in_metric=metric == "H")
                optimal = float(norms.mean()) ** 2 - mean
                uniform = variance(norms, found["uniform"], mean)
                for tier, probabilities in found.items():
                    left = variance(norms, probabilities, mean)
                    rows.append(
                        {
                            "metric": f"{problem.name}, {when}, variance left in metric {metric} by {tier}",
                            "ours": left,
                            "peer": optimal,
                            "peer_name": "optimal",
                            "ratio": left / optimal,
                            "ratio_to_uniform": left / uniform,
                            "problem": problem.name,
                            "when": when,
                            "in": metric,
                            "tier": tier,
                        }
                    )
    return rows


def make_table(rows: Sequence[Row]) -> list[str]:
    """A table for each problem and metric: variance left, × the optimum and × uniform's."""
    lines = [f"Variance left under a floor of {FLOOR}, × the least possible / × that of uniform draws.\n"]
    for problem in dict.fromkeys(row["problem"] for row in rows):
        for metric, title in (("H", "in the optimizer's metric"), ("1", "of the plain gradient")):
            chosen = [row for row in rows if (row["problem"], row["in"]) == (problem, metric)]
            times = list(dict.fromkeys(row["when"] for row in chosen))
            cells = {
                (row["tier"], row["when"]): f"{row['ratio']:.3f} / {row['ratio_to_uniform']:.3f}" for row in chosen
            }
            lines.append(f"**{problem}**, variance {title}:\n")
            lines.append(f"| score | {' | '.join(times)} |")
            lines.append("|---" * (len(times) + 1) + "|")
            for tier in dict.fromkeys(row["tier"] for row in chosen):
                lines.append(f"| {tier} | {' | '.join(cells[tier, when] for when in times)} |")
            lines.append("")
    return lines[:-1]
