"""Projections onto convex sets, in the metric of the step.

An optimizer that scales its step by a diagonal H must measure distance by H when it goes back to the feasible
set: the Euclidean projection is not the nearest point in the geometry of an Adam or AMSGrad step. Every
projection is called as ``projection(point, metric)`` and returns

    argmin over x in the set of  Σ_j h_j (x_j − y_j)²,   y = point, h = metric ≥ 0.

Only the ratios of h matter. Where h is zero (no gradient yet, and ``eps=0``) the answer is the limit of one
common h → 0⁺: such coordinates cost nothing, so they move first and share the movement in the Euclidean way;
the others, y_P below, move only if that is not enough.

A box separates, so it clamps. The L1 ball and the simplex have x = (y − μ/h)₊, whose support is a prefix of
the coordinates sorted by h·y, found by bisection over that order. The L2 ball has x = y/(1 + μ/h), with μ
from bisection of its magnitude and then Newton, which converges from there whatever the metric.

What holds for all of them:

* The result is a new tensor of the point's shape, dtype and device, outside autograd. It is computed in
  float64 and rounded once. What is feasible (to the rounding of float64) comes back bit for bit.
* ``dim=None`` projects the flattened tensor; otherwise every 1-D fibre along ``dim`` is projected by itself.
* NaN is never hidden. A box leaves it in its place, and clamps ±inf. In a ball or simplex one NaN or infinite
  coordinate makes its fibre NaN, since no coordinate of it has a known answer.
* A negative, NaN or infinite metric raises ``ValueError`` on the CPU. On other devices it is not looked at,
  for the host would have to wait for the device (nothing here makes it wait), and the result is unspecified.
* Other bad arguments raise everywhere: ``TypeError`` for what is not a real floating-point tensor,
  ``ValueError`` for a metric of another shape or device and for a ``dim`` that the point does not have.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Box", "L1Ball", "L2Ball", "NonNegative", "Projection", "Simplex"]

_TINY = torch.finfo(torch.float64).tiny
_HUGE = torch.finfo(torch.float64).max
_SMALLEST = 5e-324  # the least subnormal
# Relative excess that still counts as feasible: the rounding of a sum. Projecting twice then changes nothing.
_SLACK = 16 * torch.finfo(torch.float64).eps


class Projection(Protocol):
    """Anything callable as ``projection(point, metric)``: the classes of this module, or your own.

    It gets a parameter after its step, and the diagonal H of that step in the same shape.

    >>> def unit_sum(point, metric):  # the plane Σx = 1
    ...     inverse = 1 / metric
    ...     return point - (point.sum() - 1) * inverse / inverse.sum()
    >>> unit_sum(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 3.0]))
    tensor([0.5000, 0.5000])
    """

    def __call__(self, point: Tensor, metric: Tensor, /) -> Tensor:
        """Return the nearest feasible point, a new tensor of the point's shape, dtype and device."""
        ...


