"""Scores for free: a training batch's scores out of its own backward pass."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from dasgrad.scoring.collector import Collector
from dasgrad.scoring.engine import Engine
from dasgrad.scoring.known import KnownPass, Plan
from dasgrad.scoring.layout import Layout
from dasgrad.scoring.measures import Measure

_MOST_PLANS = 16
"""Kinds of passes remembered at a time."""


class Weighted(Protocol):
    """A batch whose loss is (1/B) Σ w_b f_b, such as `dasgrad.WeightedBatch`."""

    @property
    def data(self) -> Any:
        """What ``losses(model, data)`` takes."""

    @property
    def weights(self) -> Tensor:
        """``[B]``, positive."""


class Heard:
    """What `ExampleScorer.listen` heard of a batch."""

    def __init__(self) -> None:
        self._scores: Tensor | None = None

    @property
    def scores(self) -> Tensor:
        """``[B]``, there once the block is left.

        Raises:
            RuntimeError: inside the block.
        """
        if self._scores is None:
            raise RuntimeError(
                "`scores` are there once the `with scorer.listen(batch)` block is left without an error."
            )
        return self._scores

    def fill(self, scores: Tensor) -> None:
        """Take the scores; the scorer's business."""
        self._scores = scores


class Listening:
    """What `ExampleScorer.listen` returns; a class, for a context made of a generator takes twice the time.

    Args:
        recall: gives a context for a pass of a known kind, and a function for its scores; None for any other kind.
        hear_new: gives a context for such another.
        batch, scale: what both are called with.
    """

    def __init__(
        self,
        recall: Callable[[Weighted, float], tuple[KnownPass, Callable[[], Tensor]] | None],
        hear_new: Callable[[Weighted, float], AbstractContextManager[Heard]],
        batch: Weighted,
        scale: float,
    ) -> None:
        self._recall = recall
        self._hear_new = hear_new
        self._batch = batch
        self._scale = scale

    def __enter__(self) -> Heard:
        found = self._recall(self._batch, self._scale)
        if found is None:
            self._context: AbstractContextManager[Any] = self._hear_new(self._batch, self._scale)
            self._scores: Callable[[], Tensor] | None = None
            heard: Heard = self._context.__enter__()
            return heard
        self._context, self._scores = found
        self._heard = Heard()
        self._context.__enter__()
        return self._heard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        raised = self._context.__exit__(kind, error, trace)
        if self._scores is not None and kind is None:
            self._heard.fill(self._scores())
        return raised


class Ear:
    """Hears training passes: by a tape at first, by hooks alone once a pass of that kind was found plain enough."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._plans: dict[object, Plan | None] = {}

    def recall(self, key: object) -> Plan | None:
        """What is known of passes of a kind; None where they need a tape."""
        return self._plans.get(key)

    def hear_known(
        self, plan: Plan, measures: Mapping[str, Measure], weights: Tensor, scale: float
    ) -> tuple[KnownPass, Collector]:
        """A context that follows a pass by hooks; what was collected counts if there is no doubt in the end."""
        num_examples = weights.shape[0]
        collector = Collector(measures, num_examples, weights, scale)
        return KnownPass(plan, num_examples, collector), collector

    @contextmanager
    def hear_new(
        self,
        key: object,
        plan: Plan,
        layout: Layout,
        measures: Mapping[str, Measure],
        weights: Tensor,
        scale: float,
    ) -> Iterator[Collector]:
        """Follow a pass by a tape, and find out whether the next ones of its kind can do without."""
        collector = Collector(measures, len(weights), weights, scale)
        tape = self._engine.tape(layout, plan.params, collector)
        plan.layers.extend(tape.layers)
        plan.dims.update(self._engine.dims)
        found = self.hear_known(plan, measures, weights, scale) if key not in self._plans else None
        with tape.following(len(weights)), nullcontext() if found is None else found[0]:
            yield collector
        self._engine.irregular.update(tape.irregular)
        if found is not None:
            known, alone = found
            plain = known.sure and self._engine.irregular.keys().isdisjoint(plan.params)
            self._remember(key, plan if plain and _agree(alone, collector) else None)

    def forget(self, key: object) -> None:
        """Use a tape for passes of this kind from now on."""
        self._plans[key] = None

    def _remember(self, key: object, plan: Plan | None) -> None:
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[key] = plan


def _agree(alone: Collector, watched: Collector) -> bool:
    return torch.allclose(alone.total(), watched.total(), rtol=1e-6, atol=0.0, equal_nan=True)
