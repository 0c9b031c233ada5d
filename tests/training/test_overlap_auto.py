"""``refresh="auto"`` beside training: how many steps scoring is given, and what it takes from training."""

import time

import pytest
import torch

from dasgrad.training import AutoRefresh, Costs
from dasgrad.training.beliefs import AgingBelief
from dasgrad.training.overlap import Scored
from dasgrad.training.stopwatch import Stopwatch
from training.overlap_runs import build, sleepy_losses, train


def automatic(**costs):
    return build(overlap="auto", refresh=AutoRefresh(worth=0.95, costs=Costs(**costs)), losses=sleepy_losses)


def test_auto_takes_as_many_steps_as_scoring_should():
    model, optimizer, loader = automatic(step=1.0, example=0.05, lost=0.1)  # 40 examples: 2 s, with a margin 3
    seen = []
    loader.on_refresh(lambda event: seen.append(event.step))
    train(model, optimizer, loader, 30)
    assert seen[0] == 16 + 3
    assert loader.diagnosis().decision in ("refresh", "keep")


def test_auto_reckons_with_the_draws_until_scores_take_effect():
    """Three of the 16 steps over which a refresh is reckoned are still uniform, the others by aging scores."""
    model, optimizer, loader = automatic(step=1.0, example=0.05, lost=0.1)
    train(model, optimizer, loader, 17)
    found = loader.diagnosis()
    fresh = found.noise_left_fresh
    assert found.decision == "refresh"
    assert fresh < 0.9
    assert found.noise_left == pytest.approx(3 / 16 + 13 / 16 * AgingBelief(0.15).on_average(fresh))


def test_auto_does_not_look_while_scores_are_pending():
    """Scores of step 16 take effect at step 28, before which there would be a look at step 24."""
    costs = Costs(step=1.0, example=0.2, lost=0.0)
    auto = AutoRefresh(num_audited=16, worth=1.0, most_auditing=0.9, costs=costs)
    model, optimizer, loader = build(overlap="auto", refresh=auto)
    train(model, optimizer, loader, 27)
    assert loader.pending
    assert loader.diagnosis().step == 16
    train(model, optimizer, loader, 1)
    assert loader.diagnosis().step == 28


def test_auto_with_given_costs_can_be_repeated():
    costs = {"step": 1.0, "example": 0.05, "lost": 0.3}
    assert torch.equal(train(*automatic(**costs), 60), train(*automatic(**costs), 60))


def test_auto_reckons_with_what_training_loses_alone():
    """Scoring so dear that it would never pay if training stood still, and that costs training nothing."""

    def decision(lost):
        model, optimizer, loader = automatic(step=1.0, example=0.1, lost=lost)
        train(model, optimizer, loader, 17)
        return loader.diagnosis().decision

    assert decision(1.0) == "off"
    assert decision(0.0) == "refresh"


def test_auto_measures_what_it_loses():
    model, optimizer, loader = build(overlap="auto", refresh="auto", losses=sleepy_losses)
    train(model, optimizer, loader, 120, lambda: time.sleep(0.0005))
    assert loader._schedule._costs.lost <= 1.0


@pytest.mark.parametrize(("waited", "lost"), [(1.0, 0.85), (9.0, 1.0)])
def test_what_training_loses_is_slower_steps_and_the_wait_in_the_end(waited, lost):
    """Steps of 1 s alone and of 4 s beside a scoring, which takes 10 s."""
    ticks = iter([0.0, 1.0, 10.0, 14.0])
    auto = AutoRefresh(clock=lambda: next(ticks))
    for beside in (False, True):
        auto.stopwatch.start(torch.device("cpu"), beside=beside)
        auto.stopwatch.stop()
    auto._costs.note_beside(
        Scored(torch.ones(3), 8, 11, "dasgrad", seconds=10.0, waited_seconds=waited), auto.stopwatch.lost_beside()
    )
    state = auto.state_dict()
    assert state["lost"] == pytest.approx(lost)
    assert state["scoring_seconds"] == {"dasgrad": 10.0}
    assert state["spent"] == pytest.approx(10 * lost)


@pytest.mark.parametrize("lost", [-0.1, 1.1])
def test_a_share_is_a_share(lost):
    with pytest.raises(ValueError, match=r"Costs\(lost=\.\.\.\)` must be in \[0, 1\]"):
        Costs(step=1.0, example=1.0, lost=lost)


def test_steps_beside_a_scoring_are_timed_apart():
    ticks = iter([0.0, 1.0, 10.0, 14.0])
    watch = Stopwatch(lambda: next(ticks))
    assert watch.lost_beside() is None
    for beside in (False, True):
        watch.start(torch.device("cpu"), beside=beside)
        watch.stop()
    assert watch.seconds() == 1.0
    assert watch.seconds(beside=True) == 4.0
    assert watch.lost_beside() == 0.75