@dataclass(frozen=True, eq=False)
class Box:
    """The box low ≤ x ≤ high: each coordinate is clamped, whatever the metric.

    ``low`` and ``high`` are real numbers, or tensors that broadcast to the point (copied here, and again at
    every call if the point is on another device); ``-inf`` and ``inf`` mean no bound. Anything else raises
    ``TypeError``; NaN, low > high, low = inf, high = -inf and shapes that do not broadcast, ``ValueError``.

    >>> Box(-1.0, torch.tensor([0.5, 2.0]))(torch.tensor([3.0, -3.0]), torch.ones(2))
    tensor([ 0.5000, -1.0000])
    """

    low: float | Tensor
    high: float | Tensor

    def __post_init__(self) -> None:
        low, high = _checked_bound("low", self.low), _checked_bound("high", self.high)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        try:
            ordered = bool((torch.as_tensor(low) <= torch.as_tensor(high)).all())
        except RuntimeError as error:  # shapes or devices that do not go together
            raise ValueError(f"`Box(low=..., high=...)` must broadcast with each other: {error}") from error
        if not ordered:
            raise ValueError(f"`Box(low=..., high=...)` must satisfy low <= high, got {low} and {high}.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Box):
            return NotImplemented
        return _same_bound(self.low, other.low) and _same_bound(self.high, other.high)

    def __hash__(self) -> int:
        return hash(tuple(None if isinstance(bound, Tensor) else bound for bound in (self.low, self.high)))

    def __call__(self, point: Tensor, metric: Tensor, /) -> Tensor:
        """Return ``min(max(point, low), high)``."""
        _check_call("Box", point, metric)
        low, high = _fitted_bound("low", self.low, point), _fitted_bound("high", self.high, point)
        x = point.detach().to(torch.float64)
        x = torch.where(x < low, low, x)  # `clamp` may turn -0.0 into 0.0
        return torch.where(x > high, high, x).to(point.dtype)


@dataclass(frozen=True)
class NonNegative:
    """The orthant x ≥ 0: negative coordinates become 0, whatever the metric.

    >>> NonNegative()(torch.tensor([1.0, -2.0]), torch.ones(2))
    tensor([1., 0.])
    """

    def __call__(self, point: Tensor, metric: Tensor, /) -> Tensor:
        """Return ``max(point, 0)``."""
        _check_call("NonNegative", point, metric)
        return torch.where(point.detach() < 0, 0.0, point.detach())


class _Fibrewise(ABC):
    """A set for 1-D vectors, applied to the fibres along `dim` as the rows of a float64 matrix `[R, N]`."""

    dim: int | None

    def __post_init__(self) -> None:
        if self.dim is not None and (isinstance(self.dim, bool) or not isinstance(self.dim, int)):
            raise TypeError(f"`{type(self).__name__}(dim=...)` must be an int or None, got {self.dim!r}.")

    @abstractmethod
    def _contains(self, y_RN: Tensor) -> Tensor:
        """Tell which rows are feasible, `[R]`."""

    @abstractmethod
    def _project(self, y_RN: Tensor, h_RN: Tensor) -> Tensor:
        """Project rows that are not feasible."""

    def __call__(self, point: Tensor, metric: Tensor, /) -> Tensor:
        """Return the nearest feasible point; with ``dim``, every fibre's own."""
        _check_call(type(self).__name__, point, metric, self.dim)
        point, metric = point.detach(), metric.detach()
        if point.numel() == 0:
            return point.clone()
        if self.dim is None:
            moved, metric = point.reshape(-1), metric.reshape(-1)
        else:
            moved, metric = point.movedim(self.dim, -1), metric.movedim(self.dim, -1)
        rows_RN = moved.reshape(-1, moved.shape[-1] if moved.ndim else 1)
        y_RN, h_RN = rows_RN.to(torch.float64), metric.reshape(rows_RN.shape).to(torch.float64)
        outside_R = ~self._contains(y_RN)
        if point.device.type == "cpu":  # reading the mask is free, so rows that are feasible cost nothing more
            result_RN = rows_RN.clone()
            if bool(outside_R.any()):
                result_RN[outside_R] = self._project_or_nan(y_RN[outside_R], h_RN[outside_R]).to(point.dtype)
        else:
            projected_RN = self._project_or_nan(y_RN, h_RN).to(point.dtype)
            result_RN = torch.where(outside_R[:, None], projected_RN, rows_RN)
        result = result_RN.reshape(moved.shape)
        return result.reshape(point.shape) if self.dim is None else result.movedim(-1, self.dim)

    def _project_or_nan(self, y_RN: Tensor, h_RN: Tensor) -> Tensor:
        return torch.where(y_RN.isfinite().all(-1, keepdim=True), self._project(y_RN, h_RN), math.nan)


@dataclass(frozen=True)
class _Ball(_Fibrewise):
    radius: float
    dim: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        name, radius = type(self).__name__, self.radius
        if isinstance(radius, bool) or not isinstance(radius, Real):
            raise TypeError(f"`{name}(radius=...)` must be a real number, got {radius!r}.")
        if not 0 < float(radius) < math.inf:
            raise ValueError(f"`{name}(radius=...)` must be positive and finite, got {radius!r}.")
        object.__setattr__(self, "radius", float(radius))


class L2Ball(_Ball):
    """The ball ‖x‖₂ ≤ radius: x = y/(1 + μ/h), with μ ≥ 0 such that ‖x‖₂ = radius.

    If ‖y_P‖ ≥ radius, coordinates with h = 0 become 0. Otherwise y_P stays, and they are scaled onto what it
    leaves, √(radius² − ‖y_P‖²). ``radius`` must be positive and finite (``ValueError``).

    >>> L2Ball(1.0)(torch.tensor([3.0, 4.0]), torch.ones(2))
    tensor([0.6000, 0.8000])
    >>> L2Ball(1.0, dim=1)(torch.tensor([[3.0, 4.0], [0.1, 0.2]]), torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    tensor([[0.0000, 1.0000],
            [0.1000, 0.2000]])
    """

    def _contains(self, y_RN: Tensor) -> Tensor:
        _, largest, length = _polar(y_RN)
        return (largest * length).squeeze(-1) <= self.radius * (1 + _SLACK)

    def _project(self, y_RN: Tensor, h_RN: Tensor) -> Tensor:
        paid = h_RN > 0
        y_paid = torch.where(paid, y_RN, 0.0)
        direction, largest, length = _polar(y_paid)
        norm = largest * length
        h_paid = torch.where(paid, h_RN, h_RN.amax(-1, keepdim=True).clamp(min=_SMALLEST))  # any filler does
        ratio = (self.radius / largest / length).clamp(min=_TINY, max=1.0)
        tight = self.radius * _shrink(direction, h_paid, ratio)
        room = (self.radius - norm).clamp(min=0).sqrt() * (self.radius + norm).sqrt()
        slack = y_paid + room * _polar(torch.where(paid, 0.0, y_RN))[0]
        return torch.where(norm >= self.radius, tight, slack)


class L1Ball(_Ball):
    """The ball ‖x‖₁ ≤ radius: x = sign(y)(|y| − μ/h)₊, with μ ≥ 0 such that ‖x‖₁ = radius.

    If ‖y_P‖₁ ≥ radius, coordinates with h = 0 become 0. Otherwise y_P stays, and they are projected, in the
    Euclidean way, onto the ball of radius − ‖y_P‖₁. ``radius`` must be positive and finite (``ValueError``).

    >>> L1Ball(1.0)(torch.tensor([1.0, -0.5, 0.1]), torch.ones(3))
    tensor([ 0.7500, -0.2500,  0.0000])
    >>> L1Ball(1.0)(torch.tensor([0.8, -0.5, 0.1]), torch.tensor([1.0, 0.0, 1.0]))
    tensor([ 0.8000, -0.1000,  0.1000])
    """

    def _contains(self, y_RN: Tensor) -> Tensor:
        return y_RN.abs().sum(-1) <= self.radius * (1 + _SLACK)

    def _project(self, y_RN: Tensor, h_RN: Tensor) -> Tensor:
        return torch.copysign(_project_onto_mass(y_RN.abs(), h_RN, self.radius), y_RN)


@dataclass(frozen=True)
class Simplex(_Fibrewise):
    """The simplex x ≥ 0, Σx = 1: x = (y − μ/h)₊, with μ of either sign such that Σx = 1.

    If Σ(y_P)₊ > 1, coordinates with h = 0 become 0. Otherwise, if there are any, x_P = (y_P)₊ and they are
    projected, in the Euclidean way, onto the simplex of mass 1 − Σ(y_P)₊.

    >>> Simplex()(torch.tensor([0.9, 0.5, -1.0]), torch.ones(3))
    tensor([0.7000, 0.3000, 0.0000])
    >>> Simplex()(torch.tensor([0.9, 0.5, -1.0]), torch.tensor([3.0, 1.0, 1.0]))
    tensor([0.8000, 0.2000, 0.0000])
    """

    dim: int | None = None

    def _contains(self, y_RN: Tensor) -> Tensor:
        return (y_RN >= 0).all(-1) & ((y_RN.sum(-1) - 1).abs() <= _SLACK)

    def _project(self, y_RN: Tensor, h_RN: Tensor) -> Tensor:
        return _project_onto_mass(y_RN, h_RN, 1.0)


def _polar(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows into direction, largest |y| and length: ‖y‖ = largest · length, and no square overflows."""
    largest = y.abs().amax(-1, keepdim=True)
    scaled = y / torch.where(largest > 0, largest, 1.0)
    length = scaled.square().sum(-1, keepdim=True).sqrt()
    return scaled / length.clamp(min=1.0), largest, length


def _shrink(y: Tensor, h: Tensor, ratio: Tensor) -> Tensor:
    """Return the direction of y/(1 + μ/h), with μ such that its length is `ratio`; ‖y‖ = 1 and h > 0.

    Written μ = (1/ratio − 1)η, the equation is ‖v‖ = 1 for v = y/(ratio + (1 − ratio)η/h), and η lies between
    the least and the largest h: no number leaves the range of the inputs. As each |v_j| is a logistic
    function of t = log η, G(t) = log‖v‖² has |G''| ≤ 3|G'|, so Newton converges from within 0.1 of the root:
    the error goes 0.05, 4e-3, 3e-5, 1e-9, rounding. Bisection brings t there, in 14 halvings at most.
    """

    def cost_at(eta: Tensor) -> Tensor:
        return (1 - ratio) * (eta / h).clamp(max=_HUGE)

    # Centred on 1, h and η keep all their digits; a spread beyond 1e616 is compressed to that.
    root = h.sqrt()
    h = (root / root.amin(-1, keepdim=True)).clamp(max=_HUGE) * (root / root.amax(-1, keepdim=True))
    low, high = h.amin(-1, keepdim=True), h.amax(-1, keepdim=True)
    width = math.log(_HUGE) - math.log(_TINY)
    if y.device.type == "cpu":
        width = max(0.1, (high.log() - low.log()).amax().item())
    for _ in range(math.ceil(math.log2(width / 0.1))):
        eta = low.sqrt() * high.sqrt()
        too_long = (y / (ratio + cost_at(eta))).square().sum(-1, keepdim=True) > 1
        low, high = torch.where(too_long, eta, low), torch.where(too_long, high, eta)
    eta = low.sqrt() * high.sqrt()
    for _ in range(4):
        cost = cost_at(eta)
        square = (y / (ratio + cost)).square()
        total = square.sum(-1, keepdim=True)
        slope = 2 * (square * (cost / (ratio + cost))).sum(-1, keepdim=True) / total
        eta = eta * (total.log() / slope.clamp(min=_TINY)).exp()
        eta = torch.minimum(torch.maximum(eta, low), high)
    return _polar(y / (ratio + cost_at(eta)))[0]


def _project_onto_mass(y: Tensor, h: Tensor, mass: float) -> Tensor:
    """Project rows onto {x ≥ 0, Σx = mass}: the coordinates with h > 0 pay only if the others cannot."""
    paid = h > 0
    kept = torch.where(paid, y.clamp(min=0), 0.0)
    total = kept.sum(-1, keepdim=True)
    paid_move = (total > mass) | paid.all(-1, keepdim=True)
    moving = paid == paid_move
    shared = _share_mass(y, torch.where(paid, h, 1.0), moving, torch.where(paid_move, mass, mass - total))
    return torch.where(moving, shared, torch.where(paid_move, 0.0, kept))


def _share_mass(y: Tensor, h: Tensor, moving: Tensor, mass: Tensor) -> Tensor:
    """Return (y − μ/h)₊ for the `moving` coordinates, with μ such that it sums to `mass` in every row.

    Coordinate k is in the support iff Σ_i (y_i − h_k y_k/h_i)₊ < mass, which is monotone along the order of
    h·y: bisection finds the last one. Every term is good to the rounding of y_i, where the usual prefix sums
    Σy − mass would lose the mass beside a large y. What is left of the mass is shared in proportion to 1/h.
    """
    keys = torch.where(moving, _order_keys(h, y), torch.iinfo(torch.int64).min)
    order = keys.argsort(-1, descending=True)

    def excess(last: Tensor) -> Tensor:
        ratio = (h.gather(-1, last) / h).clamp(max=_HUGE)  # finite, so that zero times it is zero
        return torch.where(moving, (y - y.gather(-1, last) * ratio).clamp(min=0), 0.0)

    low = torch.zeros_like(mass, dtype=torch.int64)
    high = (moving.sum(-1, keepdim=True) - 1).clamp(min=0)
    for _ in range(y.shape[-1].bit_length()):
        middle = (low + high + 1) // 2
        positive = excess(order.gather(-1, middle)).sum(-1, keepdim=True) < mass
        low, high = torch.where(positive, middle, low), torch.where(positive, high, middle - 1)
    last = order.gather(-1, low)
    support = moving & (keys >= keys.gather(-1, last))
    x = torch.where(support, excess(last), 0.0)
    share = torch.where(support, torch.where(support, h, math.inf).amin(-1, keepdim=True) / h, 0.0)
    left = (mass - x.sum(-1, keepdim=True)).clamp(min=0)
    return x + left * (share / share.sum(-1, keepdim=True))


def _order_keys(h: Tensor, y: Tensor) -> Tensor:
    """Return integers in the order of h·y (to 2⁻⁵⁰ of it), also where that product would over- or underflow.

    They are laid out like floating-point numbers, with 13 bits of exponent and 50 of mantissa.
    """
    (h_mantissa, h_exponent), (y_mantissa, y_exponent) = torch.frexp(h), torch.frexp(y.abs())
    mantissa, carry = torch.frexp(h_mantissa * y_mantissa)
    exponent = (h_exponent + y_exponent + carry).to(torch.int64) + 4096
    return torch.sign(y).to(torch.int64) * (exponent * 2**50 + ((mantissa - 0.5) * 2.0**51).to(torch.int64))


def _checked_bound(name: str, bound: object) -> float | Tensor:
    checked: float | Tensor
    if isinstance(bound, Tensor) and not bound.is_complex():
        checked = bound.detach().to(torch.float64, copy=True)
    elif isinstance(bound, Real) and not isinstance(bound, bool):
        checked = float(bound)
    else:
        raise TypeError(f"`Box({name}=...)` must be a real number or a real tensor, got {bound!r}.")
    wrong, allowed = (math.inf, "below inf") if name == "low" else (-math.inf, "above -inf")
    values = torch.as_tensor(checked)
    if bool((values.isnan() | (values == wrong)).any()):
        raise ValueError(f"`Box({name}=...)` must be {allowed} and not NaN, got {bound!r}.")
    return checked


def _fitted_bound(name: str, bound: float | Tensor, point: Tensor) -> float | Tensor:
    if not isinstance(bound, Tensor):
        return bound
    try:
        return bound.to(point.device).expand(point.shape)
    except RuntimeError as error:
        shape, wanted = tuple(bound.shape), tuple(point.shape)
        raise ValueError(
            f"`Box({name}=...)` must broadcast to the point's shape {wanted}, got shape {shape}."
        ) from error


def _same_bound(first: float | Tensor, second: float | Tensor) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.device == second.device and torch.equal(first, second)
    return not isinstance(first, Tensor) and not isinstance(second, Tensor) and first == second


def _check_call(name: str, point: Tensor, metric: Tensor, dim: int | None = None) -> None:
    for argument, tensor in (("point", point), ("metric", metric)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"`{name}()({argument}=...)` must be a real floating-point tensor, got {kind}.")
    shape, prefix = tuple(point.shape), f"`{name}()(metric=...)` must"
    if metric.shape != point.shape:
        raise ValueError(f"{prefix} have the point's shape {shape}, got {tuple(metric.shape)}.")
    if metric.device != point.device:
        raise ValueError(f"{prefix} be on the point's device {point.device}, got {metric.device}.")
    num_dims = max(1, point.ndim)
    if dim is not None and not -num_dims <= dim < num_dims:
        allowed = f"in [{-num_dims}, {num_dims - 1}] for a point of shape {shape}"
        raise ValueError(f"`{name}(dim=...)` must be {allowed}, got {dim}.")
    if metric.device.type == "cpu":
        bad = ~((metric >= 0) & (metric < math.inf))
        if bool(bad.any()):
            raise ValueError(f"{prefix} be finite and at least 0, got {metric.detach()[bad][0].item()}.")
