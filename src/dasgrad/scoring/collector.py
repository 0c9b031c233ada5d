"""Adds up, parameter by parameter, what layers say of each example while a backward pass goes by."""

import time
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dasgrad.scoring.calls import Call
from dasgrad.scoring.forms import Outer
from dasgrad.scoring.measures import Measure
from dasgrad.scoring.shortcut import LinearShortcut


class Collector:
    """The consumer of a `Tape`.

    Args:
        measures: of the scored parameters, by name.
        num_examples: B.
        factors: ``[B]``, positive: what each example's gradient was multiplied by on its way down; None is 1.
        timed: whether to measure the seconds each parameter takes; waits for the device.
    """

    def __init__(
        self,
        measures: Mapping[str, Measure],
        num_examples: int,
        factors: Tensor | None = None,
        *,
        timed: bool = False,
    ) -> None:
        self._measures = measures
        self._num_examples = num_examples
        self._factors = factors
        self._shares: dict[str, Tensor] = {}
        self._timed = timed
        self.shortcut = LinearShortcut(measures)
        self.irregular: dict[str, str] = {}
        self.rules: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def __call__(self, call: Call, gradient: Tensor) -> None:
        """Take a call on record and the gradient at its output; of several gradients the first alone."""
        if call.build is None:
            return
        if self._factors is not None:
            shape = [1] * gradient.dim()
            shape[call.dims[0]] = -1
            gradient = gradient / self._factors.to(gradient.dtype).view(shape)
        for name, form in call.forms(gradient).items():
            if form is None:
                self.irregular[name] = f"the rule of {call.kind} does not name it"
                continue
            if name in self.shortcut.squares and isinstance(form, Outer):
                form = replace(form, squares=self.shortcut.squares.pop(name))
            started = self._clock()
            share = self._measures[name](form, self._num_examples)
            self._shares[name] = self._shares[name] + share if name in self._shares else share
            self.rules[name] = call.kind
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - started
        call.release()

    def add_to(self, total: Tensor, irregular: Mapping[str, str]) -> None:
        """Add the shares of all parameters but the irregular ones."""
        for name, share in self._shares.items():
            if name not in irregular:
                total += share

    def clear(self) -> None:
        """Forget what was collected."""
        for found in (self._shares, self.irregular, self.rules, self.seconds):
            found.clear()

    def _clock(self) -> float:
        if not self._timed:
            return 0.0
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()
