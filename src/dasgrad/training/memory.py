"""`ScoreMemory`: earlier scores beside fresh ones, as much of them as foretells the next.

Draws are made by scores for many steps after these were computed, so what they should go by is √E[s²] over those
steps. At a constant learning rate a model moves to and fro, and much of a score is of the moment: within tens of steps
an example that was learnt is forgotten, and has the smallest probability and the largest weight when its gradient is
large again. The mean square over the past says better what an example is like. How much of the past that should be is
found out whenever scores are computed anew: which of a few means would have left least, had draws been made by it.

A model changes with the logarithm of time besides: what scores of step 100 were is nothing to those of step 300, which
scores of step 10,000 still are to those of step 10,200. So the past fades by how many times as old training is.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dasgrad.training.beliefs import FADING
from dasgrad.training.forecast import weights_of

RETAINED = (0.0, 0.3, 0.7)
"""Shares of the squares known so far that stay beside fresh ones; the first is to go by fresh scores alone."""
AGING = 2
"""These shares go with the ratio of the steps, of when squares were learnt last and of now, to this power."""


class ScoreMemory:
    """Running means of the squares of all examples' scores, and which of them foretells scores best."""

    def __init__(self) -> None:
        self._name = ""
        self._left_K = [0.0] * len(RETAINED)  # of the second moment, by draws in the past, older ones fading
        self._squares_Kn: Tensor | None = None
        self._step = 1  # at which they were learnt

    def learn(self, name: str, scores: Tensor, step: int, floor: float) -> Tensor:
        """Scores to draw by with that floor, ``[n]``, from those of a step; those of another name begin anew."""
        squares, mean = _relative_squares(scores)
        known = self._known(name, scores)
        if known is None:
            self._name, self._left_K = name, [0.0] * len(RETAINED)
            known = self._squares_Kn = squares.repeat(len(RETAINED), 1)
        else:
            left = weights_of(known.sqrt(), floor).mul_(squares).mean(1).tolist()
            self._left_K = [FADING * before + now for before, now in zip(self._left_K, left, strict=True)]
            for squares_n, share in zip(known, RETAINED, strict=True):
                squares_n.lerp_(squares, 1 - share * self._lasting(step))
        self._step = step
        return known[self._best].sqrt().mul_(mean.sqrt())

    def foretell(self, name: str, scores: Tensor, step: int, indices: Tensor) -> Tensor:
        """What draws would go by if all were scored at a step: of some examples, from their scores at that step."""
        squares_Kn, share = self._known(name, scores), RETAINED[self._best] * self._lasting(step)
        if squares_Kn is None:
            return scores
        known = squares_Kn[self._best, indices].sqrt()
        return (share * _relative_squares(known)[0] + (1 - share) * _relative_squares(scores)[0]).sqrt()

    def _lasting(self, step: int) -> float:
        """What of the past has not faded by a step."""
        return float(min(1.0, self._step / step) ** AGING)

    def _known(self, name: str, like: Tensor) -> Tensor | None:
        """What is known of scores of that name, on the device of such."""
        if self._squares_Kn is None or name != self._name:
            return None
        self._squares_Kn = self._squares_Kn.to(like.device)
        return self._squares_Kn

    @property
    def latest(self) -> Tensor:
        """The scores learnt last, over their root mean square."""
        assert self._squares_Kn is not None
        return self._squares_Kn[0].sqrt()

    @property
    def _best(self) -> int:
        return self._left_K.index(min(self._left_K))

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        squares = self._squares_Kn
        copied = None if squares is None else squares.clone()
        return {"name": self._name, "left": list(self._left_K), "squares": copied, "step": self._step}

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> "ScoreMemory":
        """From `state_dict`."""
        memory, squares = cls(), state_dict["squares"]
        memory._name, memory._left_K = str(state_dict["name"]), [float(left) for left in state_dict["left"]]
        memory._squares_Kn = None if squares is None else squares.clone()
        memory._step = int(state_dict["step"])
        return memory


def _relative_squares(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Squares over their mean, 1 where all are 0; and the mean."""
    squares = scores.double().square()
    mean = squares.mean()
    return squares.div_(mean).masked_fill_(mean == 0, 1.0), mean
