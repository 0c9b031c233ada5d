"""What scoring costs: `Costs` where that is given, `ScoringCosts` where it is measured."""

import math
import sys
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

_FEW = 8
"""Examples that a scorer looks at, and a few more."""
_TRIED = 4096
"""Examples of a trial on a GPU: thousands mostly take no longer than a few, and a call as long as many steps."""
_CALL, _FIRST_CALLS = 0.005, 3
"""On a GPU, about: seconds that a chunk takes by its many calls, and how many times that where rules are checked."""
_PRICE, _LEAST_PRICE = 1.5, 0.05
"""Scoring an example takes about so many times its share of a training step, at most and at least."""
_LATEST = 64
"""The step up to which first trials on a CPU are put off: shares of steps of very few examples say little."""
_TOO_LONG = 8
"""Times what was known: what takes so long is not believed the first time, when a compiler may have been at work."""
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
        self._doubted: str | None = None  # the score whose time was noted last and not believed
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
            doubted = name != self._doubted and seconds > _TOO_LONG * (self.seconds.get(name) or math.inf)
            self._doubted = name if doubted else None
            if not doubted:
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
        if _is_on_cuda(scorer):
            torch.cuda.synchronize(device_of(scorer.model))
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

    def has_dear_calls(self, loader: "AdaptiveLoader") -> bool:
        """Whether a first score of a few examples takes as long as many steps, as on a GPU."""
        assert loader.scorer is not None
        return _is_on_cuda(loader.scorer)

    def start_at(self, loader: "AdaptiveLoader", step_seconds: float, most_scoring: float) -> float:
        """The step from which on first scores are affordable, or all at the price of training where that is soon after.

        So it is on a GPU, where trials take as long as hundreds of small steps. On a CPU it is the first step at which
        all scores may be affordable: the look that follows a trial then needs none of its own.
        """
        assert loader.scorer is not None
        if not _is_on_cuda(loader.scorer):
            return min(_LATEST, _LEAST_PRICE * loader.sampler.num_examples / loader.batch_size / most_scoring)
        steps = max(most_scoring * step_seconds, sys.float_info.min)
        first, whole = _FIRST_CALLS * _CALL / steps, _seconds_of_all(_suppose(loader, step_seconds), loader) / steps
        return max(first, whole) if whole < 2 * first else first

    def try_out(
        self,
        loader: "AdaptiveLoader",
        scorer: ExampleScorer,
        choose: Callable[[int], Tensor],
        step_seconds: float,
        spare_seconds: float = 0.0,
    ) -> Trial:
        """A first idea of what scoring takes, from chunks of examples that ``choose`` gives so many of.

        Scores of the largest are kept for the `scores_of` that comes next, before the model changes. On a GPU nothing
        is timed where all examples at the price of training take no more than ``spare_seconds``, else one call, and
        where they take more by that a second one.
        """
        started = self.clock()
        num_examples = loader.sampler.num_examples

        def time_scores(size: int) -> float:
            indices = choose(size)
            seconds, scores = self.time_once(scorer, loader.examples_for_scoring(indices))
            self._tried = scorer, indices, scores
            return seconds

        most = min(loader.scoring_chunk_size, num_examples)
        if _is_on_cuda(scorer):
            scorer.look_at(loader.examples_for_scoring(choose(min(_FEW, num_examples))))
            found = _suppose(loader, step_seconds)
            if _seconds_of_all(found, loader) > spare_seconds:
                size = min(_TRIED, most)
                found = _told_by(size, time_scores(size))
                if _seconds_of_all(found, loader) > spare_seconds:  # something else may have been at work
                    again = _told_by(size, time_scores(size))
                    found = min(found, again, key=lambda trial: trial.each)
        else:
            found = try_out(time_scores, most, step_seconds)
        self.seconds[score_name(scorer)] = _seconds_of_all(found, loader)
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


def _is_on_cuda(scorer: ExampleScorer) -> bool:
    return device_of(scorer.model).type == "cuda"


def _suppose(loader: "AdaptiveLoader", step_seconds: float) -> Trial:
    """What scoring takes on a GPU at the price of training."""
    return Trial(_CALL, _PRICE * step_seconds / loader.batch_size)


def _told_by(size: int, seconds: float) -> Trial:
    """What scoring takes on a GPU, by one call."""
    return Trial(_CALL, max(0.0, seconds - _CALL, 0.1 * seconds) / size)


def _seconds_of_all(trial: Trial, loader: "AdaptiveLoader") -> float:
    return trial.seconds(loader.sampler.num_examples, loader.scoring_chunk_size)
