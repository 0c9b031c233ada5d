"""`CapturedLoop` takes the steps of an ordinary loop: same draws, weights and states after; here without a graph."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dasgrad
import helpers
from dasgrad.training import captured
from training.captured_runs import LR, REFRESHES, assert_same, build, compare, state_of, train


@pytest.mark.parametrize("refresh", REFRESHES)
@pytest.mark.parametrize(("n", "batch_size"), [(12, 3), (23, 4), (5, 7)])
@pytest.mark.parametrize("parts", [(40,), (5, 0, 1, 17, 17)], ids=["one run", "several"])
def test_runs_are_the_steps_of_an_ordinary_loop(refresh, n, batch_size, parts):
    loop, other = (build(n, batch_size, REFRESHES[refresh]()) for _ in range(2))
    seen = []
    loop.loader.on_refresh(lambda event: seen.append(event.step))
    compare(loop, other, 40, parts)
    assert len(seen) >= (1 if refresh == "auto" else 2)
    assert loop.loader.num_steps == 40
    assert not loop.captured


@pytest.mark.parametrize(("limit", "value"), [("MOST_STEPS", 4), ("MOST_DRAWS", 9), ("MOST_DRAWS", 3)])
def test_however_few_draws_are_made_at_once_the_steps_are_the_same(monkeypatch, limit, value):
    """A table of four rows, of two, and of one where not even one batch of four is within the limit."""
    monkeypatch.setattr(captured, limit, value)
    loop, other = (build(refresh=9) for _ in range(2))
    compare(loop, other, 30, (30,))


def test_without_a_scorer_draws_follow_the_target_or_scores_given_by_hand():
    loop, other = (build(scored=False) for _ in range(2))
    compare(loop, other, 10, (10,))
    for one in (loop, other):
        one.loader.load_state_dict(one.loader.state_dict())  # both go on in the middle of their pass
        one.loader.sampler.refresh(torch.arange(23.0))
    compare(loop, other, 20, (13, 7))
    assert loop.loader.num_steps == 0  # as in an ordinary loop, this loader was given no optimizer


@pytest.mark.parametrize("weighting", helpers.WEIGHTINGS)
@pytest.mark.parametrize("path", [{"fused": False}, {"foreach": True}, {"foreach": False}])
def test_all_ways_to_step(weighting, path):
    options = {"weighting": weighting, "projection": dasgrad.projections.L2Ball(1.0), "weight_decay": 0.1, **path}
    loop, other = (build(scheduled=True, **options) for _ in range(2))
    compare(loop, other, 15, (15,))


def test_a_run_without_a_number_ends_with_the_pass():
    loop = build()
    assert [len(loop.run()), len(loop.run(2)), len(loop.run()), len(loop.run())] == [6, 2, 4, 6]
    assert loop.loader.state_dict()["position"] == 0


def test_an_ordinary_loop_goes_on_where_a_run_ended_and_the_other_way_round():
    loop, other = build(), build()
    loop.run(4)
    assert sum(1 for _ in zip(range(99), loop.loader, strict=False)) == 2
    train(other, 4)
    pass_left = iter(other.loader)
    next(pass_left)
    losses = other.run(3)
    assert len(losses) == 3
    assert other.loader.state_dict()["position"] == 3  # an ordinary pass that was left is over
    with pytest.raises(RuntimeError, match="This pass over the `AdaptiveLoader` is over"):
        next(pass_left)


def test_a_run_can_be_saved_and_gone_on_with(tmp_path):
    whole, first, second = (build(scheduled=True) for _ in range(3))
    expected = whole.run(50)[20:]
    first.run(20)
    for save, load in ((first, second),):
        parts = [
            {"model": one.model, "optimizer": one.optimizer, "scheduler": one.scheduler, "loader": one.loader}
            for one in (save, load)
        ]
        dasgrad.save_checkpoint(tmp_path / "run.pt", **parts[0])
        dasgrad.load_checkpoint(tmp_path / "run.pt", **parts[1])
    assert torch.equal(second.run(30), expected)
    assert_same(state_of(second), state_of(whole))


def test_draws_of_steps_that_an_error_prevented_are_the_next_ones():
    calls = 0

    def losses(model, data):
        nonlocal calls
        calls += 1
        if calls == 9:
            raise MemoryError
        return helpers.squared_losses(model(data[0]), data[1])

    other = build()
    loop = dasgrad.CapturedLoop(build().loader, losses=losses)
    with pytest.raises(MemoryError):
        loop.run(30)
    assert loop.loader.num_steps == 8
    state = loop.loader.state_dict()
    assert (state["position"], len(state["indices_in_flight"]), state["num_batches"]) == (2, 3, 8)
    expected = train(other, 30)
    assert torch.equal(loop.run(22), expected[8:])
    assert_same(state_of(loop), state_of(other))


@given(
    st.integers(1, 30), st.integers(1, 7), st.integers(1, 9), st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)))
)
def test_draws_taken_at_once_are_those_of_a_loop(n, batch_size, interval, pieces):
    """Whatever is asked for, and however much of it is given back."""
    ours, theirs = (build(n, batch_size, interval).loader for _ in range(2))
    taken = []
    for most, num_back in pieces:
        left = ours.num_left
        indices, weights = ours.take_draws(most)
        assert 1 <= len(indices) <= min(most, left)  # what is given back must belong to the pass that is going on
        num_used = max(0, len(indices) - num_back)
        ours.put_back(indices[num_used:], weights[num_used:])
        taken += zip(indices[:num_used], weights[:num_used], strict=True)
        for _ in range(num_used):
            ours.counter.count()
    batches = itertools.chain.from_iterable(itertools.repeat(theirs))
    for draws, batch in zip(taken, batches, strict=False):
        assert_same(draws, (batch.indices, batch.weights))
        theirs.counter.count()
    assert (ours.num_steps, ours.state_dict()["num_batches"]) == (len(taken), len(taken))
    assert ours.state_dict()["position"] == len(taken) % len(ours)


def test_the_shortest_call_and_other_kinds_of_data():
    inputs, targets, model = helpers.regression(20)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    loader = dasgrad.AdaptiveLoader({"x": inputs, "y": targets}, 4, optimizer=optimizer)

    def losses(model, data):
        return helpers.squared_losses(model(data["x"]), data["y"])

    assert len(dasgrad.CapturedLoop(loader, model, losses=losses).run(7)) == 7
    rows = dasgrad.SparseRows(torch.arange(21), torch.arange(20) % 3, torch.ones(20, dtype=torch.float64), 3)
    loader = dasgrad.AdaptiveLoader((rows, targets), 4)
    assert len(dasgrad.CapturedLoop(loader, model, helpers.squared_losses, optimizer).run(7)) == 7


def test_what_cannot_be_a_loop_is_refused_with_the_reason():
    inputs, targets, model = helpers.regression(20)
    optimizer = dasgrad.DASGrad(model.parameters())
    loader = dasgrad.AdaptiveLoader((inputs, targets), 4)
    loss_fn = helpers.squared_losses
    with pytest.raises(ValueError, match="needs `model`, `loss_fn`, `optimizer`"):
        dasgrad.CapturedLoop(loader)
    with pytest.raises(ValueError, match="needs `optimizer`"):
        dasgrad.CapturedLoop(loader, model, loss_fn)
    with pytest.raises(ValueError, match="one of `loss_fn` and `losses`, got both"):
        dasgrad.CapturedLoop(loader, model, loss_fn, optimizer, losses=lambda model, data: None)
    for other in (helpers.Rows(inputs, targets), [(inputs[0], targets[0])]):
        fetching = dasgrad.AdaptiveLoader(other, 4)
        with pytest.raises(ValueError, match=r"needs tensors in memory .* got a loader of (Rows|list)"):
            dasgrad.CapturedLoop(fetching, model, loss_fn, optimizer)
    with pytest.raises(ValueError, match="needs its data on the model's device, meta, got cpu"):
        dasgrad.CapturedLoop(loader, copy.deepcopy(model).to("meta"), loss_fn, optimizer)
    moving = dasgrad.AdaptiveLoader((inputs, targets), 4, device="meta")
    with pytest.raises(
        ValueError, match=r"`AdaptiveLoader\(device=...\)` must be the model's, cpu, or None .* got meta"
    ):
        dasgrad.CapturedLoop(moving, model, loss_fn, optimizer)
    counting = dasgrad.AdaptiveLoader((inputs, targets), 4, optimizer=optimizer)
    with pytest.raises(ValueError, match="must be the one whose steps the loader counts"):
        dasgrad.CapturedLoop(counting, model, loss_fn, dasgrad.DASGrad(model.parameters()))
    loop = dasgrad.CapturedLoop(loader, model, loss_fn, optimizer)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match=r"run\(num_steps=...\)` must be a non-negative integer, got"):
            loop.run(wrong)
        with pytest.raises(ValueError, match=r"take_draws\(most=...\)` must be a positive integer, got"):
            loader.take_draws(wrong)
    reduced = dasgrad.CapturedLoop(loader, model, lambda outputs, targets: outputs.mean(), optimizer)
    with pytest.raises(ValueError, match=r"one value per example, shape \(4,\), got \(\)"):
        reduced.run(1)
    triple = dasgrad.AdaptiveLoader((inputs, targets, targets), 4)
    with pytest.raises(TypeError, match=r"`CapturedLoop\(loss_fn=...\)` needs data that is a pair"):
        dasgrad.CapturedLoop(triple, model, loss_fn, optimizer).run(1)
    with torch.autocast("cpu"), pytest.raises(RuntimeError, match="outside autocast"):
        loop.run(1)
