"""Scoring beside training: K decides what is drawn and speed does not, also after a state was loaded."""

import copy
import itertools
import threading
import time
from types import SimpleNamespace

import pytest
import torch

import dasgrad
import helpers
from dasgrad.training import AutoRefresh, Costs, rescoring
from training.overlap_runs import (
    N,
    build,
    failing_losses,
    scoring_held,
    scoring_threads,
    sleepy_losses,
    train,
    train_slowly,
)

# --- what is drawn ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "refresh"), [(1, 2), (3, 8), (7, 8)])
@pytest.mark.parametrize("speed", ["fast scoring", "slow scoring", "slow training"])
def test_draws_are_those_of_the_reference_however_fast_scoring_is(overlap, refresh, speed):
    losses = sleepy_losses if speed == "slow scoring" else None
    model, optimizer, loader = build(overlap, refresh, losses=losses)
    pause = (lambda: time.sleep(0.004)) if speed == "slow training" else lambda: None
    drawn = train(model, optimizer, loader, 36, pause)
    assert torch.equal(drawn, train_slowly(overlap, refresh, 36))
    assert drawn[:, 1].unique().numel() > 20  # weights are not all 1, so there was something to get wrong


@pytest.mark.parametrize(("overlap", "refresh"), [(1, 2), (3, 8), (7, 8)])
def test_draws_made_for_several_steps_at_once_end_before_scores_take_effect(overlap, refresh):
    model, optimizer, loader = build(overlap, refresh)
    expected = build(overlap, refresh)
    seen = []
    loader.on_refresh(lambda event: seen.append(event.step))
    dasgrad.CapturedLoop(loader).run(36)
    train(*expected, 36)
    assert seen == [step + overlap for step in range(refresh, 37, refresh) if step + overlap <= 36]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected[0].parameters(), strict=True))
    assert torch.equal(train(model, optimizer, loader, 4), train(*expected, 4))


def test_k_decides_the_draws():
    drawn = [train(*build(overlap), 36) for overlap in (0, 2, 3)]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_scores_that_are_ready_early_wait_for_their_step():
    model, optimizer, loader = build()
    seen = []
    loader.on_refresh(lambda event: seen.append((event.step, event.seconds > 0, event.waited_seconds > 0)))

    def wait_for_scoring():
        for thread in scoring_threads():
            thread.join()
        assert loader.sampler.refreshed == (loader.num_steps >= 11 or bool(seen))

    train(model, optimizer, loader, 28, wait_for_scoring)
    assert seen == [(11, True, True), (19, True, True), (27, True, True)]


def test_training_goes_on_while_examples_are_scored():
    with scoring_held() as (losses, release):
        model, optimizer, loader = build(losses=losses)
        train(model, optimizer, loader, 10)  # scoring started before step 8
        assert loader.pending
        assert not loader.sampler.refreshed
        assert len(scoring_threads()) == 1
        release()
        train(model, optimizer, loader, 1)
        assert loader.sampler.refreshed
        assert not scoring_threads()


def test_draws_are_the_same_through_workers():
    drawn = [train(*build(data=helpers.Rows, num_workers=1, prefetch_factor=2), 24) for _ in range(2)]
    assert torch.equal(drawn[0], drawn[1])
    assert drawn[0][:, 1].unique().numel() > 10


def test_a_refresh_by_hand_takes_the_place_of_pending_scores():
    with scoring_held() as (losses, release):
        model, optimizer, loader = build(losses=losses)
        train(model, optimizer, loader, 8)
        threading.Timer(0.05, release).start()
        loader.refresh()
        assert not loader.pending
    expected = loader.sampler.scores
    train(model, optimizer, loader, 4)
    assert torch.equal(loader.sampler.scores, expected)


def test_pending_scores_take_effect_before_others_are_computed():
    _, _, loader = build()
    seen = []
    loader.on_refresh(lambda event: seen.append(event.scores))
    for number in range(3):
        loader.rescore_beside(loader.scorer, 5)
        assert loader.pending
        assert len(seen) == number


# --- what is told -------------------------------------------------------------------------------------


def test_progress_is_told_chunk_by_chunk():
    told = []
    _, _, loader = build(progress=lambda done, total: told.append((done, total)))
    loader.rescore_beside(loader.scorer, 3)
    loader.take_effect(now=True)
    assert told == [(16, N), (32, N), (N, N)]


def test_the_time_of_the_tree_is_part_of_a_refresh(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(rescoring, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    _, _, loader = build()
    told = []
    loader.on_refresh(told.append)
    loader.rescore_beside(loader.scorer, 3)
    scored = loader.take_effect(now=True)
    assert told[0].seconds == scored.seconds + 1
    assert told[0].waited_seconds == scored.waited_seconds + 1


@pytest.mark.parametrize(("overlap", "timed", "lost"), [(0, 0.25, 1.0), (3, None, 1.0), (3, 0.25, 0.25)])
def test_training_loses_all_of_the_time_until_steps_beside_a_scoring_were_timed(monkeypatch, overlap, timed, lost):
    loader = build(overlap)[2]
    monkeypatch.setattr(loader.counter.stopwatch, "lost_beside", lambda: timed)
    assert loader.share_lost == lost


# --- state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [7, 8, 9, 10, 11, 21])
@pytest.mark.parametrize("auto", [False, True], ids=["fixed", "auto"])
def test_a_run_resumed_while_scores_are_pending_makes_the_same_draws(tmp_path, stopped, auto):
    def make():
        refresh = AutoRefresh(first=8, worth=0.95, costs=Costs(step=1.0, example=0.05, lost=0.1)) if auto else 8
        return build(overlap="auto" if auto else 3, refresh=refresh, losses=sleepy_losses)

    model, optimizer, loader = make()
    train(model, optimizer, loader, stopped)
    pending = loader.pending
    dasgrad.save_checkpoint(tmp_path / "run.pt", model=model, optimizer=optimizer, loader=loader)
    assert loader.pending == pending
    expected = train(model, optimizer, loader, 30)
    again = make()
    dasgrad.load_checkpoint(tmp_path / "run.pt", model=again[0], optimizer=again[1], loader=again[2])
    assert again[2].pending == pending == (stopped in (8, 9, 10))
    assert torch.equal(train(*again, 30), expected)


def test_a_state_is_loaded_over_a_scoring_that_goes_on():
    model, optimizer, loader = build()
    start = copy.deepcopy((model.state_dict(), optimizer.state_dict(), loader.state_dict()))
    with scoring_held() as (losses, release):
        model, optimizer, loader = build(losses=losses)
        train(model, optimizer, loader, 9)
        threading.Timer(0.05, release).start()
        for part, state in zip((model, optimizer, loader), start, strict=True):
            part.load_state_dict(state)
        assert not loader.pending
    assert torch.equal(train(model, optimizer, loader, 20), train(*build(), 20))


def test_a_failed_scoring_does_not_keep_a_run_from_being_saved():
    model, optimizer, loader = build(losses=failing_losses(KeyError))
    train(model, optimizer, loader, 8)
    assert loader.state_dict()["pending"] is None
    with pytest.raises(KeyError, match="broken on purpose"):
        train(model, optimizer, loader, 8)


def test_states_of_before_and_of_another_overlap():
    fresh = build(overlap=0)[2]
    old = {k: v for k, v in fresh.state_dict().items() if k not in ("overlap", "pending")} | {"version": 2}
    fresh.load_state_dict(old)
    with pytest.raises(ValueError, match="needs a loader with overlap=0, got 3"):
        build(overlap=3)[2].load_state_dict(old)
