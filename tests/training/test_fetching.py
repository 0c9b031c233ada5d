"""Examples are fetched and collated as torch's ``DataLoader`` does it."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import dasgrad
import helpers
from dasgrad.training.fetching import collate

Pair = namedtuple("Pair", "x y")
X = torch.arange(3.0)
EXAMPLES = {
    "tensors": [(X, torch.tensor(1)), (X + 1, torch.tensor(2))],
    "other things": [(X, 1, 2.5, True, "a", "b", np.float32(3)), (X, 2, 3.5, False, "c", "d", np.float32(4))],
    "arrays": [(np.zeros(2), X), (np.ones(2), X)],
    "nested": [((X, {"a": X}), [1, X]), ((X, {"a": X}), [2, X])],
    "lists": [[X, 1], [X, 2]],
    "named tuples": [Pair(X, 1), Pair(X, 2)],
    "mappings": [{"x": X, "y": 1}, {"x": X, "y": 2}],
    "one tensor each": [X, X + 1],
    "parameters": [(torch.nn.Parameter(X),), (torch.nn.Parameter(X),)],
    "one example": [(X, 1)],
}


def same(ours, theirs):
    if isinstance(theirs, torch.Tensor):
        return type(ours) is type(theirs) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return type(ours) is type(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    return ours == theirs


@pytest.mark.parametrize("examples", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_the_quick_way_to_collate_is_the_default(examples):
    assert same(collate(examples), default_collate(examples))


BAD_EXAMPLES = {
    "lengths": [(X, X), (X,)],
    "shapes": [(X,), (X[:2],)],
    "sparse": [(X.to_sparse(),), (X.to_sparse(),)],
    "kinds": [(X,), ("text",)],
    "unknown": [(object(),), (object(),)],
}


@pytest.mark.parametrize("examples", BAD_EXAMPLES.values(), ids=BAD_EXAMPLES.keys())
def test_its_errors_are_those_of_the_default(examples):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 (whatever torch raises)
        default_collate(examples)
    with pytest.raises(theirs.type) as ours:
        collate(examples)
    assert str(ours.value) == str(theirs.value)


class Batched(helpers.Rows):
    """Reads a whole batch at once, from plain integers in a plain list."""

    def __getitem__(self, index):
        raise AssertionError("the batch is to be read at once")

    def __getitems__(self, indices):
        assert type(indices) is list
        assert all(type(index) is int for index in indices)
        return list(zip(self.inputs[indices], self.targets[indices], strict=True))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [Batched, helpers.Rows])
def test_data_sets_that_read_a_batch_at_once(kind, num_workers):
    inputs, targets, _ = helpers.regression(20)
    loader = dasgrad.AdaptiveLoader(kind(inputs, targets), 6, num_workers=num_workers)
    loader.sampler.refresh(torch.arange(20.0))
    expected = dasgrad.AdaptiveLoader((inputs, targets), 6)
    expected.sampler.refresh(torch.arange(20.0))
    for ours, theirs in zip(loader, expected, strict=True):
        for name in ("inputs", "targets", "indices", "weights"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))


class Unique(helpers.Rows):
    """Reads an example that was drawn twice only once."""

    def __getitems__(self, indices):
        return self.inputs[sorted(set(indices))]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_that_misses_examples_is_refused(num_workers):
    inputs, targets, _ = helpers.regression(4)
    loader = dasgrad.AdaptiveLoader(Unique(inputs, targets), 4, num_workers=num_workers)
    assert torch.equal(next(iter(loader)).data.sort(0).values, inputs.sort(0).values)
    loader.sampler.refresh([0.0, 0.0, 0.0, 1.0])
    with pytest.raises(ValueError, match=r"`Unique.__getitems__` must return one example per index, 4, got [123]\."):
        list(loader)


def mark(worker_id):
    Marked.worker = worker_id


class Marked(helpers.Rows):
    worker = -1

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index], Marked.worker


@pytest.mark.parametrize("persistent", [False, True])
def test_draws_meet_their_examples_again_after_passes_that_were_left(persistent):
    inputs, targets, _ = helpers.regression(40)
    loader = dasgrad.AdaptiveLoader(
        Marked(inputs, targets), 4, num_workers=2, persistent_workers=persistent, worker_init_fn=mark
    )
    for number in range(4):
        loader.sampler.refresh(torch.arange(40.0) + number)
        weights = loader.sampler.weights
        for position, batch in enumerate(loader):
            assert torch.equal(batch.data[0], inputs[batch.indices])
            torch.testing.assert_close(batch.weights, weights[batch.indices], rtol=1e-12, atol=0)
            assert set(batch.data[2].tolist()) <= {0, 1}
            if number != 3 and position == number:
                break
    assert position == len(loader) - 1
