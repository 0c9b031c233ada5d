"""Tiers of the score: the exact one, and cheaper ones where draws by them are clearly sooner at the same loss."""

from collections.abc import Callable

import torch
from torch import Tensor

from dasgrad.scoring import ExampleScorer
from dasgrad.scoring.names import score_name
from dasgrad.training.findings import Found, Option
from dasgrad.training.forecast import second_moment_left

CHEAPER = ("last_layer", "loss")
"""Scores that are tried where the exact one costs much."""
CLEARLY = 0.95
"""Another tier must promise to take at most this share of the time with the present one: a look is a small sample, and
what is remembered of scores is lost with a change."""


class Tiers:
    """Which score draws go by, which others there are, and which turned out to be none that draws can follow."""

    def __init__(self) -> None:
        self.present = ""
        """The name of the cheaper score that draws go by; empty for the exact one."""
        self._scorers: dict[str, ExampleScorer | None] = {}

    def scorer(self, exact: ExampleScorer) -> ExampleScorer:
        """Of the present tier, beside the exact one."""
        return self._cheaper_than(exact).get(self.present, exact)

    def names(self, exact: ExampleScorer) -> list[str]:
        """Of the scores to try beside the exact one."""
        return [score_name(cheaper) for cheaper in self._cheaper_than(exact).values()]

    def _cheaper_than(self, exact: ExampleScorer) -> dict[str, ExampleScorer]:
        """Those to try, by name."""
        names = CHEAPER if exact.score in ("dasgrad", "gradient") else ()
        for name in names:
            if name not in self._scorers:
                self._scorers[name] = exact.with_score(name)  # type: ignore[arg-type]
        found = {name: self._scorers[name] for name in names}
        return {name: cheaper for name, cheaper in found.items() if cheaper is not None}

    def best(
        self,
        found: Found,
        exact: Option,
        score: Callable[[ExampleScorer], Tensor],
        draws_by: Callable[[str, Tensor], Tensor],
        refreshing: Callable[[ExampleScorer, float], Option],
    ) -> Option:
        """To score all examples by the present tier, or by another that is clearly better.

        Args:
            found: by a look.
            exact: to score by the exact score.
            score: of the look's examples, by a scorer.
            draws_by: what draws would go by, as weights, from a score's name and fresh scores of the look's examples.
            refreshing: to score all by a scorer whose draws leave such noise.
        """
        assert exact.scorer is not None
        options = {"": exact}
        for name, cheaper in self._cheaper_than(exact.scorer).items():
            left = self._noise_left(name, cheaper, found, score, draws_by)
            if left is not None:
                options[name] = refreshing(cheaper, left)
        best = options.get(self.present, exact)
        for option in options.values():  # the more exact ones first
            if option.factor < CLEARLY * best.factor:
                best = option
        return best

    def take(self, scorer: ExampleScorer) -> None:
        """Draws go by this one from here on."""
        self.present = next((name for name, cheaper in self._scorers.items() if cheaper is scorer), "")

    def _noise_left(
        self,
        name: str,
        scorer: ExampleScorer,
        found: Found,
        score: Callable[[ExampleScorer], Tensor],
        draws_by: Callable[[str, Tensor], Tensor],
    ) -> float | None:
        """What draws by fresh scores of that name would leave.

        None where the model has no such score, which then is not tried again.
        """
        try:
            scores = score(scorer).to(found.scores)[found.finite]
        except ValueError:
            self._scorers[name] = None
            return None
        if bool((scores < 0).any()) or not bool(torch.isfinite(scores).all()):
            self._scorers[name] = None
            return None
        left = second_moment_left(found.scores, draws_by(score_name(scorer), scores))
        return found.noise.of_second_moment(left)
