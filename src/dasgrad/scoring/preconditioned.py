"""The preconditioned norm: reading the optimizer's metric, and measuring per-example directions in it.

For each parameter sᵢ² gets the share Σ d²/H, with d the example's direction (its gradient, or with momentum
what φ would give) and H the metric (as it stands, or as it would be after this example's gradient).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad.moments import Hyper, Moments, resolve
from dasgrad.scoring import native
from dasgrad.scoring.fallback import flatten_examples

Preconditioner = Literal["own", "frozen"]


@dataclass(frozen=True)
class Preconditioning:
    """What scoring needs to know of one parameter: its optimizer state and its group's options."""

    param: Tensor
    state: Mapping[str, Tensor]
    moments: Moments
    now: Hyper
    """Coefficients of the last step taken, for the metric as it stands."""
    ahead: Hyper
    """Coefficients of the step to come."""
    coupled_decay: float
    sign: float
    """-1 where the optimizer maximises."""
    lr_share: float
    """This group's learning rate over the largest one."""


def read_optimizer(optimizer: Optimizer) -> dict[int, Preconditioning]:
    """Each parameter's `Preconditioning` by ``id``: of `DASGrad`, or of any optimizer with Adam's options.

    Raises:
        ValueError: for an optimizer with neither ``moments`` nor ``betas`` and ``eps`` in its param groups,
            or whose state lacks a tensor of these moments.
    """
    largest = max(float(group["lr"]) for group in optimizer.param_groups)
    found: dict[int, Preconditioning] = {}
    for group in optimizer.param_groups:
        if "moments" in group:
            moments, bias_correction = resolve(group["moments"]), bool(group["bias_correction"])
        elif "betas" in group and "eps" in group:
            moments, bias_correction = resolve("amsgrad" if group.get("amsgrad") else "adam"), True
        else:
            raise ValueError(
                f'`ExampleScorer(score="dasgrad")` needs DASGrad or an optimizer with Adam\'s options, got '
                f'{type(optimizer).__name__}; use score="gradient" with it.'
            )
        beta1, beta2 = (float(beta) for beta in group["betas"])
        decoupled = group.get("decoupled_weight_decay", False)
        for param in group["params"]:
            state = optimizer.state.get(param, {})
            step = float(state["step"]) if "step" in state else 0.0
            missing = [key for key in moments.keys if key not in state] if "step" in state else []
            if missing:
                raise ValueError(
                    f'`ExampleScorer(score="dasgrad")` needs {", ".join(missing)} in the optimizer\'s state, got '
                    f'{type(optimizer).__name__} with {", ".join(state)}; use score="gradient" with it.'
                )
            options = (beta1, beta2, float(group["eps"]))
            found[id(param)] = Preconditioning(
                param=param,
                state=state if "step" in state else moments.init_state(param.detach()),
                moments=moments,
                now=Hyper(*options, max(step, 1.0), bias_correction),
                ahead=Hyper(*options, step + 1.0, bias_correction),
                coupled_decay=0.0 if decoupled else float(group.get("weight_decay", 0.0)),
                sign=-1.0 if group.get("maximize") else 1.0,
                lr_share=float(group["lr"]) / largest if largest > 0 else 1.0,
            )
    return found


def inverse_metric(view: Preconditioning, state: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """lr_share/H in the parameter's shape, for the metric as it stands."""
    moments, now, param = view.moments, view.now, view.param
    if type(moments).metric is Moments.metric:
        curvature = moments.psi(state, now)
        if curvature.shape == param.shape and curvature.is_contiguous() and native.supports(curvature):
            correction = float(moments.corrections(now)[1]) if now.bias_correction else 1.0
            return native.inverse_metric(curvature, correction**-0.5, now.eps, view.lr_share)
    inverse = moments.metric(state, now).to(device=param.device, dtype=dtype).reciprocal()
    return (inverse if view.lr_share == 1 else inverse.mul_(view.lr_share)).expand(param.shape)


def squared_norms(gradients_B: Tensor, view: Preconditioning, preconditioner: Preconditioner, momentum: bool) -> Tensor:
    """``[B]``: each example's Σ d²/H over this parameter, with 0/0 := 0.

    Args:
        gradients_B: ``[B, *param.shape]`` per-example gradients.
        view: the parameter's optimizer state and options.
        preconditioner: ``"own"`` lets each example's gradient into H, ``"frozen"`` takes H as it stands.
        momentum: whether the direction is φ of the state ahead (β₁m and κθ included) or the gradient alone.
    """
    dtype = torch.promote_types(gradients_B.dtype, torch.float32)
    gradients = gradients_B.to(dtype) * view.sign
    state = {key: view.state[key].to(dtype) for key in view.moments.keys}
    seen = gradients
    if view.coupled_decay:
        seen = gradients + view.coupled_decay * view.param.detach().to(dtype)
    ahead: Mapping[str, Tensor] = state
    if momentum or preconditioner == "own":
        ahead = view.moments.advance(state, seen, view.ahead)
    direction = view.moments.phi(ahead, seen, view.ahead) if momentum else gradients
    if preconditioner == "own":
        metric = view.moments.metric(ahead, view.ahead)
    else:
        metric = view.moments.metric(state, view.now)
    squares = direction.square()
    quotients = torch.where(squares == 0, 0.0, squares / metric)
    return flatten_examples(quotients).sum(1)
