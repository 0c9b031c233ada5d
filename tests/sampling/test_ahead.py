"""Draws made ahead are those made batch by batch, whatever happens between two batches."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dasgrad
from dasgrad.sampling import ahead
from dasgrad.sampling import sampler as sampler_module
from one_by_one import OneByOne

pytestmark = pytest.mark.usefixtures("core")
EVENTS = ("nothing", "others", "refresh", "update", "forget", "floor", "epoch", "state", "restore", "rewind")


def rand_and_skip(*args, generator=None, rand=torch.rand, **kwargs):
    """Uniforms from a generator that, as a GPU's, goes on by more numbers than it gave: all at once are others."""
    uniforms = rand(*args, generator=generator, **kwargs)
    if generator is not None:
        rand(3, generator=generator)
    return uniforms


def play(events, num_examples, batch_size, stratified):
    """Everything that was drawn and every state that was saved on the way; draws come before each event."""
    sampler = dasgrad.AdaptiveSampler(num_examples, batch_size, stratified=stratified, seed=5)
    sampler.refresh(torch.arange(num_examples) + 1.0)
    first = pickle.dumps((sampler.state_dict(), sampler.floor))
    seen = []
    for number, (num_draws, together, event) in enumerate([*events, (9, False, "state")]):
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
        elif event == "update" and sampler.refreshed:
            sampler.update([number % num_examples], scores[:1] * 9)
        elif event == "forget":
            sampler.forget()
        elif event == "floor":
            sampler.floor = 0.05 + 0.9 * float(scores[0])
        elif event == "epoch":
            sampler.set_epoch(number)
        elif event in ("state", "restore"):
            state, floor = pickle.loads(pickle.dumps(sampler.state_dict())), sampler.floor
            seen += [state["generator"], *state.get("cover", {}).values()]
            seen += [-1 if value is None else value for value in state.get("balance", {}).values()]
            if event == "restore":
                sampler = dasgrad.AdaptiveSampler(num_examples, batch_size, floor=floor, stratified=stratified)
                sampler.load_state_dict(state)
        elif event == "rewind":
            state, sampler.floor = pickle.loads(first)
            sampler.load_state_dict(state)
    return seen


@pytest.mark.parametrize("stratified", ["none", "batch", "pass", "run"])
@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.sampled_from(EVENTS)), max_size=10),
    st.sampled_from([(1, 1), (23, 4), (7, 7), (5, 9), (40, 3)]),
)
def test_nobody_can_tell_that_draws_are_made_ahead(core, stratified, events, shape):
    with pytest.MonkeyPatch.context() as patch:
        if core == "search":
            patch.setattr(torch, "rand", rand_and_skip)
        seen = []
        for num_ahead in (1, 2, 7, 1000):
            patch.setattr(ahead, "AHEAD", num_ahead * shape[1])
            seen.append(play(events, *shape, stratified))
        patch.setattr(sampler_module, "BatchDraws", OneByOne)
        one_by_one = play(events, *shape, stratified)
    for made_ahead in seen:
        for ours, theirs in zip(made_ahead, one_by_one, strict=True):
            assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


@pytest.mark.parametrize("stratified", ["none", "batch", "pass", "run"])
def test_what_is_handed_out_is_the_callers_own(stratified):
    """Overwriting it changes neither the batches to come nor, where scores change, those looked up anew."""
    samplers = [dasgrad.AdaptiveSampler(100, 4, stratified=stratified) for _ in range(2)]
    for number in range(40):
        draws = [sampler.draw() for sampler in samplers]
        for ours, theirs in zip(*draws, strict=True):
            assert torch.equal(ours, theirs)
            ours.zero_()
        if number % 7 == 0:
            for sampler in samplers:
                sampler.refresh(torch.arange(100) + number)


def test_batches_drawn_together_are_looked_up_once():
    sampler = dasgrad.AdaptiveSampler(1000, 10, stratified="pass")
    original, lengths = sampler._locate_, []
    sampler._locate_ = lambda u, stratified: (lengths.append(len(u) // 10), original(u, stratified=stratified))[1]
    indices, weights = sampler.draw_batches(250)  # through passes of 100
    assert indices.shape == weights.shape == (250, 10)
    assert lengths == [250]
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match=r"draw_batches\(num=...\)` must be a positive integer, got"):
            sampler.draw_batches(wrong)


@pytest.mark.parametrize("stratified", ["none", "batch", "pass"])
def test_batches_are_looked_up_together_and_a_change_of_scores_ends_it(stratified):
    sampler = dasgrad.AdaptiveSampler(1000, 10, stratified=stratified)
    sampler.refresh(torch.arange(1000.0))
    original, lengths = sampler._locate_, []
    sampler._locate_ = lambda u, stratified: (lengths.append(len(u) // 10), original(u, stratified=stratified))[1]
    for _ in range(20):
        sampler.draw()
    assert lengths == [1, 2, 4, 8, 16]
    sampler.update([0], [1.0])
    for _ in range(3):
        sampler.draw()
    assert lengths[5:] == [1, 2]


def test_large_batches_are_not_made_ahead():
    assert dasgrad.AdaptiveSampler(10**4, ahead.AHEAD)._draws._max_ahead == 1
