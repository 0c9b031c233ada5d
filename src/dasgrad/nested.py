"""Batches as people write them: tensors inside tuples, lists and mappings, to any depth.

A leaf is whatever torch functions accept as an argument: a tensor, or an object such as `SparseRows` that
implements ``__torch_function__``. Everything else (strings, numbers, None) is carried along unchanged.
"""

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


def is_leaf(value: object) -> bool:
    """Whether a value is a tensor or acts as one for torch functions."""
    return isinstance(value, Tensor) or hasattr(type(value), "__torch_function__")


def map_leaves(function: Callable[[Any], Any], data: Any) -> Any:
    """The same structure with ``function`` applied to every leaf."""
    if is_leaf(data):
        return function(data)
    if isinstance(data, Mapping):
        return _like(data, {key: map_leaves(function, value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_leaves(function, value) for value in data))
    if isinstance(data, tuple | list):
        return type(data)(map_leaves(function, value) for value in data)
    return data


def _like(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """The values in a mapping of the same type, its other attributes kept, where that type allows it."""
    if type(mapping) is dict or not isinstance(mapping, MutableMapping):
        return values
    clone = copy.copy(mapping)
    clone.update(values)
    return clone


def leaves(data: Any) -> list[Any]:
    """All leaves, in the order in which `map_leaves` meets them."""
    if type(data) is tuple:  # most data are a pair of tensors, which is told at once
        for value in data:
            if type(value) is not Tensor:
                break
        else:
            return list(data)
    found: list[Any] = []
    _gather(data, found)
    return found


def _gather(data: Any, found: list[Any]) -> None:
    if is_leaf(data):
        found.append(data)
    elif isinstance(data, tuple | list):
        for value in data:
            _gather(value, found)
    elif isinstance(data, Mapping):
        for value in data.values():
            _gather(value, found)


def replace_leaves(data: Any, values: list[Any]) -> Any:
    """The same structure with other leaves, given in the order of `leaves`."""
    remaining = iter(values)
    return map_leaves(lambda _: next(remaining), data)


def move(data: Any, device: torch.device | str, non_blocking: bool = False) -> Any:
    """The same structure on a device."""
    return map_leaves(lambda leaf: leaf.to(device, non_blocking=non_blocking), data)


def count_examples(data: Any) -> int:
    """The batch size: the length of the first dimension, which all leaves must share.

    Raises:
        ValueError: when there is no tensor, or lengths differ.
    """
    return count_rows([leaf.shape for leaf in leaves(data)], data)


def count_rows(shapes: list[Any], data: Any) -> int:
    """`count_examples` for the shapes of leaves that were found already."""
    if not shapes or not all(shapes):
        raise ValueError(
            f"`data` must hold tensors with examples along their first dimension, got shapes {_plain(shapes)} in "
            f"{type(data).__name__}."
        )
    number = shapes[0][0]
    for shape in shapes:
        if shape[0] != number:
            raise ValueError(
                f"`data` must hold the same number of examples in every tensor, got shapes {_plain(shapes)}."
            )
    return int(number)


def _plain(shapes: list[Any]) -> list[tuple[int, ...]]:
    return [tuple(shape) for shape in shapes]


def take(data: Any, rows: Any) -> Any:
    """The same structure with each leaf indexed along its first dimension."""
    return map_leaves(lambda leaf: leaf[rows], data)


def take_rows(data: Any, rows: Tensor) -> Any:
    """`take` for a vector of row numbers, the way each leaf is read fastest; for data as of `columns_of`."""
    if type(data) is tuple:
        return tuple([_rows_of(leaf, rows) for leaf in data])
    return map_leaves(lambda leaf: _rows_of(leaf, rows), data)


def _rows_of(leaf: Any, rows: Tensor) -> Any:
    # Whole rows are copied at half the cost of general indexing, but always to a contiguous result: where the rows
    # are laid out otherwise (channels last), indexing keeps their strides.
    if type(leaf) is Tensor and leaf.is_cpu and leaf.is_contiguous():
        return leaf.index_select(0, rows)
    return leaf[rows]


def columns_of(dataset: Any) -> Any | None:
    """The tensors of a data set held in memory, to be indexed directly; None for any other data set.

    In memory are: a ``TensorDataset`` (not a subclass, which may change what it returns), a tensor or
    `SparseRows`, and a tuple or mapping of them. A list is a sequence of examples.
    """
    if type(dataset) is TensorDataset:
        return tuple(dataset.tensors)
    if is_leaf(dataset):
        return dataset
    if isinstance(dataset, tuple | Mapping) and dataset:
        values = dataset.values() if isinstance(dataset, Mapping) else dataset
        if all(is_leaf(value) for value in values):
            return dataset
    return None
