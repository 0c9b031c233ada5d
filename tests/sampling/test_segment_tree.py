import copy
import math
import pickle
import random
import sys
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate, chain

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dasgrad.sampling.segment_tree import SegmentTree

pytestmark = pytest.mark.usefixtures("core")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none")
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])

SIZES = sorted({1, 2, 3} | {2**k + d for k in (2, 3, 5, 8, 10) for d in (-1, 0, 1)})
NAN, INF, LARGEST, TINIEST = math.nan, math.inf, sys.float_info.max, 5e-324


def generator(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def nodes(tree):
    """All nodes, level after level: the layout that other cores share."""
    return torch.cat(tree._levels)


def snapshot(tree):
    return nodes(tree).clone(), tree.total, repr(tree)


def assert_same_tree(before, after):
    assert torch.equal(before[0].cpu(), after[0].cpu())
    assert torch.equal(before[1].cpu(), after[1].cpu())
    assert before[2] == after[2]


def exact_find(masses, prefix):
    """The contract, in Python's integers: the smallest index whose cumulative mass exceeds `prefix`."""
    cumulative = list(accumulate(masses))
    if prefix == cumulative[-1]:
        return max(i for i, mass in enumerate(masses) if mass > 0)
    return bisect_right(cumulative, prefix)


def slow_levels(masses):
    """The layout, in Python's floats."""
    levels = [list(masses)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        below += [0.0] * (len(below) % 2)
        levels.append([below[2 * j] + below[2 * j + 1] for j in range(len(below) // 2)])
    return levels


def slow_find(levels, prefix):
    """The descent, in Python's floats, to be matched bit by bit."""
    j = 0
    for level in reversed(levels[:-1]):
        left, right = level[2 * j], level[2 * j + 1]
        go_right = prefix >= left and right > 0
        prefix -= left * go_right
        j = 2 * j + go_right
    return j


integer_masses = st.lists(st.integers(0, 9), min_size=1, max_size=70).filter(any)
# Sums of up to 70 of these stay below 2**53, so float64 is exact and float32 far from it.
large_integer_masses = st.lists(
    st.one_of(st.just(0), st.integers(0, 2**46), st.integers(2**24, 2**25)), min_size=1, max_size=70
).filter(any)
wild_mass = st.one_of(
    st.just(0.0),
    st.sampled_from([TINIEST, 3 * TINIEST, 1e-308, 1e-300, 1e-16, 1.0, 1e16, 1e300]),
    st.floats(0.0, 1e300, allow_subnormal=True),
    st.floats(0.0, 1.0),
)
wild_masses = st.lists(wild_mass, min_size=1, max_size=40).filter(any)


# -- find, exactly -------------------------------------------------------------------------------------------


@given(integer_masses)
@example([1])
@example([0, 0, 3])
@example([3, 0, 0])
def test_find_at_every_integer_and_half(masses):
    tree = SegmentTree(masses)
    prefixes = [k / 2 for k in range(2 * sum(masses) + 1)]
    assert tree.find(prefixes).tolist() == [exact_find(masses, prefix) for prefix in prefixes]
    assert tree.total.item() == sum(masses)


@given(large_integer_masses, st.data())
def test_find_in_large_integer_masses(masses, data):
    tree = SegmentTree(masses)
    boundaries = [b for b in accumulate(masses) for b in (b - 1, b, b + 1) if 0 <= b <= sum(masses)]
    prefixes = boundaries + data.draw(st.lists(st.integers(0, sum(masses)), max_size=20))
    found = tree.find(torch.tensor(prefixes, dtype=torch.float64))
    assert found.tolist() == [exact_find(masses, prefix) for prefix in prefixes]


@given(integer_masses, st.data())
def test_sequences_of_updates_and_rebuilds(masses, data):
    n = len(masses)
    mass = st.one_of(st.just(0), st.integers(0, 2**45))
    tree, oracle = SegmentTree(masses), list(masses)
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.integers(0, 4)) == 0:
            oracle = data.draw(st.lists(mass, min_size=n, max_size=n))
            tree.rebuild(oracle)
        else:
            changes = data.draw(st.lists(st.tuples(st.integers(0, n - 1), mass), max_size=2 * n))
            tree.update([i for i, _ in changes], [m for _, m in changes])
            for i, m in changes:
                oracle[i] = m
        assert tree.masses.tolist() == oracle
        assert tree.total.item() == sum(oracle)
        if any(oracle):
            prefixes = [*accumulate(oracle), 0, *data.draw(st.lists(st.integers(0, sum(oracle)), max_size=5))]
            found = tree.find(np.array(prefixes, dtype=np.int64))
            assert found.tolist() == [exact_find(oracle, prefix) for prefix in prefixes]
        else:
            with pytest.raises(ValueError, match="zeros only"):
                tree.find(0.0)


@on_each_device
@pytest.mark.parametrize("size", [*SIZES, 10**6])
def test_every_leaf_of_every_size(size, device):
    masses = torch.randint(0, 1000, (size,), generator=generator(size)) * (
        torch.rand(size, generator=generator(size + 1)) < 0.7
    )
    masses[size // 2] = 7
    tree = SegmentTree(masses, device=device)
    ends = masses.cumsum(0)
    starts = ends - masses
    drawable = masses.nonzero().flatten()
    assert tree.total.item() == ends[-1].item()
    for prefix in (starts, starts.double() + 0.5, ends - 1):
        assert torch.equal(tree.find(prefix[drawable].to(device)).cpu(), drawable)
    assert tree.find(ends[-1]).item() == drawable[-1].item()


@given(wild_masses, st.lists(st.floats(0.0, 1.0), max_size=20))
def test_find_matches_the_slow_descent_bit_for_bit(masses, fractions):
    tree = SegmentTree(masses)
    levels = slow_levels(masses)
    assert nodes(tree).tolist() == list(chain.from_iterable(levels))
    total = levels[-1][0]
    prefixes = [f * total for f in fractions] + [total, math.nextafter(total, 0.0), 0.0]
    assert tree.find(prefixes).tolist() == [slow_find(levels, prefix) for prefix in prefixes]


@given(wild_masses, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_find_is_the_exact_answer_up_to_rounding(masses, fractions):
    tree = SegmentTree(masses)
    total = tree.total.item()
    ends = [Fraction(0), *accumulate(map(Fraction, masses))]
    slack = ends[-1] * 2 * len(masses) / 2**53 + Fraction(TINIEST)
    for fraction in fractions:
        i = tree.find(fraction * total).item()
        assert ends[i] - slack <= Fraction(fraction * total) <= ends[i + 1] + slack


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3), (1, 1, 1)])
def test_find_keeps_the_shape_and_its_argument(shape):
    tree = SegmentTree([1.0, 2.0, 3.0])
    prefix = torch.rand(shape, dtype=torch.float64, generator=generator()) * 6
    before = prefix.clone()
    found = tree.find(prefix)
    assert found.shape == shape
    assert found.dtype == torch.int64
    assert torch.equal(prefix, before)
    assert torch.equal(tree.find(prefix.mT if prefix.ndim == 2 else prefix), found.mT if prefix.ndim == 2 else found)


@pytest.mark.parametrize("prefix", [2, 2.5, np.float32(2.5), np.int64(2), torch.tensor(2), torch.tensor(2.5).half()])
def test_find_takes_any_real_number(prefix):
    assert SegmentTree([1, 1, 1]).find(prefix).item() == 2


# -- layout --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("masses", "expected"),
    [
        ([3.0], [3.0]),
        ([1.0, 2.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0, 0.0, 3.0, 4.0, 7.0]),
        ([1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 2.0, 4.0, 8.0, 16.0, 0.0, 3.0, 12.0, 16.0, 0.0, 15.0, 16.0, 31.0]),
    ],
)
def test_layout(masses, expected):
    tree = SegmentTree(masses)
    assert nodes(tree).tolist() == expected
    assert len({level.untyped_storage().data_ptr() for level in tree._levels}) == 1  # one buffer


@pytest.mark.parametrize("size", [*SIZES, 10**6])
def test_sixteen_bytes_a_leaf(size):
    tree = SegmentTree(torch.ones(size))
    num_bytes = tree._levels[0].untyped_storage().nbytes()
    assert num_bytes <= 16 * (size + math.ceil(math.log2(size + 1)) + 1)


# -- sample --------------------------------------------------------------------------------------------------

PROFILES = {
    "one": lambda g: torch.ones(1),
    "equal": lambda g: torch.full((1000,), 0.1),
    "uniform": lambda g: torch.rand(4097, generator=g, dtype=torch.float64),
    "zipf": lambda g: 1 / torch.arange(1, 20_001, dtype=torch.float64),
    "increasing": lambda g: torch.arange(3000),
    "one heavy": lambda g: torch.cat([torch.full((499,), 1e-3), torch.tensor([1.0]), torch.full((523,), 1e-3)]),
    "mostly zero": lambda g: torch.rand(5000, generator=g) * (torch.rand(5000, generator=g) < 0.03),
    "heavy tail": lambda g: torch.randn(10_000, generator=g, dtype=torch.float64).mul(3).exp(),
    "subnormal total": lambda g: torch.full((1023,), 1e-310, dtype=torch.float64),
    "huge": lambda g: torch.rand(1023, generator=g, dtype=torch.float64) * 1e305,
}


def pooled(observed, expected, least=5.0):
    """Join the rarest bins, in order of what they expect, until each expects at least `least` draws."""
    order = np.argsort(expected, kind="stable")
    starts, inside = [0], 0.0
    for position, value in enumerate(expected[order].tolist()):
        if inside >= least:
            starts.append(position)
            inside = 0.0
        inside += value
    if inside < least and len(starts) > 1:
        starts.pop()
    return tuple(np.add.reduceat(counts[order], starts) for counts in (observed, expected))


@on_each_device
@pytest.mark.parametrize("profile", PROFILES)
def test_draws_follow_the_masses(profile, device):
    num = 10**6
    masses = PROFILES[profile](generator(1))
    tree = SegmentTree(masses, device=device)
    indices, drawn = tree.sample(num, generator=generator(2, device))
    assert indices.dtype == torch.int64
    assert drawn.dtype == torch.float64
    assert indices.shape == drawn.shape == (num,)
    assert torch.equal(drawn, tree.masses[indices])
    assert (drawn > 0).all()
    counts = torch.bincount(indices.cpu(), minlength=len(masses)).numpy()
    scaled = masses.double().numpy() / masses.double().max().item()
    observed, expected = pooled(counts.astype(float), num * scaled / scaled.sum())
    assert expected.min() >= 5 - 1e-9
    assert observed.sum() == num
    if len(expected) > 1:
        assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_pooling_keeps_enough_bins_to_see_a_wrong_tree():
    masses = PROFILES["zipf"](None).numpy()
    expected = 10**6 * masses / masses.sum()
    observed, expected = pooled(expected[::-1].copy(), expected)
    assert len(expected) > 5000
    assert expected.min() >= 5
    assert stats.chisquare(observed, expected).pvalue < 1e-12


@on_each_device
def test_sample_is_find_at_uniforms_of_the_generator(device):
    tree = SegmentTree(PROFILES["heavy tail"](generator(3)), device=device)
    indices, masses = tree.sample(1000, generator=generator(4, device))
    uniforms = torch.rand(1000, generator=generator(4, device), dtype=torch.float64, device=device)
    assert torch.equal(indices, tree.find(uniforms * tree.total))
    assert torch.equal(masses, tree[indices])
    levels = slow_levels(tree.masses.tolist())
    assert indices.tolist() == [slow_find(levels, u) for u in (uniforms * tree.total).tolist()]


def test_draws_go_on_with_the_generator():
    tree, g = SegmentTree(torch.rand(100, generator=generator())), generator(5)
    first, second = tree.sample(50, generator=g)[0], tree.sample(50, generator=g)[0]
    assert torch.equal(torch.cat([first, second]), tree.sample(100, generator=generator(5))[0])
    assert not torch.equal(first, second)


@on_each_device
def test_sample_of_none(device):
    indices, masses = SegmentTree([1.0, 2.0], device=device).sample(0, generator=generator(0, device))
    assert indices.shape == masses.shape == (0,)
    assert indices.dtype == torch.int64
    assert masses.dtype == torch.float64


def test_sample_takes_numpys_integers():
    assert len(SegmentTree([1.0]).sample(np.int64(3), generator=generator())[0]) == 3


# -- never on mass zero --------------------------------------------------------------------------------------


@given(wild_masses, st.lists(st.floats(0.0, 1.0), max_size=20), st.integers(0, 2**32))
@example([1.0, 0.0], [1.0], 0)
@example([0.0, TINIEST, 0.0], [0.5, 1.0], 0)
@example([1e300, 0.0, TINIEST, 0.0, 0.0], [1.0], 0)
@example([0.1] * 10 + [0.0] * 7, [0.1 * k for k in range(10)], 0)
def test_no_draw_on_mass_zero(masses, fractions, seed):
    tree = SegmentTree(masses)
    total = tree.total.item()
    ends = [min(end, total) for end in accumulate(masses)]
    around = [math.nextafter(end, 0.0) for end in ends] + [math.nextafter(end, total) for end in ends]
    prefixes = [0.0, total, math.nextafter(total, 0.0), *ends, *around, *(f * total for f in fractions)]
    assert (tree[tree.find(prefixes)] > 0).all()
    assert (tree.sample(100, generator=generator(seed))[1] > 0).all()


@on_each_device
@pytest.mark.parametrize("size", [*SIZES, 10**6])
def test_a_single_mass_is_always_drawn(size, device):
    tree = SegmentTree(torch.zeros(size), device=device)
    for i in {0, size // 2, size - 1}:
        for mass in (TINIEST, 1e-300, 1.0, 1e300, LARGEST):
            tree.update([i], [mass])
            total = tree.total.item()
            for prefix in (0.0, total / 2, math.nextafter(total, 0.0), total):
                assert tree.find(prefix).item() == i
            assert (tree.sample(10, generator=generator(0, device))[0] == i).all()
        tree.update([i], [0.0])


@on_each_device
def test_zeros_among_masses_of_every_scale(device):
    g = generator(6)
    masses = 10.0 ** (torch.rand(100_000, generator=g, dtype=torch.float64) * 600 - 300)
    masses *= torch.rand(100_000, generator=g) < 0.05
    masses[-1000:] = 0
    for scaled in (masses, masses.clamp(max=1e-290), masses * 1e-290):
        tree = SegmentTree(scaled, device=device)
        assert (tree.sample(100_000, generator=generator(7, device))[1] > 0).all()
        prefixes = scaled.cumsum(0).clamp(max=tree.total.item())
        assert (tree[tree.find(prefixes.to(device))] > 0).all()


# -- update and rebuild --------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize(("size", "num"), [(3, 50), (1000, 7), (1000, 2000), (100_000, 5000)])
def test_the_last_of_duplicates_wins(size, num, device):
    g = generator(8)
    indices = torch.randint(min(size, num // 2 + 1), (num,), generator=g)
    masses = torch.rand(num, generator=g, dtype=torch.float64)
    expected = torch.zeros(size, dtype=torch.float64)
    for i, mass in zip(indices.tolist(), masses.tolist(), strict=True):
        expected[i] = mass
    tree = SegmentTree(torch.zeros(size), device=device)
    tree.update(indices.to(device), masses.to(device))
    assert torch.equal(tree.masses.cpu(), expected)
    assert_same_tree(snapshot(tree), snapshot(SegmentTree(expected, device=device)))


@on_each_device
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 4097])
def test_many_updates_do_not_drift(size, device):
    g = generator(9)
    masses = torch.rand(size, generator=g, dtype=torch.float64)
    tree = SegmentTree(masses, device=device)
    for step in range(1500 if device == "cpu" else 100):
        num = 1 + step % 9
        indices = torch.randint(size, (num,), generator=g)
        values = 10.0 ** (torch.rand(num, generator=g, dtype=torch.float64) * 30 - 15)
        tree.update(indices, values)
        for i, value in zip(indices.tolist(), values.tolist(), strict=True):
            masses[i] = value
    assert_same_tree(snapshot(tree), snapshot(SegmentTree(masses, device=device)))


def test_a_giant_that_comes_and_goes_leaves_nothing():
    tree = SegmentTree(torch.full((100,), 1e-3, dtype=torch.float64))
    before = snapshot(tree)
    tree.update([50], [1e200])
    tree.update([50], [1e-3])
    assert_same_tree(before, snapshot(tree))


@pytest.mark.parametrize("cast", [list, tuple, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.int32)])
def test_update_takes_tensors_arrays_and_sequences(cast):
    tree = SegmentTree([1.0, 2.0, 3.0])
    tree.update(cast([2, 0]), cast([5, 4]))
    assert tree.masses.tolist() == [4.0, 2.0, 5.0]


def test_update_of_nothing():
    tree = SegmentTree([1.0, 2.0])
    tree.update([], [])
    tree.update(torch.empty(0, dtype=torch.int64), torch.empty(0))
    assert tree.masses.tolist() == [1.0, 2.0]


def test_python_floats_keep_their_double_precision():
    tree = SegmentTree([0.1])
    assert tree[0].item() == 0.1
    tree.rebuild([0.3])
    assert tree[0].item() == 0.3
    tree.update([0], [0.7])
    assert tree[0].item() == 0.7


def test_the_tree_keeps_copies_and_gives_copies():
    masses = torch.tensor([1.0, 2.0], dtype=torch.float64)
    tree = SegmentTree(masses)
    before = snapshot(tree)
    masses.fill_(9)
    total = tree.total
    for given_away in (
        tree.total,
        tree.masses,
        tree[0],
        tree[:],
        tree[::-1],
        tree[[0, 1]],
        tree.state_dict()["masses"],
    ):
        given_away.fill_(7)
    tree.sample(3, generator=generator())[1].fill_(7)
    assert_same_tree(before, snapshot(tree))
    tree.update([0], [5.0])
    assert total.item() == 3.0


def test_masses_that_carry_a_gradient_are_detached():
    tree = SegmentTree(torch.ones(3, requires_grad=True))
    tree.update([0], torch.full((1,), 2.0, requires_grad=True))
    assert not tree.masses.requires_grad
    assert tree.total.item() == 4.0


def test_a_tree_made_in_inference_mode_can_be_changed_outside():
    with torch.inference_mode():
        tree = SegmentTree(torch.ones(5))
        tree.update([1], torch.tensor([3.0]))
    tree.update([0], [2.0])
    tree.rebuild(tree.masses)
    assert tree.total.item() == 8.0


def test_an_all_zero_tree_fills_and_empties():
    tree = SegmentTree([0.0, 0.0, 0.0])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"`SegmentTree.sample` needs a positive mass, got a tree of zeros only\."):
            tree.sample(1, generator=generator())
        tree.update([1], [2.0])
        assert tree.sample(2, generator=generator())[0].tolist() == [1, 1]
        tree.rebuild([0.0, -0.0, 0.0])


# -- reading -------------------------------------------------------------------------------------------------


def test_reading_by_integer():
    masses = [1.0, 2.0, 3.0]
    tree = SegmentTree(masses)
    assert len(tree) == 3
    for i in range(-3, 3):
        for index in (i, np.int64(i), torch.tensor(i)):
            assert tree[index].item() == masses[i]
            assert tree[index].shape == ()
            assert tree[index].dtype == torch.float64
    assert [mass.item() for mass in tree] == masses


@given(st.integers(1, 12), st.slices(12))
@example(5, slice(None, None, -1))
@example(5, slice(1, 3, -1))
@example(5, slice(4, 1, -2))
def test_reading_by_slice(size, index):
    masses = [float(i) for i in range(size)]
    assert SegmentTree(masses)[index].tolist() == masses[index]


@on_each_device
def test_reading_by_tensor(device):
    tree = SegmentTree([1.0, 2.0, 3.0], device=device)
    for index in (
        [[0, -1], [2, -3]],
        np.array([[0, -1], [2, -3]]),
        torch.tensor([[0, -1], [2, -3]], device=device),
    ):
        assert tree[index].tolist() == [[1.0, 3.0], [3.0, 1.0]]
    assert tree[[]].shape == (0,)
    with pytest.raises(IndexError, match=r"`SegmentTree\[index\]` must be in \[-3, 3\), got 3 at index 1\."):
        tree[torch.tensor([0, 3], device=device)]


def test_repr_says_size_total_and_device():
    assert repr(SegmentTree([1.0, 2.5])) == "SegmentTree(num_masses=2, total=3.5, device='cpu')"


# -- state ---------------------------------------------------------------------------------------------------


@on_each_device
def test_state_round_trip(device, tmp_path):
    tree = SegmentTree(torch.rand(1000, generator=generator(10)), device=device)
    tree.update([3, 5], [7.0, 0.0])
    torch.save(tree.state_dict(), tmp_path / "tree.pt")
    state = torch.load(tmp_path / "tree.pt", weights_only=True)
    assert state["version"] == 1
    other = SegmentTree(torch.zeros(1000), device=device)
    other.load_state_dict(state)
    assert_same_tree(snapshot(tree), snapshot(other))
    draws = [t.sample(100, generator=generator(11, device))[0] for t in (tree, other)]
    assert torch.equal(*draws)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_copies_are_equal_and_independent(clone):
    tree = SegmentTree(torch.rand(100, generator=generator(12)))
    before = snapshot(tree)
    other = clone(tree)
    assert_same_tree(before, snapshot(other))
    other.update([1], [50.0])
    assert other.find(other.total.item() / 2).item() == 1
    assert_same_tree(before, snapshot(tree))


def test_to_the_same_device_is_the_same_tree():
    tree = SegmentTree([1.0])
    assert tree.to("cpu") is tree
    assert tree.device == torch.device("cpu")


def test_no_global_generator_is_touched():
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002 (read only)
    tree = SegmentTree(torch.arange(1, 100))
    tree.sample(100, generator=generator())
    tree.update([1], [2.0])
    tree.rebuild(tree.masses)
    tree.find(1.0)
    tree.load_state_dict(tree.state_dict())
    after = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002 (read only)
    assert torch.equal(states[0], after[0])
    assert states[1:] == after[1:]


# -- errors --------------------------------------------------------------------------------------------------

BAD_MASSES = [
    ([1.0, 2.0, 3.0, NAN], ValueError, "must be finite and non-negative, got nan at index 3."),
    ([1.0, INF, 3.0, NAN], ValueError, "must be finite and non-negative, got inf at index 1."),
    ([1.0, -INF, 3.0, 4.0], ValueError, "must be finite and non-negative, got -inf at index 1."),
    ([1.0, 2.0, -1e-300, 4.0], ValueError, "must be finite and non-negative, got -1e-300 at index 2."),
    (torch.tensor([1, 2, -3, 4]), ValueError, "must be finite and non-negative, got -3.0 at index 2."),
    ([LARGEST, LARGEST, 0.0, 0.0], ValueError, "finite sum"),
    ([LARGEST, 0.0, 0.0, LARGEST], ValueError, "finite sum"),
    ([6e307, 6e307, 6e307, 0.0], ValueError, "finite sum"),
    (3.0, ValueError, "must be 1-D, got shape ()."),
    ([[1.0, 2.0]], ValueError, "must be 1-D, got shape (1, 2)."),
    (torch.ones(2, 2), ValueError, "must be 1-D, got shape (2, 2)."),
    ([[1.0], [2.0, 3.0]], TypeError, "must be an array of numbers"),
    (["a", "b"], TypeError, "must be real numbers, got dtype <U1."),
    (None, TypeError, "must be real numbers, got dtype object."),
    ({1.0, 2.0}, TypeError, "must be real numbers, got dtype object."),
    ([True, False, True, True], TypeError, "must be real numbers, got dtype bool."),
    (torch.ones(4, dtype=torch.bool), TypeError, "must be real numbers, got dtype torch.bool."),
    (torch.ones(4, dtype=torch.complex64), TypeError, "must be real numbers, got dtype torch.complex64."),
    ([1j, 1j, 1j, 1j], TypeError, "must be real numbers, got dtype complex128."),
]


def assert_raises_unchanged(tree, call, error, message):
    before = snapshot(tree)
    with pytest.raises(error) as caught:
        call(tree)
    assert caught.type is error
    assert message in str(caught.value)
    assert_same_tree(before, snapshot(tree))


@pytest.mark.parametrize(("masses", "error", "message"), [*BAD_MASSES, ([], ValueError, "at least one mass, got 0.")])
def test_the_constructor_refuses(masses, error, message):
    with pytest.raises(error) as caught:
        SegmentTree(masses)
    assert caught.type is error
    assert str(caught.value).startswith("`SegmentTree(masses=...)` must ")
    assert message in str(caught.value)


@pytest.mark.parametrize("start", [[1.0, 0.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0], [LARGEST, 0.0, 0.0, 0.0]])
@pytest.mark.parametrize(
    ("masses", "error", "message"),
    [
        *BAD_MASSES,
        ([1.0, 2.0, 3.0], ValueError, "must hold 4 masses, got 3."),
        ([1.0] * 5, ValueError, "must hold 4 masses, got 5."),
        ([], ValueError, "must hold 4 masses, got 0."),
    ],
)
def test_rebuild_refuses_and_changes_nothing(start, masses, error, message):
    tree = SegmentTree(start)
    assert_raises_unchanged(tree, lambda tree: tree.rebuild(masses), error, message)
    with pytest.raises(error, match=r"^`SegmentTree\.rebuild\(masses=\.\.\.\)` must "):
        tree.rebuild(masses)


@pytest.mark.parametrize(("masses", "error", "message"), BAD_MASSES)
def test_update_refuses_masses_and_changes_nothing(masses, error, message):
    tree = SegmentTree(torch.arange(5))
    assert_raises_unchanged(tree, lambda tree: tree.update([0, 1, 2, 3], masses), error, message)
    with pytest.raises(error, match=r"^`SegmentTree\.update\(masses=\.\.\.\)` must "):
        tree.update([0, 1, 2, 3], masses)


@on_each_device
@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        ([0, 5], IndexError, "must be in [0, 5), got 5 at index 1."),
        ([-1, 5], IndexError, "must be in [0, 5), got -1 at index 0."),
        (torch.tensor([0, 2**40]), IndexError, "must be in [0, 5), got 1099511627776 at index 1."),
        ([0.0, 1.0], TypeError, "must be integers, got dtype float64."),
        (torch.tensor([0.0, 1.0]), TypeError, "must be integers, got dtype torch.float32."),
        ([True, False], TypeError, "must be integers, got dtype bool."),
        (torch.tensor([True, False]), TypeError, "must be integers, got dtype torch.bool."),
        (None, TypeError, "must be integers, got dtype object."),
        (1, ValueError, "must be 1-D, got shape ()."),
        ([[0, 1]], ValueError, "must be 1-D, got shape (1, 2)."),
    ],
)
def test_update_refuses_indices_and_changes_nothing(indices, error, message, device):
    tree = SegmentTree(torch.arange(5), device=device)
    indices = indices.to(device) if isinstance(indices, torch.Tensor) else indices
    expected = f"`SegmentTree.update(indices=...)` {message}"
    assert_raises_unchanged(tree, lambda tree: tree.update(indices, [1.0, 1.0]), error, expected)


