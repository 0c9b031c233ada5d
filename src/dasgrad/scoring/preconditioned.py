"""The preconditioned norm: reading the optimizer's metric, and measuring per-example directions in it.

For each parameter sᵢ² gets the share Σ d²/H, with d the example's direction (its gradient, or with momentum
what φ would give) and H the metric (as it stands, or as it would be after this example's gradient).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad.moments import BuiltinMoments, Hyper, Moments, resolve
from dasgrad.scoring import native
from dasgrad.scoring.fallback import flatten_examples

Preconditioner = Literal["own", "frozen"]


@dataclass(frozen=True)
class Preconditioning:
    """What scoring needs to know of one parameter: its optimizer state and its group's options."""

    param: Tensor
    state: Mapping[str, Tensor]
    moments: Moments
    betas: tuple[float, float]
    eps: float
    bias_correction: bool
    step: float | Tensor
    """Steps taken; read from its tensor where it is needed, which a GPU is waited for."""
    coupled_decay: float
    sign: float
    """-1 where the optimizer maximises."""
    lr_share: float
    """This group's learning rate over the largest one."""

    @cached_property
    def now(self) -> Hyper:
        """Coefficients of the last step taken, for the metric as it stands."""
        return Hyper(*self.betas, self.eps, max(float(self.step), 1.0), self.bias_correction)

    @cached_property
    def ahead(self) -> Hyper:
        """Coefficients of the step to come."""
        return Hyper(*self.betas, self.eps, float(self.step) + 1.0, self.bias_correction)


def read_optimizer(optimizer: Optimizer) -> dict[int, Preconditioning]:
    """Each parameter's `Preconditioning` by ``id``: of `DASGrad`, or of any optimizer with Adam's options.

    Raises:
        ValueError: for an optimizer with neither ``moments`` nor ``betas`` and ``eps`` in its param groups,
            or whose state lacks a tensor of these moments, or has one of another shape than the parameter.
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
        beta1, beta2 = group["betas"]
        decoupled = group.get("decoupled_weight_decay", False)
        describe = partial(
            Preconditioning,
            moments=moments,
            betas=(float(beta1), float(beta2)),
            eps=float(group["eps"]),
            bias_correction=bias_correction,
            coupled_decay=0.0 if decoupled else float(group.get("weight_decay", 0.0)),
            sign=-1.0 if group.get("maximize") else 1.0,
            lr_share=float(group["lr"]) / largest if largest > 0 else 1.0,
        )
        for param in group["params"]:
            state = optimizer.state.get(param, {})
            if "step" not in state:
                found[id(param)] = describe(param, moments.init_state(param.detach()), step=0.0)
                continue
            missing = [key for key in moments.keys if key not in state]
            if missing:
                raise ValueError(
                    f'`ExampleScorer(score="dasgrad")` needs {", ".join(missing)} in the optimizer\'s state, got '
                    f'{type(optimizer).__name__} with {", ".join(state)}; use score="gradient" with it.'
                )
            if isinstance(moments, BuiltinMoments):
                _check_shapes(param, {key: state[key] for key in moments.keys})
            found[id(param)] = describe(param, state, step=state["step"])
    return found


def _check_shapes(param: Tensor, state: Mapping[str, Tensor]) -> None:
    for key, value in state.items():
        if value.shape != param.shape:
            raise ValueError(
                f"the optimizer holds {key} of shape {tuple(value.shape)} for a parameter that now has shape "
                f"{tuple(param.shape)}: make a new optimizer for a model of another shape."
            )


def options_of(optimizer: Optimizer) -> tuple[Any, ...]:
    """All that `read_optimizer` goes by but for the tensors of the state, to be compared.

    What it names by its ``id`` is held by a `Preconditioning`.
    """
    groups = [tuple(group.values()) for group in optimizer.param_groups]
    return groups, list(map(id, optimizer.state)), list(map(id, optimizer.state.values()))


def read_curvature(view: Preconditioning, state: Mapping[str, Tensor]) -> native.Curvature | None:
    """What the core computes lr_share/H from; None where it cannot."""
    moments = view.moments
    if type(moments).metric is not Moments.metric:
        return None
    curvature = moments.psi(state, view.now)
    if curvature.shape != view.param.shape or not curvature.is_contiguous() or not native.supports(curvature):
        return None
    correction = float(moments.corrections(view.now)[1]) if view.bias_correction else 1.0
    return curvature, (correction**-0.5, view.eps, view.lr_share)


def inverse_metric(view: Preconditioning, state: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """lr_share/H in the parameter's shape, for the metric as it stands."""
    found = read_curvature(view, state)
    if found is not None:
        return native.inverse_metric(found[0], *found[1])
    inverse = view.moments.metric(state, view.now).to(device=view.param.device, dtype=dtype).reciprocal()
    return (inverse if view.lr_share == 1 else inverse.mul_(view.lr_share)).expand(view.param.shape)


def inverse_metric_at(view: Preconditioning, gradient: Tensor, preconditioner: Preconditioner) -> Tensor:
    """lr_share/H in float64, for the metric as it stands or as it would be after this gradient; 1/0 := 0."""
    state: Mapping[str, Tensor] = {key: view.state[key].double() for key in view.moments.keys}
    hyper = view.now
    if preconditioner == "own":
        seen, hyper = gradient * view.sign + view.coupled_decay * view.param.detach(), view.ahead
        state = view.moments.advance(state, seen, hyper)
    metric = view.moments.metric(state, hyper).expand(view.param.shape)
    return torch.where(metric > 0, view.lr_share / metric, 0.0)


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
