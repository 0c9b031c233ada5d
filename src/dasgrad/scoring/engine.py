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
from torch.utils.checkpoint import CheckpointError

from dasgrad import nested
from dasgrad.scoring import probe, sums
from dasgrad.scoring.calls import Call
from dasgrad.scoring.fallback import PerExampleGradients, flatten_examples, rows_within_budget
from dasgrad.scoring.forms import Form
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.measures import Measure, gradient_measure
from dasgrad.scoring.tape import Tape
from dasgrad.scoring.workspace import Workspace


class Engine:
    """Lives as long as its scorer, and remembers what it learnt of the model.

    Attributes:
        irregular: parameters no rule may serve, with the reason; it only ever grows.
        gradients: the fallback.
        rules: by parameter, the kind of layer whose rule serves it, where one does.
    """

    def __init__(self) -> None:
        self.irregular: dict[str, str] = {}
        self.gradients = PerExampleGradients()
        self.rules: dict[str, str] = {}
        self._probed: set[object] = set()
        self._dims: dict[str, int] = {}
        self._anchor_all = False
        self._announced: set[str] = set()

    def squares(
        self, function: LossFunction, params: Mapping[str, Tensor], measures: Mapping[str, Measure], data: Any
    ) -> Tensor:
        """``[B]`` float64: Σ over ``params`` of what their measures say of each example's gradient.

        Raises:
            ValueError: when the loss is not one value an example, or examples interact.
        """
        num_examples = nested.count_examples(data)
        if num_examples == 0:
            return torch.zeros(0, dtype=torch.float64, device=_device_of(measures))
        if (kind := probe.kind_of(data, params)) not in self._probed:
            self._learn(function, params, probe.few_of(data))
            self._probed.add(kind)
        total = torch.zeros(num_examples, dtype=torch.float64, device=_device_of(measures))
        for measure in measures.values():
            total += measure.base()
        if any(name not in self.irregular for name in params):
            for share in self._shares_by_rules(function, params, measures, data).values():
                total += share
        slower = [name for name in params if name in self.irregular]
        if slower:
            self._announce(slower)
            self._add_by_fallback(function, slower, measures, data, total)
        return total.clamp_(min=0.0)

    def _shares_by_rules(
        self, function: LossFunction, params: Mapping[str, Tensor], measures: Mapping[str, Measure], data: Any
    ) -> dict[str, Tensor]:
        """By parameter, what rules and measures say of each example's gradient; zero where there is none."""
        shares: dict[str, Tensor] = {}
        tape = self._follow(function, params, measures, data, shares)
        if tape.lost and not self._anchor_all:
            self._anchor_all = True
            shares.clear()
            tape = self._follow(function, params, measures, data, shares)
        self.irregular.update(tape.irregular)
        return {name: share for name, share in shares.items() if name not in self.irregular}

    def _follow(
        self,
        function: LossFunction,
        params: Mapping[str, Tensor],
        measures: Mapping[str, Measure],
        data: Any,
        shares: dict[str, Tensor],
    ) -> Tape:
        """One pass under a tape that adds to ``shares`` what each parameter's calls are measured at."""
        tensors = function.tensors()
        num_examples = nested.count_examples(data)
        repeated: dict[str, list[Form]] = {}

        def consume(call: Call, gradient: Tensor) -> None:
            for name, form in call.forms(gradient).items():
                if form is None:
                    tape.irregular.setdefault(name, f"the rule of {call.kind} does not name it")
                elif name in tape.repeated:
                    repeated.setdefault(name, []).append(form)
                elif name not in tape.irregular:
                    share = measures[name](form, num_examples)
                    shares[name] = shares[name] + share if name in shares else share
            call.release()

        tape = Tape(function.model, params, tensors, consume, self._dims, self._anchor_all)
        tape.irregular.update(self.irregular)
        try:
            losses = tape.follow(
                lambda then: function.call(tensors, data, then),
                lambda losses: tape.bring_gradients(losses.sum()),
                num_examples,
            )
        except CheckpointError:
            tape.irregular.update(dict.fromkeys(params, "checkpointing did not compute the same again"))
        else:
            if tape.reads_values and not probe.agrees_alone(function, data, losses):
                tape.irregular.update(dict.fromkeys(params, "the forward pass decides by the values of a whole batch"))
        for name in repeated.keys() - tape.irregular.keys():
            form = sums.add(repeated[name], measures[name].shape, num_examples)
            shares[name] = measures[name](form, num_examples)
        return tape

    def _learn(self, function: LossFunction, params: Mapping[str, Tensor], few: Any) -> None:
        """Find out on a few examples what rules may serve."""
        findings = probe.look(function, params, few)
        self.rules.update(findings.rules)
        self.irregular.update(findings.irregular)
        for name, dim in findings.dims.items():
            if self._dims.setdefault(name, dim) != dim:
                self.irregular[name] = "its layer has the examples now here, now there"
        if all(name in self.irregular for name in params):
            return
        try:
            precise = LossFunction(function.model, function.losses, torch.float64)
            self._compare_with_autograd(precise, params, nested.map_leaves(precise.cast, few))
        except (RuntimeError, TypeError, ValueError):  # not all models can be run in float64
            self._compare_with_autograd(function, params, few)

    def _compare_with_autograd(self, function: LossFunction, params: Mapping[str, Tensor], few: Any) -> None:
        plain = {name: gradient_measure(param, Workspace()) for name, param in params.items()}
        squares = self._shares_by_rules(function, params, plain, few)
        served = [name for name in params if name not in self.irregular]
        self.irregular.update(probe.find_disagreements(function, served, few, squares))

    def _add_by_fallback(
        self, function: LossFunction, names: list[str], measures: Mapping[str, Measure], data: Any, total: Tensor
    ) -> None:
        rows = rows_within_budget(sum(measures[name].shape.numel() for name in names))
        for start in range(0, len(total), rows):
            block = slice(start, start + rows)
            gradients = self.gradients(function, names, nested.take(data, block))
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


def _device_of(measures: Mapping[str, Measure]) -> torch.device:
    return next(iter(measures.values())).device


def _plain(name: str) -> str:
    return name.removeprefix("model.")
