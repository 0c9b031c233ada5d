"""Cheaper scores than the exact one: which a model has, and what draws by them would leave of the noise."""

from collections.abc import Callable

import torch
from torch import Tensor

from dasgrad.scoring import ExampleScorer
from dasgrad.training.findings import Found
from dasgrad.training.forecast import second_moment_left, weights_of

CHEAPER = ("last_layer", "loss")
"""Scores that are tried where the exact one costs much."""
CLEARLY = 0.95
"""A cheaper score must promise to take at most this share of the time with the exact one: a look is a small sample."""


class CheaperScores:
    """The scorers of cheaper scores, and which of the scores turned out to be none that draws can follow."""

    def __init__(self) -> None:
        self._scorers: dict[str, ExampleScorer | None] = {}

    def of(self, scorer: ExampleScorer) -> dict[str, ExampleScorer]:
        """Those to try beside this one, by name."""
        names = CHEAPER if scorer.score in ("dasgrad", "gradient") else ()
        for name in names:
            if name not in self._scorers:
                self._scorers[name] = scorer.with_score(name)  # type: ignore[arg-type]
        found = {name: self._scorers[name] for name in names}
        return {name: cheaper for name, cheaper in found.items() if cheaper is not None}

    def noise_left(self, name: str, score: Callable[[], Tensor], found: Found, floor: float) -> float | None:
        """What draws by the scores that ``score`` gives of a look's examples would leave.

        None where the model has no such score, which then is not tried again.
        """
        try:
            scores = score().to(found.scores)[found.finite]
        except ValueError:
            self._scorers[name] = None
            return None
        if bool((scores < 0).any()) or not bool(torch.isfinite(scores).all()):
            self._scorers[name] = None
            return None
        return found.noise.of_second_moment(second_moment_left(found.scores, weights_of(scores, floor)))
