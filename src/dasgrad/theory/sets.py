"""Sets Θ as theory sees them: their diameter, and projections of many points at once."""

import dataclasses
import math

import torch
from torch import Tensor

from dasgrad.projections import Box, L1Ball, L2Ball, NonNegative, Projection, Simplex


def find_diameter(projection: Projection | None) -> float | None:
    """The least D with ‖θ − θ'‖_∞ ≤ D on the set of a projection; None for no projection, all of ℝᵈ.

    Raises:
        ValueError: for a set without a diameter, and for a projection that is none of the library's, whose diameter
            is not known.

    Example:
        >>> find_diameter(Box(-1.0, 1.0)), find_diameter(L1Ball(0.5))
        (2.0, 1.0)
    """
    if projection is None:
        return None
    if isinstance(projection, (L1Ball, L2Ball)):
        return 2 * projection.radius
    if isinstance(projection, Simplex):
        return 1.0
    if isinstance(projection, Box):
        low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in (projection.low, projection.high))
        widths = high - low
        diameter = float(widths.max())
        if math.isfinite(diameter):
            return diameter
    if isinstance(projection, (Box, NonNegative)):
        raise ValueError(
            f"`find_diameter(projection=...)` must be of a bounded set, got {projection!r}: it has no diameter D, and "
            "no bound that contains D applies."
        )
    raise ValueError(
        f"`find_diameter(projection=...)` must be one of `dasgrad.projections`, got {projection!r}: give `diameter` "
        "itself."
    )


def project_rows(projection: Projection | None, points: Tensor, metric: Tensor) -> Tensor:
    """Each of ``[..., d]`` points projected in its own metric, ``[..., d]``."""
    if projection is None:
        return points
    rows, metrics = points.reshape(-1, points.shape[-1]), metric.reshape(-1, points.shape[-1])
    if isinstance(projection, (Box, NonNegative)):
        projected = projection(rows, metrics)
    elif isinstance(projection, (L1Ball, L2Ball, Simplex)):
        projected = dataclasses.replace(projection, dim=-1)(rows, metrics)
    else:
        projected = torch.stack([projection(row, own) for row, own in zip(rows, metrics, strict=True)])
    return projected.reshape(points.shape)
