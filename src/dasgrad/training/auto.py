"""`AutoRefresh`: rescoring when it pays on the clock, and uniform draws where it does not.

At steps that grow by a constant factor a random set of examples is looked at, as many as a small share of the training
time allows: their exact scores, what the scores in use and fresh ones leave of the gradient's noise, and how large that
noise is. With the measured cost of a step and of scoring, `dasgrad.training.forecast` says what each choice would take
to the same loss: score all examples anew, by the exact score or a cheaper one; keep the scores at hand; or draw
uniformly. Scores age with the logarithm of time (a model changes as much between steps 1,000 and 2,000 as between 100
and 200), so looks are spaced like that; between them scores are made anew where they age faster, and once in a while.
"""

import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dasgrad.scoring import ExampleScorer
from dasgrad.scoring.names import score_name
from dasgrad.training.beliefs import ENOUGH, NoiseBelief
from dasgrad.training.cadence import LASTING, LEAST_BETWEEN, plan, plan_beside, renewal
from dasgrad.training.costs import Costs, ScoringCosts
from dasgrad.training.diagnosis import Diagnosis
from dasgrad.training.evidence import Evidence
from dasgrad.training.findings import HARDLY, Found, Option, choose, draw_examples
from dasgrad.training.forecast import Noise, effective_number, second_moment_left, weights_of
from dasgrad.training.refresh import StepCounter
from dasgrad.training.stopwatch import Clock
from dasgrad.training.tiers import CLEARLY, Tiers

if TYPE_CHECKING:
    from dasgrad.training.loader import AdaptiveLoader

STATE_VERSION = 9  # version 8 did not know when what it remembers was learnt
_PLAIN = ["num_steps", "next_look", "next_audit", "refreshed_at", "left_then", "left_first", "made_at_audit"]
_PLAIN += ["num_looked_at", "look_seconds", "promise", "looks_kept", "failure"]
"""Numbers and words of the state, by the names of attributes."""
_LARGEST_AUDIT, _AUDIT_GROWTH = 4096, 8
"""Examples looked at: no more than these, and than so many times those of the last look, by which the cost is known."""
_DEARER = 3
"""How many times as long the exact score takes as a cheaper one that is worth trying."""
_GRADIENTS, _CALLS = 3, 4
"""Looking at one more takes so many times its share of scoring all; a look, at first, its examples' scores as often."""
_WHOLE = 2
"""Where all examples are scored in the time of so many looks, looks score all: such scores are in hand."""
_OVERDUE = 3
"""Such looks by a cheaper score end when it takes so many times the steps to a look that compares it with others."""


