"""Record the trajectory of any run: hooks on an optimizer's steps that leave the run as it is.

Cost. Without a problem, a step costs some ten operations on vectors of all parameters, copied to the CPU in float64,
and keeps a few numbers: O(d) time and memory. With a problem, the losses and gradients of all n examples are computed
besides, and all n draws are looked ahead: O(n d). Either way at most ``max_points`` points are kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad.moments import BuiltinMoments, Hyper, Moments, resolve
from dasgrad.optim import DASGrad
from dasgrad.sampling import AdaptiveSampler
from dasgrad.theory.ahead import Futures, look_ahead
from dasgrad.theory.ledger import HAS_MOMENTUM, Examples, Ledger, Step
from dasgrad.theory.problem import FiniteSum
from dasgrad.theory.trajectory import Trajectory
from dasgrad.training import AdaptiveLoader


class Recorder:
    """What `record` yields."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def num_steps(self) -> int:
        """Steps recorded so far."""
        return self._ledger.num_steps

    def trajectory(self) -> Trajectory:
        """All that was recorded so far.

        Raises:
            ValueError: when there was no step yet.
        """
        return self._ledger.finish()


@contextmanager
def record(
    optimizer: DASGrad,
    draws: AdaptiveLoader | AdaptiveSampler | None = None,
    *,
    problem: FiniteSum | None = None,
    optimum: Tensor | None = None,
    diameter: float | None = None,
    max_points: int = 1000,
) -> Iterator[Recorder]:
    """Record every step of an optimizer inside the ``with`` block.

    Args:
        optimizer: a `DASGrad` with one param group, without bias correction and weight decay: what the theorems are
            about.
        draws: the loader or sampler the batches come from; with a problem, its probabilities are those of the next
            draw. None: draws are from the target. Draws made ahead in worker processes are refused.
        problem: all examples' losses and gradients: terms are then expectations over the next draw, for batches of
            one, and regret is recorded. It needs an optimizer with one 1-D parameter.
        optimum: θ*, flattened, for the terms of the draws that were made; a problem has its own.
        diameter: D, where the projection does not tell.
        max_points: points kept, at most.

    Raises:
        TypeError: for another optimizer than `DASGrad`.
        ValueError: for settings no theorem covers, naming them.

    Example:
        >>> import dasgrad
        >>> theta = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        >>> optimizer = dasgrad.DASGrad([theta], lr=0.1)
        >>> with record(optimizer, optimum=torch.zeros(2, dtype=torch.float64)) as recorder:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         theta.square().sum().backward()
        ...         _ = optimizer.step()
        >>> recorder.trajectory().num_steps
        3
    """
    _check_optimizer(optimizer)
    group = optimizer.param_groups[0]
    moments = resolve(group["moments"])
    sampler = _check_draws(draws)
    if problem is not None:
        _check_problem(optimizer, sampler, problem)
        optimum = problem.optimum
    ledger = Ledger(moments, optimizer.weighting, group["projection"], optimum, diameter, max_points)
    hooks = _Hooks(optimizer, moments, sampler, problem, ledger)
    handles = [
        optimizer.register_step_pre_hook(hooks.before_step),
        optimizer.register_step_post_hook(hooks.after_step),
    ]
    try:
        yield Recorder(ledger)
    finally:
        for handle in handles:
            handle.remove()


