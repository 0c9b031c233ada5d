"""What is trained against the clock, and the grids that both sides choose from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import dasgrad
from benchmarks.wallclock import models
from dasgrad.experiments import cifar10, imdb, mnist
from dasgrad.experiments.datasets import Split, load_imdb_tokens, load_mnist
from dasgrad.experiments.problems import Problem, binary_cross_entropy, count_right_signs

NUM_WORDS, LENGTH = 10_000, 128
RARE_DIGIT, RARE_SHARE, NUM_HIDDEN = 3, 0.01, 32
BATCH_SIZES = (32, 128, 512)


@dataclass(frozen=True)
class Case:
    """A problem with its budget and its grids."""

    title: str
    build: Callable[[], Problem]
    num_steps: int
    """T, uniform steps of the smallest batch; larger batches get as many as take the same time."""
    learning_rates: tuple[float, ...]
    """For a constant rate."""
    falling_rates: tuple[float, ...]
    """For α/√t."""
    cosine_rates: tuple[float, ...] = ()
    """For cosine decay, where they are not those for a constant rate."""
    weight_decay: float = 0.0
    """κ of the L2 term, part of the loss; AdamW decays its weights by as much, or by torch's 0.01 where it is 0."""
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    scorer: Mapping[str, Any] = field(default_factory=lambda: {"preconditioner": "frozen"})
    """Options of `ExampleScorer` for adaptive draws."""
    num_seeds: int = 10
    num_tuning_seeds: int = 5
    needs_gpu: bool = False

    def rates(self, schedule: str) -> tuple[float, ...]:
        """The grid of learning rates."""
        if schedule == "cosine" and self.cosine_rates:
            return self.cosine_rates
        return self.falling_rates if schedule == "inverse-sqrt" else self.learning_rates


def build_rare() -> Problem:
    """Is it a 3? MNIST with as many 3s left out as makes them 1 % of all, in training and in testing."""
    data = load_mnist()
    parts = []
    for inputs, digits in (data.train, data.test):
        assert isinstance(inputs, Tensor)
        rare = (digits == RARE_DIGIT).nonzero().flatten()
        num_rare = round(int((digits != RARE_DIGIT).sum()) * RARE_SHARE / (1 - RARE_SHARE))
        keep = (digits != RARE_DIGIT).index_fill(0, rare[:num_rare], True)
        parts.append((inputs[keep], (digits[keep] == RARE_DIGIT).long()))
    make = partial(models.make_perceptron, num_inputs=784, num_hidden=NUM_HIDDEN)
    return Problem(Split(*parts), make, binary_cross_entropy, count_right_signs)


def scale_rows(rows: dasgrad.SparseRows) -> dasgrad.SparseRows:
    """Every row to length 1, empty ones as they are."""
    lengths = rows.indptr.diff()
    owners = torch.repeat_interleave(torch.arange(len(rows)), lengths)
    squares = torch.zeros(len(rows)).index_add_(0, owners, rows.values.square())
    norms = squares.sqrt().clamp(min=torch.finfo(squares.dtype).tiny)
    return dasgrad.SparseRows(rows.indptr, rows.indices, rows.values / norms[owners], rows.num_columns)


def build_hopeless() -> Problem:
    """IMDB with rows of length 1: all examples weigh nearly alike, and there is nothing to win."""
    problem = imdb.build_problem()
    (train, train_targets), (test, test_targets) = problem.data.train, problem.data.test
    assert isinstance(train, dasgrad.SparseRows)
    assert isinstance(test, dasgrad.SparseRows)
    return replace(problem, data=Split((scale_rows(train), train_targets), (scale_rows(test), test_targets)))


def build_reader() -> Problem:
    """IMDB texts, a transformer that reads them: examples so costly that the batch stays small."""
    data = load_imdb_tokens(LENGTH, NUM_WORDS)
    make = partial(models.make_reader, num_words=NUM_WORDS + 2, length=LENGTH)
    return Problem(data, make, binary_cross_entropy, count_right_signs, chunk_size=8192)


