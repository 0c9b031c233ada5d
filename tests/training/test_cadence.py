"""How soon all examples are scored anew: the plan, and what ``refresh="auto"`` makes of it between looks."""

import copy
import itertools
import math
import sys
from dataclasses import replace

import pytest
import torch

from dasgrad.training import AutoRefresh, Costs, cadence, evidence
from dasgrad.training import auto as auto_module
from dasgrad.training.beliefs import LEAST_KEPT, USUAL_AGING, AgingBelief
from dasgrad.training.cadence import LASTING, LEAST_BETWEEN, MOST_BETWEEN, RENEWING, plan, plan_beside, renewal
from dasgrad.training.findings import HARDLY, Option, choose
from dasgrad.training.forecast import Noise, second_moment_left
from training.auto_runs import NUM_EXAMPLES, build, train

NOISE = Noise(4000.0, 32)


@pytest.mark.parametrize("share", [0.0, 0.15, 0.5, 0.9, 1 - LEAST_KEPT, 0.97, 1.0, 1.5, 2.0])
def test_after_one_look_what_is_lost_is_what_was_found(share):
    assert AgingBelief(share).kept() == pytest.approx(1 - share)
    assert AgingBelief(share).kept(0.0) == 1.0
    assert AgingBelief(share).age(0.2, 0.0) == pytest.approx(0.2)


@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_what_is_kept_goes_by_powers(share):
    belief = AgingBelief(share)
    assert belief.kept(0.5) ** 2 == pytest.approx(belief.kept())
    assert belief.kept(0.25) * belief.kept(0.75) == pytest.approx(belief.kept())


@pytest.mark.parametrize("share", [0.1, 0.9, 0.99, 1.8])
def test_less_is_kept_for_longer(share):
    kept = [AgingBelief(share).kept(looks) for looks in (0.0, 0.1, 0.3, 0.7, 1.0)]
    assert kept == sorted(kept, reverse=True)


@pytest.mark.parametrize("looks", [0.125, 0.5, 1.0, 3.0])
def test_aging_found_over_parts_of_a_look_is_believed_by_the_look(looks):
    belief = AgingBelief()
    belief.observe(0.2, AgingBelief(0.6).age(0.2, looks), 1e12, looks)
    assert belief.share == pytest.approx(0.6)


@pytest.mark.parametrize("looks", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("kept", [0.99, 0.5, 0.1, 0.0, -0.6, -1.0])
def test_what_was_found_over_some_time_is_what_is_believed_of_as_long(kept, looks):
    """Also where nothing is left long before the next look."""
    belief = AgingBelief()
    belief.observe(0.2, 1 - kept * 0.8, 1e15, looks)
    assert belief.kept(looks) == pytest.approx(kept, abs=1e-6)
    assert belief.age(0.2, looks) == pytest.approx(1 - kept * 0.8, abs=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.15, 0.6, 0.95])
@pytest.mark.parametrize("looks", [0.2, 1.0])
def test_the_noise_left_on_average_is_that_of_all_moments(share, looks):
    belief, num = AgingBelief(share), 100_000
    moments = [belief.age(0.3, looks * (k + 0.5) / num) for k in range(num)]
    assert belief.on_average(0.3, looks) == pytest.approx(sum(moments) / num, abs=1e-6)


def test_scores_that_lose_all_at_once_do_not_look_good_on_average():
    """Nothing is known of the time between: as if they had gone down to a twentieth by powers, and below in a line."""
    belief = AgingBelief()
    for kept, expected in ((0.0, 0.317 - 0.025), (-1.0, 0.317 - 0.525)):
        belief.observe(0.0, 1 - kept, 1e15, 0.1)
        assert 1 - belief.on_average(0.0, 0.1) == pytest.approx(expected, abs=1e-3)


def forecast(share, fresh, in_steps, interval, looks):
    left = AgingBelief(share).on_average(fresh, looks)
    lasting = min(LASTING * interval if looks == 1 else looks * interval, renewal(in_steps, promise(fresh)))
    return NOISE.steps_factor(left) * (1 + in_steps / lasting)


def promise(fresh):
    return 1 - NOISE.steps_factor(min(1.0, fresh))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7, 0.99, 1.6, 9.0])
@pytest.mark.parametrize("in_steps", [1.0, 20.0, 150.0, 3000.0])
@pytest.mark.parametrize("fresh", [0.1, 0.6, 1.2])
def test_a_plan_is_the_best_of_what_may_be_done(share, in_steps, fresh):
    interval = 2000
    found = plan(NOISE, AgingBelief(share), fresh, in_steps, interval)
    assert found.factor == pytest.approx(forecast(share, fresh, in_steps, interval, found.looks))
    assert found.noise_left == pytest.approx(AgingBelief(share).on_average(fresh, found.looks))
    assert found.steps_factor == pytest.approx(NOISE.steps_factor(found.noise_left))
    assert found.interval == math.ceil(found.looks * interval)
    shortest = max(LEAST_BETWEEN, 5 * in_steps) / interval
    allowed = [1.0, *(shortest + k / 1000 * (1 - shortest) for k in range(1000) if shortest < 1)]
    least = min(forecast(share, fresh, in_steps, interval, looks) for looks in allowed)
    assert found.factor <= 1.05 * least  # what is tried differs by a quarter from one to the next
    assert found.looks == 1 or found.looks >= min(allowed)


