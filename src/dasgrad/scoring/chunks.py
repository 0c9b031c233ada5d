"""A data set in chunks: read ahead to the device, and cut smaller where they hold too much or do not fit."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from dasgrad import nested
from dasgrad.scoring import footprint

FETCHED = 1024
"""Examples in a chunk where nobody says how many: they are fetched one by one, or fill a GPU."""
ROWS_BYTES = 64 * 2**20
"""What a chunk of tensors in memory may be: a choice of rows is copied."""


def usual_chunk_size(dataset: Any, device: torch.device, collate_fn: Callable[[list[Any]], Any] | None = None) -> int:
    """How many examples make a chunk of this data set, for a model on ``device``, where nobody says how many.

    A chunk has a cost of its own, and tensors in memory come in slices for nothing: there it is larger.
    """
    columns = nested.columns_of(dataset) if collate_fn is None else None
    if columns is None or device.type != "cpu":
        return FETCHED
    leaves, num_examples = nested.leaves(columns), nested.count_examples(columns)
    if num_examples == 0 or not footprint.can_be_cut(leaves) or not all(hasattr(leaf, "nbytes") for leaf in leaves):
        return FETCHED
    bytes_an_example: int = max(1, sum(leaf.nbytes for leaf in leaves) // num_examples)
    return max(footprint.FEWEST, min(footprint.MOST, ROWS_BYTES // bytes_an_example))


def check_chunk_size(chunk_size: int, where: str) -> None:
    """Raises ValueError unless it is a positive integer."""
    if not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1:
        raise ValueError(f"`{where}` must be a positive integer, got {chunk_size!r}.")


def read_chunks(
    dataset: Any,
    chunk_size: int,
    device: torch.device,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
) -> tuple[Iterator[Any], int]:
    """The data set in order on ``device``, as batches of at most ``chunk_size``, and its length.

    Data that are elsewhere go to a GPU through page-locked memory, each chunk while the one before is scored.
    """
    if isinstance(dataset, IterableDataset):
        raise TypeError("`score_dataset(dataset=...)` must be map-style, got an IterableDataset.")
    columns = nested.columns_of(dataset) if collate_fn is None else None
    num_examples = len(dataset) if columns is None else nested.count_examples(columns)
    if num_examples == 0:
        raise ValueError("`score_dataset(dataset=...)` must hold at least one example, got 0.")
    if columns is not None:
        starts = range(0, num_examples, chunk_size)
        chunks: Iterator[Any] = (nested.take(columns, slice(k, k + chunk_size)) for k in starts)
    else:
        loader = DataLoader(
            dataset,
            batch_size=chunk_size,
            collate_fn=collate_fn,
            num_workers=num_workers,
            generator=torch.Generator().manual_seed(0),
        )
        chunks = iter(loader)
    if device.type == "cuda":
        return _one_ahead(chunks, device), num_examples
    return (nested.move(chunk, device) for chunk in chunks), num_examples


def _one_ahead(chunks: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Copy the next chunk on a stream of its own while the caller works on this one."""
    copying = torch.cuda.Stream(device)

    def start(chunk: Any) -> tuple[Any, Any]:
        pinned = nested.map_leaves(_pin, chunk)
        with torch.cuda.stream(copying):
            return pinned, nested.move(pinned, device, non_blocking=True)

    waiting: tuple[Any, Any] | None = None
    for chunk in chunks:
        ready, waiting = waiting, start(chunk)
        if ready is not None:
            yield ready[1]
        torch.cuda.current_stream(device).wait_stream(copying)
        _use_on_current_stream(waiting[1], device)
    if waiting is not None:
        yield waiting[1]


def _pin(leaf: Any) -> Any:
    return leaf.pin_memory() if leaf.device.type == "cpu" else leaf


def _use_on_current_stream(data: Any, device: torch.device) -> None:
    """Keep the allocator from reusing memory that the current stream is still to read."""
    for leaf in nested.leaves(data):
        if isinstance(leaf, Tensor):
            leaf.record_stream(torch.cuda.current_stream(device))


class WithinMemory:
    """Scores chunks with a function, block by block; where one does not fit into memory, halves it and says so once.

    Args:
        score: of a block.
        block_size: how many examples of a chunk are to be scored at once.
        free: called after an attempt that did not fit.
    """

    def __init__(
        self, score: Callable[[Any], Tensor], block_size: Callable[[Any], int], free: Callable[[], None]
    ) -> None:
        self._score = score
        self._block_size = block_size
        self._free = free
        self._limit: int | None = None

    def __call__(self, data: Any) -> Tensor:
        """The scores of a chunk.

        Raises:
            MemoryError: when a single example does not fit.
        """
        num_examples = nested.count_examples(data)
        limit = self._limit
        if limit is None or num_examples <= limit:
            try:
                limit = self._block_size(data)
                if num_examples <= limit:
                    return self._score(data)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if num_examples <= 1:
                    raise MemoryError(f"one example does not fit into memory while it is scored: {error}") from error
                limit = self._halve(num_examples)
        return torch.cat([self(block) for block in cut_evenly(data, limit)])

    def _halve(self, num_examples: int) -> int:
        self._free()
        announce = self._limit is None
        self._limit = (num_examples + 1) // 2
        if announce:
            warnings.warn(
                f"scoring {num_examples} examples at once does not fit into memory: going on with "
                f"{self._limit} or fewer. Give a smaller `chunk_size` to be spared the attempt.",
                stacklevel=5,
            )
        return self._limit


def cut_evenly(data: Any, limit: int) -> Iterator[Any]:
    """Blocks of at most ``limit`` examples, as few as there can be, and none much smaller than the others."""
    num_examples = nested.count_examples(data)
    size = -(-num_examples // -(-num_examples // limit))
    return (nested.take(data, slice(k, k + size)) for k in range(0, num_examples, size))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was exhausted, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)
