"""The example's own gradient in the metric: one formula for all built-in moments, on whatever computes it fastest.

With seen = sign·g + decay, entry by entry of a parameter,

    f(g) = d²/(√max(floor, past + gain·seen²) + eps),   d = offset + slope·seen with momentum, else g,   0/0 := 0.

What differs between SGD, AdaGrad, RMSProp, Adam and AMSGrad is in the arrays and coefficients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dasgrad.moments import BuiltinMoments
from dasgrad.scoring import kernels, native
from dasgrad.scoring.preconditioned import Preconditioning


@dataclass(frozen=True)
class OwnTerms:
    """Arrays in the parameter's shape, contiguous, all of one type and device; coefficients."""

    floor: Tensor
    past: Tensor
    decay: Tensor | None
    offset: Tensor | None
    gain: float
    slope: float
    sign: float
    eps: float

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """As the compiled kernels take them."""
        return self.floor, self.past, self.decay, self.offset

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """As the compiled kernels take them."""
        return self.gain, self.slope, self.sign, self.eps


def read_terms(view: Preconditioning, momentum: bool, dtype: torch.dtype) -> OwnTerms:
    """The terms of a parameter's optimizer state, for the step to come."""
    moments, hyper, param = view.moments, view.ahead, view.param.detach()
    assert isinstance(moments, BuiltinMoments)
    state = {key: view.state[key].to(dtype) for key in moments.keys}
    floor, past, gain = moments.second_moment(state, hyper)
    correction = 1.0
    if hyper.bias_correction:
        correction = float(moments.corrections(hyper)[1])
        floor, past = (floor / correction, past / correction) if floor is not past else (floor / correction,) * 2
    offset = decay = None
    if momentum:
        nothing = torch.zeros_like(param, dtype=dtype)
        offset = moments.phi(moments.advance(state, nothing, hyper), nothing, hyper)
    if view.coupled_decay:
        decay = view.coupled_decay * param.to(dtype)

    def laid_out(part: Tensor) -> Tensor:
        return part.to(device=param.device, dtype=dtype).expand(param.shape).contiguous()

    return OwnTerms(
        floor=laid_out(floor),
        past=laid_out(past),
        decay=None if decay is None else laid_out(decay),
        offset=None if offset is None else laid_out(offset),
        gain=gain / correction,
        slope=moments.newest_share(hyper),
        sign=view.sign,
        eps=hyper.eps,
    )


def sum_entries(terms: OwnTerms, gradients_B: Tensor) -> Tensor:
    """``[b, n] -> [b]``: Σₖ fₖ(gₖ); uses up its argument."""
    if native.supports(gradients_B):
        return native.own_entries(gradients_B, terms.arrays, terms.coefficients)
    if kernels.available(gradients_B):
        return kernels.own_entries(gradients_B, terms.arrays, terms.coefficients)
    return _shares(gradients_B, terms, [part.flatten() if part is not None else None for part in terms.arrays]).sum(1)


def takes_outer_products(like: Tensor) -> bool:
    """Whether `sum_outer_products` is there for factors of this type and device."""
    return native.supports(like) or kernels.available(like)


def sum_outer_products(terms: OwnTerms, left_B: Tensor, right_B: Tensor) -> Tensor:
    """``[b, o], [b, k] -> [b]``: the same of g = left rightᵀ, never formed."""
    if native.supports(left_B):
        return native.own_outer_products(left_B, right_B, terms.arrays, terms.coefficients)
    return kernels.own_outer_products(left_B, right_B, terms.arrays, terms.coefficients)


def sum_rows(terms: OwnTerms, indices: Tensor, values: Tensor, columns: bool) -> Tensor:
    """``[m], [m, width] -> [m]``: Σₖ fₖ(gₖ) over row (or column) ``indices[e]``, where g is ``values[e]``."""
    parts = [None if part is None else rows_of(part, indices, columns) for part in terms.arrays]
    total = _shares(values.clone(), terms, parts).sum(1)
    if terms.offset is not None:
        total = total - _shares(torch.zeros_like(values), terms, parts).sum(1)
    return total


def _shares(gradients: Tensor, terms: OwnTerms, parts: list[Tensor | None]) -> Tensor:
    """The formula in torch operations; uses up the gradients."""
    floor, past, decay, offset = parts
    assert floor is not None
    assert past is not None
    seen = gradients
    if decay is not None or offset is not None:
        seen = gradients * terms.sign
        seen = seen if decay is None else seen.add_(decay)
    metric = (seen.square() * terms.gain).add_(past)
    metric = torch.maximum(metric, floor, out=metric).sqrt_().add_(terms.eps)
    direction = gradients if offset is None else seen.mul_(terms.slope).add_(offset)
    squares = direction.square_()
    shares = squares / metric
    return torch.where(squares == 0, 0.0, shares) if terms.eps == 0 else shares


def rows_of(values: Tensor, indices: Tensor, columns: bool) -> Tensor:
    """``[m, width]``: the rows of a parameter, flattened, or the columns of a matrix."""
    return values[:, indices].t() if columns else values[indices].flatten(1)
