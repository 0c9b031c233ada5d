"""Probabilities, weights and draws: exact by enumeration, statistical with fixed seeds."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import dasgrad
from dasgrad import reference
from dasgrad.sampling.sampler import Draw

pytestmark = pytest.mark.usefixtures("core")
scores_lists = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=20)


@st.composite
def samplers(draw):
    """A refreshed sampler with any scores, target, floor and epsilon it accepts."""
    scores = draw(scores_lists)
    n = len(scores)
    raw = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n).filter(any))
    target = torch.tensor(raw, dtype=torch.float64) / sum(raw) if draw(st.booleans()) else None
    floor = draw(st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.99]))
    epsilon = draw(st.sampled_from([0.0, 1e-3, 1.0])) if floor else draw(st.sampled_from([1e-3, 1.0]))
    sampler = dasgrad.AdaptiveSampler(n, 3, target=target, floor=floor, epsilon=epsilon, seed=1)
    sampler.refresh(scores)
    return sampler, torch.tensor(scores, dtype=torch.float64)


@given(samplers())
def test_probabilities_are_those_of_the_reference_and_the_estimate_is_unbiased(case):
    sampler, scores = case
    p, w, pi = sampler.probabilities, sampler.weights, sampler.target
    expected = reference.probabilities(scores.tolist(), pi.tolist(), sampler.epsilon, sampler.floor)
    np.testing.assert_allclose(p, expected, rtol=1e-12)
    assert p.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert (p[pi > 0] > 0).all()
    assert (p[pi == 0] == 0).all()
    gradients = torch.randn(len(p), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close((p * w) @ gradients, pi @ gradients, rtol=1e-12, atol=1e-12)


@given(samplers())
def test_second_moment_bound(case):
    """E_p[w² s²] ≤ min((E_π s)²/(1−λ), E_π[s²]/λ); the first needs ε = 0, where p follows s itself."""
    sampler, s = case
    p, w, pi, floor = sampler.probabilities, sampler.weights, sampler.target, sampler.floor
    moment = float(p @ (w * s).square())
    slack = 1 + 1e-9
    if sampler.epsilon == 0:
        assert moment <= float(pi @ s) ** 2 / (1 - floor) * slack
    if floor > 0:
        assert moment <= float(pi @ s.square()) / floor * slack
        assert float(w.max()) <= 1 / floor * slack


@given(samplers(), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40))
def test_each_uniform_decides_the_draw_the_reference_makes(case, uniforms):
    sampler, scores = case
    indices, weights = sampler._locate(torch.tensor(uniforms, dtype=torch.float64))
    p, pi = sampler.probabilities, sampler.target
    assert (pi[indices] > 0).all()
    torch.testing.assert_close(weights, (pi / p)[indices], rtol=1e-9, atol=0)
    for u, index in zip(uniforms, indices.tolist(), strict=True):
        near = [
            reference.draw(
                min(max(u + shift, 0.0), 1 - 1e-16), scores.tolist(), pi.tolist(), sampler.epsilon, sampler.floor
            )
            for shift in (-1e-12, 0.0, 1e-12)  # at a boundary, rounding may fall either way
        ]
        assert index in near or p[index] < 1e-9


@pytest.mark.parametrize("stratified", ["none", "batch", "pass", "run"])
@pytest.mark.parametrize("floor", [0.0, 0.3])
@pytest.mark.parametrize("shifted", [False, True])
def test_draws_follow_p(stratified, floor, shifted):
    """Chi-square on 10⁶ draws at p > 1e-4; stratified draws vary less, so their statistic is smaller still."""
    n = 40
    target = torch.arange(n, dtype=torch.float64) / sum(range(n)) if shifted else None
    sampler = dasgrad.AdaptiveSampler(n, 1000, target=target, floor=floor, epsilon=1e-3, stratified=stratified, seed=11)
    sampler.refresh(torch.linspace(0, 3, n).exp())
    counts = torch.zeros(n, dtype=torch.float64)
    for _ in range(1000):
        counts += torch.bincount(sampler.draw()[0], minlength=n)
    expected = sampler.probabilities * 1e6
    drawn = expected > 0
    assert (counts[~drawn] == 0).all()
    assert expected[drawn].min() >= 5
    statistic = ((counts - expected).square() / expected)[drawn].sum().item()
    assert stats.chi2.sf(statistic, int(drawn.sum()) - 1) > 1e-4


def test_stratified_draws_take_one_from_each_slice():
    sampler = dasgrad.AdaptiveSampler(8, 8, floor=0.5, stratified="batch")
    sampler.refresh(torch.ones(8))
    for _ in range(50):
        indices, _ = sampler.draw()
        # slices 0-3 belong to the floor (two examples each), slices 4-7 to the tree
        assert (torch.bincount(indices, minlength=8).reshape(4, 2).sum(1) == 2).all()


def test_equal_probabilities_make_a_pass_a_reshuffled_epoch():
    sampler = dasgrad.AdaptiveSampler(24, 4, floor=0.5, stratified="pass", seed=3)
    orders = []
    for refreshed in (False, False, True):
        if refreshed:
            sampler.refresh(torch.ones(24))
        drawn = torch.cat([sampler.draw()[0] for _ in range(len(sampler))])
        orders.append(drawn.tolist())
        if not refreshed:  # with a floor, half of the draws come from the tree: each example twice every two passes
            assert sorted(orders[-1]) == list(range(24))
    assert orders[0] != orders[1]
    assert torch.bincount(torch.tensor(orders[2]), minlength=24).max() <= 2


@pytest.mark.parametrize(("n", "batch_size"), [(25, 4), (1000, 32), (1797, 32), (5, 8), (33, 32), (7, 1)])
def test_a_uniform_pass_leaves_nobody_out_where_the_batch_does_not_divide_n(n, batch_size):
    """D = B⌈n/B⌉ evenly spaced draws: each of n equal intervals holds at least one, and ⌈D/n⌉ at most."""
    sampler = dasgrad.AdaptiveSampler(n, batch_size, stratified="pass", seed=5)
    for _ in range(3):
        drawn = torch.cat([sampler.draw()[0] for _ in range(len(sampler))])
        counts = torch.bincount(drawn, minlength=n)
        assert int(counts.min()) >= 1
        assert int(counts.max()) <= -(-len(drawn) // n)


def test_a_pass_covers_p_evenly_and_a_batch_its_slices():
    """Each fine slice is visited once a pass, so an interval's count strays from its share by less than 2.

    An example owns two intervals of [0, 1): one below the floor, one above it.
    """
    n, batch_size = 60, 5
    sampler = dasgrad.AdaptiveSampler(n, batch_size, floor=0.3, stratified="pass", seed=8)
    sampler.refresh(torch.linspace(0, 2, n).exp())
    for _ in range(5):
        counts = torch.zeros(n, dtype=torch.float64)
        for _ in range(len(sampler)):
            counts += torch.bincount(sampler.draw()[0], minlength=n)
        assert (counts - n * sampler.probabilities).abs().max() < 4


def test_the_estimate_of_a_pass_varies_least_when_it_is_covered():
    """Variance of the weighted mean over a pass: pass < batch ≤ independent, 200 passes each, fixed seeds."""
    n = 64
    values = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = {}
    for stratified in ("none", "batch", "pass"):
        sampler = dasgrad.AdaptiveSampler(n, 8, stratified=stratified, floor=0.3, seed=5)
        sampler.refresh(values.abs())
        means = []
        for _ in range(200):
            draws = [sampler.draw() for _ in range(len(sampler))]
            means.append(torch.stack([(w * values[i]).mean() for i, w in draws]).mean())
        means = torch.stack(means)
        assert abs(means.mean() - values.mean()) < 5 * means.std() / 200**0.5
        spread[stratified] = float(means.var())
    assert spread["pass"] < 0.5 * spread["batch"]
    assert spread["batch"] < 1.2 * spread["none"]


def test_passes_in_a_row_undo_each_other():
    """13 passes: the estimate of any one is unbiased, and that of all varies far less than by 1/13 of one's variance.

    300 samplers, fixed seeds. Means within 4 standard errors: two tests that chance would fail once in 8,000 times.
    """
    n, num_passes = 64, 13
    values = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = torch.empty(300, num_passes, dtype=torch.float64)
    for seed in range(len(means)):
        sampler = dasgrad.AdaptiveSampler(n, 8, floor=0.3, seed=seed)
        sampler.refresh(values.abs().square())
        for k in range(num_passes):
            indices, weights = sampler.draw_batches(len(sampler))
            means[seed, k] = (weights * values[indices]).mean()
    for estimates in (means[:, -1], means.mean(1)):
        assert abs(estimates.mean() - values.mean()) < 4 * estimates.std() / len(means) ** 0.5
    assert means.mean(1).var() < 0.2 * means.var(0).mean() / num_passes


def test_rare_examples_come_at_regular_passes():
    """One in five passes or so, to be drawn by the floor alone: over any passes in a row as often as it should be."""
    n, num_passes = 40, 200
    sampler = dasgrad.AdaptiveSampler(n, 8, floor=0.2, seed=1)
    sampler.refresh(torch.ones(n).index_fill_(0, torch.arange(20), 0.0))
    counts = torch.stack(
        [torch.bincount(sampler.draw_batches(len(sampler))[0].flatten(), minlength=n) for _ in range(num_passes)]
    )[:, :20].double()
    ahead = counts.cumsum(0) - 0.2 * torch.arange(1, num_passes + 1, dtype=torch.float64)[:, None]
    assert (ahead.max(0).values - ahead.min(0).values).max() < 3  # with places drawn at random it is 9
    assert torch.equal(counts.sum(0).clamp(38, 42), counts.sum(0))


def test_an_update_keeps_the_bound_on_the_weights():
    """The floor is a mixture: with constants in the leaves, one update would break w ≤ 1/λ."""
    sampler = dasgrad.AdaptiveSampler(100, 4, floor=0.2)
    sampler.refresh(torch.ones(100))
    sampler.update([7], [1e9])
    assert float(sampler.weights.max()) <= 1 / 0.2
    assert sampler.probabilities[7] > 0.79
    indices, weights = sampler.draw(1000)
    torch.testing.assert_close(weights, sampler.weights[indices], rtol=1e-12, atol=0)
    torch.testing.assert_close(sampler.scores[7], torch.tensor(1e9, dtype=torch.float64))


def test_update_of_the_same_index_twice_keeps_the_last():
    sampler = dasgrad.AdaptiveSampler(3, 1, epsilon=0.5)
    sampler.refresh([1.0, 1.0, 1.0])
    sampler.update(torch.tensor([1, 1]), torch.tensor([5.0, 2.0]))
    torch.testing.assert_close(sampler.scores, torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64))


def test_before_the_first_refresh_and_with_zero_mass_p_is_the_target():
    target = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    sampler = dasgrad.AdaptiveSampler(3, 2, target=target)
    for _ in range(2):
        assert torch.equal(sampler.probabilities, target)
        indices, weights = sampler.draw(100)
        assert set(indices.tolist()) == {0, 2}
        assert (weights == 1).all()
        sampler.refresh([0.0, 0.0, 0.0])


def test_passes_have_ceil_n_over_b_full_batches():
    sampler = dasgrad.AdaptiveSampler(10, 4)
    batches = list(sampler)
    assert len(sampler) == len(batches) == 3
    assert all(len(batch) == 4 for batch in batches)
    assert all(isinstance(draw, Draw) and 0 <= draw < 10 for batch in batches for draw in batch)


def test_seeds_epochs_and_the_global_generator():
    def indices(seed, epoch=None):
        sampler = dasgrad.AdaptiveSampler(1000, 50, seed=seed)
        if epoch is not None:
            sampler.set_epoch(epoch)
        return sampler.draw()[0].tolist()

    state = torch.get_rng_state()
    assert indices(3) == indices(3) == indices(3, epoch=0)
    assert indices(3) != indices(4)
    assert indices(3, epoch=1) != indices(3, epoch=0)
    assert torch.equal(state, torch.get_rng_state())
    sampler = dasgrad.AdaptiveSampler(1000, 50, seed=3)
    assert sampler.draw()[0].tolist() != sampler.draw()[0].tolist()


def test_state_round_trip_gives_the_same_draws():
    sampler = dasgrad.AdaptiveSampler(50, 7, seed=2)
    sampler.refresh(torch.rand(50, generator=torch.Generator().manual_seed(0)))
    sampler.draw()
    twin = dasgrad.AdaptiveSampler(50, 7, seed=99)
    twin.load_state_dict(pickle.loads(pickle.dumps(sampler.state_dict())))
    for _ in range(3):
        for ours, theirs in zip(sampler.draw(), twin.draw(), strict=True):
            assert torch.equal(ours, theirs)
    assert torch.equal(sampler.probabilities, twin.probabilities)


def test_a_foreign_state_is_refused_and_changes_nothing():
    sampler = dasgrad.AdaptiveSampler(5, 2)
    sampler.refresh(torch.ones(5))
    before = sampler.probabilities
    state = dasgrad.AdaptiveSampler(6, 2).state_dict()
    with pytest.raises(ValueError, match="num_examples=6, got 5"):
        sampler.load_state_dict(state)
    with pytest.raises(ValueError, match="version 3, got 9"):
        sampler.load_state_dict({**sampler.state_dict(), "version": 9})
    assert torch.equal(before, sampler.probabilities)


def test_draws_survive_pickling_with_their_weight():
    draw = pickle.loads(pickle.dumps(Draw(3, 0.25)))
    assert (draw, draw.weight) == (3, 0.25)
    assert [10, 20, 30, 40][draw] == 40


def test_with_draws_under_a_plain_loader_and_its_error():
    data = torch.arange(20.0)
    sampler = dasgrad.AdaptiveSampler(20, 4, seed=0)
    sampler.refresh(torch.linspace(0, 1, 20))
    weights_of_all = sampler.weights
    wrapped = dasgrad.WithDraws(data)
    for examples, indices, weights in torch.utils.data.DataLoader(wrapped, batch_sampler=sampler):
        assert torch.equal(examples, data[indices])
        torch.testing.assert_close(weights, weights_of_all[indices], rtol=1e-12, atol=0)
    with pytest.raises(TypeError, match="draws of an `AdaptiveSampler`, got int 3"):
        wrapped[3]
    assert len(wrapped) == 20


BAD_ARGUMENTS = [
    ({"num_examples": 0}, r"num_examples=.*positive integer, got 0"),
    ({"num_examples": 2.5}, r"num_examples=.*positive integer, got 2\.5"),
    ({"batch_size": 0}, r"batch_size=.*positive integer, got 0"),
    ({"floor": 1.0}, r"floor=.*\[0, 1\), got 1\.0"),
    ({"floor": -0.1}, r"floor=.*\[0, 1\), got -0\.1"),
    ({"floor": float("nan")}, r"floor=.*\[0, 1\), got nan"),
    ({"epsilon": -1.0}, r"epsilon=.*at least 0, got -1\.0"),
    ({"floor": 0.0, "epsilon": 0.0}, r"floor=.*epsilon=.*not both be 0"),
    ({"stratified": True}, r"stratified=.*'none', 'batch', 'pass' or 'run', got True"),
    ({"seed": -1}, r"seed=.*non-negative integer, got -1"),
    ({"target": [0.5, 0.5]}, r"target=.*shape \(3,\), got \(2,\)"),
    ({"target": [0.5, 0.5, 0.5]}, r"target=.*sum to 1, got 1\.5"),
    ({"target": [1.5, -0.5, 0.0]}, r"target=.*non-negative, got -0\.5 at index 1"),
    ({"target": [float("nan"), 0.5, 0.5]}, r"target=.*got nan at index 0"),
]


@pytest.mark.parametrize(("options", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        dasgrad.AdaptiveSampler(**{"num_examples": 3, "batch_size": 2, **options})


BAD_CALLS = [
    (lambda s: s.refresh([1.0, 2.0]), r"refresh\(scores=.*shape \(3,\), got \(2,\)"),
    (lambda s: s.refresh([1.0, -2.0, 0.0]), r"non-negative, got -2\.0 at position 1"),
    (lambda s: s.refresh([1.0, 1.0, float("nan")]), r"got nan at position 2"),
    (lambda s: s.refresh([1.0, float("inf"), 0.0]), r"got inf at position 1"),
    (lambda s: s.update([0, 1], [1.0]), r"update\(scores=.*shape \(2,\), got \(1,\)"),
    (lambda s: s.update([3], [1.0]), r"update\(indices=.*\[0, 3\), got 3"),
    (lambda s: s.update([-1], [1.0]), r"update\(indices=.*\[0, 3\), got -1"),
    (lambda s: s.update([0], [float("nan")]), r"got nan at position 0"),
    (lambda s: s.draw(-1), r"num=.*non-negative integer, got -1"),
    (lambda s: s.set_epoch(-1), r"epoch=.*got -1"),
]


@pytest.mark.parametrize(("call", "message"), BAD_CALLS)
def test_bad_calls_are_refused_and_lose_nothing(call, message):
    sampler = dasgrad.AdaptiveSampler(3, 2)
    sampler.refresh([1.0, 2.0, 3.0])
    before = sampler.probabilities
    with pytest.raises(ValueError, match=message):
        call(sampler)
    assert torch.equal(before, sampler.probabilities)


def test_draws_go_by_what_is_made_of_checked_scores():
    sampler = dasgrad.AdaptiveSampler(4, 2, floor=0.0, epsilon=1e-9, target=[0.5, 0.25, 0.25, 0.0])
    seen = []
    sampler.refresh([1.0, 2.0, 3.0, 9.0], lambda scores: seen.append(scores) or scores.square())
    assert seen[0].tolist() == [1.0, 2.0, 3.0, 0.0]  # the last one is never drawn
    expected = torch.tensor([0.5, 1.0, 9 / 4, 0.0], dtype=torch.float64)
    torch.testing.assert_close(sampler.probabilities, expected / expected.sum(), atol=1e-8, rtol=0)


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_scores_and_what_is_made_of_them_are_both_checked(bad):
    sampler = dasgrad.AdaptiveSampler(3, 2)
    sampler.refresh([1.0, 2.0, 3.0])
    before = sampler.probabilities
    with pytest.raises(ValueError, match="position 1"):
        sampler.refresh([1.0, bad, 3.0], torch.square)
    with pytest.raises(ValueError, match="position 2"):
        sampler.refresh([1.0, 2.0, 3.0], lambda scores: torch.where(scores > 2, bad, scores))
    assert torch.equal(sampler.probabilities, before)


def test_update_before_refresh_is_refused():
    with pytest.raises(ValueError, match="call `refresh`"):
        dasgrad.AdaptiveSampler(3, 2).update([0], [1.0])
