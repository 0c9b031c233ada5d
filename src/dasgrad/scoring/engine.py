"""Squared scores of a block: one forward pass, one backward pass to activations, each layer measured as it comes.

No gradient of a parameter is computed. Each layer's inputs and the gradient at its output are turned into
the layer's share by its rule as soon as the backward pass gets there, and freed. Parameters that no rule
serves are left to the exact fallback, just those.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from dasgrad import nested
from dasgrad.scoring import footprint, probe
from dasgrad.scoring.collector import Collector, add_bases
from dasgrad.scoring.fallback import PerExampleGradients, flatten_examples, rows_within_budget
from dasgrad.scoring.layout import Layout
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.measures import Measure, gradient_measure
from dasgrad.scoring.plain import refuse_wrappers
from dasgrad.scoring.tape import Tape
from dasgrad.scoring.workspace import Workspace


class Engine:
    """Lives as long as its scorer, and remembers what it learnt of the model.

    Attributes:
        irregular: parameters no rule may serve, with the reason; it only ever grows.
        dims: for the others, the dimension of their layer's output that runs over the examples.
        gradients: the fallback.
    """

    def __init__(self) -> None:
        self.irregular: dict[str, str] = {}
        self.gradients = PerExampleGradients()
        self._probed: set[object] = set()
        self.dims: dict[str, int] = {}
        self._anchor_all = False
        self._announced: set[str] = set()
        self._block_sizes: dict[object, int] = {}

    def squares(
        self,
        function: LossFunction,
        layout: Layout,
        measures: Mapping[str, Measure],
        data: Any,
        *,
        timed: bool = False,
    ) -> tuple[Tensor, Collector]:
        """``[B]`` float64: what all measures say of each example's gradient, summed; and the details.

        Raises:
            ValueError: when the loss is not one value an example, or examples interact.
        """
        num_examples = nested.count_examples(data)
        collector = Collector(measures, num_examples, timed=timed)
        device = next(iter(measures.values())).device
        total = add_bases(measures, torch.zeros(num_examples, dtype=torch.float64, device=device))
        if num_examples == 0:
            return total, collector
        self.look(function, layout, data)
        if any(name not in self.irregular for name in layout.params):
            self._add_by_rules(function, layout, collector, data, total)
        self.add_by_fallback(function, measures, data, total)
        if any(measure.base() is not None for measure in measures.values()):
            total.clamp_(min=0.0)  # rounding, where a quadratic with momentum all but vanishes
        return total, collector

    def knows(self, layout: Layout, data: Any) -> bool:
        """Whether examples of this kind were looked at."""
        return probe.kind_of(data, layout.params) in self._probed

    def look(self, function: LossFunction, layout: Layout, data: Any) -> None:
        """Look at a few examples of each kind of data before rules are trusted."""
        if self.knows(layout, data):
            return
        self._learn(function, layout, probe.few_of(data))
        self._probed.add(probe.kind_of(data, layout.params))

    def block_size(self, function: LossFunction, layout: Layout, measures: Mapping[str, Measure], data: Any) -> int:
        """How many of these examples are scored at once, by what a pass holds of each; all of them on a GPU.

        Where that is not all of them, measures are prepared: what they keep from pass to pass would else come to lie
        among the activations of the first, whose memory the next could not use as a whole.
        """

        def held(few: Any) -> int:
            self.look(function, layout, few)
            tensors, collector = function.tensors(), Collector(measures, nested.count_examples(few))
            tape = self.tape(layout, tensors, collector)
            tape.shortcut = collector.shortcut
            kept = footprint.bytes_an_example(tape, function, tensors, few)
            return max(kept, footprint.largest_result(function, few))

        size = self._block_size(function, probe.kind_of(data, layout.params), data, held)
        if size < nested.count_examples(data):
            for measure in measures.values():
                measure.prepare()
        return size

    def forward_block_size(self, function: LossFunction, data: Any) -> int:
        """The same for scores that need a forward pass alone."""
        kind = probe.kind_of(data, ())
        return self._block_size(function, kind, data, lambda few: footprint.largest_result(function, few))

    def _block_size(self, function: LossFunction, kind: object, data: Any, held: Callable[[Any], int]) -> int:
        num_examples = nested.count_examples(data)
        leaves = nested.leaves(data)
        whole = num_examples <= footprint.FEWEST or not footprint.can_be_cut(leaves)
        if whole or not all(leaf.device.type == "cpu" for leaf in leaves):
            return num_examples
        key = (kind, tuple([tuple(leaf.shape[1:]) for leaf in leaves]))
        if key not in self._block_sizes:
            self._block_sizes[key] = footprint.fitting(held(nested.map_leaves(function.cast, probe.few_of(data))))
        return self._block_sizes[key]

    def tape(self, layout: Layout, tensors: Mapping[str, Tensor], collector: Collector) -> Tape:
        """A tape that knows what was learnt so far, and brings what it finds to the collector."""
        tape = Tape(layout, tensors, collector, self.dims, self._anchor_all)
        tape.irregular.update(self.irregular)
        collector.attach(tape)
        return tape

    def _add_by_rules(
        self, function: LossFunction, layout: Layout, collector: Collector, data: Any, total: Tensor
    ) -> None:
        for share in self._shares_by_rules(function, layout, collector, data).values():
            total += share

    def _shares_by_rules(
        self, function: LossFunction, layout: Layout, collector: Collector, data: Any
    ) -> dict[str, Tensor]:
        """By parameter, what rules and measures say of each example's gradient; zero where there is none."""
        tape = self._follow(function, layout, collector, data)
        if tape.lost and not self._anchor_all:
            self._anchor_all = True
            tape = self._follow(function, layout, collector, data)
        shares = collector.finish()
        self.irregular.update(tape.irregular)
        return shares

    def _follow(self, function: LossFunction, layout: Layout, collector: Collector, data: Any) -> Tape:
        """One pass under a tape, with the collector at its end."""
        tensors = function.tensors()
        tape = self.tape(layout, tensors, collector)
        tape.shortcut = collector.shortcut
        try:
            losses = tape.follow(
                lambda then: function.call(tensors, data, then),
                tape.bring_gradients,
                nested.count_examples(data),
            )
        except CheckpointError:
            tape.irregular.update(dict.fromkeys(layout.params, "checkpointing did not compute the same again"))
        else:
            if tape.reads_values and not probe.agrees_alone(function, data, losses):
                tape.irregular.update(
                    dict.fromkeys(layout.params, "the forward pass decides by the values of a whole batch")
                )
        return tape

    def _learn(self, function: LossFunction, layout: Layout, few: Any) -> None:
        """Find out on a few examples what rules may serve."""
        findings = probe.look(function, layout, few)
        self.irregular.update(findings.irregular)
        for name, dim in findings.dims.items():
            if self.dims.setdefault(name, dim) != dim:
                self.irregular[name] = "its layer has the examples now here, now there"
        if all(name in self.irregular for name in layout.params):
            return
        try:
            precise = function.precise()
            self._compare_with_autograd(precise, layout, nested.map_leaves(precise.cast, few))
        except (RuntimeError, TypeError, ValueError):  # not all models can be run in float64
            self._compare_with_autograd(function, layout, few)

    def _compare_with_autograd(self, function: LossFunction, layout: Layout, few: Any) -> None:
        plain = {name: gradient_measure(param, Workspace()) for name, param in layout.params.items()}
        collector = Collector(plain, nested.count_examples(few))
        squares = self._shares_by_rules(function, layout, collector, few)
        served = [name for name in layout.params if name not in self.irregular]
        self.irregular.update(probe.find_disagreements(function, served, few, squares))

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
            refuse_wrappers(gradients, "gradient")
            for name in names:
                total[block] += measures[name].of_entries(flatten_examples(gradients.pop(name)).clone())

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


def _plain(name: str) -> str:
    return name.removeprefix("model.")
