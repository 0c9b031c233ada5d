"""Draws balanced over a run: exact one by one, by enumeration; regular for every example, through all changes."""

import itertools
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dasgrad
from dasgrad import reference
from dasgrad.sampling import balance
from dasgrad.sampling.odds import BITS, WHOLE, Odds
from dasgrad.sampling.segment_tree import SegmentTree

pytestmark = pytest.mark.usefixtures("core")


class Slowly:
    """`reference.balanced_draw` to the last bit: each node's account in whole units, kept in a dict of integers."""

    def __init__(self, num_examples, credits):
        self.sizes = [num_examples]
        while self.sizes[-1] > 1:
            self.sizes.append((self.sizes[-1] + 1) // 2)
        nodes = [(level, j) for level in range(1, len(self.sizes)) for j in range(self.sizes[level])]
        self.credits = dict(zip(nodes, credits, strict=True))

    def draw(self, masses, target, floor):
        """``target`` sums to what the tree of it does, or is None."""
        total = self.sums(masses)[-1][0]
        part = [1.0] * len(masses) if target is None else target
        mass_levels, target_levels = self.sums(masses), self.sums(part)
        factor = floor * total / target_levels[-1][0]
        j = 0
        for level in reversed(range(1, len(self.sizes))):
            left, right = (
                (1 - floor) * value(mass_levels[level - 1], 2 * j + side)
                + factor * value(target_levels[level - 1], 2 * j + side)
                for side in (0, 1)
            )
            share = min(max(int(left / (left + right) * WHOLE), int(left > 0)), WHOLE - int(right > 0))
            self.credits[level, j] += share
            goes_left = self.credits[level, j] >= WHOLE
            self.credits[level, j] %= WHOLE
            j = 2 * j + (not goes_left)
        return j

    def sums(self, leaves):
        levels = [list(leaves)]
        while len(levels[-1]) > 1:
            below = levels[-1] + [0.0] * (len(levels[-1]) % 2)
            levels.append([below[k] + below[k + 1] for k in range(0, len(below), 2)])
        return levels


def value(level, position):
    return level[position] if position < len(level) else 0.0


masses = st.one_of(st.just(0.0), st.floats(1e-9, 1e9))


@given(
    st.integers(1, 20).flatmap(
        lambda n: st.tuples(
            st.lists(st.lists(masses, min_size=n, max_size=n).filter(any), min_size=1, max_size=4),
            st.one_of(st.none(), st.lists(st.integers(0, 5), min_size=n, max_size=n).filter(any)),
        )
    ),
    st.sampled_from([0.0, 0.2, 0.9]),
    st.integers(1, 30),
)
def test_draws_are_those_of_the_slow_walk(case, floor, num):
    """In C++ and in torch operations, through changes of all masses; what was taken back was never drawn."""
    changes, target = case
    if target is not None:
        target = [part / sum(target) for part in target]
        changes = [[mass if part else 0.0 for mass, part in zip(leaves, target, strict=True)] for leaves in changes]
        if not all(map(any, changes)):
            return
    n = len(changes[0])
    credits = balance.Credits(n)
    credits.restart(5)
    state = credits.state_dict()
    assert state["credits"] is None
    slowly = Slowly(n, credits._existing().tolist())
    for leaves in changes:
        odds = Odds(SegmentTree(leaves), None if target is None else SegmentTree(target), floor)
        taken = credits.draw(odds, num + 3)[0]
        credits.take_back(odds, taken)
        indices, weights = credits.draw(odds, num)
        assert indices.tolist() == [slowly.draw(leaves, target, floor) for _ in range(num)]
        assert indices.tolist() == taken[:num].tolist()
        assert credits.state_dict()["credits"].tolist() == list(slowly.credits.values())
        part = torch.tensor([1 / n] * n if target is None else target, dtype=torch.float64)
        p = (1 - floor) * odds.tree.masses / odds.tree.total + floor * part
        assert bool((p[indices] > 0).all())
        torch.testing.assert_close(weights, (part / p)[indices], rtol=1e-9, atol=0)


@pytest.mark.parametrize("num", [1, 2, 7, 20])
def test_draws_are_those_of_the_reference(num):
    """Through changes of p; where its floating numbers and our units round differently no draw of these is decided."""
    sampler = dasgrad.AdaptiveSampler(num, 5, floor=0.1, stratified="run", seed=3)
    generator = torch.Generator().manual_seed(num)
    sampler.refresh(torch.rand(num, generator=generator))
    credits = iter(sampler._balanced._credits._existing().tolist())
    credit, size = {}, 2
    while size < 2 * num:
        credit |= {(start, size): next(credits) / WHOLE for start in range(0, num, size)}
        size *= 2
    for _ in range(30):
        p = sampler.probabilities.tolist()
        assert sampler.draw()[0].tolist() == [reference.balanced_draw(p, credit) for _ in range(5)]
        sampler.refresh(torch.rand(num, generator=generator) ** 3)


@pytest.mark.parametrize("num", [3, 4])
def test_every_draw_has_exactly_its_probability_whatever_came_before(num):
    """All credits that are multiples of 1/8, for shares that are: each draw of each of them counted."""
    first, then = {3: ([6.0, 2.0, 8.0], [1.0, 3.0, 12.0]), 4: ([6.0, 2.0, 0.0, 8.0], [1.0, 1.0, 3.0, 3.0])}[num]
    counts = torch.zeros(9, num, dtype=torch.float64)
    for setting in itertools.product(range(8), repeat=3):
        credits = balance.Credits(num)
        credits.load_state_dict({"seed": 0, "credits": torch.tensor(setting) * (WHOLE // 8)})
        drawn = [credits.draw(Odds(SegmentTree(leaves), None, 0.0), 3)[0] for leaves in (first, then, first)]
        counts[torch.arange(9), torch.cat(drawn)] += 1
    expected = torch.tensor([first, then, first], dtype=torch.float64).repeat_interleave(3, 0)
    torch.testing.assert_close(counts / counts.sum(1, keepdim=True), expected / expected.sum(1, keepdim=True))


@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_each_example_comes_as_often_as_it_should_through_all_refreshes(floor):
    """Never more than two draws away from what its probabilities add up to; independent draws are up to fifty away."""
    n, batch_size = 300, 20
    generator = torch.Generator().manual_seed(3)
    sampler = dasgrad.AdaptiveSampler(n, batch_size, floor=floor, epsilon=0.01, stratified="run", seed=1)
    owed = torch.zeros(n, dtype=torch.float64)
    scores = torch.rand(n, generator=generator) ** 4
    for step in range(600):
        if step % 7 == 0:
            scores = scores * torch.empty(n).uniform_(0.7, 1.4, generator=generator)
            sampler.refresh(scores)
        if step % 7 == 3:
            sampler.update(torch.arange(5), torch.rand(5, generator=generator))
        indices, _ = sampler.draw()
        owed += batch_size * sampler.probabilities
        owed -= torch.bincount(indices, minlength=n)
        assert owed.abs().max() < 3
    assert owed.abs().max() > 0.1


def noise_of_means(stratified, every, batch_size=8, n=64, num_steps=48):
    """Mean square of the error of a weighted mean over all steps, in 60 runs."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(n, generator=generator, dtype=torch.float64) * torch.linspace(0.1, 3, n)
    errors = []
    for seed in range(60):
        sampler = dasgrad.AdaptiveSampler(n, batch_size, stratified=stratified, seed=seed)
        total = torch.zeros((), dtype=torch.float64)
        for step in range(num_steps):
            if step % every == 0:  # scores that move to and fro
                sampler.refresh(values.abs() * (1 + 0.3 * ((torch.arange(n) + step // every) % 3)))
            indices, weights = sampler.draw()
            total += (weights * values[indices]).mean()
        errors.append(total / num_steps - values.mean())
    return torch.stack(errors).square().mean().item()


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_a_refresh_leaves_what_draws_owe_each_other(every):
    """What a pass saves beside independent draws is lost where scores change; over a run it is kept."""
    independent, over_run = (noise_of_means(stratified, every) for stratified in ("none", "run"))
    assert over_run < 0.15 * independent
    if every == 1:
        assert over_run < 0.3 * noise_of_means("pass", every)


def test_before_scores_and_without_them_a_pass_is_a_reshuffled_epoch():
    samplers = [dasgrad.AdaptiveSampler(24, 4, stratified=stratified, seed=3) for stratified in ("pass", "run")]
    drawn = [torch.stack([sampler.draw()[0] for _ in range(12)]) for sampler in samplers]
    assert torch.equal(*drawn)
    assert sorted(drawn[1][:6].flatten().tolist()) == list(range(24))
    for sampler in samplers:
        sampler.refresh(torch.rand(24, generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(*(torch.stack([sampler.draw()[0] for _ in range(6)]) for sampler in samplers))
    samplers[1].forget()
    again = torch.stack([samplers[1].draw()[0] for _ in range(6)])
    assert sorted(again.flatten().tolist()) == list(range(24))


def test_equal_scores_draw_each_example_once_a_pass():
    sampler = dasgrad.AdaptiveSampler(64, 8, stratified="run")
    sampler.refresh(torch.ones(64))
    for _ in range(5):
        drawn = torch.cat([sampler.draw()[0] for _ in range(8)])
        assert sorted(drawn.tolist()) == list(range(64))


def test_many_draws_at_once_are_those_of_one_after_the_other(monkeypatch):
    """Also where they are too many for one sum of shares."""
    tree = SegmentTree(torch.rand(1000, generator=torch.Generator().manual_seed(0)))
    drawn = []
    for most in (balance.MOST_AT_ONCE, 7):
        monkeypatch.setattr(balance, "MOST_AT_ONCE", most)
        credits = balance.Credits(1000)
        credits.restart(2)
        odds = Odds(tree, None, 0.1)
        indices, _ = credits.draw(odds, 5000)
        credits.take_back(odds, indices[4000:])
        drawn.append((indices, credits.state_dict()["credits"]))
    assert all(map(torch.equal, *drawn))
    assert balance.MOST_AT_ONCE << BITS < 2**62 or balance.MOST_AT_ONCE == 7


def test_an_example_whose_share_is_nearly_nothing_can_be_drawn_and_its_neighbour_too():
    for leaves in ([1e-200, 1.0], [1.0, 1e-200]):
        odds = Odds(SegmentTree(leaves), None, 0.0)
        assert int(odds.left_shares(0, torch.tensor([0]))) in (1, WHOLE - 1)
    for leaves, share in (([0.0, 1.0], 0), ([1.0, 0.0], WHOLE)):
        odds = Odds(SegmentTree(leaves), None, 0.0)
        assert int(odds.left_shares(0, torch.tensor([0]))) == share
        assert credits_at(WHOLE - 1).draw(odds, 4)[0].tolist() == credits_at(0).draw(odds, 4)[0].tolist()


def credits_at(credit):
    credits = balance.Credits(2)
    credits.load_state_dict({"seed": 0, "credits": torch.tensor([credit])})
    return credits


def test_masses_whose_shares_would_underflow_are_drawn_over_a_pass():
    tiny = sys.float_info.min
    sampler = dasgrad.AdaptiveSampler(4, 2, floor=0.5, stratified="run")
    sampler.refresh(torch.tensor([0.0, tiny, tiny, 2 * tiny], dtype=torch.float64))
    indices, weights = sampler.draw_batches(1000)
    counts = torch.bincount(indices.flatten(), minlength=4) / indices.numel()
    torch.testing.assert_close(counts.double(), sampler.probabilities, atol=0.01, rtol=0)
    torch.testing.assert_close(weights, sampler.weights[indices])


def test_one_example_is_always_drawn():
    sampler = dasgrad.AdaptiveSampler(1, 3, stratified="run")
    sampler.refresh([2.0])
    assert sampler.draw()[0].tolist() == [0, 0, 0]


def test_draws_are_made_for_more_and_more_batches_until_scores_change(monkeypatch):
    sampler = dasgrad.AdaptiveSampler(1000, 10, stratified="run")
    sampler.refresh(torch.arange(1000.0))
    lengths, original = [], balance.Credits.draw
    monkeypatch.setattr(
        balance.Credits, "draw", lambda self, odds, num: (lengths.append(num // 10), original(self, odds, num))[1]
    )
    for _ in range(20):
        sampler.draw()
    assert lengths == [1, 2, 4, 8, 16]
    sampler.update([0], [1.0])
    for _ in range(3):
        sampler.draw()
    assert lengths[5:] == [1, 2]


def test_another_default_device_changes_nothing():
    samplers = [dasgrad.AdaptiveSampler(40, 4, seed=1) for _ in range(2)]
    drawn = []
    for sampler, device in zip(samplers, ("cpu", "meta"), strict=True):
        with torch.device(device):
            drawn.append([sampler.draw()[0] for _ in range(15)])
            sampler.refresh([1.0 + k for k in range(40)])
            drawn[-1] += [sampler.draw()[0] for _ in range(9)]
            sampler.update([3], [9.0])
            drawn[-1] += [*sampler.draw_batches(3)[0], sampler.draw(3)[0]]
    assert all(map(torch.equal, *drawn))


def test_a_copy_of_the_masses_in_plain_memory_goes_along_with_every_change():
    """As where draws live on a GPU; here both are in plain memory."""
    sampler, other = (dasgrad.AdaptiveSampler(40, 4, seed=1, floor=0.1) for _ in range(2))
    sampler._trees += (SegmentTree(torch.zeros(40)),)
    scores = torch.arange(40.0)
    changes = [
        lambda sampler: sampler.refresh(scores),
        lambda sampler: sampler.update([3, 7], [9.0, 0.0]),
        lambda sampler: setattr(sampler, "floor", 0.4),
        lambda sampler: sampler.load_state_dict(sampler.state_dict()),
        lambda sampler: sampler.forget(),
        lambda sampler: sampler.refresh(scores.flip(0)),
    ]
    for change in changes:
        for one in (sampler, other):
            change(one)
        assert sampler._balanced.odds is None or sampler._balanced.odds.tree is sampler._trees[1]
        assert torch.equal(*(tree.masses for tree in sampler._trees))
        for _ in range(7):
            assert torch.equal(sampler.draw()[0], other.draw()[0])


def test_a_change_that_is_refused_changes_no_draw():
    samplers = [dasgrad.AdaptiveSampler(50, 5, stratified="run", seed=4) for _ in range(2)]
    for sampler in samplers:
        sampler.refresh(torch.arange(50.0))
        for _ in range(5):
            sampler.draw()
    with pytest.raises(ValueError, match="finite and non-negative"):
        samplers[0].refresh(torch.full((50,), -1.0))
    with pytest.raises(ValueError, match=r"in \[0, 50\), got 50"):
        samplers[0].update([50], [1.0])
    for _ in range(9):
        assert torch.equal(samplers[0].draw()[0], samplers[1].draw()[0])


def test_the_default_is_balanced_over_the_run():
    assert dasgrad.AdaptiveSampler(5, 2).stratified == "run"


def test_accounts_are_in_plain_memory_wherever_draws_go():
    """On a device that holds no data at all: what is put back was never there."""
    tree = SegmentTree(torch.rand(100, generator=torch.Generator().manual_seed(0)))
    here, there = (balance.BalancedDraws(8, 100, torch.device(device)) for device in ("cpu", "meta"))
    for draws in (here, there):
        draws.restart(3)
        draws.odds = Odds(tree, None, 0.2)
        for _ in range(12):  # the last ones are of a block of eight, of which three are left
            indices, weights = draws.draw_batch()
        assert (indices.shape, indices.dtype, weights.dtype) == ((8,), torch.int64, torch.float64)
        assert draws.draw_batches(5)[0].shape == (5, 8)
    assert indices.device.type == weights.device.type == "meta"
    assert torch.equal(*(draws.state_dict()["credits"] for draws in (here, there)))
