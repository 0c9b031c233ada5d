"""When to rescore, and what to do with scores that are not numbers."""

import time
import warnings
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad.sampling import AdaptiveSampler
from dasgrad.training.stopwatch import Clock, Stopwatch

if TYPE_CHECKING:
    from dasgrad.training.loader import AdaptiveLoader


class StepCounter:
    """Counts the completed steps of an optimizer, and how long they take.

    Args:
        clock: seconds since some time.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.num_steps = 0
        self.stopwatch = Stopwatch(clock)

    def count_steps_of(self, optimizer: Optimizer) -> None:
        """Count by a hook that does not keep this object alive."""
        myself = weakref.ref(self)

        def count(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            counter = myself()
            if counter is not None:
                counter.num_steps += 1
                counter.stopwatch.stop()

        # Not within the hook: torch is going through its hooks then, and must not lose one on the way.
        weakref.finalize(self, optimizer.register_step_post_hook(count).remove)


class RefreshSchedule(StepCounter):
    """Rescores before the draw of each step t (completed steps + 1) that reaches the next multiple of J.

    Args:
        interval: J ≥ 1.
    """

    def __init__(self, interval: int) -> None:
        if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
            raise ValueError(f"`AdaptiveLoader(refresh=...)` must be a positive integer or 'auto', got {interval!r}.")
        super().__init__()
        self.interval = interval
        self._num_refreshes_due = 0

    def before_draw(self, loader: "AdaptiveLoader") -> None:
        """Rescore where it is due."""
        if self.is_due():
            loader.refresh()

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
    shown = ", ".join(str(i) for i in indices[:10]) + (", …" if len(indices) > 10 else "")
    what = (
        f"{len(indices)} of {len(scores)} examples have a score that is not finite (indices {shown}; the first "
        f"is {float(scores[indices[0]])})"
    )
    if policy == "raise" or len(indices) == len(scores):
        raise ValueError(
            f"refresh: {what}; the probabilities stay as they were. Look at these examples' losses, or build "
            '`AdaptiveLoader(nonfinite="keep")` to go on with their last scores.'
        )
    warnings.warn(f"refresh: {what}; they keep their last scores.", stacklevel=3)
    last = sampler.scores.to(scores) if sampler.refreshed else scores[~bad].mean().expand_as(scores)
    return torch.where(bad, last, scores)
