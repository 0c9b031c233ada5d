"""`Evidence`: what is known of scores, noise and costs, and how it is measured, on a few examples or on all."""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dasgrad.scoring import ExampleScorer
from dasgrad.scoring.isolation import untouched
from dasgrad.scoring.names import score_name
from dasgrad.training.beliefs import Beliefs, NoiseBelief
from dasgrad.training.costs import ScoringCosts
from dasgrad.training.findings import Found, draw_examples
from dasgrad.training.forecast import Noise, second_moment_left, weights_of
from dasgrad.training.memory import ScoreMemory
from dasgrad.training.overlap import Scored
from dasgrad.training.trials import Trial

if TYPE_CHECKING:
    from dasgrad.training.loader import AdaptiveLoader


_GLANCED, _GLANCED_FETCHED = 2048, 256
"""Examples whose losses a glance sees, in memory and read one by one."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Random examples and their exact scores."""

    chosen: Tensor
    chunks: Sequence[Tensor]
    """The same in chunks."""
    finite: Tensor
    """Which of them have a score."""
    scores: Tensor
    """Theirs."""
    second_moment_left: float
    """By draws that go by fresh scores, and what is remembered."""

    @property
    def indices(self) -> Tensor:
        """The examples that have a score."""
        return self.chosen[self.finite]


