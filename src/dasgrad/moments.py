"""The pairs (φ, ψ) of Algorithm 1: what an optimizer remembers of past gradients.

φ turns the gradients seen so far into a descent direction, ψ into a diagonal curvature v, and v gives the
one metric H = √v + eps in which the step is scaled, examples are scored and points are projected. The
paper writes φ and ψ as functions of the whole history; here a few tensors a parameter carry that history,
and ``advance`` moves them by one gradient. Optimizer and scorer share this module: the optimizer advances
its state for good, the scorer asks what the state *would* be after each example's gradient. That is why
``advance`` is pure and broadcasts: with a gradient of shape ``[B, *param.shape]`` it gives B futures.

State tensors have torch's names, so that a checkpoint of ``torch.optim.Adam`` loads.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

State = Mapping[str, Tensor]
Tensors = list[Tensor]
Steps = list[float] | list[Tensor]


@dataclass(frozen=True, slots=True)
class Hyper:
    """What φ and ψ are told beside state and gradient."""

    beta1: float
    beta2: float
    eps: float
    step: float | Tensor
    """The step being taken, counted from 1; a tensor only under ``capturable``."""
    bias_correction: bool


class Moments:
    """Base class of a pair (φ, ψ). Subclass it and pass an instance as ``DASGrad(moments=...)``.

    A subclass names its state tensors in ``keys`` (one of the parameter's shape each, zeros at first) and
    gives ``advance``, ``phi`` and ``psi``, all pure and broadcasting over leading dimensions of ``grad``.
    With ``weighting="update"``, φ must be affine in the newest gradient.

    >>> class Lion(Moments):
    ...     keys = ("exp_avg",)
    ...
    ...     def advance(self, state, grad, hyper):
    ...         return {"exp_avg": hyper.beta2 * state["exp_avg"] + (1 - hyper.beta2) * grad}
    ...
    ...     def phi(self, state, grad, hyper):
    ...         return state["exp_avg"].sign()
    """

    name: str = ""
    keys: tuple[str, ...] = ()

    def init_state(self, param: Tensor) -> dict[str, Tensor]:
        """State before the first gradient: a zero tensor a key."""
        return {key: torch.zeros_like(param, memory_format=torch.preserve_format) for key in self.keys}

    def advance(self, state: State, grad: Tensor, hyper: Hyper) -> dict[str, Tensor]:
        """The state after one more gradient, as new tensors."""
        return {}

    def phi(self, state: State, grad: Tensor, hyper: Hyper) -> Tensor:
        """φ: the direction, from the *advanced* state and the gradient that advanced it."""
        return grad

    def psi(self, state: State, hyper: Hyper) -> Tensor:
        """ψ: the diagonal v of the advanced state, in a shape that broadcasts to the parameter's."""
        return torch.ones((), dtype=torch.float64)

    def corrections(self, hyper: Hyper) -> tuple[float | Tensor, float | Tensor]:
        """Divisors that undo the pull of the zero start: of φ's direction, and of ψ's v."""
        return 1.0, 1.0

    def metric(self, state: State, hyper: Hyper) -> Tensor:
        """H = √v + eps, v divided by its bias correction where that is on."""
        root = self.psi(state, hyper).sqrt()
        if hyper.bias_correction:
            root = root / self.corrections(hyper)[1] ** 0.5
        return root + hyper.eps

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class BuiltinMoments(Moments):
    """A pair that also has a ``foreach`` form: the same recursion on lists of tensors, in place.

    ``states`` maps each key to a list, one tensor a parameter; ``steps`` holds one step count a parameter.
    """

    fused: bool = False
    """Whether torch's fused Adam kernel computes exactly this pair."""

    def newest_share(self, hyper: Hyper) -> float:
        """The slope c of φ = a + c·g, which is affine in the newest gradient."""
        return 1.0

    def second_moment(self, state: State, hyper: Hyper) -> tuple[Tensor, Tensor, float]:
        """(floor, past, gain): after one more gradient g, ψ is max(floor, past + gain·g²), without bias correction."""
        one = torch.ones((), dtype=torch.float64)
        return one, one, 0.0

    def foreach_advance_(self, states: Mapping[str, Tensors], grads: Tensors, hyper: Hyper) -> None:
        """Move the states by one gradient each."""

    def foreach_carry(
        self, states: Mapping[str, Tensors], grads: Tensors, carry: float | Tensor, hyper: Hyper
    ) -> Tensors:
        """φ of the state *before* the advance, with what it remembers multiplied by ``carry``."""
        return grads

    def foreach_phi(self, states: Mapping[str, Tensors], grads: Tensors) -> Tensors:
        """φ of the advanced states."""
        return grads

    def foreach_psi(self, states: Mapping[str, Tensors], steps: Steps) -> Tensors | None:
        """ψ of the advanced states as tensors that may be overwritten; None is the identity."""
        return None


class SGD(BuiltinMoments):
    """φ = g, ψ = I."""

    name = "sgd"


class AdaGrad(BuiltinMoments):
    """φ = g, ψ = (1/t) Σ g²: with α/√t this is α g/√(Σ g²)."""

    name = "adagrad"
    keys = ("sum",)

    def advance(self, state: State, grad: Tensor, hyper: Hyper) -> dict[str, Tensor]:
        return {"sum": state["sum"] + grad.square()}

    def psi(self, state: State, hyper: Hyper) -> Tensor:
        return state["sum"] / hyper.step

    def second_moment(self, state: State, hyper: Hyper) -> tuple[Tensor, Tensor, float]:
        past = state["sum"] / hyper.step
        return past, past, 1 / float(hyper.step)

    def foreach_advance_(self, states: Mapping[str, Tensors], grads: Tensors, hyper: Hyper) -> None:
        torch._foreach_addcmul_(states["sum"], grads, grads)

    def foreach_psi(self, states: Mapping[str, Tensors], steps: Steps) -> Tensors:
        return list(torch._foreach_div(states["sum"], steps))


class RMSProp(BuiltinMoments):
    """φ = g, ψ = (1−β₂) Σ β₂^(t−τ) g_τ²."""

    name = "rmsprop"
    keys = ("square_avg",)

    def advance(self, state: State, grad: Tensor, hyper: Hyper) -> dict[str, Tensor]:
        return {"square_avg": hyper.beta2 * state["square_avg"] + (1 - hyper.beta2) * grad.square()}

    def psi(self, state: State, hyper: Hyper) -> Tensor:
        return state["square_avg"]

    def corrections(self, hyper: Hyper) -> tuple[float | Tensor, float | Tensor]:
        return 1.0, 1 - hyper.beta2**hyper.step

    def second_moment(self, state: State, hyper: Hyper) -> tuple[Tensor, Tensor, float]:
        past = hyper.beta2 * state["square_avg"]
        return past, past, 1 - hyper.beta2

    def foreach_advance_(self, states: Mapping[str, Tensors], grads: Tensors, hyper: Hyper) -> None:
        torch._foreach_mul_(states["square_avg"], hyper.beta2)
        torch._foreach_addcmul_(states["square_avg"], grads, grads, 1 - hyper.beta2)

    def foreach_psi(self, states: Mapping[str, Tensors], steps: Steps) -> Tensors:
        return [v.clone() for v in states["square_avg"]]


class Adam(BuiltinMoments):
    """φ = β₁m + (1−β₁)g, ψ = β₂v + (1−β₂)g²."""

    name = "adam"
    keys: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    fused = True

    def advance(self, state: State, grad: Tensor, hyper: Hyper) -> dict[str, Tensor]:
        return {
            "exp_avg": hyper.beta1 * state["exp_avg"] + (1 - hyper.beta1) * grad,
            "exp_avg_sq": hyper.beta2 * state["exp_avg_sq"] + (1 - hyper.beta2) * grad.square(),
        }

    def phi(self, state: State, grad: Tensor, hyper: Hyper) -> Tensor:
        return state["exp_avg"]

    def psi(self, state: State, hyper: Hyper) -> Tensor:
        return state["exp_avg_sq"]

    def corrections(self, hyper: Hyper) -> tuple[float | Tensor, float | Tensor]:
        return 1 - hyper.beta1**hyper.step, 1 - hyper.beta2**hyper.step

    def newest_share(self, hyper: Hyper) -> float:
        return 1 - hyper.beta1

    def second_moment(self, state: State, hyper: Hyper) -> tuple[Tensor, Tensor, float]:
        past = hyper.beta2 * state["exp_avg_sq"]
        return past, past, 1 - hyper.beta2

    def foreach_advance_(self, states: Mapping[str, Tensors], grads: Tensors, hyper: Hyper) -> None:
        torch._foreach_lerp_(states["exp_avg"], grads, 1 - hyper.beta1)
        torch._foreach_mul_(states["exp_avg_sq"], hyper.beta2)
        torch._foreach_addcmul_(states["exp_avg_sq"], grads, grads, 1 - hyper.beta2)

    def foreach_carry(
        self, states: Mapping[str, Tensors], grads: Tensors, carry: float | Tensor, hyper: Hyper
    ) -> Tensors:
        carried = torch._foreach_mul(states["exp_avg"], hyper.beta1)
        torch._foreach_mul_(carried, carry)
        torch._foreach_add_(carried, grads, alpha=1 - hyper.beta1)
        return list(carried)

    def foreach_phi(self, states: Mapping[str, Tensors], grads: Tensors) -> Tensors:
        return states["exp_avg"]

    def foreach_psi(self, states: Mapping[str, Tensors], steps: Steps) -> Tensors:
        return [v.clone() for v in states[self.keys[-1]]]


class AMSGrad(Adam):
    """Adam with ψ = v̂, the largest v so far."""

    name = "amsgrad"
    keys = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def advance(self, state: State, grad: Tensor, hyper: Hyper) -> dict[str, Tensor]:
        ahead = super().advance(state, grad, hyper)
        ahead["max_exp_avg_sq"] = torch.maximum(state["max_exp_avg_sq"], ahead["exp_avg_sq"])
        return ahead

    def psi(self, state: State, hyper: Hyper) -> Tensor:
        return state["max_exp_avg_sq"]

    def second_moment(self, state: State, hyper: Hyper) -> tuple[Tensor, Tensor, float]:
        _, past, gain = super().second_moment(state, hyper)
        return state["max_exp_avg_sq"], past, gain

    def foreach_advance_(self, states: Mapping[str, Tensors], grads: Tensors, hyper: Hyper) -> None:
        super().foreach_advance_(states, grads, hyper)
        torch._foreach_maximum_(states["max_exp_avg_sq"], states["exp_avg_sq"])


BUILTIN: dict[str, BuiltinMoments] = {pair.name: pair for pair in (SGD(), AdaGrad(), RMSProp(), Adam(), AMSGrad())}


def resolve(moments: object) -> Moments:
    """The pair a name stands for, or the user's own object as it is."""
    if isinstance(moments, Moments):
        return moments
    if isinstance(moments, str) and moments in BUILTIN:
        return BUILTIN[moments]
    names = ", ".join(repr(name) for name in BUILTIN)
    raise ValueError(f"`moments` must be one of {names} or a `dasgrad.moments.Moments`, got {moments!r}.")
