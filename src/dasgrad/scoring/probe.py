"""A look at a few examples before rules are trusted: where in each layer's output the examples are, if anywhere.

Rules read row i of a layer's input and output as example i's. That a tensor has B rows does not make it so:
sequence-first layers, tables of positions and reshaped batches may have B rows by chance. So the gradient of
each single loss is taken on a few examples: a dimension along which it reaches another example's row does not
run over the examples, and a layer that has no other goes to the fallback. And each loss is compared with the
loss of the example alone: where they differ, examples interact, and no per-example gradient exists. Last, what
rules make of the few examples is compared with plain autograd.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dasgrad import nested
from dasgrad.scoring.calls import Call
from dasgrad.scoring.fallback import gradients_of_one
from dasgrad.scoring.isolation import ignoring
from dasgrad.scoring.layout import Layout
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.tape import CARRIED, Tape

NUM_PROBED = 3


@dataclass
class Findings:
    """What a look at a few examples showed."""

    irregular: dict[str, str] = field(default_factory=dict)
    """Parameters no rule may serve, with the reason."""
    dims: dict[str, int] = field(default_factory=dict)
    """For the others, the dimension of their layer's output that runs over the examples."""


def kind_of(data: Any, params: Iterable[str]) -> object:
    """What decides whether data must be probed anew: types, numbers of dimensions, what is scored."""
    kinds: list[Any] = []
    shapes = []
    for leaf in nested.leaves(data):
        shape = leaf.shape
        shapes.append(shape)
        kinds += (leaf.dtype, len(shape))
    return tuple(kinds), tuple(params), nested.count_rows(shapes, data) > 1


def few_of(data: Any) -> Any:
    """`NUM_PROBED` examples, again from the first one where there are not as many."""
    found = nested.count_examples(data)
    return nested.take(data, slice(0, NUM_PROBED) if found >= NUM_PROBED else [k % found for k in range(NUM_PROBED)])


def look(function: LossFunction, layout: Layout, few: Any) -> Findings:
    """Where the examples are in the output of each layer, and which parameters' layers have none.

    Raises:
        ValueError: when an example's loss depends on the others of its batch.
    """
    tensors = function.tensors()
    reached: list[tuple[Call, Tensor]] = []
    possible: dict[int, set[int]] = {}
    tape = Tape(layout, tensors, lambda *arrival: reached.append(arrival), anchor_all=True)

    def backward(losses: Tensor) -> None:
        for i in range(NUM_PROBED):
            reached.clear()
            tape.bring_gradients(losses[i], retain_graph=True)
            for call, gradient in reached:
                left = possible.setdefault(id(call), set(call.dims))
                left -= {dim for dim in call.dims if _reaches_others(gradient, i, dim)}

    losses = tape.follow(lambda then: function.call(tensors, few, then), backward, NUM_PROBED)
    if not tape.reads_values and not agrees_alone(function, few, losses):
        raise ValueError(
            "the loss of an example must not depend on the others of its batch, but it changes when the example "
            "is evaluated alone: a normalisation or a loss over the whole batch has no per-example gradients."
        )
    findings = Findings(dict(tape.irregular))
    for call in tape.calls:
        left = possible.get(id(call), set(call.dims))
        left = {CARRIED} if call.carried and left else left
        for name in call.names:
            if len(left) == 1 and findings.dims.setdefault(name, min(left)) not in left:
                findings.irregular.setdefault(name, "its layers have the examples now here, now there")
            elif len(left) == 1:
                continue
            elif name not in findings.irregular:
                where = "along the first dimension" if not left else "along a dimension that can be told from others"
                findings.irregular[name] = f"{call.kind} does not have the examples {where}"
    return findings


def _reaches_others(gradient: Tensor, example: int, dim: int) -> bool:
    """Whether an example's gradient is not zero in the rows of others."""
    others = (gradient.narrow(dim, 0, example), gradient.narrow(dim, example + 1, NUM_PROBED - example - 1))
    return any(bool((part.nan_to_num() != 0).any()) for part in others)  # 0 · NaN is no evidence


def find_disagreements(
    function: LossFunction, names: Sequence[str], few: Any, squares: Mapping[str, Tensor]
) -> dict[str, str]:
    """Parameters for which ``squares``, ‖gᵢ‖² as rules have it, is not what plain autograd says, with the reason.

    In float64 the two agree closely; in less, the gradient of a converged example may be rounding alone.
    """
    wrong: dict[str, str] = {}
    if not names:
        return wrong
    with _evaluating():
        losses = function.call(function.tensors(), few)
    tolerance = 1e-6 if losses.dtype == torch.float64 else 0.1
    norms: list[Tensor] = []  # one row an example that can be compared, one column a parameter
    compared: list[int] = []
    for i in range(NUM_PROBED):
        loss, gradients = gradients_of_one(function, names, nested.take(few, slice(i, i + 1)))
        if bool((loss - losses[i]).abs() <= tolerance * (1 + loss.abs())):  # else the model is random
            norms.append(torch.stack([torch.linalg.vector_norm(gradient.double()) for gradient in gradients]))
            compared.append(i)
    if not norms:
        return wrong
    exact = torch.stack(norms)
    floor = 0.01 * torch.linalg.vector_norm(exact, dim=1).max()  # of small gradients, rounding is a large part
    for column, name in enumerate(names):
        ours = squares[name][compared].sqrt() if name in squares else torch.zeros_like(exact[:, column])
        if bool(((ours - exact[:, column]).abs() > tolerance * (exact[:, column] + floor)).any()):
            wrong[name] = "its rule does not give the gradient that autograd gives"
    return wrong


@contextmanager
def _evaluating() -> Iterator[None]:
    with torch.no_grad(), ignoring("None of the inputs have requires_grad"):  # checkpointing would say so
        yield


def agrees_alone(function: LossFunction, data: Any, losses: Tensor) -> bool:
    """Whether a few of a batch's losses are what they are when each example is evaluated alone.

    True as well for a model that is random in eval mode: there nothing can be compared.
    """
    last = len(losses) - 1
    picked = {i * last // (NUM_PROBED - 1) for i in range(NUM_PROBED)} if last >= 0 else set()
    tolerance = torch.finfo(losses.dtype).eps ** 0.5
    with _evaluating():
        for i in picked:
            example = nested.take(data, slice(i, i + 1))
            try:
                alone = function.call(function.tensors(), example)[0]
            except ValueError as error:
                if "Expected more than 1 value per channel" in str(error):  # batch norm in training mode
                    return False
                raise
            close = bool((alone - losses[i]).abs() <= tolerance * (1 + losses[i].abs()))
            if not close and bool(torch.isfinite(losses[i])):
                return not torch.equal(alone, function.call(function.tensors(), example)[0])
    return True
