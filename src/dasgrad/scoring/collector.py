"""Adds up, parameter by parameter, what layers say of each example while a backward pass goes by."""

import time
from collections.abc import Mapping, Set
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from dasgrad.scoring import native, sums
from dasgrad.scoring.calls import Call, Layer
from dasgrad.scoring.forms import Form, Outer
from dasgrad.scoring.measures import Measure
from dasgrad.scoring.shortcut import LinearShortcut
from dasgrad.scoring.workspace import Workspace


class Following(Protocol):
    """What is known of the parameters that calls and gradients are brought of."""

    irregular: dict[str, str]
    """Parameters no rule may serve, with the reason."""

    @property
    def repeated(self) -> Set[str]:
        """Parameters with several uses."""


class Regular:
    """What a `KnownPass` brings: one use of each parameter."""

    repeated: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.irregular: dict[str, str] = {}


class Collector:
    """The consumer of a `Tape` or a `KnownPass`.

    Args:
        measures: of the scored parameters, by name.
        num_examples: B.
        weights: ``[B]``, positive: what each example's gradient was multiplied by on its way down; None is 1.
        scale: times this.
        timed: whether to measure the seconds each parameter takes; waits for the device.
    """

    def __init__(
        self,
        measures: Mapping[str, Measure],
        num_examples: int,
        weights: Tensor | None = None,
        scale: float = 1.0,
        *,
        timed: bool = False,
    ) -> None:
        self._measures = measures
        self._num_examples = num_examples
        self._weights = weights
        self._scale = scale
        # Where shares go with the square of the gradient, factors are taken out of [B] numbers in the end.
        self._in_the_end = weights is not None and all(measure.homogeneous for measure in measures.values())
        self._timed = timed
        self._tape: Following = Regular()
        self._shares: dict[str, Tensor] = {}
        self._matrices: set[int] = set()
        self._linear: native.LinearTotals | None = None
        self._repeated: dict[str, list[Form]] = {}
        self.shortcut = LinearShortcut(measures)
        self.rules: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def attach(self, tape: Following) -> None:
        """Forget what was collected, and take what this tape brings."""
        self._tape = tape
        self._matrices.clear()
        self._linear = None
        for found in (self._shares, self._repeated, self.shortcut.products, self.rules, self.seconds):
            found.clear()

    @property
    def irregular(self) -> Mapping[str, str]:
        """Parameters no rule may serve, with the reason."""
        return self._tape.irregular

    def __call__(self, call: Call, gradient: Tensor) -> None:
        """Take a call on record and the gradient at its output; of several gradients the first alone."""
        if call.build is None:
            return
        if self._weights is not None and not self._in_the_end:
            shape = [1] * gradient.dim()
            shape[call.dims[0]] = -1
            gradient = gradient / self._factors.to(gradient.dtype).view(shape)
        for name, form in call.forms(gradient).items():
            if form is None:
                self._tape.irregular.setdefault(name, f"the rule of {call.kind} does not name it")
            elif name in self._tape.repeated:
                self._repeated.setdefault(name, []).append(form)
                self.rules[name] = call.kind
            elif name not in self._tape.irregular:
                if name in self.shortcut.products and isinstance(form, Outer):
                    form = replace(form, beside=self.shortcut.products.pop(name))
                self._measure(name, form)
                self.rules[name] = call.kind
        call.release()

    def take_matrix(self, layer: Layer, x: Tensor, gradient: Tensor) -> None:
        """Take a linear layer's input, one row an example, and the gradient at its output, for the total alone.

        Of several gradients the first alone is taken.
        """
        if id(layer) in self._matrices:
            return
        self._matrices.add(id(layer))
        if native.supports(x) and (self._weights is None or self._in_the_end):
            found = self.shortcut.read_layer(layer.names)
            if found is not None:
                if self._linear is None:
                    self._linear = native.LinearTotals(self._num_examples, x.dtype, self._workspace)
                if self._linear.add(gradient, x, *found):
                    return
        self(layer.call((0,), (x,), {}), gradient)

    def finish(self) -> dict[str, Tensor]:
        """By parameter what was collected, ``[B]``; the irregular ones left out."""
        with torch.no_grad():  # as in the backward pass, which is over
            for name in self._repeated.keys() - self._tape.irregular.keys():
                self._measure(name, sums.add(self._repeated[name], self._measures[name].shape, self._num_examples))
        self._repeated.clear()
        return {name: share for name, share in self._shares.items() if name not in self._tape.irregular}

    def total(self) -> Tensor:
        """``[B]`` float64: what was collected of all parameters, beside what they have without any gradient."""
        total = self._sum()
        return total / self._factors / self._factors if self._in_the_end else total

    def lengths(self, dtype: torch.dtype) -> Tensor:
        """``[B]``: the roots of totals, with what parameters have without any gradient."""
        weights = self._weights
        if self._in_the_end and weights is not None:
            if self._linear is not None and not self._shares and not self._repeated and weights.dtype is dtype:
                lengths = self._linear.lengths(weights, self._scale)
                if lengths is not None:
                    return lengths
            return (self._sum().sqrt() / self._factors).to(dtype)
        return add_bases(self._measures, self.total()).clamp(min=0.0).sqrt().to(dtype)

    @property
    def _workspace(self) -> Workspace:
        return next(iter(self._measures.values())).workspace

    @cached_property
    def _factors(self) -> Tensor:
        assert self._weights is not None
        return self._weights.to(next(iter(self._measures.values())).device) * self._scale

    def _sum(self) -> Tensor:
        shares = list(self.finish().values()) if self._shares or self._repeated else []
        if self._linear is not None:
            shares.append(self._linear.values)
        if not shares:
            device = next(iter(self._measures.values())).device
            return torch.zeros(self._num_examples, dtype=torch.float64, device=device)
        total = shares.pop().double()  # LinearTotals' own, where there are some, and not to be written to
        for share in shares:
            total = total + share
        return total

    def _measure(self, name: str, form: Form) -> None:
        started = self._clock()
        share = self._measures[name](form, self._num_examples)
        self._shares[name] = self._shares[name] + share if name in self._shares else share
        self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - started

    def _clock(self) -> float:
        if not self._timed:
            return 0.0
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def add_bases(measures: Mapping[str, Measure], total: Tensor) -> Tensor:
    """``total``, ``[B]``, and the squares of examples with no gradient at all."""
    for measure in measures.values():
        if (base := measure.base()) is not None:
            total = total + base
    return total