class AutoRefresh(StepCounter):
    """When to rescore, how, and whether to sample adaptively at all; ``refresh="auto"`` is one of these.

    Args:
        num_audited: the least number of examples looked at each time; up to 4096 where there is time for them.
        first: the step of the first look.
        growth: looks are at steps that grow by this factor.
        worth: adaptive draws must promise to take at most this share of the time of uniform ones; the forecast leaves
            out what passes without replacement save.
        most_auditing: the share of the training time that looks may take where nothing is to be won, up to twenty
            times that where much is; they are put off where they would take more. On a GPU, where a first look takes
            as long as hundreds of small steps, the first waits for as long where losses of examples are alike.
        most_scoring: what scoring may have taken, over the time of the steps so far. Early in training noise
            is not what holds it up, and scores go stale within tens of steps: a forecast promises too much there.
            With ``math.inf`` nothing waits.
        costs: in seconds; None measures them.
        clock: seconds since some time, for steps on a CPU and for scoring; None is ``time.perf_counter``.
    """

    def __init__(
        self,
        *,
        num_audited: int = 256,
        first: int = 16,
        growth: float = 1.5,
        worth: float = 0.85,
        most_auditing: float = 0.01,
        most_scoring: float = 0.6,
        costs: Costs | None = None,
        clock: Clock | None = None,
    ) -> None:
        for name, value in (("num_audited", num_audited), ("first", first)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 2:
                raise ValueError(f"`AutoRefresh({name}=...)` must be an integer of at least 2, got {value!r}.")
        shares = {"growth": growth, "worth": worth, "most_auditing": most_auditing, "most_scoring": most_scoring}
        for name, share in shares.items():
            if not isinstance(share, (int, float)):
                raise TypeError(f"`AutoRefresh({name}=...)` must be a number, got {share!r}.")
        for name, fits, allowed in (
            ("growth", 1 < growth < math.inf, "above 1"),
            ("worth", 0 < worth <= 1, "in (0, 1]"),
            ("most_auditing", 0 < most_auditing < 1, "in (0, 1)"),
            ("most_scoring", most_scoring > 0, "positive"),
        ):
            if not fits:
                raise ValueError(f"`AutoRefresh({name}=...)` must be {allowed}, got {shares[name]!r}.")
        if costs is not None and not isinstance(costs, Costs):
            raise TypeError(f"`AutoRefresh(costs=...)` must be a `Costs` or None, got {costs!r}.")
        if clock is not None and not callable(clock):
            raise TypeError(f"`AutoRefresh(clock=...)` must be a function that returns seconds, got {clock!r}.")
        clock = time.perf_counter if clock is None else clock
        super().__init__(clock)
        self._num_audited = num_audited
        self._growth = growth
        self._worth = worth
        self._most_auditing = most_auditing
        self._most_scoring = most_scoring
        self._costs = ScoringCosts(costs, clock)
        self._evidence = Evidence(self._costs)
        self._tiers = Tiers()
        self._next_look = self._next_audit = first  # up to an audit, scores in use are made anew without one
        self._refreshed_at: int | None = None  # by a decision; the sampler knows whether there are scores in use
        self._left_then = 1.0  # noise left at the last look, by the scores in use
        self._left_first = 1.0  # noise they left when they were made, judged by themselves
        self._made_at_audit = True  # whether that was at a look, and not between two
        self._num_looked_at = num_audited
        self._look_seconds: float | None = None  # of the last look; None where it is not known yet
        self._promise = 0.0  # the share of the time that fresh scores would save, if they cost nothing
        self._looks_kept = 0.0  # for which the scores in use were kept
        self._failure = ""
        self.last = Diagnosis(step=1, decision="wait")

    # --- decisions ------------------------------------------------------------------------------------

    def before_draw(self, loader: "AdaptiveLoader") -> None:
        """Let pending scores take effect, look and decide, each where it is time to."""
        try:
            if self.num_steps + 1 < self._next_look and not (loader.overlap and loader.pending):  # most of the time
                return
            scored = loader.take_effect()
            if scored is not None:
                self._costs.note_beside(scored, self.stopwatch.lost_beside())
                self._evidence.remember(loader, scored)
            if self._failure or loader.pending or self.num_steps + 1 < self._next_look:
                return
            step_seconds = self._step_seconds()
            if step_seconds is None:  # no batch has come back yet
                self.stopwatch.warn_if_it_stands()
            else:
                self._look(loader, step_seconds)
                renewed_at, step = self._renewed_at(loader, step_seconds), self.num_steps + 1
                self._next_look = min(self._next_look, renewed_at if renewed_at > step else step + LEAST_BETWEEN)
        except (torch.OutOfMemoryError, MemoryError) as error:
            self._failure = "scoring ran out of memory"
            warnings.warn(
                f"AutoRefresh: scoring ran out of memory, and training goes on with the last probabilities. {error}",
                stacklevel=4,
            )
            self.last = replace(self.last, decision="keep", reason=self._failure, time_factor=None)
            if not loader.sampler.refreshed:
                self.last = replace(self.last, decision="off", noise_left=1.0)
                self._refreshed_at = None

    def num_quiet_steps(self) -> int:
        """Steps that can be drawn for at once after `before_draw`: none of their draws is preceded by a look."""
        return sys.maxsize if self._failure else max(1, self._next_look - 1 - self.num_steps)

    def _step_seconds(self) -> float | None:
        given = self._costs.given
        return self.stopwatch.seconds() if given is None else given.step

    def _look(self, loader: "AdaptiveLoader", step_seconds: float) -> None:
        assert loader.scorer is not None
        self._costs.forget_trial()
        started = self._costs.clock() - self._costs.trial_seconds
        step = self.num_steps + 1
        interval, first = self._interval(step), self.last.decision == "wait"
        if not self._costs.is_known(score_name(loader.scorer)):
            self._next_look = self._first_scores_at(loader, step_seconds)
            if self._next_look > step:
                return
            spare = self._most_scoring * step * step_seconds
            tried = self._evidence.try_out(loader, loader.scorer, step, step_seconds, spare)
            if self._look_seconds is None:
                self._look_seconds = _CALLS * tried.seconds(self._num_audited, self._num_audited)
        affordable = self._affordable_at(loader, step_seconds)
        if affordable > step and not loader.sampler.refreshed:  # nothing to decide
            self._next_look = min(step + interval, math.ceil(affordable))
            if first:
                name = score_name(loader.scorer)
                self.last = Diagnosis(step, "wait", step_seconds, self._evidence.seconds_of(name, loader), name)
            return
        if (loader.sampler.refreshed and step < self._next_audit) or self._scores_are_cheap(loader):
            self._look_at_all(loader, step_seconds, interval)
            return
        self._num_looked_at = self._affordable(loader, interval * step_seconds)
        found = self._audit(loader, step, self._num_looked_at)
        renew = self._renewed_at(loader, step_seconds) <= step
        best = choose(self._options(loader, found, step_seconds, interval, renew), self._worth, renew=renew)
        if self._costs.given is not None:
            self._look_seconds = _GRADIENTS * self._costs.given.example * self._num_looked_at
        elif not first:  # when much is done that does not come again, as is trying out what a score costs
            self._look_seconds = max(0.0, self._costs.clock() - self._costs.trial_seconds - started)
        self._promise = 1 - found.noise.steps_factor(min(1.0, found.fresh))
        self._made_at_audit |= best.decision == "refresh"
        self._carry_out(loader, best, found.noise, found.fresh)
        assert self._look_seconds is not None
        self._next_audit = step + max(interval, int(self._look_seconds / (self._allowed() * step_seconds)))
        self._next_look = self._next_audit if best.interval is None else min(self._next_audit, step + best.interval)

    def _first_scores_at(self, loader: "AdaptiveLoader", step_seconds: float) -> int:
        """The step of the first scores; where these are dear, losses say first whether they are worth it so soon."""
        costs, step = self._costs, self.num_steps + 1
        start = costs.start_at(loader, step_seconds, self._most_scoring)
        glancing = costs.has_dear_calls(loader) and not loader.sampler.refreshed and self._most_scoring < math.inf
        if step < start or not glancing:
            return max(step, math.ceil(start))
        late = costs.start_at(loader, step_seconds, self._most_auditing)
        left, seconds = self._evidence.glance(loader, step) if step < late else (None, 0.0)
        if left is None or self._evidence.beliefs.least_factor(left, loader.batch_size) <= self._worth:
            return step
        name = score_name(self._scorer(loader))
        self.last = Diagnosis(step, "wait", step_seconds, score=name, reason="losses of examples are nearly alike")
        rare = seconds / max(self._most_auditing * step_seconds, sys.float_info.min)
        return math.ceil(min(late, step + max(self._interval(step), rare)))

    def _renewed_at(self, loader: "AdaptiveLoader", step_seconds: float) -> int:
        """The step at which scores in use are made anew although they seem to do."""
        name = score_name(self._scorer(loader))
        if self._refreshed_at is None or loader.overlap != 0 or not self._costs.is_known(name):
            return sys.maxsize
        return self._refreshed_at + renewal(self._evidence.seconds_of(name, loader) / step_seconds, self._promise)

    def _affordable_at(self, loader: "AdaptiveLoader", step_seconds: float, by: ExampleScorer | None = None) -> float:
        """The step from which on all examples may be scored once more, by the present tier or another."""
        name = score_name(by or self._scorer(loader))
        seconds = self._costs.spent + self._costs.taken_from_training(name, loader)
        return seconds / (self._most_scoring * step_seconds)

    def _scorer(self, loader: "AdaptiveLoader") -> ExampleScorer:
        """Of the present tier."""
        assert loader.scorer is not None
        return self._tiers.scorer(loader.scorer)

    def _scores_are_cheap(self, loader: "AdaptiveLoader") -> bool:
        """Whether all examples are scored in the time of a few looks, most of which can be the calls, as on a GPU."""
        overdue = bool(self._tiers.present) and self.num_steps + 1 >= _OVERDUE * self._next_audit  # to compare tiers
        if self._costs.given is not None or loader.overlap != 0 or self._look_seconds is None or overdue:
            return False
        return self._evidence.seconds_of(score_name(self._scorer(loader)), loader) < _WHOLE * self._look_seconds

    def _look_at_all(self, loader: "AdaptiveLoader", step_seconds: float, interval: int) -> None:
        """Score all examples where that should pay, see what they are worth, and keep the scores or forget them."""
        scorer, sampler, step = self._scorer(loader), loader.sampler, self.num_steps + 1
        aging, noise = self._evidence.beliefs.aging, self._evidence.beliefs.noise.at(loader.batch_size)
        in_steps = self._evidence.seconds_of(score_name(scorer), loader) / step_seconds
        fresh, before, looks = self._left_first, None, self._looks_since(step)
        again = plan(noise, aging, fresh, in_steps, interval)
        in_use = sampler.refreshed and self._refreshed_at is not None  # else they are of no known worth
        if in_use:
            now = aging.age(self._left_then, looks)
            left = aging.on_average(now, again.looks)
            best = Option("keep", noise.steps_factor(left), now, left)
            renew = self._renewed_at(loader, step_seconds) <= step
            if again.factor <= (self._worth if renew else min(self._worth, best.factor - HARDLY)):
                before = sampler.weights if self._affordable_at(loader, step_seconds) <= step else None
        if not in_use or (before is None and looks == 1):
            aging.forget()
        if not in_use or before is not None:
            seconds, self._left_first = self._evidence.rescore(loader, scorer, noise)
            in_steps = seconds / step_seconds
            scores, fresh = self._evidence.memory.latest, self._left_first
            if before is not None:
                now = noise.of_second_moment(second_moment_left(scores, before))
                aging.observe(fresh, now, effective_number(scores), looks + self._looks_kept)
            again = plan(noise, aging, fresh, in_steps, interval)
            # Where they would not pay for themselves, they are in use for what is spent already.
            factor = again.factor if again.factor <= self._worth else again.steps_factor
            best = Option("refresh", factor, fresh, again.noise_left)
        self._promise = 1 - noise.steps_factor(min(1.0, fresh))
        self._next_look = step + again.interval
        if best.factor > self._worth:  # until fresh ones would pay, or looks take a small share of the time
            left = aging.on_average(fresh)
            pays_at = noise.pays_at(left, self._worth, in_steps / (LASTING * (self._growth - 1)))
            rare = step + in_steps / self._allowed()
            self._next_look = max(step + interval, math.ceil(min(pays_at, rare)))
            best = Option("off", 1.0, 1.0, 1.0)
        if step < self._next_audit:
            self._next_look = min(self._next_look, self._next_audit)
        self._made_at_audit &= best.decision != "refresh"
        self._carry_out(loader, best, noise, fresh)

    def _looks_since(self, step: int) -> float:
        """The steps since the last look, in looks; 1 where it was put off."""
        return min(1.0, (step - self.last.step) / self._interval(self.last.step))

    def _allowed(self) -> float:
        """The share of the time until the next look that the smallest may take: more the more there is to win."""
        return self._most_auditing * max(1.0, 20 * self._promise)

    def _share_to_spare(self) -> float:
        """The share of it that larger looks than the smallest may take."""
        return max(self._most_auditing, self._allowed() / 4)

    def _affordable(self, loader: "AdaptiveLoader", seconds: float) -> int:
        """How many examples to look at, with so many seconds until the next look."""
        assert loader.scorer is not None
        num_examples = max(2, loader.sampler.num_examples)
        least = min(self._num_audited, num_examples)
        if not self._look_seconds:
            return least
        each = _GRADIENTS * self._evidence.seconds_of(score_name(loader.scorer), loader) / num_examples
        spare = self._share_to_spare() * seconds - self._look_seconds
        most = min(_LARGEST_AUDIT, _AUDIT_GROWTH * self._num_looked_at, num_examples)
        return max(least, min(most, self._num_looked_at + int(spare / each)))

    def _audit(self, loader: "AdaptiveLoader", step: int, number: int) -> Found:
        """Measure scores, noise and costs on some examples; draws and probabilities stay as they are.

        Noise is measured where a decision can depend on it: it takes longer than all the rest.
        """
        evidence, sampler, aging = self._evidence, loader.sampler, self._evidence.beliefs.aging
        sample = evidence.sample(loader, step, number, self._step_seconds() or 0.0)
        if not sampler.refreshed:
            aging.forget()
        if self._could_pay(loader, step, sample.second_moment_left):
            noisy = sample.chosen[: self._num_gradients(loader, step)]
            evidence.measure_noise(loader, noisy, evidence.beliefs.noise)
        found = evidence.judge(sample, loader)
        if not (sampler.refreshed and self._left_then < 1 and self._made_at_audit) or self._tiers.present:
            return found
        looks = self._looks_kept + self._looks_since(step)
        aging.observe(found.fresh, found.now, effective_number(found.scores), looks)
        return replace(found, now=aging.age(found.fresh, looks))

    def _could_pay(self, loader: "AdaptiveLoader", step: int, second_moment: float) -> bool:
        """Whether adaptive draws may be chosen at all; else nothing depends on how much noise there is."""
        if loader.sampler.refreshed:
            return second_moment <= self._worth
        least = self._evidence.beliefs.least_factor(second_moment, loader.batch_size)
        step_seconds = self._step_seconds()
        if step_seconds is None:
            return least <= self._worth
        assert loader.scorer is not None
        seconds = self._costs.taken_from_training(score_name(loader.scorer), loader)
        cost = seconds / (LASTING * self._interval(step) * step_seconds)
        return least * (1 + cost) <= self._worth or least * (1 + cost / _DEARER) < CLEARLY * self._worth

    def _num_gradients(self, loader: "AdaptiveLoader", step: int) -> int:
        """Of how many examples to take the noise: training takes as long for each, or longer."""
        num_batches = min(ENOUGH, self._share_to_spare() * self._interval(step))
        return max(self._num_audited, int(num_batches * loader.batch_size))

    def _interval(self, step: int) -> int:
        """Steps until the next look, unless they are too few for what a look takes."""
        return max(1, int(step * (self._growth - 1)))

    def diagnose(self, loader: "AdaptiveLoader") -> Diagnosis:
        """What was found at the last look; the noise, where that decided nothing and was not measured, is now."""
        last, step_seconds, step = self.last, self.last.step_seconds, self.num_steps + 1
        if self._failure:
            age = None if self._refreshed_at is None else step - self._refreshed_at
            return replace(last, step=step, staleness=age)
        if last.decision == "wait":
            return replace(last, step=step)
        if step_seconds is None or last.noise_scale is not None:
            return last
        indices = draw_examples(loader.sampler, self.num_steps + 1, self._num_audited)
        belief = NoiseBelief()  # decisions do not depend on who asks
        self._evidence.measure_noise(loader, indices, belief)
        noise = belief.at(loader.batch_size)
        larger = self._evidence.larger_batch_factor(noise, loader, step_seconds)
        self.last = replace(last, noise_scale=noise.measured_scale, larger_batch_factor=larger)
        return self.last

    def _options(
        self, loader: "AdaptiveLoader", found: Found, step_seconds: float, interval: int, renew: bool
    ) -> list[Option]:
        scorer = loader.scorer
        assert scorer is not None
        options = [Option("off", 1.0, 1.0, 1.0)]
        if loader.sampler.refreshed:
            left = self._evidence.beliefs.aging.on_average(found.now)
            options.append(Option("keep", found.noise.steps_factor(left), found.now, left))
        if self._affordable_at(loader, step_seconds) > self.num_steps + 1:
            return options

        def refreshing(scorer: ExampleScorer, fresh: float, seconds: float | None = None) -> Option:
            aging, name = self._evidence.beliefs.aging, score_name(scorer)
            seconds = self._costs.taken_from_training(name, loader) if seconds is None else seconds
            in_steps = seconds / step_seconds
            if loader.overlap == 0:
                best = plan(found.noise, aging, fresh, in_steps, interval)
            else:
                wait = self._costs.steps_beside(name, loader, step_seconds)
                best = plan_beside(found.noise, aging, found.now, fresh, in_steps, wait, interval)
            soon = best.interval if loader.overlap == 0 else None
            return Option("refresh", best.factor, fresh, best.noise_left, scorer, soon)

        def draws_by(name: str, scores: Tensor) -> Tensor:
            foretold = self._evidence.memory.foretell(name, scores, self.num_steps + 1, found.indices)
            return weights_of(foretold, loader.sampler.floor)

        exact = refreshing(scorer, found.fresh)
        if self._costs.given is None:
            # Cheaper scores are looked at where one that leaves as little noise would change the choice.
            ideal = refreshing(scorer, found.fresh, self._least_seconds(loader, scorer))
            if self._tiers.present:
                chosen = (choose([*options, one], self._worth, renew=renew) for one in (exact, ideal))
                change = any(one.decision == "refresh" for one in chosen)
            else:
                change = ideal.factor < CLEARLY * min(self._worth, exact.factor, *(option.factor for option in options))
            if change:
                score = partial(self._score_by, loader, found.chunks)
                exact = self._tiers.best(found, exact, score, draws_by, refreshing)
        if self._affordable_at(loader, step_seconds, exact.scorer) <= self.num_steps + 1:
            options.append(exact)
        return options

    def _least_seconds(self, loader: "AdaptiveLoader", exact: ExampleScorer) -> float:
        """What training loses by the cheapest of the cheaper scores, or what is hoped for before they were tried."""
        names = self._tiers.names(exact)
        if not all(map(self._costs.is_known, names)):
            return self._costs.taken_from_training(score_name(exact), loader) / _DEARER
        return min((self._costs.taken_from_training(name, loader) for name in names), default=math.inf)

    def _score_by(self, loader: "AdaptiveLoader", chunks: Sequence[Tensor], scorer: ExampleScorer) -> Tensor:
        if not self._costs.is_known(score_name(scorer)):
            self._evidence.try_out(loader, scorer, self.num_steps + 1, self._step_seconds() or 0.0)
        return self._costs.scores_of(loader, scorer, chunks)[0]

    def _carry_out(self, loader: "AdaptiveLoader", best: Option, noise: Noise, fresh: float) -> None:
        scorer, step, step_seconds = self._scorer(loader), self.num_steps + 1, self._step_seconds()
        assert step_seconds is not None
        self._looks_kept = self._looks_kept + self._looks_since(step) if best.decision == "keep" else 0.0
        if best.decision == "refresh":
            if best.scorer is not None:
                scorer = best.scorer
                self._tiers.take(scorer)
                if loader.overlap == 0:
                    _, self._left_first = self._evidence.rescore(loader, scorer, noise)
                else:
                    loader.rescore_beside(scorer, self._costs.steps_beside(score_name(scorer), loader, step_seconds))
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
            scoring_seconds=self._evidence.seconds_of(score_name(scorer), loader),
            score=score_name(scorer),
            noise_scale=noise.measured_scale,
            noise_left_fresh=fresh,
            noise_left=best.noise_left,
            staleness=None if self._refreshed_at is None else step - self._refreshed_at,
            time_factor=best.factor,
            larger_batch_factor=self._evidence.larger_batch_factor(noise, loader, step_seconds),
        )

    # --- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything later decisions depend on but the clock."""
        return {
            "auto": STATE_VERSION,
            **{name: getattr(self, _attribute(name)) for name in _PLAIN},
            "tier": self._tiers.present,
            **self._evidence.state_dict(),
            "last": asdict(self.last),
        }

    def check(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse the state of a loader with another kind of ``refresh``, or of another version of this one."""
        where, version = "`AdaptiveLoader.load_state_dict`", state_dict.get("auto")
        if version is None:
            raise ValueError(f"{where} needs a loader with refresh={state_dict['interval']!r}, got 'auto'.")
        if version != STATE_VERSION:
            raise ValueError(f"{where} must have a state of version {STATE_VERSION} of 'auto', got {version!r}.")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`; costs go on from what was measured, steps are timed anew."""
        self.check(state_dict)
        for name in _PLAIN:
            setattr(self, _attribute(name), state_dict[name])
        self._tiers.present = str(state_dict["tier"])
        self._evidence.load_state_dict(state_dict)
        self.last = Diagnosis(**state_dict["last"])

    def __repr__(self) -> str:
        return "'auto'"


def _attribute(name: str) -> str:
    return name if name == "num_steps" else f"_{name}"
