"""How far a measurement is and how long it will take, in plain lines."""

import sys
import time


class OutOfTimeError(Exception):
    """The time that was given is over; what is done is on disk."""


class Progress:
    """Prints a line now and then; work is counted in examples.

    Args:
        minutes: after so many `advance` raises; None for no limit.
        seconds_between: lines.
    """

    def __init__(self, minutes: float | None = None, seconds_between: float = 10.0) -> None:
        self._deadline = None if minutes is None else time.perf_counter() + 60.0 * minutes
        self._between = seconds_between
        self._stage, self._total, self._done = "", 0, 0
        self._started = self._last = time.perf_counter()

    def start(self, stage: str, total: int) -> None:
        """A stage with so much work in all."""
        self._stage, self._total, self._done = stage, total, 0
        self._started = time.perf_counter()

    def advance(self, work: int, what: str) -> None:
        """So much more is done.

        Raises:
            OutOfTimeError: when the time is over.
        """
        self._done += work
        now = time.perf_counter()
        if now - self._last >= self._between:
            self._last = now
            left = (now - self._started) * (self._total - self._done) / max(self._done, 1)
            share = self._done / max(self._total, 1)
            print(f"{self._stage}: {share:4.0%}, {describe(left)} left; {what}", file=sys.stderr, flush=True)
        if self._deadline is not None and now > self._deadline:
            raise OutOfTimeError(f"{self._stage}: {self._done / max(self._total, 1):.0%} done")


def describe(seconds: float) -> str:
    """A duration for people.

    Example:
        >>> describe(200)
        '3 min'
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
