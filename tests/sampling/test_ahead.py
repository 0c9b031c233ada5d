"""Draws made ahead are those made batch by batch, whatever happens between two batches."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dasgrad
from dasgrad.sampling import ahead

pytestmark = pytest.mark.usefixtures("core")
EVENTS = ("others", "refresh", "update", "floor", "epoch", "state")


def play(events, num_examples, batch_size, stratified, together=False):
    """Everything that was drawn and every state that was saved on the way; draws come before each event."""
    sampler = dasgrad.AdaptiveSampler(num_examples, batch_size, stratified=stratified, seed=5)
    sampler.refresh(torch.arange(num_examples) + 1.0)
    seen = []
    for number, (num_draws, event) in enumerate([*events, (9, "state")]):
        if together and num_draws:
            seen += [row for rows in zip(*sampler.draw_batches(num_draws), strict=True) for row in rows]
        else:
            for _ in range(num_draws):
                seen += sampler.draw()
        scores = torch.rand(num_examples, generator=torch.Generator().manual_seed(number))
        if event == "others":
            seen += sampler.draw(batch_size + 1)
        elif event == "refresh":
            sampler.refresh(scores)
        elif event == "update":
            sampler.update([number % num_examples], scores[:1] * 9)
        elif event == "floor":
            sampler.floor = 0.05 + 0.9 * float(scores[0])
        elif event == "epoch":
            sampler.set_epoch(number)
        elif event == "state":
            state, floor = pickle.loads(pickle.dumps(sampler.state_dict())), sampler.floor
            seen += [state["generator"], *state.get("cover", {}).values()]
            sampler = dasgrad.AdaptiveSampler(num_examples, batch_size, floor=floor, stratified=stratified)
            sampler.load_state_dict(state)
    return seen


@pytest.mark.parametrize("stratified", ["none", "batch", "pass"])
@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(EVENTS)), max_size=10),
    st.sampled_from([(1, 1), (23, 4), (7, 7), (40, 3)]),
)
def test_nobody_can_tell_that_draws_are_made_ahead(stratified, events, shape):
    seen = {}
    for num_ahead in (1, 2, 7, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ahead, "AHEAD", num_ahead * shape[1])
            seen[num_ahead] = play(events, *shape, stratified)
    one_by_one = seen.pop(1)
    for made_ahead in seen.values():
        for ours, theirs in zip(made_ahead, one_by_one, strict=True):
            assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


@pytest.mark.parametrize("stratified", ["none", "batch", "pass"])
@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(EVENTS)), max_size=10),
    st.sampled_from([(1, 1), (23, 4), (7, 7), (5, 9), (40, 3)]),
)
def test_batches_drawn_together_are_those_drawn_one_by_one(stratified, events, shape):
    together, one_by_one = (play(events, *shape, stratified, together) for together in (True, False))
    for ours, theirs in zip(together, one_by_one, strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


def test_batches_drawn_together_are_looked_up_once_where_that_is_faster(core):
    sampler = dasgrad.AdaptiveSampler(1000, 10)
    original, lengths = sampler._locate_, []
    sampler._locate_ = lambda u, stratified: (lengths.append(len(u) // 10), original(u, stratified=stratified))[1]
    indices, weights = sampler.draw_batches(250)  # through passes of 100
    assert indices.shape == weights.shape == (250, 10)
    if core == "search":
        assert lengths == [250]
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match=r"draw_batches\(num=...\)` must be a positive integer, got"):
            sampler.draw_batches(wrong)


def test_batches_are_looked_up_together_and_a_change_of_scores_ends_it(core):
    sampler = dasgrad.AdaptiveSampler(1000, 10)
    sampler.refresh(torch.arange(1000.0))
    original, lengths = sampler._locate_, []
    sampler._locate_ = lambda u, stratified: (lengths.append(len(u) // 10), original(u, stratified=stratified))[1]
    for _ in range(20):
        sampler.draw()
    if core == "search":  # as on a GPU: batch by batch
        assert lengths == [1] * 20
        return
    assert lengths == [1, 2, 4, 8, 16]
    sampler.update([0], [1.0])
    for _ in range(3):
        sampler.draw()
    assert lengths[5:] == [1, 2]


def test_large_batches_are_not_made_ahead():
    assert dasgrad.AdaptiveSampler(10**4, ahead.AHEAD)._draws._max_ahead == 1
