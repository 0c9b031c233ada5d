"""`Rescoring`: scores for the sampler, of all examples or some, computed at once or beside training."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dasgrad import nested
from dasgrad.progress import Progress
from dasgrad.sampling import AdaptiveSampler
from dasgrad.scoring import ExampleScorer
from dasgrad.scoring.isolation import device_of
from dasgrad.training.ages import AgedScores
from dasgrad.training.fetching import take_examples
from dasgrad.training.overlap import Scored, ScoringBesideTraining
from dasgrad.training.refresh import StepCounter, fill_nonfinite


@dataclass(frozen=True)
class Refresh:
    """What `AdaptiveLoader.on_refresh` callbacks are told."""

    step: int
    """The optimizer step, counted from 1, whose draw comes next."""
    scores: Tensor
    """``[n]``, as they were computed; where one was not finite, what stands in for it."""
    seconds: float
    """Wall-clock time of scoring and of rebuilding the tree."""
    waited_seconds: float
    """The part of it for which training stood still: all of it, or with ``overlap`` the snapshot, what was left of the
    scoring when its scores were to take effect, and the tree."""


@dataclass(frozen=True, eq=False)
class RescoringState:
    """What a state of `Rescoring` holds, read and ready to be restored."""

    pending: Scored | None
    refreshed_at: int
    ages: AgedScores | None


class Rescoring:
    """Gives scores to a sampler, on behalf of an `AdaptiveLoader`, which says when.

    Args:
        scorer: the loader's; None where it has none.
        sampler: which gets the scores.
        counter: of the optimizer's steps.
        dataset, chunk_size, progress, collate_fn, num_workers: of `ExampleScorer.score_dataset`.
        overlap: as for the loader; anything but 0 is scoring beside training.
        nonfinite: ``"raise"`` or ``"keep"``, as for the loader.

    Raises:
        ValueError: for options out of range or in contradiction, in the loader's name.
    """

    def __init__(
        self,
        scorer: ExampleScorer | None,
        sampler: AdaptiveSampler,
        counter: StepCounter,
        *,
        dataset: Any,
        chunk_size: int,
        progress: Progress,
        collate_fn: Callable[[list[Any]], Any] | None,
        num_workers: int,
        overlap: int | Literal["auto"],
        nonfinite: Literal["raise", "keep"],
    ) -> None:
        if nonfinite not in ("raise", "keep"):
            raise ValueError(f"`AdaptiveLoader(nonfinite=...)` must be 'raise' or 'keep', got {nonfinite!r}.")
        if sampler.floor == 0 and scorer is not None and _leaves_momentum_out(scorer):
            raise ValueError(
                '`ExampleScorer(momentum=False)` with weighting="update" needs `AdaptiveSampler(floor=...)` in '
                "(0, 1), got 0.0."
            )
        columns = nested.columns_of(dataset)
        length = len(dataset) if columns is None else nested.count_examples(columns)
        if length != sampler.num_examples:
            raise ValueError(
                f"`AdaptiveLoader(scoring_dataset=...)` must hold the same {sampler.num_examples} examples as the data "
                f"set, got {length}."
            )
        self._scorer = scorer
        self._sampler = sampler
        self._counter = counter
        self._options: dict[str, Any] = {
            "dataset": dataset,
            "chunk_size": chunk_size,
            "progress": progress,
            "collate_fn": collate_fn,
            "num_workers": num_workers,
        }
        self._chunk_size = chunk_size
        self._take_examples = partial(take_examples, dataset, collate_fn)
        self._overlap = overlap
        self._beside: ScoringBesideTraining | None = None
        if overlap != 0:
            if scorer is None:
                raise ValueError("`AdaptiveLoader(overlap=...)` needs `scorer`.")
            few = partial(self._take_examples, torch.arange(min(sampler.num_examples, 4)))
            self._beside = ScoringBesideTraining(scorer, self._options, sampler.num_examples, few)
        self._nonfinite = nonfinite
        self._callbacks: list[Callable[[Refresh], None]] = []
        self._ages: AgedScores | None = None  # from the first update on
        self.refreshed_at = 1
        """The step at which the scores in use were computed."""

    @property
    def _step(self) -> int:
        """The optimizer step, counted from 1, whose draw comes next."""
        return self._counter.num_steps + 1

    def examples(self, indices: Tensor) -> Any:
        """Some examples as the scorer gets them, on the model's device."""
        assert self._scorer is not None
        return self._take_examples(indices, device_of(self._scorer.model))

    def on_refresh(self, callback: Callable[[Refresh], None]) -> Callable[[], None]:
        """Call ``callback`` after every refresh; returns a function that stops it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    # --- at once --------------------------------------------------------------------------------------

    def refresh(self, indices: Tensor | None = None) -> None:
        """Rescore all examples, or some as `update` does; see `AdaptiveLoader.refresh`."""
        if self._scorer is None:
            raise ValueError("`AdaptiveLoader.refresh` needs `scorer`, got None.")
        if indices is None:
            self.rescore(self._scorer)
        elif self._sampler.refreshed and len(indices) > 0:
            chunks = indices.split(self._chunk_size)
            self.update(indices, torch.cat([self._scorer(self.examples(chunk)) for chunk in chunks]))

    def rescore(self, scorer: ExampleScorer, through: Callable[[Tensor], Tensor] | None = None) -> float:
        """Rescore all examples; see `AdaptiveLoader.rescore`."""
        if self._beside is not None:
            self._beside.hold(None)  # older scores
        _wait_for(scorer.model)  # steps still under way are not scoring's
        started = time.perf_counter()
        scores = self._give(scorer.score_dataset(**self._options), self._step, through)
        seconds = time.perf_counter() - started
        self._tell(Refresh(self._step, scores, seconds, seconds))
        return seconds

    def update(self, indices: Tensor, scores: Tensor, weights: Tensor | None = None) -> None:
        """Take scores of some examples, computed just now; see `AdaptiveLoader.update`."""
        if self._scorer is None:
            raise ValueError("`AdaptiveLoader.update` needs `scorer`, got None.")
        sampler = self._sampler
        if not sampler.refreshed or len(indices) == 0:
            return
        indices = indices.to(sampler.device)
        scores = scores.detach().to(sampler.device, torch.float64)
        weights = torch.ones_like(scores) if weights is None else weights.to(scores)
        finite = torch.isfinite(scores)
        if self._nonfinite == "keep" and not bool(finite.all()):
            indices, scores, weights = indices[finite], scores[finite], weights[finite]
        before = sampler.scores if self._ages is None else None
        sampler.update(indices, scores)  # refuses what is out of range
        if self._ages is None:
            assert before is not None
            self._ages = AgedScores(before, self.refreshed_at)
        self._ages.learn(self._step, indices, scores, weights)
        if self._ages.is_due(self._step):
            sampler.refresh(self._ages.present(self._step))

    # --- beside training ------------------------------------------------------------------------------

    def rescore_beside(self, scorer: ExampleScorer, num_steps: int) -> None:
        """Start to rescore all examples, for scores that take effect later; those still pending do so first."""
        assert self._beside is not None
        self.take_effect(now=True)
        self._beside.start(scorer, self._step, self._step + num_steps)

    def take_effect(self, *, now: bool = False) -> Scored | None:
        """Give pending scores to the sampler, if it is time or ``now``; returns them."""
        if self._beside is None or self._beside.step is None:
            return None
        if not now and self._step < self._beside.step:
            return None
        scored = self._beside.finish()
        started = time.perf_counter()
        scores = self._give(scored.scores, scored.computed_at)
        rest = time.perf_counter() - started
        self._tell(Refresh(self._step, scores, scored.seconds + rest, scored.waited_seconds + rest))
        return scored

    @property
    def pending(self) -> bool:
        """Whether there are scores that have not taken effect yet."""
        return self._beside is not None and self._beside.step is not None

    @property
    def running(self) -> bool:
        """Whether a scoring goes on beside training at this moment."""
        return self._beside is not None and self._beside.running

    @property
    def share_lost(self) -> float:
        """The share of the time of scoring that training loses: all of it, less beside training once it was timed."""
        lost = self._counter.stopwatch.lost_beside() if self._overlap != 0 else None
        return 1.0 if lost is None else lost

    def num_quiet_steps(self) -> int:
        """Steps that can be drawn for at once: pending scores take effect before none of their draws."""
        if self._beside is None or self._beside.step is None:
            return sys.maxsize
        return self._beside.step - self._step

    # --- giving and telling ---------------------------------------------------------------------------

    def _give(self, scores: Tensor, computed_at: int, through: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Scores of all examples as they were at a step, or what becomes of them, to the sampler; returns them."""
        scores = fill_nonfinite(scores, self._sampler, self._nonfinite)
        self._sampler.refresh(scores, through)
        self.refreshed_at = computed_at
        if self._ages is not None:
            self._ages.refresh(self._sampler.scores, computed_at)
        return scores

    def _tell(self, event: Refresh) -> None:
        for callback in self._callbacks:
            callback(event)

    # --- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Pending scores, whose end is waited for, and the ages of those in use."""
        pending = None if self._beside is None else self._beside.look_ahead()
        return {
            "overlap": self._overlap,
            "pending": None if pending is None else asdict(pending),
            "refreshed_at": self.refreshed_at,
            "ages": None if self._ages is None else self._ages.state_dict(),
        }

    def read_state(self, state_dict: Mapping[str, Any]) -> RescoringState:
        """What `restore` takes; nothing is changed. States from before a part was kept have none.

        Raises:
            ValueError: for another ``overlap``.
        """
        overlap = state_dict.get("overlap", 0)
        if overlap != self._overlap:
            raise ValueError(
                f"`AdaptiveLoader.load_state_dict` needs a loader with overlap={overlap!r}, got {self._overlap!r}."
            )
        pending, ages = state_dict.get("pending"), state_dict.get("ages")
        return RescoringState(
            pending=None if pending is None else Scored(**pending),
            refreshed_at=int(state_dict.get("refreshed_at", 1)),
            ages=None if ages is None else AgedScores.from_state_dict(ages, self._sampler.device),
        )

    def restore(self, state: RescoringState) -> None:
        """Go on from there; a scoring that goes on is given up."""
        self._ages, self.refreshed_at = state.ages, state.refreshed_at
        if self._beside is not None:
            self._beside.hold(state.pending)


def _wait_for(model: nn.Module) -> None:
    device = device_of(model)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _leaves_momentum_out(scorer: ExampleScorer) -> bool:
    groups = scorer.optimizer.param_groups if scorer.optimizer is not None else []
    return not scorer.momentum and any(group.get("weighting") == "update" for group in groups)
