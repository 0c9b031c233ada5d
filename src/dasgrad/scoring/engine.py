"""Squared scores of a chunk: one forward pass, one backward pass to activations, each layer measured as it comes.

No gradient of a parameter is computed. Each layer's inputs and the gradient at its output are turned into
the layer's share by its rule as soon as the backward pass gets there, and freed. Parameters that no rule
serves are left to the exact fallback, just those.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dasgrad import nested
from dasgrad.scoring import probe
from dasgrad.scoring.collector import Collector
from dasgrad.scoring.fallback import PerExampleGradients, rows_within_budget
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.measures import Measure
from dasgrad.scoring.tape import Tape


class Engine:
    """Lives as long as its scorer, and remembers what it learnt of the model.

    Attributes:
        irregular: parameters no rule may serve, with the reason; it only ever grows.
        gradients: the fallback.
    """

    def __init__(self) -> None:
        self.irregular: dict[str, str] = {}
        self.gradients = PerExampleGradients()
        self._probed: set[object] = set()
        self._announced: set[str] = set()

    def squares(
        self,
        function: LossFunction,
        params: Mapping[str, Tensor],
        measures: Mapping[str, Measure],
        data: Any,
        collector: Collector | None = None,
    ) -> Tensor:
        """``[B]`` float64: Σ over ``params`` of what their measures say of each example's gradient.

        Raises:
            ValueError: when the loss is not one value an example, or examples interact.
        """
        num_examples = nested.count_examples(data)
        self.probe(function, params, data)
        total = bases(measures, num_examples)
        if any(name not in self.irregular for name in params):
            collector = Collector(measures, num_examples) if collector is None else collector
            self._add_by_rules(function, params, collector, data, total)
        self.add_by_fallback(function, measures, data, total)
        return total.clamp_(min=0.0)

    def probe(self, function: LossFunction, params: Mapping[str, Tensor], data: Any) -> None:
        """Look at a few examples of each kind of data before rules are trusted."""
        if nested.count_examples(data) > 1 and (kind := probe.kind_of(data)) not in self._probed:
            self.irregular.update(probe.find_irregular(function, params, data))
            self._probed.add(kind)

    def _add_by_rules(
        self, function: LossFunction, params: Mapping[str, Tensor], collector: Collector, data: Any, total: Tensor
    ) -> None:
        tensors = function.tensors()
        tape = Tape(function.model, params, tensors, collector)
        tape.irregular.update(self.irregular)
        losses = tape.follow(lambda: function.call(tensors, data), len(total))
        if tape.reads_values and not probe.agrees_alone(function, data, losses):
            tape.irregular.update(dict.fromkeys(params, "the forward pass decides by the values of a whole batch"))
        elif losses.requires_grad and len(total):
            torch.autograd.grad(losses.sum(), tape.anchor, allow_unused=True)
        self.irregular.update(tape.irregular)
        collector.add_to(total, self.irregular)

    def add_by_fallback(
        self, function: LossFunction, measures: Mapping[str, Measure], data: Any, total: Tensor
    ) -> None:
        """Add the shares of the irregular parameters, from their per-example gradients."""
        names = [name for name in measures if name in self.irregular]
        if not names:
            return
        self._announce(names)
        rows = rows_within_budget(sum(measures[name].shape.numel() for name in names))
        for start in range(0, len(total), rows):
            block = slice(start, start + rows)
            gradients = self.gradients(function, names, nested.take(data, block))
            for name in names:
                total[block] += measures[name].of_entries(gradients.pop(name).flatten(1))

    def _announce(self, names: list[str]) -> None:
        new = [name for name in names if name not in self._announced]
        self._announced.update(new)
        if new:
            shown = "; ".join(f"{_plain(name)}: {self.irregular[name]}" for name in new[:5])
            more = f"; and {len(new) - 5} more" if len(new) > 5 else ""
            warnings.warn(
                f"`ExampleScorer` takes the exact but slower path for {len(new)} of its parameters ({shown}{more}); "
                "`scorer.explain(data)` lists them.",
                stacklevel=5,
            )


def bases(measures: Mapping[str, Measure], num_examples: int) -> Tensor:
    """``[B]`` float64: the squares of examples with no gradient at all."""
    return torch.stack([measure.base() for measure in measures.values()]).sum().repeat(num_examples)


def _plain(name: str) -> str:
    return name.removeprefix("model.")
