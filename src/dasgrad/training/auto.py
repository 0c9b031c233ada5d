"""`AutoRefresh`: rescoring when it pays on the clock, and uniform draws where it does not.

At steps that grow by a constant factor a random set of examples is looked at, as many as a small share of the training
time allows: their exact scores, what the scores in use and fresh ones leave of the gradient's noise, and how large that
noise is. With the measured cost of a step and of scoring, `dasgrad.training.forecast` says what each choice would take
to the same loss: score all examples anew, by the exact score or a cheaper one; keep the scores at hand; or draw
uniformly. Scores age with the logarithm of time (a model changes as much between steps 1,000 and 2,000 as between 100
and 200), which is why looks are spaced so.
"""

import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dasgrad.scoring import ExampleScorer
from dasgrad.training import generators
from dasgrad.training.costs import Costs
from dasgrad.training.diagnosis import Decision, Diagnosis
from dasgrad.training.forecast import Noise, effective_number, second_moment_left, weights_of
from dasgrad.training.overlap import Scored
from dasgrad.training.refresh import StepCounter
from dasgrad.training.stopwatch import Clock

if TYPE_CHECKING:
    from dasgrad.training.loader import AdaptiveLoader

STATE_VERSION = 2  # version 1 summed noise over looks
CHEAPER = ("last_layer", "loss")
"""Scores that are tried where the exact one costs much."""
CLEARLY = 0.95
"""A cheaper score must promise to take at most this share of the time with the exact one: a look is a small sample."""
_SMALLEST_TRIAL, _LARGEST_TRIAL, _TRIAL_STEPS = 64, 4096, 30
"""How the cost of scoring is tried out: on so many examples, until a trial takes longer than a few steps."""
_FADING = 0.5
"""What an earlier look's noise counts beside the next one's."""
_PRIOR = 16
"""Examples that the noise scale is infinite by, before anything is known."""
_LARGEST_AUDIT, _AUDIT_GROWTH = 4096, 8
"""Examples looked at: no more than these, and than so many times those of the last look, by which the cost is known."""
_LASTING = 2
"""Looks over which the cost of a refresh is spread: its scores mostly outlast the first."""
_MARGIN = 1.5
"""Scoring beside training is given so many times the steps that it should take."""
_UNKNOWN_AGING = 0.15
"""The share of what fresh scores win that is lost from one look to the next, until it was measured."""


@dataclass(frozen=True)
class _Option:
    """One choice, with what it would leave and take until the next look."""

    decision: Decision
    factor: float
    left_now: float
    """The noise that is left at once."""
    noise_left: float
    """The same on average until the next look."""
    scorer: ExampleScorer | None = None


