"""SparseRows behaves as the dense matrix does: indexed, collated, moved, pickled and multiplied."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import dasgrad
from dasgrad import SparseRows


@st.composite
def matrices(draw, min_rows: int = 0, dtype: torch.dtype = torch.float64) -> tuple[SparseRows, torch.Tensor]:
    """Rows of any number of entries (repeated columns and none at all included), and the dense matrix."""
    num_rows, num_columns = draw(st.integers(min_rows, 6)), draw(st.integers(1, 5))
    entry = st.tuples(st.integers(0, num_columns - 1), st.integers(-8, 8))
    rows = draw(st.lists(st.lists(entry, max_size=6), min_size=num_rows, max_size=num_rows))
    dense = torch.zeros(num_rows, num_columns, dtype=dtype)
    for i, row in enumerate(rows):
        for column, value in row:
            dense[i, column] += value
    entries = [pair for row in rows for pair in row]
    indptr = np.cumsum([0, *map(len, rows)])
    values = torch.tensor([float(value) for _, value in entries], dtype=dtype)
    return SparseRows(indptr, [column for column, _ in entries], values, num_columns), dense


def example(dtype: torch.dtype = torch.float32) -> tuple[SparseRows, torch.Tensor]:
    """Four rows, the second empty and the last with a repeated column."""
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=dtype)
    dense = torch.tensor([[1, 0, 2, 0, 0], [0, 0, 0, 0, 0], [0, 3, 0, 0, 0], [0, 0, 0, 9, 6]], dtype=dtype)
    return SparseRows([0, 2, 2, 3, 6], [0, 2, 1, 3, 3, 4], values, 5), dense


def assert_same(rows: SparseRows, dense) -> None:
    dense = torch.as_tensor(np.ascontiguousarray(dense))
    assert isinstance(rows, SparseRows)
    assert rows.shape == dense.shape
    assert rows.dtype == dense.dtype
    assert torch.equal(rows.to_dense(), dense)
    if rows.dim() == 2:
        SparseRows(rows.indptr, rows.indices, rows.values, rows.num_columns)  # the parts are a matrix again


# --- indexing -----------------------------------------------------------------------------------------


@given(matrices())
def test_the_dense_matrix(pair):
    assert_same(*pair)


@given(matrices(min_rows=1), st.data())
def test_an_integer_gives_one_row(pair, data):
    rows, dense = pair
    i = data.draw(st.integers(-len(dense), len(dense) - 1))
    for index in (i, np.int64(i), np.array(i), torch.tensor(i), torch.tensor(i, dtype=torch.int8)):
        assert_same(rows[index], dense[i])
    assert rows[i].dim() == 1


slice_ends = st.none() | st.integers(-8, 8)


@given(matrices(), st.builds(slice, slice_ends, slice_ends, st.none() | st.integers(-3, 3).filter(bool)))
def test_slices_of_any_step(pair, index):
    rows, dense = pair
    assert_same(rows[index], dense.numpy()[index])  # numpy, for torch has no negative steps


@given(matrices(min_rows=1), st.data())
def test_lists_and_tensors_with_duplicates_and_negatives(pair, data):
    rows, dense = pair
    index = data.draw(st.lists(st.integers(-len(dense), len(dense) - 1), max_size=9))
    expected = dense[torch.tensor(index, dtype=torch.int64)]
    for form in (index, torch.tensor(index, dtype=torch.int64), np.array(index, dtype=np.int32)):
        assert_same(rows[form], expected)
    assert_same(rows[torch.tensor(index, dtype=torch.int8)], expected)


@given(matrices(), st.data())
def test_masks(pair, data):
    rows, dense = pair
    mask = data.draw(st.lists(st.booleans(), min_size=len(dense), max_size=len(dense)))
    expected = dense[torch.tensor(mask, dtype=torch.bool)]
    assert_same(rows[torch.tensor(mask, dtype=torch.bool)], expected)
    assert_same(rows[np.array(mask, dtype=bool)], expected)


@given(matrices(min_rows=2), st.data())
def test_indexing_twice(pair, data):
    """A view's offsets start from 0 again."""
    rows, dense = pair
    k = data.draw(st.integers(1, len(dense) - 1))
    index = data.draw(st.lists(st.integers(0, len(dense) - k - 1), max_size=5))
    assert_same(rows[k:][index], dense[k:][torch.tensor(index, dtype=torch.int64)])
    assert_same(rows[k:][-1], dense[-1])


