"""When to rescore, and what to do with scores that are not numbers."""

import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad.sampling import AdaptiveSampler
from dasgrad.training.stopwatch import Clock, Stopwatch

if TYPE_CHECKING:
    from dasgrad.training.loader import AdaptiveLoader


_IDLE_PASSES = 2
"""Passes without a step after which it is said that none is counted."""


class StepCounter:
    """Counts the completed steps of an optimizer, and how long they take.

    Args:
        clock: seconds since some time.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.num_steps = 0
        self.stopwatch = Stopwatch(clock)
        self._paused = False
        self._counts = False
        self._num_steps_before = 0  # the pass that is going on
        self._num_idle_passes = 0  # in a row

    def count_steps_of(self, optimizer: Optimizer) -> None:
        """Count by a hook that does not keep this object alive.

        Raises:
            ValueError: when it counts another loader's steps.
        """
        if self._counts:
            raise ValueError("`AdaptiveLoader(refresh=...)` must be an `AutoRefresh` of its own, got another loader's.")
        self._counts = True
        myself = weakref.ref(self)

        def count(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            counter = myself()
            if counter is not None and not counter._paused:
                counter.count()

        # Not by the hook itself: hooks that come after it would find their number changed while they are called.
        weakref.finalize(self, optimizer.register_step_post_hook(count).remove)

    def count(self) -> None:
        """A step is complete. The hook calls this; a replay of a captured step, which runs no hooks, has to."""
        self.num_steps += 1
        self.stopwatch.stop()

    def end_pass(self) -> None:
        """A pass of a loader with a scorer is over; says so where no step was counted in two of them."""
        idle = self.num_steps == self._num_steps_before
        self._num_idle_passes = self._num_idle_passes + 1 if idle else 0
        self._num_steps_before = self.num_steps
        if self._num_idle_passes == _IDLE_PASSES:
            warnings.warn(
                f"AdaptiveLoader: no step of its optimizer was counted in {_IDLE_PASSES} passes, by which it decides "
                "when to renew scores. Give `AdaptiveLoader(optimizer=...)`, or the scorer, the optimizer that steps; "
                "where model or optimizer were exchanged, make a new scorer and loader.",
                stacklevel=3,
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The hook counts nothing inside: a step that is captured is not taken."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False


class RefreshSchedule(StepCounter):
    """Rescores before the draw of each step t (completed steps + 1) that reaches the next multiple of J.

    Args:
        interval: J ≥ 1.
    """

    def __init__(self, interval: int) -> None:
        if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
            raise ValueError(
                "`AdaptiveLoader(refresh=...)` must be a positive integer, 'auto', an `AutoRefresh(...)`, or None for "
                f"once a pass, got {interval!r}."
            )
        super().__init__()
        self.interval = interval
        self._num_refreshes_due = 0

    def before_draw(self, loader: "AdaptiveLoader") -> None:
        """Let pending scores take effect and rescore, each where it is due."""
        loader.take_effect()
        if self.is_due():
            if loader.overlap == 0:
                loader.refresh()
            else:
                assert loader.scorer is not None
                loader.rescore_beside(loader.scorer, int(loader.overlap))

    def num_quiet_steps(self) -> int:
        """Steps that can be drawn for at once after `before_draw`: none of their draws is preceded by a refresh."""
        return self.interval * (self._num_refreshes_due + 1) - 1 - self.num_steps

    def __repr__(self) -> str:
        return str(self.interval)

    def is_due(self) -> bool:
        """Whether to refresh before this draw; True once for each multiple of J."""
        due = (self.num_steps + 1) // self.interval
        if due <= self._num_refreshes_due:
            return False
        self._num_refreshes_due = due
        return True

    def state_dict(self) -> dict[str, int]:
        """Interval, steps counted, and refreshes asked for."""
        return {
            "interval": self.interval,
            "num_steps": self.num_steps,
            "num_refreshes_due": self._num_refreshes_due,
        }

    def check(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse a state of another interval."""
        if state_dict.get("interval") != self.interval:
            raise ValueError(
                f"`AdaptiveLoader.load_state_dict` needs a loader with refresh={state_dict.get('interval', 'auto')!r}, "
                f"got {self.interval}."
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.check(state_dict)
        self.num_steps = state_dict["num_steps"]
        self._num_refreshes_due = state_dict["num_refreshes_due"]


def shown(indices: Sequence[int]) -> str:
    """The first ten, for a message."""
    return ", ".join(map(str, indices[:10])) + (", …" if len(indices) > 10 else "")


def fill_nonfinite(scores: Tensor, sampler: AdaptiveSampler, policy: Literal["raise", "keep"]) -> Tensor:
    """Scores as they are when all are finite; otherwise refused, or filled with each example's last score.

    Before the first refresh there is no last score, and the mean of the finite ones takes its place.

    Raises:
        ValueError: naming the examples, with policy ``"raise"``, or when no score is finite.
    """
    bad = ~torch.isfinite(scores)
    if not bool(bad.any()):
        return scores
    indices = bad.nonzero().flatten().tolist()
    what = (
        f"{len(indices)} of {len(scores)} examples have a score that is not finite (indices {shown(indices)}; the "
        f"first is {float(scores[indices[0]])})"
    )
    if policy == "raise" or len(indices) == len(scores):
        raise ValueError(
            f"refresh: {what}; the probabilities stay as they were. Look at these examples' losses, or build "
            '`AdaptiveLoader(nonfinite="keep")` to go on with their last scores.'
        )
    warnings.warn(f"refresh: {what}; they keep their last scores.", stacklevel=3)
    last = sampler.scores.to(scores) if sampler.refreshed else scores[~bad].mean().expand_as(scores)
    return torch.where(bad, last, scores)
