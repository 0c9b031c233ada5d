"""Drawing by search: the tree's draws but for rounding, never on mass zero, and only until the first update.

The tests of tree and sampler run on this core too (`core` in conftest.py); here is what is its own.
"""

import sys
from fractions import Fraction
from itertools import accumulate

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import dasgrad
from dasgrad.sampling import SegmentTree, ahead, cumulative_sums, native
from dasgrad.sampling.cumulative_sums import CumulativeSums

LARGEST, TINIEST = sys.float_info.max, 5e-324
wild_mass = st.one_of(
    st.sampled_from([0.0, -0.0, TINIEST, 3 * TINIEST, 1e-308, 1e-16, 1.0, 1e16, 1e300]),
    st.floats(0.0, 1e300, allow_subnormal=True),
    st.floats(0.0, 1.0),
)


@pytest.fixture
def search(monkeypatch):
    """Draw on the CPU as on CUDA."""
    monkeypatch.setattr(native, "_library", None)
    monkeypatch.setattr(cumulative_sums, "are_faster_on", lambda device: True)
    monkeypatch.setattr(ahead, "come_at_once", lambda device: False)


def forbid(patch, owner, name):
    def fail(*arguments):
        raise AssertionError(f"{name} was called")

    patch.setattr(owner, name, fail)


class CountOperations(TorchDispatchMode):
    """What would be launched: every operation that makes or writes a tensor, views left out."""

    num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        views = ("select.int", "slice.Tensor", "detach", "alias", "view", "unbind.int")
        self.num += func.name().removeprefix("aten::") not in views
        return func(*args, **(kwargs or {}))


# -- the line ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=70).filter(any))
@example([1])
@example([0, 0, 3])
@example([3, 0, 0])
@example([2] * 8)
def test_integer_masses_are_found_where_the_tree_finds_them(masses):
    tree = SegmentTree(masses)
    assert tree.ends.tolist() == list(accumulate(masses))
    darts = torch.arange(2 * sum(masses) + 1, dtype=torch.float64) / 2
    assert torch.equal(CumulativeSums(tree.ends).find(darts), tree.find(darts))


def test_a_million_integer_masses_are_found_where_the_tree_finds_them():
    generator = torch.Generator().manual_seed(0)
    masses = torch.randint(0, 2**30, (10**6 + 1,), generator=generator) * (
        torch.rand(10**6 + 1, generator=generator) < 0.3
    )
    tree = SegmentTree(masses)
    assert torch.equal(tree.ends, masses.cumsum(0).double())
    sums, total = CumulativeSums(tree.ends), tree.total
    ends = tree.ends[::97].contiguous()
    inside = torch.rand(10_000, generator=generator, dtype=torch.float64) * total
    for darts in (inside, ends, (ends - 1).clamp_(min=0), torch.tensor([0.0, total])):
        assert torch.equal(sums.find(darts), tree.find(darts.clamp(max=total)))


@given(st.lists(wild_mass, min_size=1, max_size=40).filter(any), st.lists(st.floats(0, 1), min_size=1, max_size=20))
@example([1e300] * 37, [1.0])
@example([TINIEST] * 37, [1.0, 0.5])
@example([0.1] * 37, [k / 37 for k in range(38)])
def test_any_masses_are_found_but_for_rounding_and_zeros_never(masses, fractions):
    tree = SegmentTree(masses)
    ends, total = tree.ends, tree.total.item()
    lengths = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.float64))
    assert (lengths >= 0).all()
    assert (lengths[tree.masses == 0] == 0).all()
    assert ends[-1] <= total
    exact = [Fraction(0), *accumulate(map(Fraction, masses))]
    slack = exact[-1] * 4 * len(tree._levels) / 2**53 + len(tree._levels) * Fraction(TINIEST)
    darts = torch.tensor([0.0, total, *(min(f * total, total) for f in fractions)], dtype=torch.float64)
    for dart, i in zip(darts.tolist(), CumulativeSums(ends).find(darts).tolist(), strict=True):
        assert masses[i] > 0
        assert exact[i] - slack <= Fraction(dart) <= exact[i + 1] + slack


@pytest.mark.parametrize(
    "masses", [[LARGEST], [LARGEST / 2, LARGEST / 2], [LARGEST / 3, 0.0, LARGEST / 3, LARGEST / 4]]
)
def test_masses_close_to_overflow_have_finite_ends(masses):
    tree = SegmentTree(masses)
    assert tree.ends.isfinite().all()
    assert CumulativeSums(tree.ends).find(tree.total).item() == len(masses) - 1


def test_ends_are_not_decreasing_where_sums_round():
    masses = torch.randn(100_003, generator=torch.Generator().manual_seed(1), dtype=torch.float64).mul_(8).exp_()
    masses[::3] = 0
    lengths = SegmentTree(masses).ends.diff()
    assert (lengths >= 0).all()
    assert (lengths[masses[1:] == 0] == 0).all()


