"""Scores for free: a training batch's scores out of its own backward pass."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad.scoring.collector import Collector
from dasgrad.scoring.engine import Engine, bases
from dasgrad.scoring.isolation import untouched
from dasgrad.scoring.known import KnownPass, Plan, structure_of
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.measures import Measure
from dasgrad.scoring.probe import kind_of

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


class Ear:
    """Hears training passes: by a tape at first, by hooks alone once a pass of that kind was found plain enough."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._plans: dict[object, Plan | None] = {}

    def key_of(self, function: LossFunction, optimizer: Optimizer | None, data: Any) -> tuple[object, tuple[Any, ...]]:
        """What decides whether a pass is like another, and the objects it goes by."""
        structure, holds = structure_of(function.model, optimizer)
        return (structure, kind_of(data, ())), holds

    def params(self, key: object) -> Mapping[str, Tensor] | None:
        """The scored parameters, where passes of this kind are known."""
        plan = self._plans.get(key)
        return None if plan is None else plan.params

    @contextmanager
    def hear(
        self,
        key: tuple[object, tuple[Any, ...]],
        function: LossFunction,
        params: Mapping[str, Tensor],
        measures: Mapping[str, Measure],
        data: Any,
        factors: Tensor,
    ) -> Iterator[Tensor]:
        """``[B]`` float64, the squared scores of the pass inside, once the block is left."""
        total = bases(measures, len(factors))
        kind, holds = key
        plan = self._plans.get(kind)
        if plan is None:
            learnt = Plan(params, [], {}, holds) if kind not in self._plans else None
            yield from self._by_tape(learnt, function, params, measures, data, factors, total)
            if learnt is not None:
                self._remember(kind, learnt if learnt.routes else None)
            return
        collector = Collector(measures, len(factors), factors)
        known = KnownPass(plan, len(factors), collector)
        collector.attach(known)
        with known.following():
            yield total
        if known.doubt is None and not known.irregular:
            _add(total, collector)
            return
        self._plans[kind] = None
        with untouched(function.model):
            total.copy_(self._engine.squares(function, params, measures, data)[0])

    def _by_tape(
        self,
        learnt: Plan | None,
        function: LossFunction,
        params: Mapping[str, Tensor],
        measures: Mapping[str, Measure],
        data: Any,
        factors: Tensor,
        total: Tensor,
    ) -> Iterator[Tensor]:
        """Follow by a tape, and learn how to do without one; the plan is left without routes where that is not so."""
        num_examples = len(factors)
        collector = Collector(measures, num_examples, factors)
        tape = self._engine.tape(function.model, params, params, collector)
        known: KnownPass | None = None
        heard_alone = total.clone()
        with ExitStack() as stack:
            stack.enter_context(tape.following(num_examples))
            if learnt is not None:
                learnt.layers.extend(tape.layers)
                learnt.dims.update(self._engine.dims)
                alone = Collector(measures, num_examples, factors)
                known = KnownPass(learnt, num_examples, alone)
                alone.attach(known)
                stack.enter_context(known.following())
            yield total
        _add(total, collector)
        self._engine.irregular.update(tape.irregular)
        if learnt is not None and known is not None:
            _add(heard_alone, alone)
            plain = known.doubt is None and not known.irregular and not self._engine.irregular
            if not (plain and torch.allclose(heard_alone, total, rtol=1e-6, atol=0.0, equal_nan=True)):
                learnt.routes.clear()
        if self._engine.irregular:
            with untouched(function.model):
                self._engine.add_by_fallback(function, measures, data, total)

    def _remember(self, kind: object, plan: Plan | None) -> None:
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[kind] = plan


def _add(total: Tensor, collector: Collector) -> None:
    for share in collector.finish().values():
        total += share
