"""Rules for refreshes of all examples or some, and what they leave on a record of scores."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dasgrad.training.ages import AgedScores
from dasgrad.training.forecast import second_moment_left, weights_of
from dasgrad.training.memory import ScoreMemory

FLOOR, BATCH_SIZE = 0.2, 32
EVERY = 10
"""Steps from one recording to the next, and between the times at which a rule may rescore."""
SLICE = 5120 / 60_000
"""The share of all examples in a slice."""
SHARE_FACTOR = 1.2
"""Shares are rescored at steps that grow by this factor."""


class AsTheyAre:
    """Every example has its last score as its mass. The interface is that of `AgedScores`."""

    def __init__(self, scores: Tensor, step: int) -> None:
        self._scores = scores.clone()

    def learn(self, step: int, indices: Tensor, scores: Tensor, weights: Tensor | None = None) -> None:
        """Take new scores of some examples."""
        self._scores[indices] = scores

    def present(self, step: int) -> Tensor:
        """The masses of all."""
        return self._scores


class OverTheirMean(AsTheyAre):
    """Every example has its last score over the mean of those computed with it."""

    def __init__(self, scores: Tensor, step: int) -> None:
        super().__init__(scores / scores.mean(), step)

    def learn(self, step: int, indices: Tensor, scores: Tensor, weights: Tensor | None = None) -> None:
        """Take new scores of some examples, chosen at random."""
        super().learn(step, indices, scores / scores.mean())


class Remembered(AsTheyAre):
    """Every example has what all scores so far foretell, where all are rescored at a time."""

    def __init__(self, scores: Tensor, step: int) -> None:
        self._memory = ScoreMemory()
        super().__init__(self._memory.learn("", scores, step, FLOOR), step)

    def learn(self, step: int, indices: Tensor, scores: Tensor, weights: Tensor | None = None) -> None:
        """Take new scores of all examples."""
        super().learn(step, indices, self._memory.learn("", scores, step, FLOOR))


@dataclass(frozen=True)
class Rule:
    """Which examples are rescored when, and what becomes of older scores."""

    name: str
    rescored: Literal["all", "slices", "shares", "none"]
    factor: float = 1.0
    """All are rescored at steps that grow by it; shares add up to as many scores."""
    every: int = 1
    """Recordings from one turn to the next, where the factor is 1."""
    masses: type[AsTheyAre] | type[AgedScores] = AsTheyAre
    batch: bool = False
    """Whether scores of the training batches are taken as well."""


FRESH = Rule("all, every 10 steps", "all")
UNIFORM = Rule("uniform", "none")
RULES = (
    FRESH,
    Rule("all, steps ×1.5", "all", 1.5),
    Rule("all, steps ×2", "all", 2),
    Rule("all, steps ×4", "all", 4),
    Rule("all, every 120 steps", "all", every=12),
    Rule("all, steps ×1.5, remembered", "all", 1.5, masses=Remembered),
    Rule("all, every 120 steps, remembered", "all", every=12, masses=Remembered),
    Rule("slices as they are", "slices"),
    Rule("slices, each over its mean", "slices", masses=OverTheirMean),
    Rule("slices on one scale", "slices", masses=AgedScores),
    Rule("slices as they are, and the batch", "slices", batch=True),
    Rule("slices on one scale, and the batch", "slices", masses=AgedScores, batch=True),
    Rule("shares as they are, as many as ×1.5", "shares", 1.5),
    Rule("shares as they are, as many as ×4", "shares", 4),
    Rule("shares as they are, as many as ×4, and the batch", "shares", 4, batch=True),
    Rule("shares on one scale, as many as ×1.5", "shares", 1.5, masses=AgedScores),
    Rule("shares on one scale, as many as ×4", "shares", 4, masses=AgedScores),
    Rule("shares on one scale, as many as ×4, and the batch", "shares", 4, masses=AgedScores, batch=True),
)
TRAINED = (UNIFORM, RULES[1], RULES[3], *RULES[7:10])
"""Those whose loss is looked at,"""
REMEMBERED = (UNIFORM, RULES[1], RULES[4], *RULES[5:7])
"""and for a model that learns its examples by heart."""


class Choice:
    """The examples that a rule rescores at the times 1, 2, …: all of them at the first."""

    def __init__(self, rule: Rule, num_examples: int, seed: int) -> None:
        self._rule, self._num_examples = rule, num_examples
        self.generator = torch.Generator().manual_seed(seed)
        self._order = torch.randperm(num_examples, generator=self.generator)
        self._position, self._next = 0, 1.0
        self.times = torch.ones(num_examples, dtype=torch.float64)
        """At which each example was last scored."""
        self.num_scored = 0

    def is_due(self, time: int) -> bool:
        """Whether the rule rescores now."""
        if self._rule.rescored == "none" or time < self._next:
            return False
        growth = SHARE_FACTOR if self._rule.rescored == "shares" else self._rule.factor
        while self._next <= time:
            self._next = self._next * growth if growth > 1 else self._next + self._rule.every
        return True

    def choose(self, time: int, masses: Tensor) -> Tensor:
        """Indices; of a share, by the present masses and by age."""
        if time == 1 or self._rule.rescored == "all":
            indices = torch.arange(self._num_examples)
        elif self._rule.rescored == "slices":
            indices = self._take_slice(int(SLICE * self._num_examples))
        else:
            number = int(self._num_examples * math.log(SHARE_FACTOR) / math.log(self._rule.factor))
            ties = 1e-4 * torch.rand(self._num_examples, generator=self.generator)
            urgency = (time / self.times).log() * (masses / masses.mean() + 0.02) ** 0.25 + ties
            indices = urgency.topk(number, sorted=False).indices
        self.num_scored += len(indices)
        self.times[indices] = time
        return indices

    def _take_slice(self, size: int) -> Tensor:
        """The next ones of a random order; where aging is learned, a tenth are random instead."""
        num_random = size - size * 9 // 10 if self._rule.masses is AgedScores else 0
        ahead = torch.arange(self._position, self._position + size - num_random) % self._num_examples
        self._position += size - num_random
        drawn = torch.randint(self._num_examples, (num_random,), generator=self.generator)
        return torch.cat((self._order[ahead], drawn))


def replay(record: Tensor, rule: Rule, seed: int) -> tuple[Tensor, float]:
    """What a rule leaves at each time of a record ``[times, n]``, and its cost."""
    num_examples = record.shape[1]
    choice = Choice(rule, num_examples, seed)
    masses: AsTheyAre | AgedScores | None = None
    left, present = [], torch.ones(num_examples, dtype=torch.float64)
    for time, row in enumerate(record, start=1):
        scores, step = row.double(), EVERY * time
        if masses is not None and rule.batch:
            weights = weights_of(present, FLOOR)
            sums = (1 / weights).cumsum(0)
            for earlier in range(EVERY - 1, -1, -1):
                uniform = torch.rand(BATCH_SIZE, generator=choice.generator, dtype=torch.float64)
                drawn = torch.searchsorted(sums, uniform * sums[-1]).clamp_(max=num_examples - 1)
                masses.learn(step - earlier, drawn, scores[drawn], weights[drawn])
                choice.times[drawn] = time
        if choice.is_due(time):
            indices = choice.choose(time, present)
            if masses is None:
                masses = rule.masses(scores, step)
            else:
                masses.learn(step, indices, scores[indices])
        assert masses is not None
        present = masses.present(step)
        left.append(second_moment_left(scores, weights_of(present, FLOOR)))
    return torch.tensor(left, dtype=torch.float64), choice.num_scored / num_examples
