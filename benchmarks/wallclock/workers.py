"""Runs in processes of their own, one thread each, where processor time is what counts."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import torch

from benchmarks.wallclock.cases import Case
from benchmarks.wallclock.training import RunConfig, train
from dasgrad.experiments.problems import Problem

Result = TypeVar("Result")
_problem: Problem
_case: Case


class Workers:
    """Processes that share the problem's data, which is forked with them.

    Nothing may have been trained or asked of a GPU in this process: forked ones could not train any more. They are
    told that there is none, for torch's optimizers ask in every step.

    Args:
        number: of processes.
        problem: what they train on, on the CPU.
        case: its grids and options.
    """

    def __init__(self, number: int, problem: Problem, case: Case) -> None:
        global _problem, _case
        _problem, _case = problem, case
        self._executor = ProcessPoolExecutor(number, multiprocessing.get_context("fork"), _start)

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """``function(problem, case, *arguments)`` in one of the processes."""
        return self._executor.submit(_call, function, arguments).result()

    def train_all(self, configs: Sequence[RunConfig]) -> Iterator[tuple[RunConfig, dict[str, Any]]]:
        """Runs in the order in which they end."""
        device = torch.device("cpu")
        futures = {self._executor.submit(_call, train, (config, device)): config for config in configs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Wait for what is under way, and end."""
        self._executor.shutdown(cancel_futures=True)


def _start() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)


def _call(function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    return function(_problem, _case, *arguments)
