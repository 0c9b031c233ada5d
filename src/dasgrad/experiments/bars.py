"""Progress over runs, with the time left: by tqdm where it is installed, else a line now and then."""

import sys
import time
from typing import Any, Protocol


class Bar(Protocol):
    """What the runner needs of a progress bar."""

    def found(self, count: int) -> None:
        """So many runs were there already."""

    def advance(self) -> None:
        """One run is done."""

    def write(self, text: str) -> None:
        """Print a line on standard error beside the bar."""

    def close(self) -> None:
        """The last thing that is done with it."""


def make_bar(total: int, label: str, quiet: bool) -> Bar:
    """A bar of ``total`` runs on standard error."""
    try:
        from tqdm import tqdm
    except ImportError:
        return _Lines(total, label, quiet)
    return _Tqdm(
        tqdm(total=total, desc=label, unit="run", smoothing=0, disable=quiet, dynamic_ncols=True, file=sys.stderr)
    )


class _Tqdm:
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def found(self, count: int) -> None:
        if not self._bar.disable:
            self._bar.initial += count  # or the time left would count them as work done in no time
        self._bar.update(count)

    def advance(self) -> None:
        self._bar.update(1)

    def write(self, text: str) -> None:
        self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


class _Lines:
    """Says every few seconds how far it is."""

    SECONDS = 10.0

    def __init__(self, total: int, label: str, quiet: bool) -> None:
        self._total, self._label, self._quiet = total, label, quiet
        self._found = self._done = 0
        self._started = self._said = time.monotonic()

    def found(self, count: int) -> None:
        self._found += count

    def advance(self) -> None:
        self._done += 1
        now = time.monotonic()
        finished = self._found + self._done == self._total
        if not self._quiet and (finished or now - self._said >= self.SECONDS):
            self._said = now
            spent = now - self._started
            left = spent / self._done * (self._total - self._found - self._done)
            self.write(
                f"{self._label}: {self._found + self._done}/{self._total} runs, {spent:.0f} s, {left:.0f} s left"
            )

    def write(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        pass
