"""`DASGrad`: the general stochastic gradient method of the paper as a ``torch.optim.Optimizer``.

It is used like ``torch.optim.Adam``. What it adds are the choices of Algorithm 1: which moments (φ, ψ)
scale the step, what the importance weights multiply, and onto which convex set the parameters are
projected, in the metric of the step itself. It knows nothing of sampling: weights arrive inside the
gradients (`WeightedBatch`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from dasgrad.moments import BuiltinMoments, Moments, resolve
from dasgrad.optim import steps
from dasgrad.projections import Projection

Weighting = Literal["gradient", "update"]
UpdateGrads = Sequence[Tensor | None]
_NOT_SAVED = ("moments", "projection")  # objects: a checkpoint holds their names, not the objects
_NOT_LOADED = (*_NOT_SAVED, "foreach", "fused")  # how a step is computed is this optimizer's own choice


class DASGrad(torch.optim.Optimizer):
    r"""Adaptive moments, importance weights and projection in one metric, H = √v̂ + eps.

    With the defaults, step t is AMSGrad without bias correction::

        m ← β₁ m + (1 − β₁) g      v ← β₂ v + (1 − β₂) g²      v̂ ← max(v̂, v)
        θ ← Π_{Θ,H}( θ − lr · m / (√v̂ + eps) )

    Args:
        params: tensors, named tensors, or dicts of them with options of their own, as in torch.
        lr: α > 0; a float, or a 0-dim tensor. The paper's α/√t is `InverseSqrtLR`.
        betas: (β₁, β₂), each in [0, 1). `Beta1Decay` lets β₁ fall.
        eps: added to √v̂, at least 0. With 0, coordinates with H = 0 are left alone.
        weight_decay: at least 0; adds κθ to the gradient, unweighted.
        moments: ``"sgd"``, ``"adagrad"``, ``"rmsprop"``, ``"adam"``, ``"amsgrad"``, or a
            `dasgrad.moments.Moments`.
        weighting: ``"gradient"`` (weights multiply gradients before the moments see them) or ``"update"``
            (the paper's Algorithm 2: moments see unweighted gradients and the weight multiplies the step;
            biased for constant β₁, see docs/algorithm.md). ``"update"`` needs `WeightedBatch.backward`.
        bias_correction: divide by 1 − βᵗ as Adam does. The paper does not.
        decoupled_weight_decay: shrink θ by lr · weight_decay instead of adding κθ to the gradient (AdamW).
        projection: called as ``projection(point, metric)`` on every parameter after its step; see
            `dasgrad.projections`.
        maximize: ascend instead of descend.
        foreach, fused: which implementation; None takes the fastest one that applies. ``fused`` exists for
            adam and amsgrad with eps > 0 and gradient weighting.
        capturable: keep the step count on the parameter's device, so that a CUDA graph can capture a step.

    Every option may differ between param groups, except ``weighting``.

    Raises:
        ValueError: for an option out of range, at construction, and for a sparse gradient, at the step.
        TypeError: for complex parameters.

    Example:
        >>> import torch, dasgrad
        >>> theta = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> optimizer = dasgrad.DASGrad([theta], lr=0.1, projection=dasgrad.projections.Box(-0.5, 0.5))
        >>> theta.square().sum().backward()
        >>> _ = optimizer.step()
        >>> theta.detach()
        tensor([ 0.5000, -0.5000])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        moments: str | Moments = "amsgrad",
        weighting: Weighting = "gradient",
        bias_correction: bool = False,
        decoupled_weight_decay: bool = False,
        projection: Projection | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "moments": moments,
            "weighting": weighting,
            "bias_correction": bias_correction,
            "decoupled_weight_decay": decoupled_weight_decay,
            "projection": projection,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
        }
        self._update_grads: dict[Tensor, Tensor]
        self._mean_weight: float | Tensor
        self._clear_update_grads()
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._clear_update_grads()  # torch copies and pickles state and groups alone

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; missing options take the constructor's values."""
        _check_group({**self.defaults, **param_group})
        if self.param_groups and param_group.get("weighting", self.weighting) != self.weighting:
            raise ValueError(
                f"`DASGrad(weighting=...)` must be the same in all param groups ({self.weighting!r}), "
                f"got {param_group['weighting']!r}."
            )
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.is_complex():
                self.param_groups.pop()
                raise TypeError(f"`DASGrad(params=...)` must be real, got a parameter of dtype {param.dtype}.")

    @property
    def weighting(self) -> Weighting:
        """What the importance weights multiply; the same in all param groups."""
        return cast(Weighting, self.param_groups[0]["weighting"])

    # --- stepping -------------------------------------------------------------------------------------

    @overload
    def step(
        self, closure: None = None, *, update_grads: UpdateGrads | None = ..., mean_weight: float | Tensor | None = ...
    ) -> None: ...
    @overload
    def step(
        self,
        closure: Callable[[], float],
        *,
        update_grads: UpdateGrads | None = ...,
        mean_weight: float | Tensor | None = ...,
    ) -> float: ...
    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], float] | None = None,
        *,
        update_grads: UpdateGrads | None = None,
        mean_weight: float | Tensor | None = None,
    ) -> float | None:
        """One step from the gradients in ``param.grad``.

        Args:
            closure: re-evaluates the model and returns the loss, with gradients enabled.
            update_grads: for ``weighting="update"`` alone: the weighted mean gradients g̃ = (1/B)Σ w_b g_b,
                one for each parameter in the order of the param groups (None where there is none), while
                ``param.grad`` holds the unweighted means. `WeightedBatch.backward` hands them over itself.
            mean_weight: w̄ = (1/B)Σ w_b, with ``update_grads``.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if update_grads is not None or mean_weight is not None:
            self.accumulate_update_grads(update_grads, mean_weight)
        if self.weighting == "update" and not self._update_grads:
            raise ValueError(
                '`DASGrad(weighting="update")` needs weighted gradients for each step: call '
                "`batch.backward(losses, optimizer)` before `step()`, or pass `step(update_grads=..., "
                "mean_weight=...)`."
            )
        plans = [self._plan(group) for group in self.param_groups]  # every check before the first change
        for group, buckets in zip(self.param_groups, plans, strict=True):
            for bucket in buckets:
                self._step_bucket(group, bucket)
        self._clear_update_grads()
        return loss

    def accumulate_update_grads(self, update_grads: UpdateGrads | None, mean_weight: float | Tensor | None) -> None:
        """Add weighted gradients g̃ and mean weight w̄ to those the next step of ``"update"`` will take."""
        if self.weighting != "update":
            raise ValueError('`step(update_grads=...)` is for `DASGrad(weighting="update")` alone.')
        params = [param for group in self.param_groups for param in group["params"]]
        if update_grads is None or mean_weight is None:
            raise ValueError("`update_grads` and `mean_weight` must be given together.")
        if len(update_grads) != len(params):
            raise ValueError(
                f"`update_grads` must hold one entry for each of the {len(params)} parameters, got {len(update_grads)}."
            )
        for k, (param, grad) in enumerate(zip(params, update_grads, strict=True)):
            if grad is not None and grad.shape != param.shape:
                raise ValueError(f"`update_grads[{k}]` must have shape {tuple(param.shape)}, got {tuple(grad.shape)}.")
        for param, grad in zip(params, update_grads, strict=True):
            if grad is not None:
                held = self._update_grads.get(param)
                self._update_grads[param] = grad.detach() if held is None else held + grad.detach()
        self._mean_weight = self._mean_weight + mean_weight

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, the weighted ones of ``"update"`` too."""
        self._clear_update_grads()
        super().zero_grad(set_to_none)

    def _clear_update_grads(self) -> None:
        self._update_grads = {}
        self._mean_weight = 0.0

    def _plan(self, group: dict[str, Any]) -> list[steps.Bucket]:
        """The group's parameters that have a gradient, in buckets of one device and dtype."""
        found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for param in group["params"]:
            if param.grad is None:
                continue
            if param.grad.is_sparse or param.grad.layout != torch.strided:
                raise ValueError(
                    f"`DASGrad` takes dense gradients alone, got layout {param.grad.layout} for a parameter "
                    f"of shape {tuple(param.shape)} (use `nn.Embedding(sparse=False)`)."
                )
            # Where `param.data` was exchanged, the fused kernel would read and write past the end of what is older.
            if param.grad.shape != param.shape:
                raise ValueError(
                    f"`DASGrad` got a gradient of shape {tuple(param.grad.shape)} for a parameter that now has shape "
                    f"{tuple(param.shape)}: call `zero_grad()` once the model has another shape."
                )
            held = self.state.get(param, {}).get("exp_avg")
            if held is not None and held.shape != param.shape:
                raise ValueError(
                    f"`DASGrad` holds moments of shape {tuple(held.shape)} for a parameter that now has shape "
                    f"{tuple(param.shape)}: make a new optimizer for a model of another shape."
                )
            found.setdefault((param.device, param.dtype), []).append(param)
        return [
            steps.Bucket(params, [cast(Tensor, p.grad) for p in params], [self.state[p] for p in params])
            for params in found.values()
        ]

    def _step_bucket(self, group: dict[str, Any], bucket: steps.Bucket) -> None:
        moments = resolve(group["moments"])
        path = _choose_path(group, moments, bucket)
        for param, state in zip(bucket.params, bucket.states, strict=True):
            if "step" not in state:
                on_device = group["capturable"] or path == "fused"
                state["step"] = torch.zeros((), device=param.device if on_device else "cpu")
                state.update(moments.init_state(param))
        torch._foreach_add_([state["step"] for state in bucket.states], 1)
        update = None
        if self._update_grads:
            weighted = [self._update_grads.get(p, torch.zeros_like(p)) for p in bucket.params]
            update = steps.WeightedUpdate(weighted, self._mean_weight)
        if path == "fused":
            steps.fused(bucket, group, cast(BuiltinMoments, moments))
        elif path == "foreach":
            steps.foreach(bucket, group, cast(BuiltinMoments, moments), update)
        else:
            steps.loop(bucket, group, moments, update)
        if group["projection"] is not None:
            for param, state in zip(bucket.params, bucket.states, strict=True):
                hyper = steps.read_hyper(group, steps.read_step(state, group["capturable"]))
                param.copy_(group["projection"](param, steps.full_metric(moments, state, hyper, param)))

    # --- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Torch's state dict; moments and projections stand in it by name, so that it loads safely."""
        state = super().state_dict()
        state["param_groups"] = [
            {key: _label(value) if key in _NOT_SAVED else value for key, value in group.items()}
            for group in state["param_groups"]
        ]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state dict of `DASGrad`, or of ``torch.optim.Adam`` and its kin.

        Options the checkpoint lacks, moments, projections, foreach and fused stay this optimizer's own. A
        checkpoint of plain Adam has no v̂: its v takes that place.

        Raises:
            ValueError: when the checkpoint was written with other moments or another weighting, or lacks
                state tensors these moments need. Nothing is changed then.
        """
        saved_groups = state_dict["param_groups"]
        if len(saved_groups) != len(self.param_groups):
            raise ValueError(
                f"`load_state_dict` found {len(saved_groups)} param groups, this optimizer has "
                f"{len(self.param_groups)}."
            )
        merged, states = [], {key: dict(value) for key, value in state_dict["state"].items()}
        for saved, own in zip(saved_groups, self.param_groups, strict=True):
            moments = resolve(own["moments"])
            for option in ("moments", "weighting"):
                if option in saved and saved[option] != _label(own[option]):
                    raise ValueError(
                        f"`load_state_dict` found {option}={saved[option]!r}, "
                        f"this optimizer has {_label(own[option])!r}."
                    )
            for index in saved["params"]:
                _complete_state(states.get(index), moments)
            # torch adds a default of its own when a state is loaded; a group that is loaded again lacks it
            kept = {key: own[key] for key in self.defaults if key in own and (key not in saved or key in _NOT_LOADED)}
            merged.append({**{k: v for k, v in saved.items() if k in self.defaults or k == "params"}, **kept})
            _check_group(merged[-1])
            for extra in ("initial_lr", "param_names"):
                if extra in saved:
                    merged[-1][extra] = saved[extra]
        super().load_state_dict({**state_dict, "state": states, "param_groups": merged})


def _complete_state(state: dict[str, Any] | None, moments: Moments) -> None:
    if state is None:
        return
    if "max_exp_avg_sq" in moments.keys and "max_exp_avg_sq" not in state and "exp_avg_sq" in state:
        state["max_exp_avg_sq"] = state["exp_avg_sq"].clone()
    missing = [key for key in ("step", *moments.keys) if key not in state]
    if missing:
        raise ValueError(
            f"`load_state_dict` found no {', '.join(missing)} in a parameter's state, which "
            f"moments={_label(moments)!r} need; it holds {', '.join(state)}."
        )
    if not isinstance(state["step"], Tensor):  # checkpoints from before torch kept tensors
        state["step"] = torch.tensor(float(state["step"]))


def _label(value: object) -> object:
    """A value as a checkpoint holds it: pairs and projections by name."""
    if isinstance(value, Moments):
        return value.name or type(value).__name__
    return value if value is None or isinstance(value, str) else repr(value)


def _choose_path(group: dict[str, Any], moments: Moments, bucket: steps.Bucket) -> str:
    """Which of the three implementations steps this bucket."""
    if group["fused"] or group["foreach"]:
        return "fused" if group["fused"] else "foreach"
    if group["fused"] is False or group["foreach"] is False or not isinstance(moments, BuiltinMoments):
        return "loop"
    if _why_not_fused(group, moments) is None and bucket.params[0].device.type in ("cpu", "cuda"):
        return "fused"
    return "foreach"


def _why_not_fused(group: dict[str, Any], moments: Moments) -> str | None:
    """The reason why the fused kernel does not compute this group's step, or None."""
    if not (isinstance(moments, BuiltinMoments) and moments.fused):
        return f"moments 'adam' or 'amsgrad', got {_label(moments)!r}"
    if group["weighting"] != "gradient":
        return f"weighting 'gradient', got {group['weighting']!r}"
    if group["eps"] == 0:
        return "eps > 0, got 0"
    return None