@pytest.mark.parametrize(("indices", "masses"), [([0, 1], [1.0]), ([0], [1.0, 1.0]), ([], [1.0]), ([0], [])])
def test_update_refuses_unequal_lengths(indices, masses):
    message = f"`SegmentTree.update(masses=...)` must be as many as indices, {len(indices)}, got {len(masses)}."
    assert_raises_unchanged(
        SegmentTree(torch.arange(5)), lambda tree: tree.update(indices, masses), ValueError, message
    )


@on_each_device
@pytest.mark.parametrize("size", [2, 3, 1000])
def test_an_update_that_overflows_is_undone(size, device):
    masses = torch.rand(size, generator=generator(13), dtype=torch.float64)
    masses[0] = LARGEST / 2
    tree = SegmentTree(masses, device=device)
    message = "`SegmentTree.update(masses=...)` must leave a finite sum of all masses"
    # With duplicates, of which the last is restored too.
    for indices, new in (
        ([1], [LARGEST]),
        ([1, 1, 0], [0.0, LARGEST, LARGEST]),
        ([1] * size, [LARGEST] * size),
    ):
        assert_raises_unchanged(tree, lambda tree, i=indices, m=new: tree.update(i, m), ValueError, message)
    tree.update([0, 1], [0.0, LARGEST / 2])
    assert tree.find(tree.total.item() / 2).item() == 1


