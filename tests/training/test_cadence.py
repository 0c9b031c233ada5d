"""How soon all examples are scored anew: the plan, and what ``refresh="auto"`` makes of it between looks."""

import copy
import itertools
import math

import pytest
import torch

from dasgrad.training import AutoRefresh, Costs, cadence
from dasgrad.training.beliefs import LEAST_KEPT, USUAL_AGING, AgingBelief
from dasgrad.training.cadence import LASTING, LEAST_BETWEEN, MOST_BETWEEN, plan
from dasgrad.training.forecast import Noise
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
    belief.observe(0.2, AgingBelief(0.6).age(0.2, looks) if looks <= 1 else 1 - 0.8 * 0.4**3, 1e12, looks)
    assert belief.share == pytest.approx(0.6)


def forecast(share, fresh, in_steps, interval, looks):
    left = AgingBelief(share).on_average(fresh, looks)
    lasting = LASTING if looks == 1 else 1
    return NOISE.steps_factor(left) * (1 + in_steps / (lasting * looks * interval))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7, 0.99, 1.6])
@pytest.mark.parametrize("in_steps", [1.0, 20.0, 150.0, 3000.0])
@pytest.mark.parametrize("fresh", [0.1, 0.6, 1.2])
def test_a_plan_is_the_best_of_what_may_be_done(share, in_steps, fresh):
    interval = 2000
    found = plan(NOISE, AgingBelief(share), fresh, in_steps, interval)
    assert found.factor == pytest.approx(forecast(share, fresh, in_steps, interval, found.looks))
    assert found.noise_left == pytest.approx(AgingBelief(share).on_average(fresh, found.looks))
    assert found.steps_factor == pytest.approx(NOISE.steps_factor(found.noise_left))
    assert found.interval == int(found.looks * interval)
    allowed = [1.0, *(k / 1000 for k in range(1, 1000) if k / 1000 * interval >= max(LEAST_BETWEEN, 5 * in_steps))]
    least = min(forecast(share, fresh, in_steps, interval, looks) for looks in allowed)
    assert found.factor <= 1.05 * least  # what is tried differs by a quarter from one to the next
    assert found.looks == 1 or found.looks >= min(allowed)


def test_scores_that_age_as_usual_are_made_at_looks():
    assert plan(NOISE, AgingBelief(USUAL_AGING), 0.5, 100.0, 1000).looks == 1


def test_scores_that_age_fast_are_made_as_often_as_is_allowed():
    found = plan(NOISE, AgingBelief(0.99), 0.1, 100.0, 2000)
    assert 100 / MOST_BETWEEN <= found.interval < 1.25 * 100 / MOST_BETWEEN
    assert LEAST_BETWEEN <= plan(NOISE, AgingBelief(0.99), 0.1, 0.01, 2000).interval < 1.25 * LEAST_BETWEEN
    assert plan(NOISE, AgingBelief(0.99), 0.1, 100.0, 400).interval == 400


# --- between looks ----------------------------------------------------------------------------------------


@pytest.fixture
def fleeting(monkeypatch):
    """Scores are found to lose most of what they win from look to look; a run gives steps of refreshes and looks."""

    def lose_most(self, *args):
        self.share = 0.9

    audit = AutoRefresh.audit
    monkeypatch.setattr(AgingBelief, "observe", lose_most)
    monkeypatch.setattr(AgingBelief, "forget", lose_most)

    def run(num_steps, seconds):
        steps, looks = [], []

        def note(self, loader, step, number, **options):
            looks.append(step)
            return audit(self, loader, step, number, **options)

        monkeypatch.setattr(AutoRefresh, "audit", note)
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


def test_scoring_between_looks_takes_no_more_than_its_share(fleeting):
    """20 s each time: every 100 steps at most, which is between looks once these are further apart."""
    steps, looks, _ = fleeting(1500, 20.0)
    between = [step for step in steps if step not in looks]
    assert len(between) > 2
    assert min(between) > 200
    assert all(after - before >= 100 for before, after in itertools.pairwise(between))


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


def test_what_scores_have_lost_is_told_over_the_part_of_a_look_since_they_were_made(fleeting, monkeypatch):
    *_, (model, optimizer, loader) = fleeting(700, 4.0)
    auto, found = loader.counter, []
    monkeypatch.setattr(AgingBelief, "observe", lambda self, *args: found.append(args[-1]))
    due = auto.state_dict()["next_audit"]
    train(model, optimizer, loader, due - 2 - loader.num_steps)
    made, found[:] = loader.diagnosis().step, []
    train(model, optimizer, loader, 2)
    assert loader.diagnosis().step == due
    assert found == [pytest.approx((due - made) / (made // 2))]
    assert found[0] < 0.9


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
