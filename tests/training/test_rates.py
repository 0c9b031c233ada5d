"""What the learning rate says of what is to be won: which schedules end, when, and what ``"auto"`` then does."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

import dasgrad
from dasgrad.training import AutoRefresh, Costs
from dasgrad.training import auto as auto_module
from dasgrad.training.beliefs import AgingBelief, Beliefs, NoiseBelief
from dasgrad.training.forecast import Noise
from dasgrad.training.rates import POWER, RateBelief
from training.auto_runs import CHEAP, build, make_data, train

LOOKS = (16, 24, 36, 54, 81, 121, 181, 271, 406, 609)
STEPS = 800
WARM = 50


def warm_up(o):
    return lr_scheduler.LinearLR(o, 0.01, 1.0, WARM)


def rooted(o):
    """Vaswani et al. 2017: up to a peak, and down as the root."""
    return lr_scheduler.LambdaLR(o, lambda k: min((k + 1) / WARM, (WARM / (k + 1)) ** 0.5))


SCHEDULES = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "line": lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, STEPS),
    "stairs": lambda o: lr_scheduler.StepLR(o, 100),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.999),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 1.0, STEPS),
    "warm-up and cosine": lambda o: lr_scheduler.SequentialLR(
        o, [warm_up(o), lr_scheduler.CosineAnnealingLR(o, STEPS - WARM)], [WARM]
    ),
    "root": dasgrad.InverseSqrtLR,
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
@pytest.mark.parametrize("looks", [LOOKS, LOOKS[3:], LOOKS[8:]], ids=["from 16", "from 54", "from 406"])
def test_schedules_end_unless_the_rate_goes_as_the_root(name, looks):
    """Whenever the first look is: one look alone may find a rate that has fallen about as far as the root."""
    ends, left = watch(SCHEDULES[name], looks=looks)
    assert ends == [name != "root"] * len(looks)
    assert name != "root" or left == [math.inf] * len(looks)


@pytest.mark.parametrize("last", [600, 640, 680, 720, 760])
def test_a_single_look_late_in_a_schedule_tells_as_much(last):
    for name in ("cosine", "line"):
        assert watch(SCHEDULES[name], looks=(last,))[0] == [True]
    assert watch(SCHEDULES["root"], looks=(last,))[0] == [False]


def test_the_root_is_known_after_a_warm_up():
    ends, _ = watch(rooted)
    peak = next(k for k, step in enumerate(LOOKS) if step > WARM)
    assert ends == [k <= peak + 1 for k in range(len(LOOKS))]  # until there are three looks after it


def test_a_rate_that_is_set_by_hand_stays_until_it_falls_faster_than_the_root():
    def by_hand(rate):
        return watch(by_hand=rate)[0]

    assert by_hand(lambda step: 0.1) == [False] * len(LOOKS)
    assert by_hand(lambda step: 0.1 / step**0.5) == [False] * len(LOOKS)
    assert by_hand(lambda step: 0.1 / step**0.2) == [False] * len(LOOKS)
    assert by_hand(lambda step: 0.1 if step < 30 else 0.1 * (1 - 2**-25)) == [False] * len(LOOKS)  # as a graph keeps it
    assert by_hand(lambda step: 0.1 if step < 200 else 0.095) == [False] * len(LOOKS)
    assert by_hand(lambda step: 0.1 if step < 200 else 0.01) == [step >= 200 for step in LOOKS]
    assert by_hand(lambda step: 0.1 if step < 20 else 0.01) == [step >= 20 for step in LOOKS]  # however long ago
    assert by_hand(lambda step: 0.1 if step < 200 else 0.04) == [step >= 200 for step in LOOKS]  # since it was lowered
    assert watch(by_hand=lambda step: 0.1 if step < 101 else 0.095, looks=(100, 101))[0] == [False, False]  # a little
    assert by_hand(lambda step: 0.1 / step) == [step > LOOKS[0] for step in LOOKS]


def test_optimizers_without_rates_tell_nothing():
    optimizer, belief = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1), RateBelief()
    for lr in ({}, {"lr": None}):
        del optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0] |= lr
        belief.observe(16, optimizer)
        assert belief == RateBelief()
        assert belief.steps_left == math.inf
        optimizer.param_groups[0]["lr"] = 0.1


def test_a_line_has_as_many_steps_left_as_it_has():
    _, left = watch(SCHEDULES["line"])
    assert left[0] == math.inf  # one look does not tell
    assert left[1:] == pytest.approx([STEPS + 1 - step for step in LOOKS[1:]])


def test_a_cosine_has_more_left_at_first_and_fewer_at_last():
    _, left = watch(SCHEDULES["cosine"])
    shares = [found / (STEPS - step) for step, found in zip(LOOKS, left, strict=True)]
    assert shares == sorted(shares, reverse=True)
    assert shares[LOOKS.index(406)] == pytest.approx(1, abs=0.1)  # in its middle a line has as many
    assert shares[-1] > 0.3


def test_stairs_have_no_end_in_sight_where_they_are_flat():
    _, left = watch(lambda o: lr_scheduler.StepLR(o, 200))
    assert [math.isinf(steps) for steps in left] == [step <= 200 or step == 406 for step in LOOKS[:8]] + [False, False]


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
    refreshed, loader = run_under(SCHEDULES["cosine"], data=data)
    found = loader.diagnosis()
    assert refreshed == []
    assert (found.decision, found.rate_ends) == ("off", True)
    assert "under a learning rate that is to fall to 0, adaptive draws would not pay" in str(found)
    assert found.scalars()["rate_ends"] == 1


def test_where_a_few_examples_are_all_of_the_gradient_draws_follow_them_all_the_same():
    refreshed, loader = run_under(SCHEDULES["cosine"])
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
    scheduler = SCHEDULES["cosine"](optimizer)
    train(model, optimizer, loader, 30)
    scheduler.step()
    assert loader.diagnosis().rate_ends


@pytest.mark.parametrize("schedule", ["cosine", "line"])
def test_a_first_look_late_in_a_schedule_does_not_score_for_the_few_steps_that_are_left(schedule):
    """Scoring takes 200 steps, which is affordable from step 334 on; the schedule has 377."""
    data = make_data(rare=True)
    shorter = {"cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 377)}
    shorter["line"] = lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, 377)
    refreshed, loader = run_under(shorter[schedule], 376, Costs(step=1.0, example=0.5), data)
    assert refreshed == []
    assert loader.diagnosis().rate_ends


@pytest.fixture
def ending():
    """A rate that is to end after so many steps more."""

    def make(auto, steps_left, step):
        before = step - steps_left
        auto._beliefs.rate = RateBelief(1.0, before, 0.5, step, rate_before=1.0, step_before=before, ends=True)
        assert auto._beliefs.rate.steps_left == steps_left

    return make


def test_noise_is_not_measured_where_too_few_steps_are_left_for_scores(monkeypatch, ending):
    """Scores that take five steps and leave hardly any noise are for the next twenty at step 20, or for three."""
    noise = []
    monkeypatch.setattr("dasgrad.training.rates.POWER", 1.0)
    monkeypatch.setattr(dasgrad.ExampleScorer, "noise", lambda self, chunks: noise.append(1) or (1.0, 1.0))
    monkeypatch.setattr(auto_module, "second_moment_left", lambda scores, weights: 0.5)
    for steps_left in (15, 3):
        auto = AutoRefresh(costs=Costs(step=1.0, example=5 / 400))
        loader = build(auto)[2]
        ending(auto, steps_left, 20)
        auto.audit(loader, 20, 256)
        assert len(noise) == 1  # the first time


def test_what_could_pay_and_what_a_larger_batch_would_do_know_the_schedule(ending):
    beliefs = {ends: Beliefs(NoiseBelief(), AgingBelief(0.0), RateBelief(ends=ends)) for ends in (False, True)}
    saved = {ends: 1 - beliefs[ends].least_factor(0.4, 8) for ends in beliefs}
    assert saved[True] == pytest.approx(saved[False] ** POWER)
    larger = []
    for schedule in (None, SCHEDULES["cosine"]):  # nothing to win: the noise is measured when somebody asks
        loader = run_under(schedule, data=make_data(rare=False))[1]
        larger.append(1 - loader.diagnosis().larger_batch_factor)
    assert larger[1] == pytest.approx(larger[0] ** POWER, rel=0.2)


def test_scores_beside_training_are_paid_for_by_the_steps_that_are_left(monkeypatch, ending):
    monkeypatch.setattr("dasgrad.training.rates.POWER", 1.0)
    decisions = []
    for steps_left in (12, 1):
        auto = AutoRefresh(costs=Costs(step=1.0, example=1 / 400, lost=1.0))
        model, optimizer, loader = build(auto, overlap="auto")
        monkeypatch.setattr(auto, "_watch_rate", lambda loader, step: None)
        ending(auto, steps_left, 16)
        train(model, optimizer, loader, 17)
        decisions.append(loader.diagnosis().decision)
    assert decisions == ["refresh", "off"]