class _Hooks:
    """Notes the state before a step, and hands the ledger the step once it is done."""

    def __init__(
        self,
        optimizer: DASGrad,
        moments: Moments,
        sampler: AdaptiveSampler | None,
        problem: FiniteSum | None,
        ledger: Ledger,
    ) -> None:
        self._params: list[Tensor] = list(optimizer.param_groups[0]["params"])
        self._moments, self._sampler, self._problem, self._ledger = moments, sampler, problem, ledger
        self._theta = torch.empty(0)
        self._state: dict[str, Tensor] = {}
        self._direction: Tensor | None = None

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._theta = self._flatten(self._params)
        self._state = {key: self._read(optimizer, key) for key in self._moments.keys}
        if self._problem is not None:
            self._look_ahead(optimizer)
        elif isinstance(optimizer, DASGrad) and optimizer.weighting == "update":
            # u = β₁ w̄ m_{t−1} + (1 − β₁) g̃, before the step forgets what it was given.
            weighted = [optimizer._update_grads.get(param, torch.zeros_like(param)) for param in self._params]
            grads, mean_weight = self._flatten(weighted), float(optimizer._mean_weight)
            if kwargs.get("update_grads") is not None:
                both = zip(kwargs["update_grads"], self._params, strict=True)
                grads = grads + self._flatten([torch.zeros_like(p) if g is None else g for g, p in both])
                mean_weight += float(kwargs["mean_weight"])
            if self._moments.name in HAS_MOMENTUM:
                beta1 = optimizer.param_groups[0]["betas"][0]
                self._direction = beta1 * mean_weight * self._state["exp_avg"] + (1 - beta1) * grads
            else:
                self._direction = grads

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._problem is not None:
            return
        hyper, alpha = self._hyper(optimizer, self._ledger.num_steps + 1)
        state = {key: self._read(optimizer, key) for key in self._moments.keys}
        zero = torch.zeros_like
        seen = self._flatten([zero(p) if p.grad is None else p.grad for p in self._params])
        direction = self._moments.phi(state, seen, hyper) if self._direction is None else self._direction
        metric = self._moments.metric(state, hyper).to(seen).expand_as(seen)

        def one_draw(values: Tensor) -> Tensor:
            return values[None, None]

        after = self._flatten(self._params)
        futures = Futures(
            one_draw(after), one_draw(direction), one_draw(metric), {key: one_draw(v) for key, v in state.items()}
        )
        one = torch.ones(1, 1, dtype=torch.float64)
        before = {key: value[None] for key, value in self._state.items()}
        # One draw of probability 1: what was drawn. Weights are not known here, and are not needed.
        weights = one if self._sampler is None else torch.full((1, 1), torch.nan, dtype=torch.float64)
        step = Step(
            self._ledger.num_steps + 1,
            alpha,
            hyper,
            self._theta[None],
            before,
            one[0],
            one,
            weights,
            one_draw(seen),
            futures,
        )
        self._ledger.add(step, None)

    def _look_ahead(self, optimizer: Optimizer) -> None:
        """Take in the step that is about to be taken, by all draws it might have been taken with."""
        problem = self._problem
        assert problem is not None
        t = self._ledger.num_steps + 1
        hyper, alpha = self._hyper(optimizer, t)
        theta, pi = self._theta[None], problem.pi
        state = {key: value[None] for key, value in self._state.items()}
        p = pi if self._sampler is None else self._sampler.probabilities
        weights = torch.where(p > 0, pi / torch.where(p > 0, p, 1.0), 0.0)
        grads = problem.gradients(theta)
        group = optimizer.param_groups[0]
        weighting, projection = group["weighting"], group["projection"]
        futures = look_ahead(self._moments, weighting, theta, state, grads, weights[None], alpha, hyper, projection)
        seen = grads * weights[:, None] if weighting == "gradient" else grads
        one = torch.ones(1, dtype=torch.float64)
        step = Step(t, alpha, hyper, theta, state, one, p[None], weights[None], seen, futures)
        self._ledger.add(step, Examples(pi, grads, problem.excess(theta)))

    def _hyper(self, optimizer: Optimizer, t: int) -> tuple[Hyper, float]:
        group = optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        return Hyper(beta1, beta2, group["eps"], t, bias_correction=False), float(group["lr"])

    def _read(self, optimizer: Optimizer, key: str) -> Tensor:
        """A state tensor of all parameters; zeros before the first step."""
        states = [optimizer.state.get(param, {}) for param in self._params]
        return self._flatten([s.get(key, torch.zeros_like(p)) for s, p in zip(states, self._params, strict=True)])

    @staticmethod
    def _flatten(tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.detach().to("cpu", torch.float64, copy=True).flatten() for tensor in tensors])


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, DASGrad):
        raise TypeError(f"`record(optimizer=...)` must be a `DASGrad`, got {type(optimizer).__name__}.")
    if len(optimizer.param_groups) != 1:
        raise ValueError(
            f"`record(optimizer=...)` must have one param group, for the theorems have one α, got "
            f"{len(optimizer.param_groups)}."
        )
    group = optimizer.param_groups[0]
    for option in ("bias_correction", "decoupled_weight_decay", "maximize", "weight_decay"):
        if group[option]:
            raise ValueError(
                f"`record(optimizer=...)` must have {option} off, got {group[option]!r}: no theorem has it."
            )
    if not isinstance(resolve(group["moments"]), BuiltinMoments):
        raise ValueError(
            f"`record(optimizer=...)` must have built-in moments, got {group['moments']!r}: its momentum is not known."
        )
    if any(optimizer.state.get(param) for param in group["params"]):
        raise ValueError("`record(optimizer=...)` must start before the first step, for t is counted from 1.")


def _check_draws(draws: object) -> AdaptiveSampler | None:
    if draws is None or isinstance(draws, AdaptiveSampler):
        return draws
    if not isinstance(draws, AdaptiveLoader):
        raise TypeError(f"`record(draws=...)` must be a loader or sampler of dasgrad, got {type(draws).__name__}.")
    if draws.num_workers > 0:
        raise ValueError("`record(draws=...)` must draw when it is asked to, got a loader with worker processes.")
    return draws.sampler


def _check_problem(optimizer: DASGrad, sampler: AdaptiveSampler | None, problem: FiniteSum) -> None:
    params = optimizer.param_groups[0]["params"]
    if len(params) != 1 or params[0].shape != problem.optimum.shape:
        shapes = [tuple(param.shape) for param in params]
        raise ValueError(
            f"`record(problem=...)` needs an optimizer of one parameter of shape {tuple(problem.optimum.shape)}, "
            f"got {shapes}."
        )
    if sampler is None:
        return
    if sampler.batch_size != 1 or sampler.num_examples != problem.num_examples:
        raise ValueError(
            f"`record(problem=...)` needs batches of 1 of its {problem.num_examples} examples, got batches of "
            f"{sampler.batch_size} of {sampler.num_examples}."
        )
    if sampler.stratified in ("pass", "run"):
        raise ValueError(
            "`record(problem=...)` needs draws that are unbiased given the past, `AdaptiveSampler(stratified=...)` "
            f"'none' or 'batch', got {sampler.stratified!r}."
        )
