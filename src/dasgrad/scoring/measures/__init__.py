"""How long a per-example gradient is in the optimizer's metric, from its form.

For one parameter and example i a score's square gets the share Σₖ fₖ(gᵢₖ), a sum over the parameter's
entries. With a frozen metric fₖ(g) = (aₖ + c·g)²/Hₖ is a quadratic, and

    Σₖ fₖ(gₖ) = ‖H^(−1/2)a‖² + 2c⟨H^(−1)a, g⟩ + c²⟨H^(−1), g²⟩;

for g = b xᵀ each term is a matrix product over all examples at once, (b²)ᵀH^(−1)(x²) for the last. With
the example's own gradient in the metric fₖ is no polynomial: gradients are formed a few examples at a time,
in buffers that fit the cache, and measured entry by entry.
"""

from torch import Tensor

from dasgrad.moments import BuiltinMoments
from dasgrad.scoring.measures.base import Measure
from dasgrad.scoring.measures.entrywise import ElementwiseMeasure, OwnMeasure
from dasgrad.scoring.measures.quadratic import FrozenMeasure, QuadraticMeasure, inverse_of, state_of
from dasgrad.scoring.preconditioned import Preconditioner, Preconditioning
from dasgrad.scoring.workspace import Workspace

__all__ = ["Measure", "gradient_measure", "step_measure"]

_SMALLEST_EPS = 1e-30
"""Below it 1/H may overflow, and 0/0 must be looked at entry by entry."""


def gradient_measure(param: Tensor, workspace: Workspace) -> Measure:
    """‖gᵢ‖²."""
    return QuadraticMeasure(param.shape, param.device, workspace)


def step_measure(
    view: Preconditioning, preconditioner: Preconditioner, momentum: bool, workspace: Workspace
) -> Measure:
    """‖H^(−1/2)dᵢ‖² as the optimizer's state has it, times the share of its learning rate."""
    moments, param = view.moments, view.param
    polynomial = preconditioner == "frozen" and (isinstance(moments, BuiltinMoments) or not momentum)
    if preconditioner == "own" and isinstance(moments, BuiltinMoments):
        return OwnMeasure(view, momentum, workspace)
    if not polynomial or (view.eps < _SMALLEST_EPS and moments.keys):
        return ElementwiseMeasure(view, preconditioner, momentum, workspace)
    if not momentum:
        return FrozenMeasure(view, workspace)
    assert isinstance(moments, BuiltinMoments)
    state, inverse = state_of(view), inverse_of(view)
    decay = view.coupled_decay * param.detach().to(inverse.dtype)
    offset = moments.phi(moments.advance(state, decay, view.ahead), decay, view.ahead)
    slope = view.sign * moments.newest_share(view.ahead)
    cross, constant = inverse * offset * (2 * slope), inverse * offset.square()
    return QuadraticMeasure(param.shape, param.device, workspace, lambda: inverse * slope**2, cross, constant)
