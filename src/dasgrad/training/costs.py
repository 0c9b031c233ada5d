"""What scoring costs: `Costs` where that is given, `ScoringCosts` where it is measured."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dasgrad.scoring import ExampleScorer
from dasgrad.scoring.isolation import device_of
from dasgrad.scoring.names import score_name
from dasgrad.training.overlap import Scored
from dasgrad.training.stopwatch import Clock
from dasgrad.training.trials import Trial, try_out

if TYPE_CHECKING:
    from dasgrad.training.loader import AdaptiveLoader

_GROWTH, _GROWTH_ON_CUDA = 8, 64
"""Of trials; on a GPU thousands of examples mostly take no longer than a few, and each trial as long as many steps."""
_MARGIN = 1.5
"""Scoring beside training is given so many times the steps that it should take."""


@dataclass(frozen=True)
class Costs:
    """Seconds, given instead of measured: decisions then depend on the random seed alone, and can be repeated."""

    step: float
    """A training step."""
    example: float
    """Scoring one example."""
    lost: float = 1.0
    """The share of its time that scoring beside training takes from training; for ``overlap`` alone."""

    def __post_init__(self) -> None:
        for name, value in (("step", self.step), ("example", self.example)):
            if not (isinstance(value, (int, float)) and value > 0):
                raise ValueError(f"`Costs({name}=...)` must be a positive number of seconds, got {value!r}.")
        if not (isinstance(self.lost, (int, float)) and 0 <= self.lost <= 1):
            raise ValueError(f"`Costs(lost=...)` must be in [0, 1], got {self.lost!r}.")


class ScoringCosts:
    """Seconds that scoring takes, by the name of the score: as given, or as last measured.

    Args:
        given: None measures.
        clock: seconds since some time.
    """

    def __init__(self, given: Costs | None, clock: Clock) -> None:
        self.given = given
        self.clock = clock
        self.seconds: dict[str, float] = {}  # of all examples
        self.lost = 1.0 if given is None else given.lost  # until it was measured, as if training stood still
        self.trial_seconds = 0.0  # spent on trials so far
        self.spent = 0.0  # on scoring all examples, so far
        self._tried: tuple[ExampleScorer, Tensor, Tensor] | None = None  # by whom, which examples, and their scores

    def is_known(self, name: str) -> bool:
        """Whether that score was tried, or need not be."""
        return self.given is not None or name in self.seconds

    def of_all(self, name: str, num_examples: int) -> float:
        """Of scoring all examples by that score."""
        return self.seconds[name] if self.given is None else self.given.example * num_examples

    def note(self, name: str, seconds: float) -> None:
        """All examples took so long, or should."""
        if self.given is None and seconds > 0:
            self.seconds[name] = seconds

    def taken_from_training(self, name: str, loader: "AdaptiveLoader") -> float:
        """What training loses by scoring all examples by that score."""
        seconds = self.of_all(name, loader.sampler.num_examples)
        return seconds if loader.overlap == 0 else self.lost * seconds

    def steps_beside(self, name: str, loader: "AdaptiveLoader", step_seconds: float) -> int:
        """K, for scoring all examples by that score beside training."""
        if isinstance(loader.overlap, int):
            return loader.overlap
        return max(1, math.ceil(_MARGIN * self.of_all(name, loader.sampler.num_examples) / step_seconds))

    def note_beside(self, scored: Scored, slower: float | None) -> None:
        """What scoring beside training took, and took from training, whose steps were slower by that share."""
        self.note(scored.score, scored.seconds)
        if self.given is None and scored.seconds > 0 and slower is not None:
            self.lost = min(1.0, slower + scored.waited_seconds / scored.seconds)
        self.spent += self.lost * self.of_all(scored.score, len(scored.scores))

    def now(self, scorer: ExampleScorer) -> float:
        """The time when all that was asked of the model's device is done."""
        device = device_of(scorer.model)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self.clock()

    def scores_of(
        self, loader: "AdaptiveLoader", scorer: ExampleScorer, chunks: Sequence[Tensor]
    ) -> tuple[Tensor, float]:
        """Scores of the examples of some chunks, and what they took; nothing where a trial has just scored them."""
        tried = self._take_tried(scorer, chunks)
        if tried is not None:
            return tried, 0.0
        started = self.now(scorer)
        scores = torch.cat([scorer(loader.examples_for_scoring(indices)) for indices in chunks])
        return scores, max(0.0, self.now(scorer) - started)

    def try_out(
        self, loader: "AdaptiveLoader", scorer: ExampleScorer, choose: Callable[[int], Tensor], step_seconds: float
    ) -> Trial:
        """A first idea of what scoring takes, from chunks of examples that ``choose`` gives so many of.

        Scores of the largest are kept for the `scores_of` that comes next, before the model changes.
        """
        started = self.clock()
        num_examples = loader.sampler.num_examples

        def time_scores(size: int) -> float:
            indices = choose(size)
            seconds, scores = self.time_once(scorer, loader.examples_for_scoring(indices))
            self._tried = scorer, indices, scores
            return seconds

        growth = _GROWTH_ON_CUDA if device_of(scorer.model).type == "cuda" else _GROWTH
        found = try_out(time_scores, min(loader.scoring_chunk_size, num_examples), step_seconds, growth)
        self.seconds[score_name(scorer)] = found.seconds(num_examples, loader.scoring_chunk_size)
        self.trial_seconds += max(0.0, self.now(scorer) - started)
        return found

    def time_once(self, scorer: ExampleScorer, data: Any) -> tuple[float, Tensor]:
        """Seconds of the scores of one chunk, and the scores."""
        started = self.now(scorer)
        scores = scorer(data)
        return self.now(scorer) - started, scores

    def forget_trial(self) -> None:
        """Its scores are of the past: the model has changed."""
        self._tried = None

    def _take_tried(self, scorer: ExampleScorer, chunks: Sequence[Tensor]) -> Tensor | None:
        """The scores of one chunk where the last trial was of these examples, and maybe of more after them."""
        tried, self._tried = self._tried, None
        if tried is None or tried[0] is not scorer or len(chunks) != 1:
            return None
        _, indices, scores = tried
        number = len(chunks[0])
        return scores[:number] if torch.equal(indices[:number], chunks[0]) else None
