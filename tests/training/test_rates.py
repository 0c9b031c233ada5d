"""What the learning rate says of what is to be won: which schedules end, when, and what ``"auto"`` then does."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

import dasgrad
from dasgrad.training import AutoRefresh, Costs
from dasgrad.training.forecast import Noise
from dasgrad.training.rates import POWER, RateBelief
from training.auto_runs import CHEAP, build, train

LOOKS = (16, 24, 36, 54, 81, 121, 181, 271, 406, 609)
STEPS = 800
SCHEDULES = {
    "cosine": (lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS), True),
    "line": (lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, STEPS), True),
    "stairs": (lambda o: lr_scheduler.StepLR(o, 100), True),
    "exponential": (lambda o: lr_scheduler.ExponentialLR(o, 0.999), True),
    "one cycle": (lambda o: lr_scheduler.OneCycleLR(o, 1.0, STEPS), True),
    "root": (dasgrad.InverseSqrtLR, False),
    "none": (None, False),
}


def watch(schedule=None, *, by_hand=None, looks=LOOKS):
    """What is believed at each look."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = None if schedule is None else schedule(optimizer)
    belief, ends, left = RateBelief(), [], []
    for step in range(1, looks[-1] + 1):
        if by_hand is not None:
            optimizer.param_groups[0]["lr"] = by_hand(step)
        if step in looks:
            belief.observe(step, optimizer)
            ends.append(belief.ends)
            left.append(belief.steps_left)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return ends, left


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_end_unless_the_rate_goes_as_the_root_or_there_is_none(name):
    schedule, expected = SCHEDULES[name]
    ends, left = watch(schedule)
    assert ends == [expected] * len(LOOKS)
    assert expected or left == [math.inf] * len(LOOKS)


def test_a_rate_that_is_set_by_hand_stays_until_it_falls_faster_than_the_root():
    assert watch(by_hand=lambda step: 0.1)[0] == [False] * len(LOOKS)
    assert watch(by_hand=lambda step: 0.1 / step**0.5)[0] == [False] * len(LOOKS)
    assert watch(by_hand=lambda step: 0.1 if step < 200 else 0.01)[0] == [step >= 200 for step in LOOKS]
    assert watch(by_hand=lambda step: 0.1 / step)[0] == [step > LOOKS[0] for step in LOOKS]


def test_a_line_has_as_many_steps_left_as_it_has():
    _, left = watch(SCHEDULES["line"][0])
    assert left[0] == math.inf  # one look does not tell
    assert left[1:] == pytest.approx([STEPS + 1 - step for step in LOOKS[1:]])


def test_a_cosine_has_more_left_at_first_and_fewer_at_last():
    _, left = watch(SCHEDULES["cosine"][0])
    shares = [found / (STEPS - step) for step, found in zip(LOOKS, left, strict=True)]
    assert shares == sorted(shares, reverse=True)
    assert shares[LOOKS.index(406)] == pytest.approx(1, abs=0.1)  # in its middle a line has as many


def test_a_rate_that_rises_has_no_end_in_sight():
    """Under a scheduler, so that it is taken to fall later."""
    ends, left = watch(lambda o: lr_scheduler.LambdaLR(o, lambda step: (step + 1) / 1000))
    assert ends == [True] * len(LOOKS)
    assert left == [math.inf] * len(LOOKS)


def test_of_several_groups_the_largest_rate_counts_and_tensors_are_read():
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": params[:1], "lr": 0.001}, {"params": params[1:], "lr": torch.tensor(0.5)}]
    optimizer, belief = torch.optim.Adam(groups), RateBelief()
    belief.observe(16, optimizer)
    assert belief.largest == 0.5
    optimizer.param_groups[0]["lr"] = 0.0001  # a group that hardly counts
    belief.observe(24, optimizer)
    assert not belief.ends
    optimizer.param_groups[1]["lr"].fill_(0.1)
    belief.observe(24, optimizer)  # of several calls before a step the first one counts
    assert not belief.ends
    belief.observe(36, optimizer)
    assert belief.ends


def test_a_rate_of_zero_ends():
    optimizer, belief = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1), RateBelief()
    belief.observe(16, optimizer)
    optimizer.param_groups[0]["lr"] = 0.0
    belief.observe(24, optimizer)
    assert belief.ends
    assert belief.steps_left == 0


def test_what_is_saved_is_taken_to_a_power_and_harm_is_not():
    constant, ending = Noise(400.0, 100), Noise(400.0, 100, power=POWER)
    for left in (0.0, 0.3, 1.0):
        assert 1 - ending.steps_factor(left) == pytest.approx((1 - constant.steps_factor(left)) ** POWER)
    assert ending.steps_factor(1.5) == constant.steps_factor(1.5) > 1
    assert Noise(math.inf, 100, power=2.0).steps_factor(0.5) == 0.75
    larger = [noise.larger_batch_factor(4, 1.0, 0.0) for noise in (constant, ending)]
    assert 1 - larger[1] == pytest.approx((1 - larger[0]) ** POWER)


# --- what comes of it ---------------------------------------------------------------------------------------


def run_under(schedule, num_steps=60, costs=CHEAP, data=None):
    """Steps of refreshes, and the loader, where a few examples carry the gradient."""
    model, optimizer, loader = build(AutoRefresh(costs=costs), data=data)
    scheduler = None if schedule is None else schedule(optimizer)
    refreshed = []
    loader.on_refresh(lambda refresh: refreshed.append(loader.num_steps + 1))
    for _ in range(num_steps):
        train(model, optimizer, loader, 1)
        if scheduler is not None:
            scheduler.step()
    return refreshed, loader


def test_where_the_rate_is_to_fall_it_stands_aside_sooner_and_says_why():
    generator = torch.Generator().manual_seed(0)
    inputs, noise = torch.randn(400, 3, generator=generator), torch.randn(400, generator=generator)
    data = inputs, 3 * noise  # long and short gradients, but not a few that are all of it
    for schedule in (None, dasgrad.InverseSqrtLR):
        refreshed, loader = run_under(schedule, data=data)
        assert refreshed
        assert not loader.diagnosis().rate_ends
    refreshed, loader = run_under(SCHEDULES["cosine"][0], data=data)
    found = loader.diagnosis()
    assert refreshed == []
    assert (found.decision, found.rate_ends) == ("off", True)
    assert "under a learning rate that is to fall to 0, adaptive draws would not pay" in str(found)
    assert found.scalars()["rate_ends"] == 1


def test_where_a_few_examples_are_all_of_the_gradient_draws_follow_them_all_the_same():
    refreshed, loader = run_under(SCHEDULES["cosine"][0])
    assert refreshed
    found = loader.diagnosis()
    assert found.speedup > 1.2
    assert "under a learning rate that is to fall to 0, the same loss in" in str(found)


def test_nothing_is_scored_when_the_schedule_is_nearly_over(monkeypatch):
    """Scoring takes two steps. With the power left out, so that the steps which are left decide."""
    monkeypatch.setattr("dasgrad.training.rates.POWER", 1.0)
    costs = Costs(step=1.0, example=0.005)
    assert run_under(None, 37, costs)[0] == [16, 24, 36]
    assert run_under(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, 38), 37, costs)[0] == [16, 24]


def test_a_fixed_interval_is_diagnosed_under_its_schedule():
    model, optimizer, loader = build(20)
    scheduler = SCHEDULES["cosine"][0](optimizer)
    train(model, optimizer, loader, 30)
    scheduler.step()
    assert loader.diagnosis().rate_ends
