"""The arithmetic of one optimizer step, three times: a tensor at a time, by lists, by torch's fused kernel.

All three do the same to the same bucket of parameters (one param group, one device, one dtype)::

    g ← ±g (+ κθ)         sign from `maximize`, κ from coupled weight decay
    θ ← θ (1 − lr·decay)  decoupled weight decay only
    state ← advance(state, g)
    θ ← θ − lr · φ / H    H = √ψ + eps, and 0/0 := 0

`loop` serves every pair (φ, ψ), `foreach` the built-in ones, `fused` Adam and AMSGrad. Projection is not
done here: it is the same for all three and comes after.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dasgrad.moments import BuiltinMoments, Hyper, Moments, Tensors

HELD_STEP = 1e18
"""A step count at which β^t is 0 for every β < 1: the fused kernel then corrects no bias."""


@dataclass(frozen=True)
class Bucket:
    """Parameters that are stepped together, with gradients and states in the same order."""

    params: Tensors
    grads: Tensors
    states: list[dict[str, Any]]

    def lists(self, moments: Moments) -> Mapping[str, Tensors]:
        """The states turned over: each key with its list of tensors."""
        return {key: [state[key] for state in self.states] for key in moments.keys}


@dataclass(frozen=True)
class WeightedUpdate:
    """What `weighting="update"` adds: the weighted mean gradients g̃ and the mean weight w̄."""

    grads: Tensors
    mean_weight: float | Tensor


def read_hyper(group: Mapping[str, Any], step: float | Tensor) -> Hyper:
    """A param group's coefficients at the given step."""
    beta1, beta2 = group["betas"]
    return Hyper(beta1, beta2, group["eps"], step, group["bias_correction"])


def read_step(state: Mapping[str, Any], capturable: bool) -> float | Tensor:
    """The step count: the tensor itself where the host must not wait for it, else a number."""
    step: Tensor = state["step"]
    return step if capturable or step.is_cuda else float(step)


def full_metric(moments: Moments, state: Mapping[str, Any], hyper: Hyper, param: Tensor) -> Tensor:
    """H in the parameter's shape and dtype, on its device; ψ itself may be a scalar."""
    return torch.zeros_like(param).add_(moments.metric(state, hyper))


def loop(bucket: Bucket, group: Mapping[str, Any], moments: Moments, update: WeightedUpdate | None) -> None:
    """One tensor after the other, straight from the definition."""
    lr, decay = group["lr"], group["weight_decay"]
    for k, (param, grad, state) in enumerate(zip(bucket.params, bucket.grads, bucket.states, strict=True)):
        grad = -grad if group["maximize"] else grad
        coupled = 0.0 if group["decoupled_weight_decay"] else decay
        full = grad + coupled * param if coupled else grad
        hyper = read_hyper(group, read_step(state, group["capturable"]))
        ahead = moments.advance(state, full, hyper)
        if update is None:
            direction = moments.phi(ahead, full, hyper)
        else:
            direction = _weighted_direction(moments, state, param, update, k, group, hyper, coupled)
        for key, value in ahead.items():
            state[key].copy_(value)
        if hyper.bias_correction:
            direction = direction / moments.corrections(hyper)[0]
        if decay and group["decoupled_weight_decay"]:
            param.mul_(1 - lr * decay)
        metric = full_metric(moments, state, hyper, param)
        param.sub_(lr * torch.where(metric == 0, 0.0, direction / metric))


def _weighted_direction(
    moments: Moments,
    state: Mapping[str, Any],
    param: Tensor,
    update: WeightedUpdate,
    k: int,
    group: Mapping[str, Any],
    hyper: Hyper,
    coupled: float,
) -> Tensor:
    """(1/B) Σ w_b φ(…, g_b) for φ affine in the newest gradient: φ(…, g̃) + (w̄ − 1) φ(…, 0)."""
    grad = -update.grads[k] if group["maximize"] else update.grads[k]
    grad = grad + update.mean_weight * coupled * param if coupled else grad
    zero = torch.zeros_like(grad)
    remembered = moments.phi(moments.advance(state, zero, hyper), zero, hyper)
    direction = moments.phi(moments.advance(state, grad, hyper), grad, hyper)
    return direction + (update.mean_weight - 1) * remembered


def foreach(bucket: Bucket, group: Mapping[str, Any], moments: BuiltinMoments, update: WeightedUpdate | None) -> None:
    """All tensors of the bucket at once, by torch's list operations."""
    params, grads, lr, decay = bucket.params, bucket.grads, group["lr"], group["weight_decay"]
    coupled = 0.0 if group["decoupled_weight_decay"] else decay
    steps: Any = [read_step(state, group["capturable"]) for state in bucket.states]
    states = bucket.lists(moments)
    hyper = read_hyper(group, steps[0])
    grads = _foreach_full(grads, params, group["maximize"], coupled)
    if update is None:
        moments.foreach_advance_(states, grads, hyper)
        direction = moments.foreach_phi(states, grads)
    else:
        carry = update.mean_weight
        weighted = _foreach_full(update.grads, params, group["maximize"], carry * coupled if coupled else 0.0)
        direction = moments.foreach_carry(states, weighted, carry, hyper)
        moments.foreach_advance_(states, grads, hyper)
    if decay and not coupled:
        torch._foreach_mul_(params, 1 - lr * decay)
    metrics = moments.foreach_psi(states, steps)
    if metrics is None:
        step = list(torch._foreach_div(direction, 1 + hyper.eps))
    else:
        corrections: Any = [moments.corrections(read_hyper(group, t)) for t in steps]
        torch._foreach_sqrt_(metrics)
        if hyper.bias_correction:
            torch._foreach_div_(metrics, [second**0.5 for _, second in corrections])
        torch._foreach_add_(metrics, hyper.eps)
        if hyper.eps == 0:
            for metric in metrics:
                metric.masked_fill_(metric == 0, torch.inf)  # direction / inf = 0: no step where H = 0
        step = list(torch._foreach_div(direction, metrics))
        if hyper.bias_correction:
            torch._foreach_div_(step, [first for first, _ in corrections])
    torch._foreach_mul_(step, -lr)
    torch._foreach_add_(params, step)


def _foreach_full(grads: Tensors, params: Tensors, maximize: bool, coupled: float | Tensor) -> Tensors:
    """±g + coupled · θ, the given lists untouched."""
    if maximize:
        grads = list(torch._foreach_neg(grads))
    if isinstance(coupled, Tensor):
        return list(torch._foreach_add(grads, torch._foreach_mul(params, coupled)))
    return list(torch._foreach_add(grads, params, alpha=coupled)) if coupled else grads


def fused(bucket: Bucket, group: Mapping[str, Any], moments: BuiltinMoments) -> None:
    """Torch's fused Adam kernel; without bias correction its step counter is held very large."""
    params, states, lr = bucket.params, bucket.lists(moments), group["lr"]
    device = params[0].device
    if group["bias_correction"]:
        for state in bucket.states:
            state["step"] = state["step"].to(device)
        steps = [state["step"] for state in bucket.states]
    else:
        steps = [torch.full((), HELD_STEP, device=device)] * len(params)
    if isinstance(lr, Tensor):
        lr = lr.to(device)
    beta1, beta2 = group["betas"]
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    kernel(
        params,
        bucket.grads,
        states["exp_avg"],
        states["exp_avg_sq"],
        states.get("max_exp_avg_sq", []),
        steps,
        amsgrad="max_exp_avg_sq" in states,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
    )
