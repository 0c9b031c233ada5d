"""How many examples are scored at once on a CPU: as many as hold few enough bytes between the two passes.

Scores of examples are independent, so a chunk need not go through the model as a whole. What its passes hold is the
activations, which grow with the number of examples. A pass has a cost of its own, so that very few examples at once
are slow; and once their activations are larger than a cache, more at once are no faster. So what a forward pass
holds of each example is measured on a few, and a chunk is cut into blocks that hold at most `BLOCK_BYTES`, and are of
at most `MOST` examples. Layers whose activations nobody keeps count by the largest of these. This is a matter of shapes
alone: the same data are always cut in the same way, in a resumed run, too.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dasgrad import nested
from dasgrad.scoring.losses import LossFunction
from dasgrad.scoring.tape import Tape

BLOCK_BYTES = 20 * 2**20
"""What a block may hold. With more, peak memory grows and models whose activations leave the cache are slower; with
less, what each pass costs by itself: the transformer of ``python -m benchmarks scores`` has blocks of fifty."""
FEWEST = 32
"""Examples that are taken at once whatever they hold: with fewer, reading the weights takes longer than using them."""
MOST = 2**14
"""Examples beside which what a pass costs by itself is nothing, however small the model; more need memory that the
system must first clear, which for logistic regression takes longer than a quarter of the scores."""


def fitting(bytes_an_example: int) -> int:
    """How many examples make a block."""
    return min(MOST, max(FEWEST, BLOCK_BYTES // max(1, bytes_an_example)))


def can_be_cut(leaves: Iterable[Any]) -> bool:
    """Whether torch can take some of the examples; of its own sparse and nested tensors it cannot."""
    return all(getattr(leaf, "layout", torch.strided) is torch.strided for leaf in leaves)


def bytes_an_example(tape: Tape, function: LossFunction, tensors: Mapping[str, Tensor], few: Any) -> int:
    """What a forward pass under this tape holds for the backward pass, by the number of examples.

    That is what autograd saves and what layers keep for their rules, each memory once, without the model's tensors and
    the data. 0 where it cannot be told, as for models that compute gradients themselves.
    """
    held: list[Tensor] = []
    found = 0

    def pack(tensor: Tensor) -> None:
        held.append(tensor.detach())  # not to be freed, and not part of the graph that would hold it

    def count(losses: Tensor) -> None:
        nonlocal found
        kept = [leaf for call in tape.calls for leaf in call.leaves]
        known = _storages([*tensors.values(), *nested.leaves(few)])
        found = sum(size for place, size in _storages([*held, *kept]).items() if place not in known)

    num_examples = nested.count_examples(few)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _never):
            tape.follow(lambda then: function.call(tensors, few, then), count, num_examples)
    except RuntimeError:  # the real pass says what is wrong with the model, if anything is
        return 0
    return -(-found // num_examples)


class _Results(TorchFunctionMode):
    """Notes the largest memory that a torch function's results are in, in bytes.

    Args:
        known: addresses of memory that was there before.
    """

    def __init__(self, known: Container[int]) -> None:
        super().__init__()
        self.largest = 0
        self._known = known

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call through."""
        result = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            places = _storages(result if isinstance(result, tuple | list) else [result])
        self.largest = max([self.largest, *(size for place, size in places.items() if place not in self._known)])
        return result


def largest_result(function: LossFunction, few: Any) -> int:
    """Bytes of the largest tensor in a forward pass, by the number of examples.

    About what such a pass holds at a time where nothing is kept for a backward pass.
    """
    tensors = function.tensors()
    results = _Results(_storages([*tensors.values(), *nested.leaves(few)]))
    with torch.no_grad(), results:
        function.call(tensors, few)
    return -(-results.largest // nested.count_examples(few))


def _never(packed: None) -> Tensor:
    raise AssertionError("no backward pass follows")


def _storages(values: Iterable[Any]) -> dict[int, int]:
    """By their addresses, the sizes in bytes of the memory that tensors are in; torch's sparse ones are left out."""
    found: dict[int, int] = {}
    for value in values:
        if not isinstance(value, Tensor):
            continue
        tensor = _unwrapped(value)
        if tensor.layout == torch.strided:
            try:
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
            except RuntimeError:  # a subclass that has its numbers elsewhere, and no address
                found[id(value)] = tensor.nbytes
    return found


def _unwrapped(tensor: Tensor) -> Tensor:
    """What holds the numbers: inside transforms of ``torch.func`` a tensor stands for a larger one."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
