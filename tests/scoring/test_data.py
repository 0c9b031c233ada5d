"""Data as people hold it, in batches and in whole data sets, in chunks of any size."""

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dasgrad
import helpers
from dasgrad.scoring import ExampleScorer, fallback, footprint, native
from dasgrad.scoring.shortcut import LinearShortcut
from scoring import problems

INPUTS, TARGETS = problems.classification(n=11)
MODEL = problems.network()
OPTIMIZER = dasgrad.DASGrad(MODEL.parameters())
SCORER = dasgrad.ExampleScorer(MODEL, problems.cross_entropy, OPTIMIZER)
EXPECTED = SCORER(INPUTS, TARGETS)

Pair = namedtuple("Pair", ["inputs", "targets"])
Triple = namedtuple("Triple", ["inputs", "targets", "note"])


class Encoding(UserDict):
    """As Hugging Face's BatchEncoding: a mapping whose entries are attributes too."""

    def __getattr__(self, name):
        try:
            return self.__dict__["data"][name]
        except KeyError as error:
            raise AttributeError(name) from error


class ReadOnly(Mapping):
    def __init__(self, entries):
        self.entries = entries

    def __getitem__(self, key):
        return self.entries[key]

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)


def by_key(model, data):
    return problems.cross_entropy(model(data["x"]), data["y"])


def by_attribute(model, data):
    return problems.cross_entropy(model(data.x), data.y)


def by_field(model, data):
    return problems.cross_entropy(model(data.inputs), data.targets)


def deep(model, data):
    return problems.cross_entropy(model(data["features"][0]), data["labels"])


FORMS = {
    "dict": (by_key, lambda x, y: {"x": x, "y": y}),
    "ordered dict": (by_key, lambda x, y: OrderedDict(x=x, y=y)),
    "encoding by key": (by_key, lambda x, y: Encoding({"x": x, "y": y})),
    "encoding by attribute": (by_attribute, lambda x, y: Encoding({"x": x, "y": y})),
    "read-only mapping": (by_key, lambda x, y: ReadOnly({"x": x, "y": y})),
    "namedtuple": (by_field, Pair),
    "namedtuple with a string": (by_field, lambda x, y: Triple(x, y, "kept")),
    "nested": (deep, lambda x, y: {"features": [x, None], "labels": y, "name": "a"}),
    "one tensor": (
        lambda model, data: problems.cross_entropy(model(data[:, :3]), data[:, 3].long()),
        lambda x, y: torch.cat([x, y[:, None].double()], 1),
    ),
}


@pytest.mark.parametrize("path", problems.PATHS)
@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_batch(form, path):
    losses, build = FORMS[form]
    scorer = dasgrad.ExampleScorer(MODEL, losses=losses, optimizer=OPTIMIZER)
    problems.force(scorer, path)
    torch.testing.assert_close(scorer(build(INPUTS, TARGETS)), EXPECTED, rtol=1e-12, atol=0)


@pytest.mark.parametrize("data", [(INPUTS, TARGETS), [INPUTS, TARGETS], Pair(INPUTS, TARGETS)], ids=["()", "[]", "nt"])
def test_pairs_may_come_as_one_or_two_arguments(data):
    assert torch.equal(SCORER(data), EXPECTED)


def test_dropped_non_tensors_and_tensors_of_other_kinds():
    """Inputs of a pair may be a structure of their own."""

    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = MODEL

        def forward(self, inputs):
            return self.inner(inputs["left"] + inputs["right"])

    model = TwoInputs()
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, OPTIMIZER)
    half = {"left": INPUTS / 2, "right": INPUTS / 2}
    torch.testing.assert_close(scorer(half, TARGETS), EXPECTED, rtol=1e-12, atol=0)


@pytest.mark.parametrize("path", problems.PATHS)
@pytest.mark.parametrize("score", ["dasgrad", "gradient", "last_layer", "loss"])
def test_batches_of_none_and_one(score, path):
    scorer = dasgrad.ExampleScorer(MODEL, problems.cross_entropy, OPTIMIZER, score=score)
    problems.force(scorer, path)
    whole = scorer(INPUTS, TARGETS)
    assert scorer(INPUTS[:0], TARGETS[:0]).shape == (0,)
    torch.testing.assert_close(scorer(INPUTS[4:5], TARGETS[4:5]), whole[4:5], rtol=1e-12, atol=0)
    assert scorer._engine.gradients.looping == (path == "loop")