@pytest.mark.parametrize(("now", "until_then"), [(0.4, 0.4), (1.7, 1.0)])
def test_beside_training_draws_stay_what_they_are_until_scores_take_effect(now, until_then):
    """For 50 of the 200 steps over which the cost is spread; draws that do harm are uniform by then."""
    aging = AgingBelief(0.3)
    found = plan_beside(NOISE, aging, now, 0.1, 20.0, 50, 100)
    assert found.noise_left == pytest.approx(until_then / 4 + 3 / 4 * aging.on_average(0.1))
    assert found.steps_factor == pytest.approx(NOISE.steps_factor(found.noise_left))
    assert found.factor == pytest.approx(found.steps_factor * (1 + 20 / 200))
    assert plan_beside(NOISE, aging, now, 0.1, 20.0, 500, 100).noise_left == pytest.approx(until_then)


def test_scores_that_age_as_usual_are_made_at_looks():
    assert plan(NOISE, AgingBelief(USUAL_AGING), 0.5, 100.0, 1000).looks == 1


def test_scores_that_age_fast_are_made_as_often_as_is_allowed():
    found = plan(NOISE, AgingBelief(0.99), 0.1, 100.0, 2000)
    assert found.interval == 100 / MOST_BETWEEN
    assert plan(NOISE, AgingBelief(0.99), 0.1, 0.01, 2000).interval == LEAST_BETWEEN
    assert plan(NOISE, AgingBelief(0.99), 0.1, 100.0, 400).interval == 400


def test_renewing_scores_takes_a_share_of_what_they_win():
    assert renewal(30.0, 0.5) == 30 / (RENEWING * 0.5)
    assert renewal(0.1, 0.5) == LEAST_BETWEEN
    assert min(renewal(30.0, 0.0), renewal(30.0, -0.1), renewal(30.0, 1e-320)) >= sys.maxsize


@pytest.mark.parametrize(
    ("keep", "refresh", "renew", "decision"),
    [
        (0.5, 0.5, False, "keep"),
        (0.5, 0.5 - HARDLY, False, "refresh"),
        (0.5, 0.6, True, "refresh"),
        (0.5, 0.9, True, "keep"),  # not worth it
        (0.5, None, True, "keep"),  # not affordable
        (0.9, 0.6, True, "refresh"),
        (0.9, 0.95, True, "off"),
        (None, 0.6, False, "refresh"),
    ],
)
def test_scores_at_hand_are_kept_unless_they_are_to_be_renewed(keep, refresh, renew, decision):
    factors = {"off": 1.0, "keep": keep, "refresh": refresh}
    options = [Option(name, factor, 0.1, 0.1) for name, factor in factors.items() if factor is not None]
    assert choose(options, 0.85, renew=renew).decision == decision


# --- between looks ----------------------------------------------------------------------------------------


@pytest.fixture
def fleeting(monkeypatch):
    """Scores are found to lose most of what they win from look to look; a run gives steps of refreshes and looks."""

    def lose_most(self, *args):
        self.share = 0.9

    audit = AutoRefresh._audit
    monkeypatch.setattr(AgingBelief, "observe", lose_most)
    monkeypatch.setattr(AgingBelief, "forget", lose_most)

    def run(num_steps, seconds):
        steps, looks = [], []

        def note(self, loader, step, number):
            looks.append(step)
            return audit(self, loader, step, number)

        monkeypatch.setattr(AutoRefresh, "_audit", note)
        parts = build(AutoRefresh(costs=Costs(step=1.0, example=seconds / NUM_EXAMPLES), num_audited=32))
        parts[2].on_refresh(lambda event: steps.append(event.step))
        train(*parts, num_steps)
        return steps, looks, parts

    return run


def test_scores_that_do_not_last_are_made_anew_between_looks(fleeting, monkeypatch):
    steps, looks, _ = fleeting(1500, 4.0)
    between = [step for step in steps if step not in looks]
    assert len(between) > 4
    assert all(after - before >= LEAST_BETWEEN for before, after in itertools.pairwise(between))
    monkeypatch.setattr(cadence, "LEAST_BETWEEN", math.inf)
    steps, looks, _ = fleeting(1500, 4.0)
    assert len(steps) > 4
    assert set(steps) <= set(looks)


