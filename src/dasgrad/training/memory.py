"""`ScoreMemory`: earlier scores beside fresh ones, as much of them as foretells the next.

Draws are made by scores for many steps after these were computed, so what they should go by is √E[s²] over those
steps. At a constant learning rate a model moves to and fro, and much of a score is of the moment: within tens of steps
an example that was learnt is forgotten, and has the smallest probability and the largest weight when its gradient is
large again. The mean square over the past says better what an example is like. How much of the past that should be is
found out whenever scores are computed anew: which of a few means would have left least, had draws been made by it.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dasgrad.training.beliefs import FADING
from dasgrad.training.forecast import weights_of

RETAINED = (0.0, 0.3, 0.7)
"""Shares of the squares known so far that stay beside fresh ones; the first is to go by fresh scores alone."""


class ScoreMemory:
    """Running means of the squares of all examples' scores, and which of them foretells scores best."""

    def __init__(self) -> None:
        self._name = ""
        self._left_K = [0.0] * len(RETAINED)  # of the second moment, by draws in the past, older ones fading
        self._squares_Kn: Tensor | None = None

    def learn(self, name: str, scores: Tensor, floor: float) -> Tensor:
        """Scores to draw by with that floor, ``[n]``, from fresh ones of that name; those of another begin anew."""
        squares, mean = _relative_squares(scores)
        known = self._known(name, scores)
        if known is None:
            self._name, self._left_K = name, [0.0] * len(RETAINED)
            known = self._squares_Kn = squares.repeat(len(RETAINED), 1)
        else:
            left = weights_of(known.sqrt(), floor).mul_(squares).mean(1).tolist()
            self._left_K = [FADING * before + now for before, now in zip(self._left_K, left, strict=True)]
            for squares_n, share in zip(known, RETAINED, strict=True):
                squares_n.lerp_(squares, 1 - share)
        return known[self._best].sqrt().mul_(mean.sqrt())

    def foretell(self, name: str, scores: Tensor, indices: Tensor) -> Tensor:
        """What draws would go by if all examples were scored now: of some examples, from their fresh scores."""
        squares_Kn, share = self._known(name, scores), RETAINED[self._best]
        if squares_Kn is None:
            return scores
        known = squares_Kn[self._best, indices].sqrt()
        return (share * _relative_squares(known)[0] + (1 - share) * _relative_squares(scores)[0]).sqrt()

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
        return {"name": self._name, "left": list(self._left_K), "squares": None if squares is None else squares.clone()}

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> "ScoreMemory":
        """From `state_dict`."""
        memory, squares = cls(), state_dict["squares"]
        memory._name, memory._left_K = str(state_dict["name"]), [float(left) for left in state_dict["left"]]
        memory._squares_Kn = None if squares is None else squares.clone()
        return memory


def _relative_squares(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Squares over their mean, 1 where all are 0; and the mean."""
    squares = scores.double().square()
    mean = squares.mean()
    return squares.div_(mean).masked_fill_(mean == 0, 1.0), mean
