"""The methods that are compared: an optimizer, how its examples are drawn, and what it aims at.

Adaptive methods come in pairs with baselines, from which they differ in how examples are drawn, and in nothing else:
ap-SGD has SGD's moments, ``dasgrad`` AMSGrad's and ``dasgrad-adam`` Adam's, with the bias correction of torch.
``dasgrad-paper`` is Algorithm 2 to the letter. Baselines draw in reshuffled passes, as people do, or, with ``-iid`` in
their names, independently with replacement, as theory has it. Methods with ``-theory`` in theirs are those of the
theorems: no bias correction, eps = 0, β₁/t unless they say otherwise, and scores that are never stale.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

import dasgrad
from dasgrad.theory import Scheme

BETAS = (0.9, 0.99)
Scores = Literal["frozen", "own"]
SCORES: tuple[Scores, ...] = ("frozen", "own")
Draws = Literal["adaptive", "reshuffled", "independent"]
Parameters = Iterator[nn.Parameter]


@dataclass(frozen=True)
class Method:
    """One line of a figure."""

    label: str
    """For people."""
    make_optimizer: Callable[[Parameters, float, float], Optimizer]
    """Of parameters, learning rate and weight decay."""
    draws: Draws = "reshuffled"
    target: str = "uniform"
    """What the method averages over: ``"uniform"``, the training set as it is, or the name of one of the problem's
    targets. Draws that are not adaptive are uniform, and their losses weighted."""
    sampler: Mapping[str, Any] = field(default_factory=dict)
    """Options of `AdaptiveSampler` other than its defaults."""
    falling: bool = True
    """Whether the learning rate is α/√t; AdaGrad's own sum has that built in."""
    scheme: Scheme | None = None
    """The method as theory has it, where a theorem is about it."""

    @property
    def adaptive(self) -> bool:
        """Whether examples are drawn by importance."""
        return self.draws == "adaptive"


def _sgd(params: Parameters, lr: float, decay: float) -> Optimizer:
    return torch.optim.SGD(params, lr, weight_decay=decay, fused=True)


def _adagrad(params: Parameters, lr: float, decay: float) -> Optimizer:
    return torch.optim.Adagrad(params, lr, weight_decay=decay)


def _rmsprop(params: Parameters, lr: float, decay: float) -> Optimizer:
    return torch.optim.RMSprop(params, lr, alpha=BETAS[1], weight_decay=decay)


def _adam(params: Parameters, lr: float, decay: float) -> Optimizer:
    return torch.optim.Adam(params, lr, BETAS, weight_decay=decay, fused=True)


def _amsgrad(params: Parameters, lr: float, decay: float) -> Optimizer:
    return torch.optim.Adam(params, lr, BETAS, weight_decay=decay, amsgrad=True, fused=True)


def _adaptive_sgd(params: Parameters, lr: float, decay: float) -> Optimizer:
    return dasgrad.DASGrad(params, lr, BETAS, weight_decay=decay, moments="sgd")


def _dasgrad(params: Parameters, lr: float, decay: float) -> Optimizer:
    return dasgrad.DASGrad(params, lr, BETAS, weight_decay=decay, bias_correction=True)


def _dasgrad_adam(params: Parameters, lr: float, decay: float) -> Optimizer:
    return dasgrad.DASGrad(params, lr, BETAS, weight_decay=decay, moments="adam", bias_correction=True)


def _dasgrad_paper(params: Parameters, lr: float, decay: float) -> Optimizer:
    return dasgrad.DASGrad(params, lr, BETAS, weight_decay=decay, weighting="update")


_BASELINES = {
    "sgd": Method("SGD", _sgd),
    "adagrad": Method("AdaGrad", _adagrad, falling=False),
    "rmsprop": Method("RMSProp", _rmsprop),
    "adam": Method("Adam", _adam),
    "amsgrad": Method("AMSGrad", _amsgrad),
}
_INDEPENDENT = {
    f"{name}-iid": replace(method, label=f"{method.label}, independent draws", draws="independent")
    for name, method in _BASELINES.items()
}
# The paper draws independently and has no floor. Without any, an example whose stale score is 0 is never drawn and
# the gradient is biased; this one is the smallest of which that is not true in practice.
_LITERAL = Method(
    "DASGrad, as printed",
    _dasgrad_paper,
    "adaptive",
    "objective",
    sampler={"floor": 0.01, "stratified": "none"},
)
_DASGRAD = Method("DASGrad", _dasgrad, "adaptive", "objective")


