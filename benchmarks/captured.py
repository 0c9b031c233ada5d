"""What does a CUDA graph of the whole step save? `CapturedLoop` against the ordinary loop, milliseconds a step.

Random examples on the device, float32: logistic regression of MNIST's shape, a small CNN, a transformer of two layers;
draws that are uniform, and adaptive ones. No refresh falls into the measurement. Both loops take turns in one process,
and every turn is timed by CUDA events from its first step to the end of its last. Parts: ``logistic``, ``cnn``,
``transformer``.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import dasgrad
from benchmarks.parts.problems import NUM_TOKENS, VOCABULARY, TransformerClassifier
from benchmarks.parts.report import Row
from benchmarks.scores_cuda import row, time_in_turns

DEVICE = "cuda"
NUM_ROUNDS, NUM_STEPS = 7, 100
NUM_CLASSES = 10
ORDINARY = "the ordinary loop"


@dataclass(frozen=True)
class Problem:
    """Models and examples of one kind."""

    title: str
    make_model: Callable[[], nn.Module]
    make_inputs: Callable[[], Tensor]
    batch_sizes: tuple[int, ...]


def small_cnn() -> nn.Module:
    """Two 3×3 convolutions with pooling and a linear layer, for images of 28×28."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, NUM_CLASSES)),
    )


PARTS: Mapping[str, Problem] = {
    "logistic": Problem(
        "logistic regression",
        lambda: nn.Linear(784, NUM_CLASSES),
        lambda: torch.rand(60_000, 784, device=DEVICE),
        (32, 128, 512),
    ),
    "cnn": Problem("small CNN", small_cnn, lambda: torch.rand(60_000, 1, 28, 28, device=DEVICE), (32, 128)),
    "transformer": Problem(
        "transformer",
        TransformerClassifier,
        lambda: torch.randint(0, VOCABULARY, (25_000, NUM_TOKENS), device=DEVICE),
        (32, 128),
    ),
}


def make_loader(data: tuple[Tensor, Tensor], batch_size: int, adaptive: bool) -> dasgrad.AdaptiveLoader:
    """A loader that is never refreshed again."""
    loader = dasgrad.AdaptiveLoader(data, batch_size)
    if adaptive:
        loader.sampler.refresh(torch.rand(len(data[0]), device=DEVICE))
    return loader


def ordinary_loop(
    loader: dasgrad.AdaptiveLoader, model: nn.Module, loss_fn: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[], None]:
    """Some steps as people write them, one operation at a time."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def run() -> None:
        for batch in itertools.islice(batches, NUM_STEPS):
            optimizer.zero_grad()
            batch.weighted_mean(loss_fn(model(batch.inputs), batch.targets)).backward()
            optimizer.step()

    return run


def measure(problem: Problem) -> list[Row]:
    """A row for every batch size and way to draw."""
    rows = []
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    inputs = problem.make_inputs()
    data = (inputs, torch.randint(0, NUM_CLASSES, (len(inputs),), device=DEVICE))
    for batch_size, adaptive in itertools.product(problem.batch_sizes, (False, True)):
        calls: dict[str, Callable[[], object]] = {}
        for name in ("captured", ORDINARY):
            model = problem.make_model().to(DEVICE)
            captured = name == "captured"
            optimizer = dasgrad.DASGrad(model.parameters(), lr=1e-3, capturable=captured)
            loader = make_loader(data, batch_size, adaptive)
            if captured:
                loop = dasgrad.CapturedLoop(loader, model, loss_fn, optimizer)
                calls[name] = functools.partial(loop.run, NUM_STEPS)
            else:
                calls[name] = ordinary_loop(loader, model, loss_fn, optimizer)
        times = {
            name: [time / NUM_STEPS for time in values] for name, values in time_in_turns(calls, NUM_ROUNDS, 1).items()
        }
        draws = "adaptive" if adaptive else "uniform"
        metric = f"ms a step, {problem.title}, batch {batch_size}, {draws} draws"
        rows.append(row(metric, times["captured"], times[ORDINARY], ORDINARY))
        print(f"{metric}: {rows[-1]['ours']:.4f} captured, {rows[-1]['peer']:.4f} in {ORDINARY}", flush=True)
    return rows


def run(*names: str) -> list[Row]:
    """Rows of the parts named, by default of all."""
    unknown = set(names) - set(PARTS)
    if unknown:
        raise SystemExit(f"parts must be among {', '.join(PARTS)}, got {', '.join(sorted(unknown))}.")
    if not torch.cuda.is_available():
        raise SystemExit("captured needs a CUDA device, torch sees none here.")
    torch.backends.cudnn.benchmark = True
    rows = [line for name in names or PARTS for line in measure(PARTS[name])]
    return [{key: value for key, value in line.items() if key != "bar"} for line in rows]