def test_only_a_sum_that_overflows_is_refused():
    tree = SegmentTree([LARGEST / 2, LARGEST / 2])
    assert tree.total.item() == LARGEST
    assert tree.find(LARGEST).item() == 1
    tree.rebuild([LARGEST, 0.0])
    assert tree.find(LARGEST).item() == 0


READING_ERRORS = [
    (lambda tree: tree[4], IndexError, "`SegmentTree[index]` must be in [-4, 4), got 4"),
    (lambda tree: tree[-5], IndexError, "`SegmentTree[index]` must be in [-4, 4), got -5"),
    (lambda tree: tree[[0, -5]], IndexError, "`SegmentTree[index]` must be in [-4, 4), got -5 at index 1."),
    (lambda tree: tree[1.0], TypeError, "`SegmentTree[index]` must be integers, got dtype float64."),
    (lambda tree: tree["a"], TypeError, "`SegmentTree[index]` must be integers, got dtype <U1."),
    (lambda tree: tree[True], TypeError, "`SegmentTree[index]` must be integers, got dtype bool."),
    (
        lambda tree: tree[torch.ones(4) > 0],
        TypeError,
        "`SegmentTree[index]` must be integers, got dtype torch.bool.",
    ),
    (
        lambda tree: tree.find(-1e-9),
        ValueError,
        "`SegmentTree.find(prefix=...)` must be in [0, 6.0], got -1e-09",
    ),
    (lambda tree: tree.find(math.nextafter(6, 7)), ValueError, "must be in [0, 6.0], got 6.000000000000001"),
    (lambda tree: tree.find([1.0, NAN]), ValueError, "must be in [0, 6.0], got nan at index 1."),
    (lambda tree: tree.find(torch.tensor([[1.0, 2.0], [INF, 7.0]])), ValueError, "got inf at index 2."),
    (lambda tree: tree.find("a"), TypeError, "`SegmentTree.find(prefix=...)` must be real numbers"),
    (lambda tree: tree.find(True), TypeError, "`SegmentTree.find(prefix=...)` must be real numbers"),
    (lambda tree: tree.find(1j), TypeError, "`SegmentTree.find(prefix=...)` must be real numbers"),
    (
        lambda tree: tree.sample(-1, generator=generator()),
        ValueError,
        "sample(num=...)` must be at least 0, got -1.",
    ),
    (
        lambda tree: tree.sample(1.0, generator=generator()),
        TypeError,
        "sample(num=...)` must be an integer, got 1.0.",
    ),
    (
        lambda tree: tree.sample("3", generator=generator()),
        TypeError,
        "sample(num=...)` must be an integer, got '3'.",
    ),
    (lambda tree: tree.sample(True, generator=generator()), TypeError, "must be an integer, got True."),
    (lambda tree: tree.sample(1, generator=None), TypeError, "must be a torch.Generator, got NoneType."),
    (lambda tree: tree.sample(1, generator=0), TypeError, "must be a torch.Generator, got int."),
    (lambda tree: tree.sample(1), TypeError, "generator"),
]