class AutoRefresh(StepCounter):
    """When to rescore, how, and whether to sample adaptively at all; ``refresh="auto"`` is one of these.

    Args:
        num_audited: the least number of examples looked at each time; up to 4096 where there is time for them.
        first: the step of the first look.
        growth: looks are at steps that grow by this factor.
        worth: adaptive draws must promise to take at most this share of the time of uniform ones; the forecast leaves
            out what passes without replacement save.
        most_auditing: the share of the training time that looks may take where nothing is to be won, up to ten times
            that where much is; they are put off where they would take more.
        costs: in seconds; None measures them.
        clock: seconds since some time, for steps on a CPU and for scoring; None is ``time.perf_counter``.
    """

    def __init__(
        self,
        *,
        num_audited: int = 256,
        first: int = 16,
        growth: float = 1.5,
        worth: float = 0.8,
        most_auditing: float = 0.02,
        costs: Costs | None = None,
        clock: Clock | None = None,
    ) -> None:
        for name, value in (("num_audited", num_audited), ("first", first)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 2:
                raise ValueError(f"`AutoRefresh({name}=...)` must be an integer of at least 2, got {value!r}.")
        if not 1 < growth < float("inf"):
            raise ValueError(f"`AutoRefresh(growth=...)` must be above 1, got {growth!r}.")
        if not 0 < worth <= 1:
            raise ValueError(f"`AutoRefresh(worth=...)` must be in (0, 1], got {worth!r}.")
        if not 0 < most_auditing < 1:
            raise ValueError(f"`AutoRefresh(most_auditing=...)` must be in (0, 1), got {most_auditing!r}.")
        self._clock = time.perf_counter if clock is None else clock
        super().__init__(self._clock)
        self._num_audited = num_audited
        self._growth = growth
        self._worth = worth
        self._most_auditing = most_auditing
        self._costs = costs
        self._tiers: dict[str, ExampleScorer | None] = {}
        self._next_look = first
        self._refreshed_at: int | None = None  # by a decision; the sampler knows whether there are scores in use
        self._left_then = 1.0  # noise left at the last look, by the scores in use
        self._aging = _UNKNOWN_AGING
        self._scoring_seconds: dict[str, float] = {}  # of all examples, by the score's name
        # ‖μ‖²/tr Σ times the number of examples it is from, and that number, summed over looks, older ones fading. The
        # ratio is what is summed: gradients shrink along training, and the first looks would outweigh all others.
        self._inverse_noise: tuple[float, float] = (0.0, 0.0)
        self._lost = 1.0 if costs is None else costs.lost  # until it was measured, as if training stood still
        self._num_looked_at = num_audited
        self._look_seconds: float | None = None  # of the last look; None where it is not known yet
        self._promise = 0.0  # the share of the time that fresh scores would save, if they cost nothing
        self._trial_seconds = 0.0  # of the present look
        self._failure = ""
        self.last = Diagnosis(step=1, decision="wait")

    # --- decisions ------------------------------------------------------------------------------------

    def before_draw(self, loader: "AdaptiveLoader") -> None:
        """Let pending scores take effect, look and decide, each where it is time to."""
        try:
            scored = loader.take_effect()
            if scored is not None:
                self._note_costs(scored)
            if self._failure or loader.pending or self.num_steps + 1 < self._next_look:
                return
            step_seconds = self._step_seconds()
            if step_seconds is not None:  # else no batch has come back yet
                self._look(loader, step_seconds)
        except (torch.OutOfMemoryError, MemoryError) as error:
            self._failure = "scoring ran out of memory"
            warnings.warn(
                f"AutoRefresh: scoring ran out of memory, and training goes on with the last probabilities. {error}",
                stacklevel=4,
            )
            self.last = replace(self.last, step=self.num_steps + 1, decision="keep", reason=self._failure)
            if not loader.sampler.refreshed:
                self.last = replace(self.last, decision="off", noise_left=1.0, time_factor=1.0, staleness=None)

    def num_quiet_steps(self) -> int:
        """Steps that can be drawn for at once after `before_draw`: none of their draws is preceded by a look."""
        return sys.maxsize if self._failure else max(1, self._next_look - 1 - self.num_steps)

    def _note_costs(self, scored: Scored) -> None:
        """What scoring beside training took, and took from training."""
        if self._costs is not None or not scored.seconds > 0:
            return
        self._scoring_seconds[scored.score] = scored.seconds
        slower = self.stopwatch.lost_beside()
        if slower is not None:
            self._lost = min(1.0, slower + scored.waited_seconds / scored.seconds)

    def _step_seconds(self) -> float | None:
        if self._costs is not None:
            return self._costs.step
        return self.stopwatch.seconds()

    def _look(self, loader: "AdaptiveLoader", step_seconds: float) -> None:
        started, self._trial_seconds = self._clock(), 0.0
        step = self.num_steps + 1
        interval = max(1, int(step * (self._growth - 1)))
        first = self._look_seconds is None
        self._num_looked_at = self._affordable(loader, interval * step_seconds)
        found = self.audit(loader, step, self._num_looked_at)
        options = self._options(loader, found, step_seconds, interval)
        best = min(options, key=lambda option: option.factor)
        keep = next((option for option in options if option.decision == "keep"), None)
        if keep is not None and best.decision == "refresh" and keep.factor < best.factor + 0.02:
            best = keep
        if best.decision != "off" and best.factor > self._worth:
            best = next(option for option in options if option.decision == "off")
        if self._costs is not None:
            self._look_seconds = 2 * self._costs.example * self._num_looked_at  # a score and a gradient each
        elif first:  # in which much is done for the first time
            self._look_seconds = 2 * found.example_seconds * self._num_looked_at
        else:  # without trying out what a score costs, which does not come again
            self._look_seconds = max(0.0, self._clock() - started - self._trial_seconds)
        self._promise = 1 - found.noise.steps_factor(min(1.0, found.fresh))
        self._carry_out(loader, best, found, step)
        self._next_look = step + max(interval, int(self._look_seconds / (self._allowed() * step_seconds)))

    def _allowed(self) -> float:
        """The share of the time until the next look that the smallest may take: more the more there is to win."""
        return self._most_auditing * max(1.0, 10 * self._promise)

    def _affordable(self, loader: "AdaptiveLoader", seconds: float) -> int:
        """How many examples to look at, with so many seconds until the next look."""
        num_examples = max(2, loader.sampler.num_examples)
        least = min(self._num_audited, num_examples)
        if not self._look_seconds:
            return least
        each = self._look_seconds / self._num_looked_at
        most = min(_LARGEST_AUDIT, _AUDIT_GROWTH * self._num_looked_at, num_examples)
        return max(least, min(most, int(self._most_auditing * seconds / each)))

    def audit(self, loader: "AdaptiveLoader", step: int, number: int) -> "_Found":
        """Measure scores, noise and costs on some examples; draws and probabilities stay as they are."""
        scorer, sampler = loader.scorer, loader.sampler
        assert scorer is not None
        indices = self._choose(loader, step, number)
        chunks = indices.split(loader.scoring_chunk_size)
        if self._costs is None and str(scorer.score) not in self._scoring_seconds:
            self._time_scoring(loader, scorer, step)
        scores, seconds = self._scores_of(loader, scorer, chunks)
        if self._costs is None and len(chunks[0]) == loader.scoring_chunk_size:
            self._scoring_seconds[str(scorer.score)] = seconds * sampler.num_examples / len(indices)
        started = self._now(scorer)
        noise = Noise(self._noise_scale(loader, scorer, chunks, scores), loader.batch_size)
        example_seconds = max(0.0, self._now(scorer) - started) / len(indices)
        if self._costs is not None:
            example_seconds = self._costs.example
        # Examples without a finite score are the refresh's business, which names them.
        finite = torch.isfinite(scores).to(sampler.device)
        scores, indices = scores.to(sampler.device)[finite], indices[finite]
        now = noise.of_second_moment(second_moment_left(scores, sampler.weights_of(indices)))
        fresh = noise.of_second_moment(second_moment_left(scores, weights_of(scores, sampler.floor)))
        if sampler.refreshed and self._left_then < 1:
            self._aging = min(1.0, max(0.0, (now - self._left_then) / (1 - self._left_then)))
        return _Found(chunks, finite, scores, noise, now, fresh, example_seconds)

    def _scores_of(
        self, loader: "AdaptiveLoader", scorer: ExampleScorer, chunks: Sequence[Tensor]
    ) -> tuple[Tensor, float]:
        """Scores of the examples of some chunks, and what they took."""
        started = self._now(scorer)
        scores = torch.cat([scorer(loader.examples_for_scoring(indices)) for indices in chunks])
        return scores, max(0.0, self._now(scorer) - started)

    def _noise_scale(
        self, loader: "AdaptiveLoader", scorer: ExampleScorer, chunks: Sequence[Tensor], scores: Tensor
    ) -> float:
        """From this look and, fading, those before, each by the number of examples that carry its gradients.

        Of 256 random examples that may be three. What little is known counts beside `_PRIOR` examples that say that
        noise is all there is, as it mostly is in batches of the usual size.
        """
        if not scorer.has_losses:
            return float("inf")
        noise, mean = scorer.noise(loader.examples_for_scoring(indices) for indices in chunks)
        if math.isfinite(noise) and math.isfinite(mean) and noise > 0:
            number = effective_number(scores[torch.isfinite(scores)])
            inverse, weight = self._inverse_noise
            self._inverse_noise = _FADING * inverse + number * mean / noise, _FADING * weight + number
        inverse, weight = self._inverse_noise
        return (weight + _PRIOR) / inverse if inverse > 0 else float("inf")

    def _options(self, loader: "AdaptiveLoader", found: "_Found", step_seconds: float, interval: int) -> list[_Option]:
        scorer = loader.scorer
        assert scorer is not None
        options = [_Option("off", 1.0, 1.0, 1.0)]
        if loader.sampler.refreshed:
            left = _aged(found.now, self._aging)
            options.append(_Option("keep", found.noise.steps_factor(left), found.now, left))
        training = _LASTING * interval * step_seconds

        def refreshing(scorer: ExampleScorer, fresh: float) -> _Option:
            seconds = self.seconds_of(str(scorer.score), loader)
            left = _aged(fresh, self._aging)
            if loader.overlap != 0:  # draws stay what they are until then
                late = min(1.0, self._steps_beside(loader, seconds, step_seconds) / (_LASTING * interval))
                left = late * min(1.0, found.now) + (1 - late) * left
            cost = 1 + self._seconds_lost(loader, seconds) / training
            return _Option("refresh", cost * found.noise.steps_factor(left), fresh, left, scorer)

        exact = refreshing(scorer, found.fresh)
        options.append(exact)
        # Cheaper scores are tried where one that costs a third and leaves as little noise would change the choice.
        seconds = self._seconds_lost(loader, self.seconds_of(str(scorer.score), loader))
        ideal = exact.factor * (1 + seconds / 3 / training) / (1 + seconds / training)
        if ideal < CLEARLY * min(self._worth, *(option.factor for option in options)) and self._costs is None:
            options += self._cheaper(loader, found, exact, refreshing)
        return options

    def _steps_beside(self, loader: "AdaptiveLoader", seconds: float, step_seconds: float) -> int:
        """K, for a scoring that takes so long."""
        if isinstance(loader.overlap, int):
            return loader.overlap
        return max(1, math.ceil(_MARGIN * seconds / step_seconds))

    def _seconds_lost(self, loader: "AdaptiveLoader", seconds: float) -> float:
        """What training loses by a scoring that takes so long."""
        return seconds if loader.overlap == 0 else self._lost * seconds

    def _cheaper(
        self,
        loader: "AdaptiveLoader",
        found: "_Found",
        exact: _Option,
        refreshing: Callable[[ExampleScorer, float], _Option],
    ) -> list[_Option]:
        options = []
        assert loader.scorer is not None
        for name in CHEAPER if loader.scorer.score in ("dasgrad", "gradient") else ():
            cheaper = self._tier(loader.scorer, name)
            left = self._tier_left(loader, cheaper, name, found)
            if cheaper is not None and left is not None:
                option = refreshing(cheaper, left)
                if option.factor < CLEARLY * exact.factor:
                    options.append(option)
        return options

    def _tier(self, scorer: ExampleScorer, name: str) -> ExampleScorer | None:
        if name not in self._tiers:
            self._tiers[name] = scorer.with_score(name)  # type: ignore[arg-type]
        return self._tiers[name]

    def _tier_left(
        self, loader: "AdaptiveLoader", scorer: ExampleScorer | None, name: str, found: "_Found"
    ) -> float | None:
        """The noise that draws by a cheaper score would leave; None where the model has no such score."""
        if scorer is None:
            return None
        try:
            if name not in self._scoring_seconds:
                self._time_scoring(loader, scorer, self.num_steps + 1)
            cheap = self._scores_of(loader, scorer, found.chunks)[0].to(found.scores)[found.finite]
        except ValueError:
            self._tiers[name] = None
            return None
        if bool((cheap < 0).any()) or not bool(torch.isfinite(cheap).all()):
            self._tiers[name] = None
            return None
        weights = weights_of(cheap, loader.sampler.floor)
        return found.noise.of_second_moment(second_moment_left(found.scores, weights))

    def _carry_out(self, loader: "AdaptiveLoader", best: _Option, found: "_Found", step: int) -> None:
        scorer, step_seconds = loader.scorer, self._step_seconds()
        assert scorer is not None
        assert step_seconds is not None
        if best.decision == "refresh":
            assert best.scorer is not None
            scorer = best.scorer
            if loader.overlap != 0:
                seconds = self.seconds_of(str(scorer.score), loader)
                loader.rescore_beside(scorer, self._steps_beside(loader, seconds, step_seconds))
            else:
                started = self._now(scorer)
                loader.rescore(scorer)
                seconds = self._now(scorer) - started
                if self._costs is None and seconds > 0:
                    self._scoring_seconds[str(scorer.score)] = seconds
            self._refreshed_at = step
        elif best.decision == "off":
            if loader.sampler.refreshed:
                loader.sampler.forget()
            self._refreshed_at = None
        self._left_then = min(1.0, best.left_now)
        self.last = Diagnosis(
            step=step,
            decision=best.decision,
            step_seconds=step_seconds,
            scoring_seconds=self.seconds_of(str(scorer.score), loader),
            score=str(scorer.score),
            noise_scale=found.noise.scale,
            noise_left_fresh=found.fresh,
            noise_left=best.noise_left,
            staleness=None if self._refreshed_at is None else step - self._refreshed_at,
            time_factor=best.factor,
            larger_batch_factor=found.noise.larger_batch_factor(4, step_seconds, found.example_seconds),
        )

    # --- measuring ------------------------------------------------------------------------------------

    def _choose(self, loader: "AdaptiveLoader", step: int, number: int) -> Tensor:
        """Random examples from the target, the same ones for the same seed and step."""
        sampler = loader.sampler
        generator = torch.Generator().manual_seed(generators.mix(sampler.seed, 2, step))
        size = min(number, max(2, sampler.num_examples))
        return sampler.from_target(torch.rand(size, generator=generator, dtype=torch.float64).to(sampler.device))

    def _now(self, scorer: ExampleScorer) -> float:
        device = next(scorer.model.parameters()).device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self._clock()

    def _time_scoring(self, loader: "AdaptiveLoader", scorer: ExampleScorer, step: int) -> None:
        """A first idea of what scoring all examples takes, from chunks that grow until they take a few steps' time."""
        started = self._clock()
        step_seconds = self._step_seconds() or 0.0
        most = min(loader.scoring_chunk_size, loader.sampler.num_examples, _LARGEST_TRIAL)
        size, previous = min(_SMALLEST_TRIAL, most), (0, 0.0)
        scorer(loader.examples_for_scoring(self._choose(loader, step, size)))  # first use has costs of its own
        while True:
            data = loader.examples_for_scoring(self._choose(loader, step, size))
            seconds = max(0.0, self._time_once(scorer, data))
            if size == most or (previous[0] and seconds > _TRIAL_STEPS * step_seconds):
                break
            size, previous = min(most, 8 * size), (size, seconds)
        each = max((seconds - previous[1]) / (size - previous[0]), 0.1 * seconds / size)
        once = max(0.0, seconds - each * size)  # of a chunk, whatever its size
        chunks = -(-loader.sampler.num_examples // loader.scoring_chunk_size)
        self._scoring_seconds[str(scorer.score)] = chunks * once + each * loader.sampler.num_examples
        self._trial_seconds += max(0.0, self._now(scorer) - started)

    def _time_once(self, scorer: ExampleScorer, data: Any) -> float:
        started = self._now(scorer)
        scorer(data)
        return self._now(scorer) - started

    def seconds_of(self, name: str, loader: "AdaptiveLoader") -> float:
        """Of scoring all examples by the score of that name."""
        if self._costs is not None:
            return self._costs.example * loader.sampler.num_examples
        return self._scoring_seconds[name]

    # --- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything later decisions depend on but the clock."""
        return {
            "auto": STATE_VERSION,
            "num_steps": self.num_steps,
            "next_look": self._next_look,
            "refreshed_at": self._refreshed_at,
            "left_then": self._left_then,
            "aging": self._aging,
            "inverse_noise": list(self._inverse_noise),
            "scoring_seconds": dict(self._scoring_seconds),
            "lost": self._lost,
            "num_looked_at": self._num_looked_at,
            "look_seconds": self._look_seconds,
            "promise": self._promise,
            "failure": self._failure,
            "last": asdict(self.last),
        }

    def check(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse the state of a loader with another kind of ``refresh``."""
        if state_dict.get("auto") != STATE_VERSION:
            raise ValueError(
                f"`AdaptiveLoader.load_state_dict` needs a loader with refresh={state_dict.get('interval', 'auto')!r}, "
                "got 'auto'."
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`; costs go on from what was measured, steps are timed anew."""
        self.check(state_dict)
        self.num_steps = int(state_dict["num_steps"])
        self._next_look = int(state_dict["next_look"])
        self._refreshed_at = state_dict["refreshed_at"]
        self._left_then = float(state_dict["left_then"])
        self._aging = float(state_dict["aging"])
        inverse, weight = state_dict["inverse_noise"]
        self._inverse_noise = float(inverse), float(weight)
        self._scoring_seconds = dict(state_dict["scoring_seconds"])
        self._lost = float(state_dict.get("lost", self._lost))  # which states once did not have
        self._num_looked_at = int(state_dict["num_looked_at"])
        self._look_seconds = state_dict["look_seconds"]
        self._promise = float(state_dict["promise"])
        self._failure = str(state_dict["failure"])
        self.last = Diagnosis(**state_dict["last"])

    def __repr__(self) -> str:
        return "'auto'"


@dataclass(frozen=True, eq=False)
class _Found:
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
    example_seconds: float
    """Of a gradient, an example, in large batches."""


def _aged(left: float, aging: float) -> float:
    """The mean of what is left now and at the next look."""
    return left + aging * max(0.0, 1 - left) / 2
