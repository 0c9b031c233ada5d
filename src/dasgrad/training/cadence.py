"""How soon to score all examples anew: at the next look, or a few times before it.

Looks are spaced by a factor, as scores of most models age with the logarithm of time. A network that learns its
examples by heart at a constant learning rate is another matter: it moves to and fro, and scores lose most of what they
win within a few hundred steps, however long it was trained. There they are made a few times from look to look, where
the forecast says that it pays; and each time tells more of what an example is like in the long run
(`dasgrad.training.memory`).

And scores in use are made anew now and then although they seem to do. The forecast goes by what they leave on average,
on the examples of a look; it does not see an example that comes back once in a while with the largest weight, and what
it does to a model at a large learning rate.
"""

import math
import sys
from dataclasses import dataclass

from dasgrad.training.beliefs import AgingBelief
from dasgrad.training.forecast import Noise

LASTING = 2
"""Looks over which the cost of a refresh is spread: its scores mostly outlast the first."""
MOST_BETWEEN = 0.2
"""Of the time of the steps: what scoring between looks may take."""
RENEWING = 0.2
"""Of what scores win: what making them anew may take although they seem to do."""
FINER = 1.25
"""Times as often: what is tried next."""
LEAST_BETWEEN = 64
"""Steps from one refresh to the next that is made between looks."""


@dataclass(frozen=True)
class Plan:
    """When to score again, and what it comes to."""

    interval: int
    """Steps until then."""
    looks: float
    """The same in looks, at most 1."""
    noise_left: float
    """On average until then."""
    steps_factor: float
    """Steps to the same loss, relative to uniform draws."""
    factor: float
    """Time to it, scoring included."""


def renewal(in_steps: float, promise: float) -> int:
    """Steps after which scores in use are made anew although they seem to do; very many where they win nothing.

    Args:
        in_steps: what scoring all examples takes.
        promise: the share of the time that fresh scores would save if they cost nothing.
    """
    steps = in_steps / (RENEWING * promise) if promise > 0 else math.inf
    return math.ceil(min(max(LEAST_BETWEEN, steps), sys.maxsize))


def plan(noise: Noise, aging: AgingBelief, fresh: float, in_steps: float, interval: int) -> Plan:
    """The best of scoring at the next look and of scoring more often.

    Args:
        noise: of the gradient.
        aging: of scores.
        fresh: noise that new scores leave.
        in_steps: what scoring all examples takes.
        interval: steps from look to look.
    """
    shortest = max(LEAST_BETWEEN, in_steps / MOST_BETWEEN) / interval
    tried = [1.0]
    while tried[-1] > shortest:
        tried.append(max(shortest, tried[-1] / FINER))
    plans = []
    longest = renewal(in_steps, 1 - noise.steps_factor(min(1.0, fresh)))
    for looks in tried:
        left = aging.on_average(fresh, looks)
        steps = noise.steps_factor(left)
        lasting = LASTING if looks == 1 else 1
        cost = in_steps / min(longest, lasting * looks * interval)
        plans.append(Plan(max(1, math.ceil(looks * interval)), looks, left, steps, steps * (1 + cost)))
    return min(plans, key=lambda one: one.factor)


def plan_beside(
    noise: Noise,
    aging: AgingBelief,
    now: float,
    fresh: float,
    in_steps: float,
    wait: int,
    interval: int,
) -> Plan:
    """To score at the next look beside training, for scores that take effect ``wait`` steps later.

    Args:
        noise: of the gradient.
        aging: of scores.
        now: noise that draws leave until then.
        fresh: noise that new scores leave.
        in_steps: what training loses by scoring all examples.
        wait: steps.
        interval: steps from look to look.
    """
    lasting = LASTING * interval
    late = min(1.0, wait / lasting)
    left = late * min(1.0, now) + (1 - late) * aging.on_average(fresh)
    steps = noise.steps_factor(left)
    return Plan(interval, 1.0, left, steps, steps * (1 + in_steps / lasting))