def test_nothing_and_everything():
    rows, dense = example()
    assert_same(rows[[]], dense[:0])
    assert_same(rows[torch.tensor([], dtype=torch.int64)], dense[:0])
    assert_same(rows[9:], dense[:0])
    assert_same(rows[:], dense)
    assert [row.to_dense().tolist() for row in rows] == dense.tolist()
    assert len(rows) == 4
    assert len(rows[:0]) == 0


BAD_INDICES = {
    "too large": (4, "row 4 is out of range for `SparseRows` of 4 rows"),
    "too small": (-5, "row -5 is out of range"),
    "list": ([0, 4], "rows 0 to 4 are out of range"),
    "negative list": ([0, -5], "rows -5 to 0 are out of range"),
    "mask": (torch.tensor([True, False]), r"mask must have shape \(4,\), got \(2,\)"),
    "two dimensions": ([[0, 1]], r"integers in one dimension, got torch.int64 of \(1, 2\)"),
    "floats": ([0.0, 1.0], "integers in one dimension, got torch.float32"),
    "one float": (torch.tensor(1.0), "integers in one dimension, got torch.float32"),
    "tuple": ((0, 1), "indexed by rows alone, got a tuple"),
}


@pytest.mark.parametrize("case", BAD_INDICES)
def test_bad_indices(case):
    index, message = BAD_INDICES[case]
    with pytest.raises(IndexError, match=message):
        example()[0][index]


def test_a_single_row_is_not_indexed_further():
    with pytest.raises(IndexError, match=r"single row .* cannot be indexed further"):
        example()[0][0][0]


# --- as the input of a linear layer -------------------------------------------------------------------


