"""Structures of tensors: the same structure out as in, to any depth."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import dasgrad
from dasgrad import nested

Pair = namedtuple("Pair", ["left", "right"])


def structures(num_rows: int):
    leaf = st.integers(0, 99).map(lambda k: torch.full((num_rows, 2), k))
    other = st.sampled_from([None, "text", 3, 2.5])
    return st.recursive(
        leaf | other,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.builds(Pair, inner, inner)
            | st.dictionaries(st.sampled_from("abc"), inner)
            | st.dictionaries(st.sampled_from("abc"), inner).map(OrderedDict)
        ),
        max_leaves=8,
    )


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(structures(4))
def test_mapping_keeps_the_structure_and_replacing_undoes_it(data):
    assert same(nested.map_leaves(lambda leaf: leaf, data), data)
    shifted = nested.map_leaves(lambda leaf: leaf + 1, data)
    assert [int(leaf[0, 0]) for leaf in nested.leaves(shifted)] == [int(leaf[0, 0]) + 1 for leaf in nested.leaves(data)]
    assert same(nested.replace_leaves(shifted, nested.leaves(data)), data)


@given(structures(4))
def test_take_indexes_every_leaf(data):
    taken = nested.take(data, torch.tensor([2, 0]))
    assert all(leaf.shape == (2, 2) for leaf in nested.leaves(taken))
    if nested.leaves(data):
        assert nested.count_examples(data) == 4
        assert nested.count_examples(taken) == 2


class Encoding(UserDict):
    """A mapping with attributes of its own."""


def test_mappings_keep_their_type_and_the_original_is_not_touched():
    original = Encoding({"x": torch.zeros(2)})
    original.note = "kept"
    changed = nested.map_leaves(lambda leaf: leaf + 1, original)
    assert type(changed) is Encoding
    assert changed.note == "kept"
    assert changed["x"].tolist() == [1, 1]
    assert original["x"].tolist() == [0, 0]
    grouped = defaultdict(list, {"x": torch.zeros(2)})
    assert type(nested.map_leaves(lambda leaf: leaf, grouped)) is defaultdict


def test_move_reaches_every_leaf():
    rows = dasgrad.SparseRows([0, 1], [0], [1.0], 2)
    moved = nested.move({"a": (torch.zeros(1), rows), "b": "text"}, "meta")
    assert [leaf.device.type for leaf in nested.leaves(moved)] == ["meta", "meta"]
    assert moved["b"] == "text"


def test_sparse_rows_are_leaves():
    rows = dasgrad.SparseRows([0, 1, 1], [0], [1.0], 2)
    assert nested.is_leaf(rows)
    assert nested.leaves([rows]) == [rows]
    assert nested.count_examples((rows, torch.zeros(2))) == 2
    assert not nested.is_leaf([1])
    assert not nested.is_leaf("text")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((), "must hold tensors .* in tuple"),
        ("text", "must hold tensors .* in str"),
        ((torch.zeros(3), torch.tensor(1.0)), r"along their first dimension, got shapes \[\(3,\), \(\)\]"),
        (
            (torch.zeros(3), torch.zeros(2, 3)),
            r"same number of examples in every tensor, got shapes \[\(3,\), \(2, 3\)",
        ),
    ],
)
def test_counting_examples_of_what_has_none(data, message):
    with pytest.raises(ValueError, match=message):
        nested.count_examples(data)


X, Y = torch.zeros(3, 2), torch.zeros(3)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (X, X),
        ((X, Y), (X, Y)),
        ({"x": X}, {"x": X}),
        (TensorDataset(X, Y), (X, Y)),
        ([X, Y], None),  # a list is a sequence of examples
        ((), None),
        ({}, None),
        ((X, "text"), None),
        (type("Augmented", (TensorDataset,), {})(X, Y), None),
        (range(3), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_which_data_sets_are_in_memory(dataset, expected):
    assert same(nested.columns_of(dataset), expected)


ROWS = torch.tensor([2, 0, 2])
IMAGES = torch.arange(72.0).reshape(3, 2, 3, 4)


@pytest.mark.parametrize(
    "data",
    [
        X,
        (IMAGES, Y),
        (IMAGES.to(memory_format=torch.channels_last), torch.tensor([True, False, True])),
        {"wide": torch.arange(6.0).reshape(2, 3).t(), "expanded": torch.ones(3, 1).expand(3, 4)},
        namedtuple("Pair", "x y")(X.to(torch.bfloat16), torch.arange(6, dtype=torch.uint8).reshape(3, 2)),
        (dasgrad.SparseRows(torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0]), torch.ones(2), 2).to_dense(), Y),
        (torch.nn.Parameter(X), Y),
    ],
)
def test_rows_are_those_of_indexing_and_lie_in_memory_as_they_do(data):
    expected = nested.take(data, ROWS)
    taken = nested.take_rows(data, ROWS)
    assert same(taken, expected)
    for ours, theirs in zip(nested.leaves(taken), nested.leaves(expected), strict=True):
        assert ours.stride() == theirs.stride()
        assert ours.requires_grad == theirs.requires_grad


def test_rows_of_sparse_examples():
    data = (dasgrad.SparseRows(torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0]), torch.ones(2), 2), Y)
    assert torch.equal(nested.take_rows(data, ROWS)[0].to_dense(), data[0].to_dense()[ROWS])