class Evidence:
    """What was measured for one loader.

    Args:
        costs: given or to be measured.
    """

    def __init__(self, costs: ScoringCosts) -> None:
        self.costs = costs
        self.beliefs = Beliefs.usual()
        self.memory = ScoreMemory()
        self.example_seconds = 0.0
        """Of a gradient, an example, in a large batch; at the last look at some."""

    # --- on a few examples ----------------------------------------------------------------------------

    def glance(self, loader: "AdaptiveLoader", step: int) -> tuple[float | None, float]:
        """What draws by the roots of losses leave of these roots' second moment, and the seconds that it took to see.

        A forward pass of some examples, and a first idea of what gradients leave, which mostly is as much or less. None
        for scores that are not gradients, and for losses that have no roots.
        """
        scorer = loader.scorer
        assert scorer is not None
        if scorer.score not in ("dasgrad", "gradient"):
            return None, 0.0
        started = self.costs.now(scorer)
        in_memory = loader.columns is not None
        number = min(_GLANCED if in_memory else _GLANCED_FETCHED, loader.scoring_chunk_size)
        # Reading can draw random numbers, which training would miss.
        with nullcontext() if in_memory else untouched(scorer.model):
            data = loader.examples_for_scoring(draw_examples(loader.sampler, step, number))
        losses = scorer.with_score("loss")(data).double()
        left, seconds = None, max(0.0, self.costs.now(scorer) - started)
        if float(losses.min()) >= 0 and bool(losses.isfinite().all()):
            roots = losses.sqrt()
            left = second_moment_left(roots, weights_of(roots, loader.sampler.floor))
        return left, seconds

    def sample(self, loader: "AdaptiveLoader", step: int, number: int, step_seconds: float) -> Sample:
        """Score so many random examples; draws and probabilities stay as they are."""
        scorer, sampler = loader.scorer, loader.sampler
        assert scorer is not None
        chosen = draw_examples(sampler, step, number)
        chunks = chosen.split(loader.scoring_chunk_size)
        if not self.costs.is_known(score_name(scorer)):
            self.try_out(loader, scorer, step, step_seconds)
        scores, seconds = self.costs.scores_of(loader, scorer, chunks)
        if len(chunks[0]) == loader.scoring_chunk_size:
            self.costs.note(score_name(scorer), seconds * sampler.num_examples / len(chosen))
        # Examples without a finite score are the refresh's business, which names them.
        finite = torch.isfinite(scores).to(sampler.device)
        scores = scores.to(sampler.device)[finite]
        foretold = self.memory.foretell(score_name(scorer), scores, step, chosen[finite])
        return Sample(chosen, chunks, finite, scores, second_moment_left(scores, weights_of(foretold, sampler.floor)))

    def measure_noise(self, loader: "AdaptiveLoader", indices: Tensor, belief: NoiseBelief) -> None:
        """Of the gradient, for that belief, and what the gradient of an example takes in a large batch."""
        scorer, chunks = loader.scorer, indices.split(loader.scoring_chunk_size)
        assert scorer is not None
        started = self.costs.now(scorer)
        if scorer.has_losses:
            noise, mean = scorer.noise(loader.examples_for_scoring(chunk) for chunk in chunks)
            if math.isfinite(noise) and math.isfinite(mean) and noise > 0:
                belief.observe(noise, mean, sum(len(chunk) // 2 for chunk in chunks))
        seconds = max(0.0, self.costs.now(scorer) - started) / len(indices)
        self.example_seconds = seconds if self.costs.given is None else self.costs.given.example

    def judge(self, sample: Sample, loader: "AdaptiveLoader") -> Found:
        """What is left of the noise that is believed, by the draws as they are and by fresh scores."""
        noise = self.beliefs.noise.at(loader.batch_size)
        now = noise.of_second_moment(second_moment_left(sample.scores, loader.sampler.weights_of(sample.indices)))
        fresh = noise.of_second_moment(sample.second_moment_left)
        return Found(sample.chunks, sample.finite, sample.scores, noise, now, fresh)

    def larger_batch_factor(self, noise: Noise, loader: "AdaptiveLoader", step_seconds: float) -> float | None:
        """Predicted time to the same loss in batches four times as large, relative to those as they are."""
        assert loader.scorer is not None
        seconds = self.example_seconds
        if self.costs.given is None and self.costs.is_known(score_name(loader.scorer)):
            # A few hundred gradients are mostly calls; exact scores of all are about a backward pass in a large batch.
            seconds = min(seconds, self.seconds_of(score_name(loader.scorer), loader) / loader.sampler.num_examples)
        return noise.larger_batch_factor(4, step_seconds, seconds)

    def try_out(
        self,
        loader: "AdaptiveLoader",
        scorer: ExampleScorer,
        step: int,
        step_seconds: float,
        spare_seconds: float = 0.0,
    ) -> Trial:
        """A first idea of what scoring takes."""
        choose = partial(draw_examples, loader.sampler, step)
        return self.costs.try_out(loader, scorer, choose, step_seconds, spare_seconds)

    # --- on all ---------------------------------------------------------------------------------------

    def rescore(self, loader: "AdaptiveLoader", scorer: ExampleScorer, noise: Noise) -> tuple[float, float]:
        """Rescore all examples; what that takes, and the noise that draws by the scores leave."""
        name, sampler, step = score_name(scorer), loader.sampler, loader.num_steps + 1
        started = self.costs.now(scorer)
        loader.rescore(scorer, partial(self.memory.learn, name, step=step, floor=sampler.floor))
        self.costs.note(name, self.costs.now(scorer) - started)
        seconds = self.seconds_of(name, loader)
        self.costs.spent += seconds
        return seconds, noise.of_second_moment(second_moment_left(self.memory.latest, sampler.weights))

    def remember(self, loader: "AdaptiveLoader", scored: Scored) -> None:
        """Have draws go by what scores made beside training, which the sampler just got, and those before foretell."""
        sampler = loader.sampler
        sampler.refresh(self.memory.learn(scored.score, sampler.scores, scored.computed_at, sampler.floor))

    def seconds_of(self, name: str, loader: "AdaptiveLoader") -> float:
        """Of scoring all examples by the score of that name."""
        return self.costs.of_all(name, loader.sampler.num_examples)

    # --- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All of it but the clock."""
        return {
            "beliefs": self.beliefs.state_dict(),
            "memory": self.memory.state_dict(),
            "example_seconds": self.example_seconds,
            "scoring_seconds": dict(self.costs.seconds),
            "lost": self.costs.lost,
            "spent": self.costs.spent,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`, or a larger one that holds it."""
        self.beliefs = Beliefs.from_state_dict(state_dict["beliefs"])
        self.memory = ScoreMemory.from_state_dict(state_dict["memory"])
        self.example_seconds = float(state_dict["example_seconds"])
        self.costs.seconds = dict(state_dict["scoring_seconds"])
        self.costs.lost, self.costs.spent = float(state_dict["lost"]), float(state_dict["spent"])
