"""From indices to examples and from examples to a batch, for data sets that are not tensors in memory."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info

from dasgrad import nested
from dasgrad.training import generators


class SeededBatch(list[int]):
    """The indices of a batch on their way to a worker, with what its generators are to be seeded with."""

    def __init__(self, indices: Iterable[int] = (), entropy: tuple[int, ...] = ()) -> None:
        super().__init__(indices)
        self.entropy = entropy


class SeededFetches(Dataset[Any]):
    """A data set that seeds the generators of a worker before each batch, for the ``collate_fn`` as well.

    A worker's generators cannot be saved, for they run ahead of the batches handed out. Without workers the
    data set uses the generators of the run itself, which are left alone.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, batch: SeededBatch) -> list[Any]:
        if get_worker_info() is not None:
            generators.seed_all(*batch.entropy)
        return self.fetch(list(batch))

    def fetch(self, indices: list[int]) -> list[Any]:
        """The examples of a batch, as a ``DataLoader`` would ask for them.

        Raises:
            ValueError: when a data set's own ``__getitems__`` returns another number of examples: their weights would
                go astray.
        """
        dataset = self._dataset
        if not hasattr(dataset, "__getitems__"):
            examples = []
            for index in indices:
                try:
                    examples.append(dataset[index])
                except Exception as error:
                    error.add_note(f"AdaptiveLoader: this was example {index}.")
                    raise
            return examples
        examples = list(dataset.__getitems__(indices))
        if len(examples) != len(indices):
            raise ValueError(
                f"`{type(dataset).__name__}.__getitems__` must return one example per index, {len(indices)}, "
                f"got {len(examples)}."
            )
        return examples


class _Asked(Sampler[list[int]]):
    """A function that returns batches as a batch sampler."""

    def __init__(self, batches: Callable[[], Iterator[SeededBatch]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches()


class Fetcher:
    """The data of batches, by a ``DataLoader``.

    Args:
        dataset: map-style.
        batches: returns the batches of a pass, or of what is left of it.
        collate_fn: None is torch's.
        options: of ``DataLoader``.
    """

    def __init__(
        self,
        dataset: Any,
        batches: Callable[[], Iterator[SeededBatch]],
        collate_fn: Callable[[list[Any]], Any] | None,
        **options: Any,
    ) -> None:
        self._batches, self._fetches = batches, SeededFetches(dataset)
        self._collate = collate_fn or collate
        self._seeds = torch.Generator()
        collate_fn, stream = collate_fn or default_collate, _Asked(batches)
        options |= {"batch_sampler": stream, "collate_fn": collate_fn, "generator": self._seeds}
        self._make: Callable[[], DataLoader[Any]] = partial(DataLoader, self._fetches, **options)
        self._loader = self._make()
        self._workers: list[BaseProcess] = []

    @property
    def num_workers(self) -> int:
        """0 where this process fetches."""
        return self._loader.num_workers

    def start(self, seed: int) -> Iterator[Any]:
        """The data of one batch after the other; workers start from a seed."""
        if self._loader.num_workers == 0 and not self._loader.pin_memory:  # without the overhead of what is not needed
            return (self._collate(self._fetches.fetch(list(batch))) for batch in self._batches())
        self._seeds.manual_seed(seed)
        source = iter(self._loader)
        self._workers = list(getattr(source, "_workers", ()))  # torch says of a dead one anywhere, and only once
        return source

    @property
    def has_lost_workers(self) -> bool:
        """Whether one of the workers last started has died."""
        return any(worker.exitcode for worker in self._workers)

    def renew(self) -> None:
        """Have the next start make workers, for persistent ones may be dead."""
        self._loader, self._workers = self._make(), []


class Rows:
    """Tensors in memory as a map-style data set of their rows."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return nested.count_examples(self._columns)

    def __getitem__(self, index: int) -> Any:
        return nested.take(self._columns, index)


def collate(examples: list[Any]) -> Any:
    """What ``default_collate`` returns, at less cost where examples are tuples of plain tensors.

    Not for workers, where torch collates into memory that it shares.
    """
    if type(examples[0]) is not tuple:
        return default_collate(examples)
    columns: Any
    try:
        columns = list(zip(*examples, strict=True))
    except ValueError:  # of different lengths, which torch reports
        return default_collate(examples)
    return [torch.stack(column) if _is_plain(column[0]) else default_collate(column) for column in columns]


def take_examples(
    dataset: Any, collate_fn: Callable[[list[Any]], Any] | None, indices: Tensor, device: torch.device
) -> Any:
    """Some examples of any data set, collated, on a device."""
    columns = nested.columns_of(dataset)
    if columns is None:
        data = (collate_fn or default_collate)([dataset[i] for i in indices.tolist()])
    else:
        data = nested.take_rows(columns, indices.to(nested.leaves(columns)[0].device))
    return nested.move(data, device)


def _is_plain(value: Any) -> bool:
    return type(value) is Tensor and value.layout is torch.strided and not value.is_nested
