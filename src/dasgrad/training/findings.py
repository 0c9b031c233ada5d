"""What a look of `AutoRefresh` found, and the choices it leaves."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dasgrad.sampling import AdaptiveSampler
from dasgrad.scoring import ExampleScorer
from dasgrad.training import generators
from dasgrad.training.diagnosis import Decision
from dasgrad.training.forecast import Noise

HARDLY = 0.02
"""Fresh scores must promise to save this share of uniform draws' time beside those at hand."""


@dataclass(frozen=True)
class Option:
    """One choice, with what it would leave and take until the next look or scoring."""

    decision: Decision
    factor: float
    left_now: float
    """The noise that is left at once."""
    noise_left: float
    """The same on average until then."""
    scorer: ExampleScorer | None = None
    """Of a refresh; None where the scores are there already."""
    interval: int | None = None
    """Steps until all examples should be scored again."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a look found."""

    chunks: Sequence[Tensor]
    """The examples looked at."""
    finite: Tensor
    """Which of the examples have a score."""
    scores: Tensor
    """Theirs."""
    noise: Noise
    now: float
    """Noise left by the draws as they are."""
    fresh: float
    """Noise left by fresh exact scores."""

    @property
    def indices(self) -> Tensor:
        """The examples that have a score."""
        return torch.cat(list(self.chunks))[self.finite]


def draw_examples(sampler: AdaptiveSampler, step: int, number: int) -> Tensor:
    """Random examples from the target, the same ones for the same seed and step, more of them after the first."""
    generator = torch.Generator().manual_seed(generators.mix(sampler.seed, 2, step))
    size = min(number, max(2, sampler.num_examples))
    u = torch.rand(size, generator=generator, dtype=torch.float64, device="cpu")
    return sampler.from_target(u.to(sampler.device))


def choose(options: Sequence[Option], worth: float, *, renew: bool = False) -> Option:
    """The least time; scores at hand where fresh ones are hardly better, uniform draws where nothing is worth it.

    Args:
        options: one or none of each decision.
        worth: the share of uniform draws' time that adaptive ones may take.
        renew: fresh scores rather than those at hand, where they are worth it.
    """
    by_decision = {option.decision: option for option in options}
    best = min(options, key=lambda option: option.factor)
    keep, refresh = by_decision.get("keep"), by_decision.get("refresh")
    if keep is not None and refresh is not None and best is not by_decision["off"]:
        renew &= refresh.factor <= worth
        best = refresh if renew or keep.factor >= refresh.factor + HARDLY else keep
    return by_decision["off"] if best.factor > worth else best