def build_pictures() -> Problem:
    """CIFAR-10 in chunks that keep a GPU busy."""
    return replace(cifar10.build_problem(), chunk_size=8000)


IMDB = Case(
    "IMDB, logistic regression on bags of words",
    imdb.build_problem,
    num_steps=4000,
    # AMSGrad keeps the noise of its first steps in its denominators: draws that begin early take another rate.
    learning_rates=(2e-3, 3.5e-3, 5e-3, 7e-3, 1e-2, 1.4e-2, 2e-2, 5e-2),
    falling_rates=(0.05, 0.1, 0.2, 0.5, 1.0),
    cosine_rates=(5e-3, 1e-2, 2e-2, 5e-2, 1e-1),
    weight_decay=1e-4,
    # Frozen scores divide by eps where a word has not been seen yet.
    scorer={"preconditioner": "own"},
)
CASES: Mapping[str, Case] = {
    "rare": Case(
        "rare events: is it a 3? MNIST with 1 % of 3s, MLP 784-32-1",
        build_rare,
        num_steps=4000,
        learning_rates=(1e-3, 2e-3, 5e-3, 1e-2, 2e-2),
        falling_rates=(0.02, 0.05, 0.1, 0.2, 0.5),
        cosine_rates=(2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
        weight_decay=1e-4,
    ),
    "mnist": Case(
        "MNIST, logistic regression",
        mnist.build_problem,
        num_steps=6000,
        learning_rates=(1e-3, 2e-3, 3.5e-3, 5e-3, 7e-3, 1e-2, 2e-2),
        falling_rates=(0.02, 0.05, 0.1, 0.2, 0.5),
        cosine_rates=(5e-3, 1e-2, 2e-2, 5e-2, 1e-1),
        weight_decay=1e-4,
    ),
    "imdb": IMDB,
    "imdb-l2": replace(
        IMDB,
        title=f"{IMDB.title}, ten times the L2 term",
        learning_rates=(1e-3, *IMDB.learning_rates),
        weight_decay=1e-3,
    ),
    "hopeless": Case(
        "nothing to win: IMDB with rows of length 1",
        build_hopeless,
        num_steps=1500,  # after which all that is left is noise, and times to a loss say nothing
        learning_rates=(2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
        falling_rates=(0.1, 0.2, 0.5, 1.0, 2.0),
        weight_decay=1e-4,
        scorer={"preconditioner": "own"},
    ),
    "cifar10": Case(
        "CIFAR-10, small CIFARNET",
        build_pictures,
        num_steps=6000,
        learning_rates=(1e-4, 3e-4, 5e-4, 1e-3, 3e-3),
        falling_rates=(0.003, 0.01, 0.03),
        weight_decay=1e-4,
        scorer={"preconditioner": "frozen", "layers": "linear", "dtype": "bfloat16"},
        num_seeds=5,
        num_tuning_seeds=1,
        needs_gpu=True,
    ),
    "transformer": Case(
        "IMDB, transformer on 128 words",
        build_reader,
        num_steps=8000,
        learning_rates=(1e-4, 3e-4, 1e-3),
        falling_rates=(0.003, 0.01, 0.03),
        batch_sizes=(32,),
        scorer={"preconditioner": "frozen", "layers": "linear", "dtype": "bfloat16"},
        num_seeds=5,
        num_tuning_seeds=1,
        needs_gpu=True,
    ),
}


def make_dense(problem: Problem) -> Problem:
    """Sparse rows as dense ones, for a CUDA graph repeats one size; the problem itself where they are dense.

    IMDB's steps take a twentieth of the time in a graph.
    """
    parts = problem.data.train, problem.data.test
    if not any(isinstance(inputs, dasgrad.SparseRows) for inputs, _ in parts):
        return problem
    return replace(problem, data=Split(*((inputs.to_dense(), targets) for inputs, targets in parts)))


def thin(problem: Problem, every: int) -> Problem:
    """The same problem with one example of ``every`` many, for a quick check."""
    parts = ((inputs[::every], targets[::every]) for inputs, targets in (problem.data.train, problem.data.test))
    return replace(problem, data=Split(*parts))
