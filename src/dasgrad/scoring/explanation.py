"""A table of how a model is scored: which rule serves which parameter, what it costs, what falls back and why."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dasgrad.scoring.engine import Engine
from dasgrad.scoring.layout import Layout
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.measures import Measure


@dataclass(frozen=True)
class Served:
    """How one parameter is scored."""

    name: str
    shape: tuple[int, ...]
    rule: str
    """The kind of layer or function its gradients come from; ``fallback`` for per-example gradients; ``-`` where
    no gradient reached the parameter."""
    share: float
    """Of the whole time, in [0, 1]; all fallback parameters share one pass, shown at the first of them."""
    reason: str
    """Why it fell back; empty otherwise."""


@dataclass(frozen=True)
class Explanation:
    """What `ExampleScorer.explain` found; ``str()`` is the table."""

    parameters: tuple[Served, ...]
    passes_share: float
    """Share of the forward pass and the backward pass to activations."""
    seconds: float
    num_examples: int

    def __str__(self) -> str:
        header = ("parameter", "shape", "rule", "cost", "why not a rule")
        rows = [
            (p.name, "x".join(map(str, p.shape)) or "scalar", p.rule, f"{p.share:6.1%}", p.reason)
            for p in self.parameters
        ]
        rows.append(("(forward and backward pass)", "", "", f"{self.passes_share:6.1%}", ""))
        widths = [max(len(row[k]) for row in (header, *rows)) for k in range(4)]
        lines = [
            "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4])).rstrip()
            for row in (header, *rows)
        ]
        lines.append(f"{self.num_examples} examples in {self.seconds * 1e3:.1f} ms")
        return "\n".join(lines)


def explain(
    engine: Engine,
    function: LossFunction,
    layout: Layout,
    measures: Mapping[str, Measure],
    data: Any,
) -> Explanation:
    """Score a batch once to learn what falls back, and once more with a clock."""
    squares, _ = engine.squares(function, layout, measures, data)
    started = _now()
    _, collector = engine.squares(function, layout, measures, data, timed=True)
    seconds = max(_now() - started, 1e-12)
    fallback = [name for name in layout.params if name in engine.irregular]
    fallback_seconds = 0.0
    if fallback:
        started = _now()
        engine.add_by_fallback(function, measures, data, squares)
        fallback_seconds = _now() - started
    served = []
    for name, param in layout.params.items():
        if name in engine.irregular:
            share = fallback_seconds / seconds if name == fallback[0] else 0.0
            served.append(
                Served(name.removeprefix("model."), tuple(param.shape), "fallback", share, engine.irregular[name])
            )
        else:
            rule, share = collector.rules.get(name, "-"), collector.seconds.get(name, 0.0) / seconds
            served.append(Served(name.removeprefix("model."), tuple(param.shape), rule, share, ""))
    return Explanation(tuple(served), max(0.0, 1 - sum(p.share for p in served)), seconds, len(squares))


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