def _of_theorem(label: str, scheme: Scheme) -> Method:
    def make_optimizer(params: Parameters, lr: float, decay: float) -> Optimizer:
        betas = (scheme.beta1, scheme.beta2)
        options = {"moments": scheme.moments, "weighting": scheme.weighting}
        return dasgrad.DASGrad(params, lr, betas, scheme.eps, decay, **options)  # type: ignore[arg-type]

    draws: Draws = "adaptive" if scheme.adaptive else "independent"
    sampler = {"floor": scheme.floor, "epsilon": scheme.epsilon, "stratified": "none"}
    return Method(label, make_optimizer, draws, sampler=sampler, scheme=scheme)


_THEORY = {
    "sgd-theory": _of_theorem("SGD", Scheme("sgd")),
    "ap-sgd-theory": _of_theorem("ap-SGD", Scheme("sgd", adaptive=True)),
    "adagrad-theory": _of_theorem("AdaGrad", Scheme("adagrad")),
    "adam-theory": _of_theorem("Adam, β₁/t", Scheme("adam", beta1_power=1.0)),
    "amsgrad-theory": _of_theorem("AMSGrad, β₁/t", Scheme("amsgrad", beta1_power=1.0)),
    "dasgrad-theory": _of_theorem("DASGrad, β₁/t", Scheme("amsgrad", beta1_power=1.0, adaptive=True)),
    "dasgrad-paper-theory": _of_theorem(
        "DASGrad as printed, β₁/t", Scheme("amsgrad", "update", beta1_power=1.0, adaptive=True)
    ),
    "dasgrad-constant-theory": _of_theorem(
        "DASGrad as printed, constant β₁", Scheme("amsgrad", "update", adaptive=True)
    ),
}

METHODS: dict[str, Method] = {
    "dasgrad": _DASGRAD,
    "dasgrad-paper": _LITERAL,
    "dasgrad-adam": Method("Adam, adaptive draws", _dasgrad_adam, "adaptive", "objective"),
    "ap-sgd": Method("ap-SGD", _adaptive_sgd, "adaptive", "objective"),
    **_BASELINES,
    **_INDEPENDENT,
    # Where the objective is not the plain mean over the training set:
    "dasgrad-printed-weights": replace(_DASGRAD, label="DASGrad, weights as printed", target="printed"),
    "amsgrad-weighted": replace(_BASELINES["amsgrad"], label="AMSGrad, weighted loss", target="objective"),
    **_THEORY,
}


def sampler_options(method: str) -> dict[str, Any]:
    """Options for `AdaptiveSampler` besides its sizes, target, seed and device."""
    return dict(METHODS[method].sampler)


def resolve_options(method: str, weight_decay: float, scores: Scores = "own") -> dict[str, Any]:
    """Every option the method runs with, library defaults included, as plain values for a record.

    They are read off the objects themselves: when a default changes, so does the configuration, and old
    records are no longer taken for new ones.
    """
    model = nn.Linear(1, 1, device="meta").to_empty(device="cpu")  # no random numbers
    own = METHODS[method]
    optimizer = own.make_optimizer(model.parameters(), 1.0, weight_decay)
    kind = type(optimizer)
    options: dict[str, Any] = {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        **{name: value for name, value in optimizer.defaults.items() if name != "lr"},
        "schedule": dasgrad.InverseSqrtLR.__name__ if own.falling else "constant",
        "draws": own.draws,
        "target": own.target,
    }
    if own.scheme is not None:
        options["beta1_power"] = own.scheme.beta1_power
    if own.adaptive:
        scorer = dasgrad.ExampleScorer(model, nn.functional.mse_loss, optimizer, preconditioner=scores)
        sampler = dasgrad.AdaptiveSampler(1, 1, **sampler_options(method))
        options |= {name: getattr(sampler, name) for name in ("floor", "epsilon", "stratified")}
        options |= {name: getattr(scorer, name) for name in ("score", "preconditioner", "momentum", "layers")}
    return options
