"""Timing by turns: every method walks over the same examples, round after round, each in chunks of its best size."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.parts.methods import Method

NUM_TRIALS = 2
"""Walks of each method at each chunk size, of which the faster counts, before a size is chosen."""
RACE_SECONDS, FEWEST_ROUNDS, MOST_ROUNDS = 12.0, 7, 200
"""Rounds go on for so long, within these numbers."""


@dataclass(frozen=True)
class Timing:
    """How long a method took for the same examples in each round."""

    seconds: Sequence[float]
    num_examples: int
    chunk_size: int

    @property
    def microseconds(self) -> float:
        """Median over rounds, an example."""
        return statistics.median(self.seconds) / self.num_examples * 1e6


def walk(method: Method, inputs: Tensor, targets: Tensor, chunk_size: int) -> float:
    """Seconds for all examples in chunks."""
    started = time.perf_counter()
    for rows, labels in zip(inputs.split(chunk_size), targets.split(chunk_size), strict=True):
        method(rows, labels)
    return time.perf_counter() - started


def race(
    methods: Mapping[str, Method], inputs: Tensor, targets: Tensor, chunk_sizes: Sequence[int]
) -> dict[str, Timing]:
    """Timings of all methods, taken in turns in this process, after each found its best chunk size."""
    trials: dict[str, dict[int, list[float]]] = {name: {size: [] for size in chunk_sizes} for name in methods}
    for _ in range(NUM_TRIALS):
        for size in chunk_sizes:
            for name, method in methods.items():
                trials[name][size].append(walk(method, inputs, targets, size))
    best = {name: min(chunk_sizes, key=lambda size, name=name: min(trials[name][size])) for name in methods}  # type: ignore[misc]
    expected = sum(min(trials[name][best[name]]) for name in methods)
    num_rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, round(RACE_SECONDS / expected)))
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    names = list(methods)
    for _ in range(num_rounds):
        for name in names:
            seconds[name].append(walk(methods[name], inputs, targets, best[name]))
        names.append(names.pop(0))  # nobody always comes after the same other
    return {name: Timing(seconds[name], len(targets), best[name]) for name in methods}


def row(metric: str, ours: Timing, peer: Timing, peer_name: str, bar: float | None = None) -> dict[str, Any]:
    """One line of a result: microseconds an example, and the median of the rounds' ratios.

    Others' work on the same machine slows some rounds; ``ratio_of_fastest`` compares the fastest round of each.
    """
    ratios = [a / b for a, b in zip(ours.seconds, peer.seconds, strict=True)]
    return {
        "metric": metric,
        "ours": ours.microseconds,
        "peer": peer.microseconds,
        "peer_name": peer_name,
        "ratio": statistics.median(ratios),
        "bar": bar,
        "ratio_of_fastest": min(ours.seconds) / min(peer.seconds),
        "chunk_size": ours.chunk_size,
        "peer_chunk_size": peer.chunk_size,
    }