@pytest.mark.parametrize(("call", "error", "message"), READING_ERRORS)
def test_reading_refuses(call, error, message):
    assert_raises_unchanged(SegmentTree([1.0, 0.0, 2.0, 3.0]), call, error, message)


@pytest.mark.parametrize("method", ["find", "sample"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_all_zero_tree_cannot_be_drawn_from(method, size):
    def call(tree):
        return tree.find(0.0) if method == "find" else tree.sample(1, generator=generator())

    message = f"`SegmentTree.{method}` needs a positive mass, got a tree of zeros only."
    assert_raises_unchanged(SegmentTree(torch.zeros(size)), call, ValueError, message)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ([1.0], TypeError, "must be a mapping, got list."),
        ({}, ValueError, "must have version 1, got None."),
        ({"masses": torch.ones(4).double()}, ValueError, "must have version 1, got None."),
        ({"version": 2, "masses": torch.ones(4).double()}, ValueError, "must have version 1, got 2."),
        ({"version": 1}, TypeError, "must have 'masses', a tensor of torch.float64, got NoneType."),
        ({"version": 1, "masses": [1.0] * 4}, TypeError, "'masses', a tensor of torch.float64, got list."),
        (
            {"version": 1, "masses": torch.ones(4)},
            TypeError,
            "'masses', a tensor of torch.float64, got torch.float32.",
        ),
        ({"version": 1, "masses": torch.ones(5).double()}, ValueError, "must hold 4 masses, got 5."),
        ({"version": 1, "masses": torch.ones(4, 1).double()}, ValueError, "must be 1-D, got shape (4, 1)."),
        ({"version": 1, "masses": torch.tensor([1, 2, NAN, 3]).double()}, ValueError, "got nan at index 2."),
        ({"version": 1, "masses": torch.full((4,), 1e308, dtype=torch.float64)}, ValueError, "finite sum"),
    ],
)
def test_load_state_dict_refuses_and_changes_nothing(state, error, message):
    tree = SegmentTree([1.0, 0.0, 2.0, 3.0])
    assert_raises_unchanged(tree, lambda tree: tree.load_state_dict(state), error, message)
    with pytest.raises(error, match=r"^`SegmentTree\.load_state_dict\(state_dict=\.\.\.\)` must "):
        tree.load_state_dict(state)


