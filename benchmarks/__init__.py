"""Measurements, one file a question: ``python -m benchmarks NAME --json FILE --md FILE``."""

import statistics
import time
from collections.abc import Callable
from typing import Any

ROUNDS, CALLS_A_ROUND = 60, 40


def compare_calls(
    metric: str,
    peer_name: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    rounds: int = ROUNDS,
    calls_a_round: int = CALLS_A_ROUND,
) -> dict[str, Any]:
    """A row: median seconds a call of both, taken in turns in one process, and the median of the rounds' ratios."""
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(rounds):
        for key, call in (("ours", ours), ("peer", peer)):
            started = time.perf_counter()
            for _ in range(calls_a_round):
                call()
            times[key].append((time.perf_counter() - started) / calls_a_round)
    ratios = [a / b for a, b in zip(times["ours"], times["peer"], strict=True)]
    medians = {key: statistics.median(values) for key, values in times.items()}
    return {"metric": metric, **medians, "peer_name": peer_name, "ratio": statistics.median(ratios)}
