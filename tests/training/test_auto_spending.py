"""``refresh="auto"`` spends no more on scores than a share of the time that the steps so far took."""

import math

import pytest

from dasgrad.training import AutoRefresh, Costs, costs
from training.auto_runs import CHEAP, NUM_EXAMPLES, build, build_timed, train


def costs_of(steps, **options):
    """By which scoring all examples takes as long as so many steps."""
    return Costs(step=1.0, example=steps / NUM_EXAMPLES, **options)


def refreshes_of(auto, num_steps, **options):
    """The steps before whose draws scores took effect."""
    model, optimizer, loader = build(auto, **options)
    steps = []
    loader.on_refresh(lambda refresh: steps.append(loader.num_steps + 1))
    train(model, optimizer, loader, num_steps)
    return steps


@pytest.mark.parametrize("share", [0.3, 0.1])
def test_all_scoring_so_far_is_within_its_share_of_the_steps_so_far(share):
    """Scores take 9 steps: the first are made at step 30, or 90, though they would pay from the first look on."""
    steps = refreshes_of(AutoRefresh(costs=costs_of(9), most_scoring=share), 400)
    assert steps[0] == round(9 / share)
    assert len(steps) > 2
    assert all(9 * number <= share * step + 1e-9 for number, step in enumerate(steps, 1))
    assert refreshes_of(AutoRefresh(costs=costs_of(9), most_scoring=math.inf), 30)[0] == 16


def test_until_then_it_says_what_scores_cost():
    model, optimizer, loader = build(AutoRefresh(costs=costs_of(18)))
    train(model, optimizer, loader, 20)
    found = loader.diagnosis()
    assert (found.step, found.decision, found.scoring_seconds) == (21, "wait", pytest.approx(18.0))
    assert "as long as 18 steps" in str(found)
    assert found.brief == "uniform draws, scoring takes 18 steps"
    assert not {"gain", "noise_left_fresh"} & set(found.scalars())  # nothing was measured of these
    assert not loader.sampler.refreshed


def test_scores_in_use_are_kept_or_forgotten_while_others_are_not_affordable():
    auto = AutoRefresh(costs=CHEAP)
    model, optimizer, loader = build(auto)
    train(model, optimizer, loader, 17)
    assert loader.sampler.refreshed
    auto._costs.spent = 1e9
    for _ in range(6):
        train(model, optimizer, loader, 20)
        assert loader.diagnosis().decision in ("keep", "off")
        auto._left_then = 0.9  # as if they had aged, so that fresh ones are wanted
    assert loader.diagnosis().step > 16


def test_what_is_measured_is_what_counts(monkeypatch):
    """Scores turn out to take thrice as long as they should: the next ones come as late as that asks for."""
    auto, parts, now = build_timed()
    prices = {"gradient": 12.0, "last_layer": 1e9, "loss": 1e9}
    monkeypatch.setattr(auto._costs, "try_out", lambda *args: auto._costs.seconds.update(prices))
    monkeypatch.setattr(auto, "_look_seconds", 0.0)
    model, optimizer, loader = parts
    rescore, steps = loader.rescore, []

    def take_time(*args):
        now[0] += 36.0
        steps.append(loader.num_steps + 1)
        return rescore(*args)

    monkeypatch.setattr(loader, "rescore", take_time)
    train(model, optimizer, loader, 300)
    assert steps[0] == 20
    assert steps[1] >= (36 + 36) / 0.6
    assert auto.state_dict()["spent"] == 36.0 * len(steps)


def test_a_time_that_is_far_too_long_is_believed_when_it_comes_again():
    found = costs.ScoringCosts(None, lambda: 0.0)
    for seconds, believed in ((1.0, 1.0), (9.0, 1.0), (2.0, 2.0), (15.0, 15.0), (130.0, 15.0), (131.0, 131.0)):
        found.note("gradient", seconds)
        assert found.seconds["gradient"] == believed
    found.note("loss", 1.0)
    found.note("gradient", 2000.0)
    found.note("loss", 9.0)  # one score that is doubted says nothing of another
    assert found.seconds == {"gradient": 131.0, "loss": 1.0}


def test_scoring_beside_training_counts_by_what_training_loses():
    first = {lost: refreshes_of(AutoRefresh(costs=costs_of(36, lost=lost)), 100, overlap=2)[0] for lost in (1.0, 0.5)}
    assert first == {1.0: 60 + 2, 0.5: 30 + 2}


@pytest.mark.parametrize("most_scoring", [0.0, -1.0, math.nan])
def test_a_share_must_be_positive(most_scoring):
    with pytest.raises(ValueError, match=r"`AutoRefresh\(most_scoring=...\)` must be positive, got"):
        AutoRefresh(most_scoring=most_scoring)


def test_what_is_done_for_the_first_time_after_waiting_does_not_put_off_the_next_look(monkeypatch):
    """All examples take 12 steps: affordable at step 20, and the look after that is at step 30."""
    auto, (model, optimizer, loader), now = build_timed()
    prices = {"gradient": 12.0, "last_layer": 1e9, "loss": 1e9}
    monkeypatch.setattr(auto._costs, "try_out", lambda *args: auto._costs.seconds.update(prices))
    monkeypatch.setattr(auto, "_look_seconds", 0.0)
    scores_of = auto._costs.scores_of

    def slow_at_first(*args):
        now[0] += 1000.0 if loader.num_steps < 20 else 0.0
        return scores_of(*args)

    monkeypatch.setattr(auto._costs, "scores_of", slow_at_first)
    train(model, optimizer, loader, 30)
    assert now[0] > 1000
    assert loader.diagnosis().step == 30


@pytest.mark.parametrize(("least_price", "step"), [(0.05, 16), (0.4, 34), (10.0, 64)])
def test_on_a_cpu_the_first_trial_is_put_off_until_all_scores_may_be_affordable(monkeypatch, least_price, step):
    """All take at least 50 · price steps, a share of 0.6 of the steps so far; nobody waits for longer than 64."""
    monkeypatch.setattr(costs, "_LEAST_PRICE", least_price)
    auto, (model, optimizer, loader), _ = build_timed()
    tried = []
    try_out = auto._costs.try_out
    monkeypatch.setattr(auto._costs, "try_out", lambda *args: (tried.append(loader.num_steps + 1), try_out(*args))[1])
    train(model, optimizer, loader, 80)
    assert tried[0] == step