# -- hard inputs ---------------------------------------------------------------------------------------------


@on_each_device
def test_a_million_equal_masses(device):
    size = 10**6
    tree = SegmentTree(torch.ones(1, dtype=torch.float64).expand(size), device=device)
    assert tree.total.item() == size
    middles = torch.arange(size, dtype=torch.float64, device=device) + 0.5
    assert torch.equal(tree.find(middles), torch.arange(size, device=device))
    counts = torch.bincount(tree.sample(size, generator=generator(20, device))[0].cpu() // 1000, minlength=1000)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


@on_each_device
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 5000])
def test_an_update_of_all_leaves_is_a_rebuild(size, device):
    masses = torch.rand(size, generator=generator(21), dtype=torch.float64)
    for order in (torch.arange(size), torch.randperm(size, generator=generator(22))):
        tree = SegmentTree(torch.ones(size), device=device)
        tree.update(order, masses[order])
        assert torch.equal(nodes(tree).cpu(), nodes(SegmentTree(masses)))
    many = torch.cat([torch.arange(size), torch.arange(size)])  # and all of them twice
    tree.update(many, torch.cat([torch.zeros(size, dtype=torch.float64), masses]))
    assert torch.equal(nodes(tree).cpu(), nodes(SegmentTree(masses)))


@on_each_device
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_denormal_masses_are_drawn_like_any_others(size, device):
    steps = torch.arange(1, size + 1, dtype=torch.float64)
    tree = SegmentTree(steps * TINIEST, device=device)
    whole = SegmentTree(steps, device=device)
    assert torch.equal(nodes(tree), nodes(whole) * TINIEST)
    drawn = [each.sample(500, generator=generator(23, device)) for each in (tree, whole)]
    assert (drawn[0][1] > 0).all()
    # A denormal prefix has few bits: it rounds to a whole number of the tiniest steps.
    assert ((drawn[0][0] - drawn[1][0]).abs() <= 1).all()
    tree.update([0], [0.0])
    assert (tree.sample(500, generator=generator(24, device))[0] > 0).all() if size > 1 else not tree.has_mass


