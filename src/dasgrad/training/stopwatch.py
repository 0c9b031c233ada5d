"""How long a training step takes: from its batch to the end of the optimizer's step, what comes between left out."""

import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

Clock = Callable[[], float]
KEPT = 32
"""Steps whose times are kept; their median is what is reported, so that a pause or a jumping clock does no harm."""
EVERY, EVERY_LATER, EVERY_ON_CUDA = 4, 16, 8
"""One step in so many is timed, in fewer once `KEPT` were, on a GPU by events that nothing has to wait for."""


class Stopwatch:
    """Seconds a step, measured while training goes on.

    Args:
        clock: seconds since some time, for steps on a CPU.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._cuda = False
        self._started: Any = None
        self._beside = False
        self._finished: dict[bool, deque[Any]] = {beside: deque(maxlen=KEPT) for beside in (False, True)}
        self._warned = False
        self._num_timed = 0
        self._num_passed_over = 0  # steps from here on that are not timed

    def start(self, device: torch.device, *, beside: bool = False) -> None:
        """A batch is handed out, for a model on this device; of several for one step, the first one counts.

        Steps ``beside`` a scoring that goes on are kept apart.
        """
        self._cuda = device.type == "cuda"
        if not self.is_due(beside):
            return
        self._beside = beside
        if self._cuda:
            self._started = torch.cuda.Event(enable_timing=True)
            self._started.record()
        else:
            self._started = self._clock()

    def is_due(self, beside: bool) -> bool:
        """Whether the next step is to be timed, and its time has not begun; on a CPU all are, beside a scoring."""
        return self._started is None and (self._num_passed_over <= 0 or (beside and not self._cuda))

    def stop(self) -> None:
        """The optimizer has stepped; a step without a batch of its own is not timed."""
        self._num_passed_over -= 1
        if self._started is None:
            return
        self._num_timed += 1
        every = EVERY if self._num_timed < KEPT else EVERY_LATER
        self._num_passed_over = (EVERY_ON_CUDA if self._cuda else every) - 1
        if self._cuda:
            finished = torch.cuda.Event(enable_timing=True)
            finished.record()
            self._finished[self._beside].append((self._started, finished))
        else:
            self._finished[self._beside].append(self._clock() - self._started)
        self._started = None

    def warn_if_it_stands(self) -> None:
        """Say so once where steps were timed, as many as are kept, and none took any time."""
        if not self._warned and len(self._finished[False]) == KEPT and not self._times(False):
            self._warned = True
            warnings.warn(
                f"`AutoRefresh(clock=...)` must return seconds that go on: the last {KEPT} training steps that were "
                "timed took none. Draws stay as they are.",
                stacklevel=2,
            )

    def restart(self) -> None:
        """Forget all times: steps from here on take another one."""
        self._started = None
        for times in self._finished.values():
            times.clear()
        self._num_timed = self._num_passed_over = 0

    def seconds(self, *, beside: bool = False) -> float | None:
        """The median of the last steps, alone or beside a scoring; None before the first. Waits for the GPU."""
        times = self._times(beside)
        return statistics.median(times) if times else None

    def lost_beside(self) -> float | None:
        """The share of a step's time beside a scoring that it would not take alone; None before both were timed.

        Two threads hold each other up now and then, and not a little all the time: so by the mean, without the longest.
        """
        alone, beside = (sorted(self._times(beside)) for beside in (False, True))
        if not alone or not beside:
            return None
        return max(0.0, 1 - statistics.mean(alone[:-1] or alone) / statistics.mean(beside[:-1] or beside))

    def _times(self, beside: bool) -> list[float]:
        times = self._finished[beside]
        if self._cuda and times:
            times[-1][1].synchronize()
            return [t for t in (started.elapsed_time(finished) / 1000 for started, finished in times) if t > 0]
        return [t for t in times if t > 0]