def _check_group(group: dict[str, Any]) -> None:
    """Refuse options out of range, each by name."""

    def require(option: str, allowed: str, ok: bool) -> None:
        if not ok:
            raise ValueError(f"`DASGrad({option}=...)` must be {allowed}, got {group[option]!r}.")

    lr, betas = group["lr"], group["betas"]
    if isinstance(lr, Tensor):
        require("lr", "a number or a tensor of one element", lr.numel() == 1)
    else:
        require("lr", "finite and at least 0", 0.0 <= lr < float("inf"))
    require(
        "betas",
        "two numbers in [0, 1)",
        isinstance(betas, Iterable) and len(tuple(betas)) == 2 and all(0.0 <= beta < 1.0 for beta in betas),
    )
    require("eps", "finite and at least 0", 0.0 <= group["eps"] < float("inf"))
    require("weight_decay", "finite and at least 0", 0.0 <= group["weight_decay"] < float("inf"))
    require("weighting", "'gradient' or 'update'", group["weighting"] in ("gradient", "update"))
    require("projection", "None or callable", group["projection"] is None or callable(group["projection"]))
    moments = resolve(group["moments"])
    if group["foreach"] and group["fused"]:
        raise ValueError("`DASGrad(foreach=..., fused=...)` cannot both be True.")
    if group["foreach"] and not isinstance(moments, BuiltinMoments):
        raise ValueError(f"`DASGrad(foreach=True)` needs built-in moments, got {moments!r}.")
    if group["fused"] and (reason := _why_not_fused(group, moments)):
        raise ValueError(f"`DASGrad(fused=True)` needs {reason}.")
