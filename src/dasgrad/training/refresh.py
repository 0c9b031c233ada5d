"""When to rescore, and what to do with scores that are not numbers."""

import warnings
import weakref
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad.sampling import AdaptiveSampler


class RefreshSchedule:
    """Says before each draw whether step t (completed steps + 1) has reached the next multiple of J.

    Args:
        interval: J ≥ 1.
    """

    def __init__(self, interval: int) -> None:
        if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
            raise ValueError(f"`AdaptiveLoader(refresh=...)` must be a positive integer, got {interval!r}.")
        self.interval = interval
        self.num_steps = 0
        self._num_refreshes_due = 0

    def count_steps_of(self, optimizer: Optimizer) -> None:
        """Count completed steps of ``optimizer`` by a hook that does not keep this object alive."""
        myself = weakref.ref(self)

        def count(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            schedule = myself()
            if schedule is None:
                handle.remove()
            else:
                schedule.num_steps += 1

        handle = optimizer.register_step_post_hook(count)

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

    def check(self, state_dict: Mapping[str, int]) -> None:
        """Refuse a state of another interval."""
        if state_dict["interval"] != self.interval:
            raise ValueError(
                f"`AdaptiveLoader.load_state_dict` needs a loader with refresh={state_dict['interval']}, "
                f"got {self.interval}."
            )

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
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