# -- trees and samplers ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("search")
def test_a_tree_is_searched_until_the_first_update_and_after_the_next_rebuild(monkeypatch):
    tree, generator = SegmentTree([1.0, 0.0, 2.0]), torch.Generator().manual_seed(0)
    for _ in range(2):
        assert tree.settled
        with monkeypatch.context() as patch:
            forbid(patch, SegmentTree, "_descend_")
            tree.sample(10, generator=generator)
        tree.update([0], [5.0])
        assert not tree.settled
        with monkeypatch.context() as patch:
            forbid(patch, CumulativeSums, "find")
            indices, masses = tree.sample(10, generator=generator)
        assert torch.equal(masses, tree[indices])
        tree.rebuild([0.0, 3.0, 0.0])
        assert (tree.sample(10, generator=generator)[0] == 1).all()


@pytest.mark.usefixtures("search")
def test_a_refused_update_or_rebuild_changes_nothing_about_that():
    tree = SegmentTree([1.0, 2.0])
    with pytest.raises(ValueError, match="got -1"):
        tree.update([0], [-1.0])
    assert tree.settled
    tree.update([0], [3.0])
    with pytest.raises(ValueError, match="got nan"):
        tree.rebuild([float("nan"), 1.0])
    assert not tree.settled


@pytest.mark.parametrize("stratified", ["none", "batch", "pass"])
@pytest.mark.parametrize("floor", [0.0, 0.2, 0.99])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000, 100_001])
def test_a_sampler_draws_by_search_what_it_draws_from_the_tree(size, targeted, floor, stratified, monkeypatch):
    """These seeds hit no segment so close to its end that rounding decides."""
    generator = torch.Generator().manual_seed(size)
    target = None
    if targeted:
        target = torch.rand(size, generator=generator, dtype=torch.float64) + 0.01
        target[: size // 3] = 0
        target /= target.sum()
    options = {"target": target, "floor": floor, "epsilon": 0.01, "stratified": stratified, "seed": 3}
    first, second = (dasgrad.AdaptiveSampler(size, 700, **options) for _ in range(2))
    scores = torch.rand(size, generator=generator, dtype=torch.float64).pow_(8)
    monkeypatch.setattr(second._tree, "compiled", None)
    changes = [
        lambda sampler: None,  # before the first refresh: the target alone
        lambda sampler: sampler.refresh(scores),
        lambda sampler: sampler.update([0, size - 1], [5.0, 2.0]),
        lambda sampler: sampler.refresh(scores.flip(0)),
    ]
    for change in changes:
        change(first)
        change(second)
        for num in (0, 1, 255, 700, 700):
            indices, weights = first.draw(num)
            with monkeypatch.context() as patch:
                patch.setattr(cumulative_sums, "are_faster_on", lambda device: True)
                found, found_weights = second.draw(num)
            assert torch.equal(indices, found)
            assert torch.equal(weights, found_weights)


@pytest.mark.usefixtures("search")
def test_the_seam_between_target_and_masses_hits_neither_a_zero_target_nor_a_zero_mass():
    generator = torch.Generator().manual_seed(4)
    for _ in range(50):
        target = torch.rand(37, generator=generator, dtype=torch.float64)
        target[[0, 1, -1]] = 0
        target /= target.sum()
        floor = float(torch.rand((), generator=generator, dtype=torch.float64))
        sampler = dasgrad.AdaptiveSampler(37, 4, target=target, floor=floor)
        scores = torch.zeros(37)
        scores[20] = 1.0
        sampler.refresh(scores)
        seam = torch.tensor(floor, dtype=torch.float64)
        below = torch.nextafter(seam, torch.zeros(()).double())
        indices, weights = sampler._locate(torch.stack([below, seam, torch.ones(()).double()]))
        assert target[indices[0]] > 0
        assert indices[1:].tolist() == [20, 20]
        torch.testing.assert_close(weights, sampler.weights[indices], rtol=1e-12, atol=0)


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("updated", [False, True])
def test_a_restored_sampler_goes_on_in_the_same_way(updated):
    def make():
        return dasgrad.AdaptiveSampler(1000, 32, seed=5)

    sampler, scores = make(), torch.rand(1000, generator=torch.Generator().manual_seed(6))
    sampler.refresh(scores)
    if updated:
        sampler.update([3], [9.0])
    sampler.draw()
    restored = make()
    restored.load_state_dict(sampler.state_dict())
    assert restored._tree.settled is not updated
    for _ in range(40):
        for one, other in zip(sampler.draw(), restored.draw(), strict=True):
            assert torch.equal(one, other)


def test_states_without_a_word_on_updates_load():
    tree = SegmentTree([1.0, 2.0])
    tree.load_state_dict({"version": 1, "masses": torch.tensor([3.0, 4.0], dtype=torch.float64)})
    assert tree.settled


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(("stratified", "num_uniforms"), [("none", 1), ("batch", 1), ("pass", 0)])
def test_a_draw_takes_few_operations(stratified, num_uniforms, targeted):
    """On a GPU each of them is a launch, and launches are what a draw's time is made of."""
    target = dasgrad.targets.uniform(10_000) if targeted else None
    sampler = dasgrad.AdaptiveSampler(10_000, 32, target=target, stratified=stratified)
    sampler.refresh(torch.rand(10_000, generator=torch.Generator().manual_seed(7)))
    for _ in range(1 + 2 + 4 + 8 + 16):
        sampler.draw()
    with CountOperations() as count:
        for _ in range(32):
            sampler.draw()
    assert count.num <= 32 * num_uniforms + 8
    sampler.draw()
    sampler._draws.forget_lookups()
    with CountOperations() as count:
        sampler.draw()
    assert count.num <= 4