def outputs_and_gradients(layer: nn.Linear, inputs, output_grads):
    layer.zero_grad()
    outputs = layer(inputs)
    outputs.backward(output_grads)
    return [outputs.detach(), *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
def test_linear_layers_and_their_gradients_equal_dense(dtype, bias, data):
    rows, dense = data.draw(matrices(dtype=dtype))
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(dense.shape[1], 3, bias=bias, dtype=dtype)
    for param in layer.parameters():
        param.data.normal_(generator=generator)
    grads = torch.randn(len(dense), 3, generator=generator, dtype=dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for ours, theirs in zip(
        outputs_and_gradients(layer, rows, grads), outputs_and_gradients(layer, dense, grads), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **tolerance)
    if len(dense):
        for ours, theirs in zip(
            outputs_and_gradients(layer, rows[-1], grads[0]),
            outputs_and_gradients(layer, dense[-1], grads[0]),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, **tolerance)


def test_linear_in_a_network_keywords_and_other_precision():
    rows, dense = example()
    network = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    torch.testing.assert_close(network(rows), network(dense))
    weight = torch.randn(3, 5, dtype=torch.float64)
    ours = nn.functional.linear(input=rows, weight=weight, bias=None)
    torch.testing.assert_close(ours, dense.double() @ weight.T)  # values follow the weight's type
    half = nn.functional.linear(rows, weight.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), dense.double() @ weight.T, rtol=0.05, atol=0.2)


def test_linear_of_another_width_is_refused():
    with pytest.raises(ValueError, match="layer of 4 inputs cannot take `SparseRows` of 5 columns"):
        nn.Linear(4, 2)(example()[0])


UNSUPPORTED = {
    "stack": lambda rows: torch.stack([rows, rows]),
    "cat": lambda rows: torch.cat([rows, rows]),
    "matmul": lambda rows: torch.matmul(rows, torch.zeros(5, 2)),
    "relu": lambda rows: nn.ReLU()(rows),
    "conv1d": lambda rows: nn.Conv1d(5, 2, 1)(rows),
    "weight": lambda rows: nn.functional.linear(torch.zeros(2, 5), rows),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_other_torch_functions_are_refused(case):
    with pytest.raises(TypeError, match="`SparseRows` is an input of linear layers alone, got"):
        UNSUPPORTED[case](example()[0])


def test_arithmetic_with_tensors_is_refused():
    rows, dense = example()
    with pytest.raises(TypeError, match="SparseRows"):
        rows + dense
    with pytest.raises(TypeError, match="SparseRows"):
        dense @ rows


# --- collating ----------------------------------------------------------------------------------------


@given(matrices(min_rows=1), st.data())
def test_default_collate_joins_rows_in_order(pair, data):
    rows, dense = pair
    order = data.draw(st.lists(st.integers(0, len(dense) - 1), min_size=1, max_size=6))
    assert_same(default_collate([rows[i] for i in order]), dense[order])
    together, labels = default_collate([(rows[i], i) for i in order])
    assert_same(together, dense[order])
    assert labels.tolist() == order


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_through_a_data_loader(num_workers):
    rows, dense = example()
    labels = torch.arange(4)
    loader = DataLoader(TensorDataset(rows, labels), batch_size=3, num_workers=num_workers)
    batches = list(loader)
    assert [len(b) for b, _ in batches] == [3, 1]
    assert_same(batches[0][0], dense[:3])
    assert_same(batches[1][0], dense[3:])
    assert torch.cat([y for _, y in batches]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "batch",
    [
        lambda rows: [rows, rows],
        lambda rows: [rows[:1], rows[:1]],
        lambda rows: [rows[0], SparseRows([0, 1], [0], [1.0], 3)[0]],
    ],
    ids=["matrices", "matrices of one row", "widths"],
)
def test_only_single_rows_of_one_length_are_collated(batch):
    with pytest.raises(ValueError, match="collated from single rows of one length, got shapes"):
        default_collate(batch(example()[0]))


# --- a tensor's manners -------------------------------------------------------------------------------


def test_shape_size_and_repr():
    rows, _ = example()
    assert rows.shape == rows.size() == torch.Size((4, 5))
    assert (rows.size(0), rows.size(1), rows.size(-1)) == (4, 5, 5)
    assert rows.dim() == 2
    assert rows[0].shape == (5,)
    assert rows.is_floating_point()
    assert rows.device.type == "cpu"
    assert repr(rows) == "SparseRows(shape=(4, 5), nnz=6, dtype=torch.float32)"
    assert repr(rows[0]) == "SparseRows(shape=(5,), nnz=2, dtype=torch.float32)"


def test_to_dtype_and_device():
    rows, dense = example()
    assert_same(rows.to(torch.float64), dense.double())
    assert_same(rows.to("cpu"), dense)
    assert_same(rows.to("cpu", torch.float64, non_blocking=True), dense.double())
    assert_same(rows.to(torch.zeros((), dtype=torch.float64)), dense.double())
    assert_same(rows[0].to(dtype=torch.float64), dense[0].double())
    meta = rows.to("meta")
    assert {meta.indptr.device.type, meta.indices.device.type, meta.values.device.type} == {"meta"}
    assert meta.shape == (4, 5)
    with pytest.raises(ValueError, match=r"`SparseRows.to\(dtype=...\)` must be a floating dtype, got torch.int32"):
        rows.to(torch.int32)


@pytest.mark.parametrize("again", [lambda rows: pickle.loads(pickle.dumps(rows)), copy.copy, copy.deepcopy])
def test_pickling_and_copying(again):
    rows, dense = example()
    assert_same(again(rows), dense)
    assert_same(again(rows[2]), dense[2])


def test_tensor_dataset():
    rows, dense = example()
    dataset = TensorDataset(rows, torch.arange(4))
    assert len(dataset) == 4
    assert_same(dataset[2][0], dense[2])
    with pytest.raises(AssertionError):
        TensorDataset(rows, torch.arange(3))


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_array", "lil_matrix"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_from_scipy(kind, dtype):
    _, dense = example()
    rows = SparseRows.from_scipy(getattr(scipy.sparse, kind)(dense.numpy()), dtype=dtype)
    assert_same(rows, dense.to(dtype))
    integers = SparseRows.from_scipy(getattr(scipy.sparse, kind)(dense.int().numpy()), dtype=dtype)
    assert_same(integers, dense.to(dtype))


def test_built_from_arrays_of_any_integer_type():
    expected = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    for kind in (np.int32, np.int64, np.uint8):
        rows = SparseRows(np.array([0, 1, 2], kind), np.array([1, 0], kind), np.array([2, 3], np.float32), np.int64(2))
        assert_same(rows, expected)
        assert rows.indices.dtype == rows.indptr.dtype == torch.int64
    assert_same(SparseRows([0], [], [], 3), torch.zeros(0, 3))
    assert_same(SparseRows([0, 0], [], [], 3), torch.zeros(1, 3))


BAD = {
    "indptr from 1": (([1, 2], [0, 0], [1.0, 1.0], 3), r"indptr=...\)` must be non-decreasing from 0, got \[1, 2\]"),
    "indptr falls": (([0, 2, 1], [0], [1.0], 3), r"indptr=...\)` must be non-decreasing from 0, got \[0, 2, 1\]"),
    "indptr empty": (([], [], [], 3), r"indptr=...\)` must be of length num_rows \+ 1, got no entries"),
    "indptr floats": (([0.0, 1.0], [0], [1.0], 3), r"indptr=...\)` must be a 1-D sequence of integers, got torch.fl"),
    "indptr 2-D": (([[0, 1]], [0], [1.0], 3), r"indptr=...\)` must be a 1-D sequence of integers, got .*\(1, 2\)"),
    "indices length": (([0, 2], [0], [1.0, 1.0], 3), r"indices=...\)` must be of length indptr\[-1\] = 2, got 1"),
    "indices floats": (([0, 1], [0.0], [1.0], 3), r"indices=...\)` must be a 1-D sequence of integers, got torch.fl"),
    "indices large": (([0, 1], [3], [1.0], 3), r"indices=...\)` must be in \[0, 3\), got 3 to 3"),
    "indices small": (([0, 1], [-1], [1.0], 3), r"indices=...\)` must be in \[0, 3\), got -1 to -1"),
    "values length": (([0, 2], [0, 1], [1.0], 3), r"values=...\)` must be of length indptr\[-1\] = 2, got 1"),
    "values integers": (([0, 1], [0], [1], 3), r"values=...\)` must be a 1-D sequence of floats, got torch.int64"),
    "values 2-D": (([0, 1], [0], [[1.0]], 3), r"values=...\)` must be a 1-D sequence of floats, got .*\(1, 1\)"),
    "no columns": (([0], [], [], 0), r"num_columns=...\)` must be a positive integer, got 0"),
    "columns float": (([0], [], [], 2.5), r"num_columns=...\)` must be a positive integer, got 2.5"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_construction(case):
    arguments, message = BAD[case]
    with pytest.raises(ValueError, match=r"`SparseRows\(" + message):
        dasgrad.SparseRows(*arguments)


def test_rows_know_whether_a_column_is_stored_twice():
    """In any order of columns, and through everything that keeps rows whole."""
    shuffled = dasgrad.SparseRows([0, 3, 3, 5], [4, 0, 2, 1, 0], torch.ones(5), 6)
    sorted_ = dasgrad.SparseRows([0, 2, 4], [1, 3, 1, 3], torch.ones(4), 6)
    twice = dasgrad.SparseRows([0, 3, 4], [4, 0, 4, 1], torch.ones(4), 6)
    assert [rows.distinct for rows in (shuffled, sorted_, twice)] == [True, True, False]
    for rows in (shuffled, twice):
        kept = (
            rows[:2],
            rows[[1, 0]],
            rows[0],
            rows.to(torch.float64),
            copy.copy(rows),
            pickle.loads(pickle.dumps(rows)),
            torch.utils.data.default_collate([rows[0], rows[1]]),
        )
        assert {each.distinct for each in kept} == {rows.distinct}
    empty = dasgrad.SparseRows([0], [], torch.ones(0), 6)
    assert empty.distinct
