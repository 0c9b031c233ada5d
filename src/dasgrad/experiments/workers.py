"""Processes in which runs are done, several at a time, each on one thread."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")
Perform = Callable[[Job, Callable[[], bool]], Result]
"""Does one job; asks its second argument now and then whether to give up."""

MOST_ON_ONE_GPU = 8
"""Processes that share a GPU by default: more of them only wait for each other."""

_stop: Any = None  # in a worker: the event by which the parent asks runs to stop
_num_processes = 1


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_processes_here() -> int:
    """How many processes run at a time, this one included: what seconds were measured beside."""
    return _num_processes


def default_processes(device: str) -> int:
    """One a core, and no more than a GPU serves well."""
    return min(available_cores(), MOST_ON_ONE_GPU) if device == "cuda" else available_cores()


@contextmanager
def start_workers(
    num_processes: int, perform: Perform[Job, Result]
) -> Iterator[Callable[[Sequence[Job]], Iterator[tuple[int, Result]]]]:
    """Yield a function that does all jobs and gives the position and result of each as it is done.

    On the way out of an error, jobs under way are given up. With one process jobs are done in this one.
    """
    if num_processes == 1:
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield lambda jobs: ((k, perform(job, lambda: False)) for k, job in enumerate(jobs))
        finally:
            torch.set_num_threads(num_threads)
        return
    # Spawned, not forked: torch's threads and CUDA do not survive a fork.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    executor = ProcessPoolExecutor(num_processes, context, _start_worker, (stop, num_processes))

    def perform_all(jobs: Sequence[Job]) -> Iterator[tuple[int, Result]]:
        futures = {executor.submit(_perform_in_worker, perform, job): k for k, job in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.result()

    try:
        yield perform_all
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)


def _perform_in_worker(perform: Perform[Job, Result], job: Job) -> Result:
    return perform(job, _stop.is_set)


def _start_worker(stop: Any, num_processes: int) -> None:
    global _stop, _num_processes
    _stop, _num_processes = stop, num_processes
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Do not stay behind when the parent is killed; records are written whole or not at all."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