@on_each_device
@pytest.mark.parametrize("size", [2, 1000, 5000])
def test_masses_whose_sum_overflows_are_refused_whole(size, device):
    with pytest.raises(ValueError, match=r"`SegmentTree\(masses=...\)` must have a finite sum, got one that overflows"):
        SegmentTree(torch.full((size,), LARGEST / (size - 1), dtype=torch.float64), device=device)
    tree = SegmentTree(torch.ones(size), device=device)
    before = snapshot(tree)
    everything = torch.arange(size)
    with pytest.raises(ValueError, match="got one that overflows"):
        tree.update(everything, torch.full((size,), LARGEST / (size - 1), dtype=torch.float64))
    assert_same_tree(before, snapshot(tree))
    tree.update(everything, torch.full((size,), LARGEST / (2 * size), dtype=torch.float64))
    assert tree.total.isfinite()


# -- CUDA ----------------------------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("size", [*SIZES, 10**6])
def test_cuda_has_the_bits_of_the_cpu(size):
    masses = torch.randn(size, generator=generator(14), dtype=torch.float64).mul(5).exp()
    tree = SegmentTree(masses)
    moved = tree.to("cuda")
    assert moved.device.type == "cuda"
    assert moved.to("cuda") is moved
    prefixes = torch.rand(10_000, generator=generator(15), dtype=torch.float64) * tree.total
    assert torch.equal(tree.find(prefixes), moved.find(prefixes.cuda()).cpu())
    indices, values = (
        torch.randint(size, (500,), generator=generator(16)),
        torch.rand(500, generator=generator(17)),
    )
    tree.update(indices, values)
    moved.update(indices, values)
    assert torch.equal(nodes(tree), nodes(moved).cpu())
    assert torch.equal(nodes(moved.to("cpu")), nodes(tree))


@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_cuda_draws_without_waiting():
    tree = SegmentTree(torch.rand(10_000, generator=generator()), device="cuda")
    prefixes, draws = torch.rand(100, device="cuda", generator=generator(1, "cuda")), generator(2, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        tree.find(prefixes)
        tree.sample(100, generator=draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_cuda_clamps_prefixes():
    tree = SegmentTree([0.0, 1.0, 0.0, 2.0, 0.0], device="cuda")
    found = tree.find(torch.tensor([-1.0, NAN, -INF, 3.0, 4.0, INF], device="cuda"))
    assert found.tolist() == [1, 1, 1, 3, 3, 3]
    with pytest.raises(ValueError, match="got nan"):
        tree.find(NAN)  # on the host there is nothing to wait for


@needs_cuda
def test_cuda_refuses_a_generator_of_the_cpu():
    with pytest.raises(ValueError, match=r"`SegmentTree.sample\(generator=...\)` must be on cuda"):
        SegmentTree([1.0], device="cuda").sample(1, generator=generator())