@pytest.fixture
def lasting(monkeypatch):
    """Scores are found to last for ever; a run gives the steps of refreshes."""

    def lose_nothing(self, *args):
        self.share = 0.0

    monkeypatch.setattr(AgingBelief, "observe", lose_nothing)
    monkeypatch.setattr(AgingBelief, "forget", lose_nothing)

    def run(num_steps, seconds, **options):
        steps = []
        auto = AutoRefresh(costs=Costs(step=1.0, example=seconds / NUM_EXAMPLES), num_audited=32)
        parts = build(auto, **options)
        parts[2].on_refresh(lambda event: steps.append(event.step))
        train(*parts, num_steps)
        return steps, parts[2]

    return run


def test_scores_that_seem_to_do_are_renewed_for_a_share_of_what_they_win(lasting, monkeypatch):
    steps, loader = lasting(3000, 20.0)
    after = renewal(20.0, 1 - loader.counter._evidence.beliefs.noise.at(loader.batch_size).steps_factor(0.0))
    apart = [late - early for early, late in itertools.pairwise(steps) if early > 500]
    assert min(apart) >= after > LEAST_BETWEEN  # nothing wins more than if it left no noise
    assert max(apart) < after + LEAST_BETWEEN + 50  # as is known at a look, and before that one more
    monkeypatch.setattr(cadence, "RENEWING", 1e-9)
    assert len(lasting(3000, 20.0)[0]) < len(steps) / 2


def test_scores_renewed_after_a_small_part_of_a_look_do_not_pass_for_fleeting():
    """A twentieth lost by chance within a hundredth of a look would be all of it by the next, but hardly counts."""
    belief = AgingBelief()
    belief.observe(0.2, 0.24, 100.0, 0.01)
    assert belief.share < 0.6
    belief.observe(0.2, 0.6, 1000.0)
    assert belief.share == pytest.approx(0.5, abs=0.01)


def test_a_state_of_another_score_is_not_renewed_before_its_cost_is_known():
    auto = AutoRefresh(clock=lambda: 0.0)
    *_, loader = build(auto)
    auto._refreshed_at = 5
    assert auto._renewed_at(loader, 1.0) == sys.maxsize


def test_scores_beside_training_are_not_renewed(lasting):
    assert len(lasting(3000, 20.0, overlap="auto")[0]) < len(lasting(3000, 20.0)[0]) / 2


def test_scoring_between_looks_takes_no_more_than_its_share(fleeting):
    """16 s each time: every 80 steps at most, which is between looks once these are further apart."""
    steps, looks, _ = fleeting(1500, 16.0)
    between = [step for step in steps if step not in looks]
    assert len(between) > 2
    assert min(between) > 160
    assert all(after - before >= 80 for before, after in itertools.pairwise(between))


def test_scores_made_between_looks_are_by_the_tier_in_use(fleeting):
    *_, (model, optimizer, loader) = fleeting(700, 4.0)
    auto = loader.counter
    assert auto.state_dict()["next_look"] < auto.state_dict()["next_audit"]
    auto._tiers.present = "loss"
    events = []
    loader.on_refresh(events.append)
    while not events:
        train(model, optimizer, loader, 1)
    assert loader.diagnosis().score == "loss"
    assert auto.state_dict()["memory"]["name"] == "loss"


def test_looks_come_when_they_are_due_whatever_is_scored_between(fleeting):
    steps, looks, (model, optimizer, loader) = fleeting(700, 4.0)
    due = loader.counter.state_dict()["next_audit"]
    train(model, optimizer, loader, due - loader.num_steps)
    assert looks[-1] == due
    assert any(due - 200 < step < due for step in steps)