def sparse(inputs):
    """The same numbers as SparseRows, zeros left out."""
    dense = torch.where(inputs.abs() < 0.3, 0.0, inputs)
    rows, columns = dense.nonzero(as_tuple=True)
    indptr = torch.zeros(len(inputs) + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(rows, minlength=len(inputs)).cumsum(0)
    return dense, dasgrad.SparseRows(indptr, columns, dense[rows, columns], inputs.shape[1])


@pytest.mark.parametrize("score", ["dasgrad", "gradient", "last_layer", "loss"])
@pytest.mark.filterwarnings("ignore:`ExampleScorer` computes per-example gradients one by one")
def test_sparse_rows_are_scored_as_the_dense_tensor(score):
    dense, rows = sparse(INPUTS)
    scorer = dasgrad.ExampleScorer(MODEL, problems.cross_entropy, OPTIMIZER, score=score)
    expected = scorer(dense, TARGETS)
    torch.testing.assert_close(scorer(rows, TARGETS), expected, rtol=1e-10, atol=1e-14)
    for dataset in ((rows, TARGETS), TensorDataset(rows, TARGETS), [(rows[i], TARGETS[i]) for i in range(11)]):
        torch.testing.assert_close(scorer.score_dataset(dataset, chunk_size=4), expected, rtol=1e-10, atol=1e-14)
    single = dasgrad.ExampleScorer(MODEL, problems.cross_entropy, OPTIMIZER, score=score, dtype="float32")
    torch.testing.assert_close(single(rows, TARGETS).double(), expected, rtol=1e-4, atol=1e-6)


def test_sparse_rows_of_another_width_are_refused():
    _, rows = sparse(INPUTS)
    wide = dasgrad.SparseRows(rows.indptr, rows.indices, rows.values, rows.num_columns + 100)
    scorer = dasgrad.ExampleScorer(MODEL, problems.cross_entropy, OPTIMIZER)
    scorer(rows, TARGETS)  # what is known of the model by now must not let the others in
    with pytest.raises(ValueError, match="cannot take `SparseRows`"):
        scorer(wide, TARGETS)


def test_sparse_rows_that_the_compiled_core_cannot_take_are_left_to_torch():
    """It reads a bias of one entry an output, and nothing goes back through it to values that a layer has made."""
    _, rows = sparse(INPUTS)
    shortcut = LinearShortcut({})
    weight, bias = torch.randn(3, rows.num_columns, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    expected = nn.functional.linear(rows, weight, bias)
    if native.supports(weight):
        torch.testing.assert_close(shortcut("weight", rows, weight, bias), expected)
    assert shortcut("weight", rows, weight, bias[:1]) is None
    assert shortcut("weight", rows[0], weight, bias) is None
    rows.values.requires_grad_()
    assert shortcut("weight", rows, weight, bias) is None


class Rows(helpers.Rows):
    """Also yields the index, as data sets of a user's own do."""

    def __getitem__(self, index):
        return {"x": self.inputs[index].tolist(), "y": int(self.targets[index])}


def collate(examples):
    return torch.tensor([e["x"] for e in examples], dtype=torch.float64), torch.tensor([e["y"] for e in examples])


DATASETS = {
    "tuple": (INPUTS, TARGETS),
    "TensorDataset": TensorDataset(INPUTS, TARGETS),
    "map-style": helpers.Rows(INPUTS, TARGETS),
    "list of examples": [(INPUTS[i], TARGETS[i]) for i in range(11)],
    "subset": torch.utils.data.Subset(TensorDataset(INPUTS, TARGETS), list(range(11))),
}


@pytest.mark.parametrize("chunk_size", [1, 3, 11, 1024])
@pytest.mark.parametrize("dataset", DATASETS)
def test_any_data_set_in_chunks_of_any_size(dataset, chunk_size):
    scores = SCORER.score_dataset(DATASETS[dataset], chunk_size)
    torch.testing.assert_close(scores, EXPECTED, rtol=1e-12, atol=0)


def test_a_mapping_of_tensors_is_a_data_set_in_memory():
    scorer = dasgrad.ExampleScorer(MODEL, losses=by_key, optimizer=OPTIMIZER)
    torch.testing.assert_close(scorer.score_dataset({"x": INPUTS, "y": TARGETS}, 4), EXPECTED, rtol=1e-12, atol=0)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_function_and_workers(num_workers):
    scores = SCORER.score_dataset(Rows(INPUTS, TARGETS), 4, collate_fn=collate, num_workers=num_workers)
    torch.testing.assert_close(scores, EXPECTED, rtol=1e-12, atol=0)


def test_collate_function_wins_over_direct_indexing():
    def doubled(examples):
        x, y = zip(*examples, strict=True)
        return 2 * torch.stack(x), torch.stack(y)

    scores = SCORER.score_dataset(TensorDataset(INPUTS, TARGETS), 4, collate_fn=doubled)
    torch.testing.assert_close(scores, SCORER(2 * INPUTS, TARGETS), rtol=1e-12, atol=0)


def test_a_subclass_of_tensor_dataset_is_asked_for_its_examples():
    class Shifted(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + 1, y

    scores = SCORER.score_dataset(Shifted(INPUTS, TARGETS), 4)
    torch.testing.assert_close(scores, SCORER(INPUTS + 1, TARGETS), rtol=1e-12, atol=0)


def test_progress_function_is_told_done_and_total():
    calls = []
    SCORER.score_dataset((INPUTS, TARGETS), 4, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(4, 11), (8, 11), (11, 11)]


def test_progress_bar_and_silence(capsys):
    SCORER.score_dataset((INPUTS, TARGETS), 4)
    assert capsys.readouterr() == ("", "")
    SCORER.score_dataset((INPUTS, TARGETS), 4, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "scoring" in captured.err
    assert "11/11" in captured.err


@pytest.mark.parametrize(("budget", "largest"), [(1, 1), (26 * 3, 3), (26 * 4 - 1, 3), (10**9, 11)])
@pytest.mark.parametrize("score", ["dasgrad", "gradient"])
def test_gradients_are_held_within_the_budget(monkeypatch, budget, largest, score):
    sizes = []
    by_vmap = fallback._by_vmap

    def spy(function, tensors, names, data):
        gradients = by_vmap(function, tensors, names, data)
        sizes.append(len(next(iter(gradients.values()))))
        return gradients

    scorer = dasgrad.ExampleScorer(MODEL, problems.cross_entropy, OPTIMIZER, score=score)
    expected = scorer(INPUTS, TARGETS)
    problems.force(scorer, "vmap")
    monkeypatch.setattr(fallback, "GRADIENT_ELEMENTS", budget)
    monkeypatch.setattr(fallback, "_by_vmap", spy)
    torch.testing.assert_close(scorer(INPUTS, TARGETS), expected, rtol=1e-12, atol=0)
    assert max(sizes) == largest
    assert sum(sizes) == 11


def spread(n, width):
    """``[n, width]`` of one stored number, for sizes that no test should have to hold."""
    return torch.zeros(1, width).expand(n, width)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ((torch.zeros(100_000, 1), torch.zeros(100_000)), 16_384),  # however small
        ({"inputs": spread(100_000, 2**12), "targets": spread(100_000, 1)}, 4_095),  # of 16 KiB each, and 4 bytes
        (TensorDataset(torch.zeros(3, 2**21)), 32),  # of 8 MiB, in memory anyway
        ((sparse(torch.ones(100, 2**15))[1], torch.zeros(100)), 170),  # as they are stored: 12 bytes a number
        ([(INPUTS[i], TARGETS[i]) for i in range(11)], 1024),  # fetched one by one
        ((torch.zeros(0, 3), torch.zeros(0)), 1024),
        ((torch.eye(3).to_sparse(), torch.zeros(3)), 1024),  # of which torch does not say how large they are
    ],
)
def test_chunks_of_tensors_in_memory_are_large_where_nobody_says_how_large(dataset, expected):
    assert SCORER.usual_chunk_size(dataset) == expected


def test_what_must_be_collated_and_functions_of_ones_own_get_small_chunks():
    dataset = (torch.zeros(100_000, 1), torch.zeros(100_000))
    assert SCORER.usual_chunk_size(dataset, lambda rows: rows) == 1024
    own = dasgrad.ExampleScorer(MODEL, problems.cross_entropy, OPTIMIZER, score=lambda model, data: data[1])
    assert own.usual_chunk_size(dataset) == 1024


def test_a_data_set_is_scored_in_its_usual_chunks(monkeypatch):
    sizes, scores = [], ExampleScorer._chunk_scores

    def note(self):
        score = scores(self)
        return lambda data: sizes.append(len(data[1])) or score(data)

    monkeypatch.setattr(ExampleScorer, "_chunk_scores", note)
    monkeypatch.setattr(footprint, "MOST", 32)
    monkeypatch.setattr(footprint, "FEWEST", 4)
    inputs, targets = problems.classification(n=70)
    SCORER.score_dataset((inputs, targets))
    dasgrad.AdaptiveLoader((inputs, targets), 2, scorer=SCORER).refresh()
    assert sizes == [32, 32, 6] * 2
