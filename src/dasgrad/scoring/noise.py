"""Noise of the mean gradient, from the mean gradients of two halves of some examples, in the metric of the score."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad import nested
from dasgrad.scoring.isolation import device_of, untouched
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.preconditioned import Preconditioner, inverse_metric_at, read_optimizer


def mean_gradients(function: LossFunction, params: Iterable[str], chunks: Iterable[Any]) -> tuple[list[Tensor], int]:
    """Mean gradients of all first and of all second halves of chunks, each as one vector, and their number of examples.

    Raises:
        ValueError: when no chunk has two examples.
    """
    names, num, sums = list(params), 0, None
    for data in chunks:
        size = nested.count_examples(data) // 2
        if size < 1:
            continue
        num += size
        halves = _gradients_of_halves(function, names, nested.map_leaves(function.cast, data), size)
        sums = halves if sums is None else [a + b for a, b in zip(sums, halves, strict=True)]
    if sums is None:
        raise ValueError("`ExampleScorer.noise(chunks=...)` must hold at least 2 examples.")
    return [total.double() / num for total in sums], num


def _gradients_of_halves(function: LossFunction, names: list[str], data: Any, size: int) -> list[Tensor]:
    """The summed gradients of the first ``size`` examples and of as many after them."""
    halves = []
    with untouched(function.model):
        for start in (0, size):
            tensors = function.tensors()
            params = {name: tensors[name].detach().requires_grad_() for name in names}
            rows = torch.arange(start, start + size, device=device_of(function.model))
            losses = function.call({**tensors, **params}, nested.take_rows(data, rows)).sum()
            grads = torch.autograd.grad(losses, list(params.values()), allow_unused=True, materialize_grads=True)
            halves.append(torch.cat([grad.flatten() for grad in grads]))
    return halves


def inverse_metric(
    optimizer: Optimizer, params: Mapping[str, Tensor], mean: Tensor, preconditioner: Preconditioner
) -> Tensor:
    """1/H of all parameters as one vector in float64; ``mean`` is a gradient of such a form."""
    views = read_optimizer(optimizer)
    parts = mean.split([param.numel() for param in params.values()])
    found = [
        inverse_metric_at(views[id(param)], part.view_as(param), preconditioner).flatten()
        for param, part in zip(params.values(), parts, strict=True)
    ]
    return torch.cat(found)
