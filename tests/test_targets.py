"""Target distributions: exact shares, and errors that name argument, range and value."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dasgrad import targets

LABELS = [0, 0, 0, 1, 2, 2]


def shares_of(target: torch.Tensor, labels) -> list[float]:
    labels = torch.as_tensor(labels)
    return [float(target[labels == label].sum()) for label in range(int(labels.max()) + 1)]


@pytest.mark.parametrize("n", [1, 3, 1000])
def test_uniform(n):
    target = targets.uniform(n)
    assert target.dtype == torch.float64
    assert target.shape == (n,)
    assert (target == 1 / n).all()


@pytest.mark.parametrize("function", [targets.from_label_frequencies, targets.from_task_mixture])
@pytest.mark.parametrize(
    "shares",
    [
        [0.2, 0.3, 0.5],
        (0.2, 0.3, 0.5),
        torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64),
        np.array([0.2, 0.3, 0.5]),
        {2: 0.5, 0: 0.2, 1: 0.3},
        {np.int64(0): 0.2, 1: 0.3, 2: 0.5, 9: 0.0},
        [0.2, 0.3, 0.5, 0.0],
    ],
    ids=["list", "tuple", "tensor", "array", "mapping", "numpy keys", "an absent class of share 0"],
)
@pytest.mark.parametrize("labels", [LABELS, torch.tensor(LABELS, dtype=torch.int32), np.array(LABELS)])
def test_reweighting_gives_the_target_mix_exactly(function, shares, labels):
    target = function(labels, shares)
    assert target.dtype == torch.float64
    assert shares_of(target, labels) == pytest.approx([0.2, 0.3, 0.5], rel=1e-15)
    assert float(target.sum()) == pytest.approx(1, abs=1e-15)
    assert target[0] == target[1] == target[2]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.data())
def test_any_mix_of_the_classes_that_are_there(labels, data):
    present = sorted(set(labels))
    raw = data.draw(st.lists(st.integers(0, 1000), min_size=len(present), max_size=len(present)).filter(any))
    shares = {label: count / sum(raw) for label, count in zip(present, raw, strict=True)}
    target = targets.from_label_frequencies(labels, shares)
    for label, share in shares.items():
        assert float(target[torch.tensor(labels) == label].sum()) == pytest.approx(share, rel=1e-12)
    targets.check_simplex(target, "target")


def test_the_weighted_mean_over_the_training_set_is_the_mean_over_the_test_set():
    """Enumerated: a quantity that depends on the label alone has the test set's mean under π."""
    train, test = torch.tensor([0] * 90 + [1] * 10), torch.tensor([0] * 5 + [1] * 15)
    counts = torch.bincount(test)
    target = targets.from_label_frequencies(train, counts / counts.sum())
    value = torch.tensor([3.0, -7.0], dtype=torch.float64)
    assert float(target @ value[train]) == pytest.approx(float(value[test].mean()), rel=1e-7)


def test_classes_without_a_share_are_never_drawn():
    assert targets.from_label_frequencies([-100, 0, 1, 5], [0.5, 0.5]).tolist() == [0.0, 0.5, 0.5, 0.0]


def test_float32_frequencies_are_accepted_and_made_exact():
    frequencies = torch.tensor([0.1, 0.2, 0.7])
    assert float(frequencies.double().sum()) != 1.0
    assert float(targets.from_label_frequencies(LABELS, frequencies).sum()) == pytest.approx(1, abs=1e-12)


def test_many_classes_take_no_quadratic_time():
    labels = torch.arange(100_000)
    target = targets.from_label_frequencies(labels, targets.uniform(100_000))
    torch.testing.assert_close(target, targets.uniform(100_000), rtol=1e-12, atol=0)


BOTH = {"from_label_frequencies": ("labels", "frequencies"), "from_task_mixture": ("tasks", "mixture")}
BAD_SHARES = {
    "sum below 1": ([0.2, 0.3, 0.4], "must sum to 1, got 0.9"),
    "counts": ([2, 3, 5], "must sum to 1, got 10.0"),
    "negative": ([0.7, 0.5, -0.2], "must be finite and non-negative, got -0.2 at index 2"),
    "nan": ([0.5, float("nan"), 0.5], "must be finite and non-negative, got nan at index 1"),
    "infinite": ([float("inf"), 0.0, 0.0], "must be finite and non-negative, got inf at index 0"),
    "absent": ([0.2, 0.3, 0.4, 0.1], "got 0.1 for"),
    "absent key": ({0: 0.5, 7: 0.5}, "got 0.5 for"),
    "two dimensions": ([[0.5, 0.5]], r"must be 1-D, got shape \(1, 2\)"),
    "a number": (1.0, r"must be 1-D, got shape \(\)"),
    "nothing": ({}, "must sum to 1, got 0.0"),
    "keys of text": ({"cat": 1.0}, r"must have integer keys, got \['cat'\]"),
    "keys between": ({0.5: 0.5, 0: 0.5}, r"must have integer keys, got \[0.5, 0\]"),
}


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("case", BAD_SHARES)
def test_bad_shares(function, case):
    shares, message = BAD_SHARES[case]
    with pytest.raises(ValueError, match=message) as error:
        getattr(targets, function)(LABELS, shares)
    assert str(error.value).startswith(f"`{function}({BOTH[function][1]}=...)`")


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize(
    ("keys", "got"),
    [
        ([], r"torch.float32 of shape \(0,\)"),
        ([[0, 1]], r"torch.int64 of shape \(1, 2\)"),
        ([0.0, 1.0], r"torch.float32 of shape \(2,\)"),
        (3, r"torch.int64 of shape \(\)"),
    ],
)
def test_bad_keys(function, keys, got):
    with pytest.raises(ValueError, match="must be a non-empty 1-D sequence of integers, got " + got) as error:
        getattr(targets, function)(keys, [0.5, 0.5])
    assert str(error.value).startswith(f"`{function}({BOTH[function][0]}=...)`")


@pytest.mark.parametrize("n", [0, -1, 2.5, "3", None])
def test_bad_uniform(n):
    with pytest.raises(ValueError, match=r"`uniform\(num_examples=\.\.\.\)` must be a positive integer, got"):
        targets.uniform(n)


def test_check_simplex_is_tight_by_default():
    targets.check_simplex(targets.uniform(7), "t")
    with pytest.raises(ValueError, match="`t` must sum to 1"):
        targets.check_simplex(targets.uniform(7) * (1 + 1e-8), "t")