@pytest.mark.parametrize(("made_at_audit", "tier"), [(False, ""), (True, "loss"), (True, "")])
def test_a_look_tells_how_scores_age_where_it_had_them_made_and_judges_them(fleeting, monkeypatch, made_at_audit, tier):
    """A few examples and all differ by chance, which over a small part of a look would pass for fast aging.

    And exact scores do not tell what a cheaper one loses by aging from what it lacks.
    """
    *_, (model, optimizer, loader) = fleeting(700, 4.0)
    auto, observed, found = loader.counter, [], []
    due = auto.state_dict()["next_audit"]
    train(model, optimizer, loader, due - 1 - loader.num_steps)
    assert not auto.state_dict()["made_at_audit"]
    auto._made_at_audit, auto._tiers.present, auto._looks_kept = made_at_audit, tier, 2.0
    made = auto.last.step
    audit = AutoRefresh._audit
    monkeypatch.setattr(AutoRefresh, "_audit", lambda *args: found.append(audit(*args)) or found[0])
    monkeypatch.setattr(AgingBelief, "observe", lambda self, *args: observed.append(args))
    weights = loader.sampler.weights
    train(model, optimizer, loader, 1)
    assert loader.diagnosis().step == due
    left = second_moment_left(found[0].scores, weights[found[0].indices])
    now = found[0].noise.of_second_moment(left)
    if made_at_audit and not tier:
        assert [args[0] for args in observed] == [found[0].fresh]
        assert [args[1] for args in observed] == [pytest.approx(now)]
        assert [args[3] for args in observed] == [pytest.approx(2 + (due - made) / (made // 2))]
    else:
        assert not observed
        assert found[0].now == pytest.approx(now)
    assert auto.state_dict()["made_at_audit"]


def test_uniform_draws_between_looks_do_not_put_off_the_next_look(fleeting, monkeypatch):
    *_, (model, optimizer, loader) = fleeting(700, 4.0)
    state = loader.counter.state_dict()
    for module in (auto_module, evidence):
        monkeypatch.setattr(module, "second_moment_left", lambda scores, weights: 1.0)  # nothing is won any more
    train(model, optimizer, loader, state["next_look"] + 1 - loader.num_steps)
    assert loader.diagnosis().decision == "off"
    assert loader.counter.state_dict()["next_look"] == state["next_audit"]


def test_a_change_of_tier_must_be_affordable(fleeting):
    *_, (_, _, loader) = fleeting(30, 4.0)
    auto = loader.counter
    loader.refresh()
    found = auto._audit(loader, 31, 32)
    auto._costs.given, auto._costs.seconds = None, {"gradient": 10.0, "loss": 0.1, "last_layer": 1e9}
    auto._costs.spent = 10.0
    auto._tiers._cheaper_than(loader.scorer)
    auto._tiers.present = "loss"
    auto._tiers.best = lambda found, exact, *rest: exact
    assert auto._affordable_at(loader, 1.0) < 31 < auto._affordable_at(loader, 1.0, loader.scorer)
    assert [option.decision for option in auto._options(loader, found, 1.0, 15, False)] == ["off", "keep"]
    auto._costs.spent = 5.0
    assert [option.decision for option in auto._options(loader, found, 1.0, 15, False)] == ["off", "keep", "refresh"]


@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("now", [0.3, 0.34, 0.6, 0.99])
@pytest.mark.parametrize("exact", [0.1, 30.0, 1e6])
@pytest.mark.parametrize("loss", [0.01, 10.0, 1e5])
def test_tiers_are_compared_only_where_that_can_change_the_decision(fleeting, monkeypatch, loss, exact, now, renew):
    *_, (_, _, loader) = fleeting(30, 4.0)
    auto = loader.counter
    loader.refresh()
    found = replace(auto._audit(loader, 31, 32), now=now, fresh=0.3)
    auto._costs.given, auto._costs.seconds = None, {"gradient": exact, "loss": loss, "last_layer": 1e9}
    monkeypatch.setattr(auto, "_affordable_at", lambda *args: 0.0)
    tier = auto._tiers._cheaper_than(loader.scorer)["loss"]
    auto._tiers.present = "loss"
    compared = []

    def compare(found, exact, score, draws_by, refreshing):
        compared.append(True)
        return min(exact, refreshing(tier, 1.1 * found.fresh), key=lambda option: option.factor)

    monkeypatch.setattr(auto._tiers, "best", compare)
    options = auto._options(loader, found, 1.0, 15, renew)
    needed = bool(compared)
    monkeypatch.setattr(auto_module, "choose", lambda *args, **rest: Option("refresh", 0.0, 0.0, 0.0))
    best = choose(auto._options(loader, found, 1.0, 15, renew), auto._worth, renew=renew)
    assert compared == [True] * (1 + needed)
    assert choose(options, auto._worth, renew=renew) == best
    if not needed:
        assert best.decision != "refresh"
    if now == 0.99:
        assert needed == (min(loss, exact) < 1)
    if now == 0.3 and not renew:
        assert not needed


def test_a_run_goes_on_between_looks_as_if_it_had_not_stopped(fleeting):
    *_, (model, optimizer, loader) = fleeting(700, 4.0)
    state = copy.deepcopy((loader.state_dict(), model.state_dict(), optimizer.state_dict()))
    assert state[0]["schedule"]["next_look"] < state[0]["schedule"]["next_audit"]
    again = build(AutoRefresh(costs=Costs(step=1.0, example=4.0 / NUM_EXAMPLES), num_audited=32))
    again[0].load_state_dict(state[1])
    again[1].load_state_dict(state[2])
    again[2].load_state_dict(state[0])
    found = [[], []]
    train(model, optimizer, loader, 300, lambda batch: found[0].append(batch.indices))
    train(*again, 300, lambda batch: found[1].append(batch.indices))
    assert torch.equal(torch.cat(found[0]), torch.cat(found[1]))
    assert again[2].diagnosis() == loader.diagnosis()
