"""The looks of ``refresh="auto"``: when they come, how large they are, what they measure and what follows from it."""

import math

import pytest
import torch

import dasgrad
from dasgrad.training import AutoRefresh, Costs, cadence, trials
from dasgrad.training import auto as auto_module
from dasgrad.training.beliefs import USUAL_NOISE, AgingBelief
from dasgrad.training.findings import HARDLY, Option, draw_examples
from dasgrad.training.forecast import Noise, effective_number, second_moment_left, weights_of
from dasgrad.training.memory import RETAINED, ScoreMemory
from training.auto_runs import BATCH_SIZE, CHEAP, DEAR, LAVISH, NUM_EXAMPLES, build, build_timed, train

USUAL = Noise(USUAL_NOISE * BATCH_SIZE, BATCH_SIZE)
"""What is believed of the noise where it was not measured."""


@pytest.fixture
def looks(monkeypatch):
    """Step, number of examples and findings of every look from here on."""
    noted, audit = [], AutoRefresh.audit

    def note(self, loader, step, number, **options):
        found = audit(self, loader, step, number, **options)
        noted.append((step, number, found))
        return found

    monkeypatch.setattr(AutoRefresh, "audit", note)
    return noted


# --- when and how large -----------------------------------------------------------------------------------


def test_trying_out_what_scoring_costs_does_not_put_off_the_next_look(looks):
    auto, (model, optimizer, loader), now = build_timed(options={"num_audited": 32})

    def trial(scorer, data):
        now[0] += 1000.0
        return 0.001 * len(data[0]), scorer(data)

    auto._costs.time_once = trial
    train(model, optimizer, loader, 20)
    auto._costs.seconds.clear()  # the second look, at step 24, has to try again
    train(model, optimizer, loader, 30)
    assert now[0] > 2000
    assert [step for step, *_ in looks] == [16, 24, 36]


def test_what_is_done_for_the_first_time_does_not_put_off_the_next_look():
    auto, (model, optimizer, loader), now = build_timed()
    scores_of = auto._costs.scores_of

    def slow_at_first(*args):
        now[0] += 1000.0 if loader.num_steps < 16 else 0.0
        return scores_of(*args)

    auto._costs.scores_of = slow_at_first
    train(model, optimizer, loader, 24)
    assert now[0] > 1000
    assert loader.diagnosis().step == 24


@pytest.mark.parametrize("rare", [False, True], ids=["nothing to win", "much to win"])
def test_looks_are_as_large_as_their_share_of_the_time_allows(looks, rare, monkeypatch):
    """2 % of the steps until the next one, a quarter of 40 % where all is to be won, at 3 · 0.01 s an example."""
    monkeypatch.setattr(cadence, "LEAST_BETWEEN", math.inf)  # scores that are made between looks tell what is to be won
    auto = AutoRefresh(num_audited=4, most_auditing=0.02, costs=Costs(step=1.0, example=0.01))
    model, optimizer, loader = build(auto, rare)
    train(model, optimizer, loader, 400)
    assert looks[0][:2] == (16, 4)
    promises = [0.0, *(1 - found.noise.steps_factor(min(1.0, found.fresh)) for *_, found in looks)]
    assert (promises[-1] > 0.5) == rare
    for (step, number, _), promise in zip(looks[1:], promises[1:], strict=False):
        share = 0.02 * max(1.0, 20 * promise / 4)
        assert number == pytest.approx(min(400, share * (step // 2) / 0.03), abs=2)
    assert looks[-1][1] > 80


@pytest.mark.parametrize(("largest", "expected"), [(4096, [4, 32, 256, 400, 400]), (100, [4, 32, 100, 100, 100])])
def test_looks_grow_by_eight_and_up_to_a_limit_where_they_cost_next_to_nothing(looks, monkeypatch, largest, expected):
    monkeypatch.setattr(auto_module, "_LARGEST_AUDIT", largest)
    model, optimizer, loader = build(AutoRefresh(num_audited=4, costs=Costs(step=1.0, example=1e-6)))
    train(model, optimizer, loader, 100)
    assert [number for _, number, _ in looks[:5]] == expected


@pytest.mark.parametrize("rare", [False, True], ids=["nothing to win", "much to win"])
def test_dear_looks_are_put_off_the_less_the_more_is_to_be_won(rare):
    """64 examples at 3 · 0.1 s take 19.2 s: 1 % of 1,920 steps, and up to twenty times as much of fewer."""
    auto = AutoRefresh(num_audited=64, costs=Costs(step=1.0, example=0.1), **LAVISH)
    model, optimizer, loader = build(auto, rare)
    train(model, optimizer, loader, 17)
    found = loader.diagnosis()
    promise = 1 - Noise(found.noise_scale, BATCH_SIZE).steps_factor(min(1.0, found.noise_left_fresh))
    assert (promise > 0.3) == rare
    put_off = int(19.2 / (0.01 * 20 * promise)) if rare else 1920
    assert auto.num_quiet_steps() == 16 + put_off - 18  # of step 18, whose draw comes next, and those up to the look


# --- what is measured -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rare", [False, True], ids=["nothing to win", "much to win"])
def test_noise_is_measured_where_it_decides_something_or_when_somebody_asks(monkeypatch, looks, rare):
    measured, noise = [], dasgrad.ExampleScorer.noise

    def note(self, chunks):
        measured.append(1)
        return noise(self, chunks)

    monkeypatch.setattr(dasgrad.ExampleScorer, "noise", note)
    auto = AutoRefresh(costs=CHEAP)
    model, optimizer, loader = build(auto, rare)
    train(model, optimizer, loader, 60)
    assert len(looks) == 4  # steps 16, 24, 36, 54
    assert len(measured) == (4 if rare else 0)
    beliefs = auto.state_dict()["beliefs"]
    found = [loader.diagnosis() for _ in range(3)]
    assert len(measured) == (4 if rare else 1)  # once, however often it is asked for
    assert auto.state_dict()["beliefs"] == beliefs  # and decisions do not depend on it
    assert found[0].noise_scale > 0
    assert found[0].larger_batch_factor < 1
    assert found == [found[0]] * 3


@pytest.mark.parametrize(("left", "measured"), [(0.84, False), (0.82, True)])
@pytest.mark.parametrize("refreshed", [False, True])
def test_noise_is_not_measured_where_nothing_can_pay_whatever_it_is(monkeypatch, left, measured, refreshed):
    """Of 0.84 of the second moment 0.852 is left until the next look, and 0.85 must be; scores in use cost nothing."""
    noise = []
    monkeypatch.setattr(dasgrad.ExampleScorer, "noise", lambda self, chunks: noise.append(1) or (1.0, 1.0))
    monkeypatch.setattr(auto_module, "second_moment_left", lambda scores, weights: left)
    auto = AutoRefresh(costs=CHEAP)
    loader = build(auto)[2]
    if refreshed:
        loader.refresh()
    auto.audit(loader, 16, 256)
    assert bool(noise) == (measured or refreshed)


@pytest.mark.parametrize(
    ("scored", "clearly", "measured"), [(10, 0.5, True), (11, 0.5, False), (27, 0.95, True), (28, 0.95, False)]
)
def test_noise_is_not_measured_where_scores_are_too_dear_whatever_it_is(monkeypatch, scored, clearly, measured):
    """All scores take so many steps, and are for the next 20. At the most noise 0.5508 of the time is left beside them.

    That times 1 + 10.87/20 is 0.85, what must be left; times 1 + 27.97/60 it is 0.95 of that, for a cheaper score.
    """
    noise = []
    monkeypatch.setattr(dasgrad.ExampleScorer, "noise", lambda self, chunks: noise.append(1) or (1.0, 1.0))
    monkeypatch.setattr(auto_module, "second_moment_left", lambda scores, weights: 0.5)
    monkeypatch.setattr(auto_module, "CLEARLY", clearly)
    loader = build(AutoRefresh(costs=CHEAP))[2]
    auto = AutoRefresh(costs=Costs(step=1.0, example=scored / loader.sampler.num_examples))
    auto.audit(loader, 20, 256)
    assert bool(noise) == measured


@pytest.mark.parametrize(("step", "number"), [(16, 40), (2000, 80), (20_000, 128)])
def test_noise_is_that_of_as_many_examples_as_their_share_of_training_allows(monkeypatch, step, number):
    """1 % of the 64, 8,000 and 80,000 trained on until the next look; at least 40, and at most 16 batches of 8."""
    noise = []

    def note(self, chunks):
        noise.append(sum(len(inputs) for inputs, _ in chunks))
        return 1.0, 1.0

    monkeypatch.setattr(dasgrad.ExampleScorer, "noise", note)
    auto = AutoRefresh(num_audited=40, costs=CHEAP)
    loader = build(auto)[2]
    auto.audit(loader, step, 400)
    auto.audit(loader, step, 400, always_noise=True)
    assert noise == [number, 400]


def test_the_first_look_takes_the_scores_of_the_trial(monkeypatch, looks):
    sizes, score = [], dasgrad.ExampleScorer.__call__

    def note(self, data, *rest):
        sizes.append(len(data[0]))
        return score(self, data, *rest)

    monkeypatch.setattr(dasgrad.ExampleScorer, "__call__", note)
    _, (model, optimizer, loader), now = build_timed(rare=False, options={"num_audited": 32})
    train(model, optimizer, loader, 15)

    def note_and_take(self, data, *rest):
        now[0] += 0.1 + 0.01 * len(data[0])
        return note(self, data, *rest)

    monkeypatch.setattr(dasgrad.ExampleScorer, "__call__", note_and_take)
    next(iter(loader))
    assert sizes == [64, 64, 400]  # and no more
    (step, number, found), *more = looks
    assert (step, number, more) == (16, 32, [])
    expected = score(loader.scorer, loader.examples_for_scoring(torch.cat(list(found.chunks))))
    torch.testing.assert_close(found.scores, expected.to(found.scores))


def test_scores_of_a_trial_are_not_those_of_another_scorer_other_examples_or_a_later_look():
    auto = AutoRefresh()
    _, _, loader = build(auto)
    other = loader.scorer.with_score("loss")
    costs, first = auto._costs, torch.arange(100)
    fresh = {scorer: scorer(loader.examples_for_scoring(first[:10])) for scorer in (loader.scorer, other)}

    def tried(scorer, indices, forget=False):
        costs.try_out(loader, loader.scorer, lambda size: first[:size], 1.0)
        costs._tried = (*costs._tried[:2], torch.full_like(costs._tried[2], 7.0))
        if forget:
            costs.forget_trial()
        return costs.scores_of(loader, scorer, indices)[0]

    assert (tried(loader.scorer, [first[:10]]) == 7).all()
    torch.testing.assert_close(costs.scores_of(loader, loader.scorer, [first[:10]])[0], fresh[loader.scorer])  # once
    torch.testing.assert_close(tried(other, [first[:10]]), fresh[other])
    torch.testing.assert_close(tried(loader.scorer, [first[:10]], forget=True), fresh[loader.scorer])
    assert not (tried(loader.scorer, [first[1:11]]) == 7).any()
    assert len(tried(loader.scorer, [first[:10], first[:5]])) == 15


def test_a_look_takes_no_scores_of_a_trial_at_an_earlier_one(looks):
    auto, (model, optimizer, loader), _ = build_timed(options={"num_audited": 32})
    train(model, optimizer, loader, 20)
    chosen = draw_examples(loader.sampler, 24, 400)
    auto._costs._tried = (loader.scorer, chosen, torch.full((400,), 7.0))  # as where all were scored instead
    train(model, optimizer, loader, 5)
    assert looks[-1][0] == 24
    assert not (looks[-1][2].scores == 7).any()


def test_noise_that_is_no_number_is_not_remembered(monkeypatch):
    found = iter([(10.0, 1.0), (math.inf, math.inf), (math.inf, 1.0), (1.0, math.nan), (0.0, 1.0)])
    monkeypatch.setattr(dasgrad.ExampleScorer, "noise", lambda self, chunks: next(found))
    auto = AutoRefresh(costs=DEAR)
    loader = build(auto)[2]
    scales = [auto.audit(loader, step, 64).noise.scale for step in range(1, 6)]
    assert math.isfinite(scales[0])
    assert scales == [scales[0]] * 5


@pytest.mark.parametrize(("chunk_size", "num_chunks"), [(1024, 1), (100, 4)])
def test_what_all_scores_cost_is_reckoned_from_a_few(monkeypatch, chunk_size, num_chunks):
    """A chunk takes 5 s and 0.5 s an example. Tried are 8 and 64 examples, which takes longer than 8 steps."""
    monkeypatch.setattr(trials, "SMALLEST", 8)
    options = {"options": {"num_audited": 64}, "scoring_chunk_size": chunk_size}
    _, (model, optimizer, loader), now = build_timed(rare=False, **options)
    score, sizes = dasgrad.ExampleScorer.__call__, []

    def take_time(self, data):
        now[0] += 5 + 0.5 * len(data[0])
        sizes.append(len(data[0]))
        return score(self, data)

    monkeypatch.setattr(dasgrad.ExampleScorer, "__call__", take_time)
    train(model, optimizer, loader, 17)
    assert sizes[:3] == [8, 8, 64]
    assert loader.diagnosis().scoring_seconds == pytest.approx(num_chunks * 5 + 0.5 * NUM_EXAMPLES)


def test_a_refresh_shows_what_scoring_costs(monkeypatch):
    _, (model, optimizer, loader), now = build_timed()
    score_dataset = dasgrad.ExampleScorer.score_dataset

    def take_time(self, *args, **options):
        now[0] += 7.0
        return score_dataset(self, *args, **options)

    monkeypatch.setattr(dasgrad.ExampleScorer, "score_dataset", take_time)
    train(model, optimizer, loader, 17)
    assert loader.diagnosis().decision == "refresh"
    assert loader.diagnosis().scoring_seconds == 7.0


def test_looks_of_whole_chunks_keep_up_with_what_scoring_costs(monkeypatch):
    """An example takes half a millisecond, and a whole one from the second look on."""
    _, (model, optimizer, loader), now = build_timed(
        rare=False, options={"num_audited": 32, "most_auditing": 0.02}, scoring_chunk_size=32
    )
    score = dasgrad.ExampleScorer.__call__

    def take_time(self, data):
        now[0] += (0.0005 if loader.num_steps < 16 else 0.001) * len(data[0])
        return score(self, data)

    monkeypatch.setattr(dasgrad.ExampleScorer, "__call__", take_time)
    train(model, optimizer, loader, 17)
    assert loader.diagnosis().scoring_seconds == pytest.approx(0.0005 * NUM_EXAMPLES)
    train(model, optimizer, loader, 8)
    assert loader.diagnosis().step == 24
    assert loader.diagnosis().scoring_seconds == pytest.approx(0.001 * NUM_EXAMPLES)


def test_scores_are_expected_to_age_as_they_did_since_the_last_look(looks):
    """Of what fresh scores win, 15 % a look until it was measured."""
    model, optimizer, loader = build(AutoRefresh(worth=1.0, costs=CHEAP))
    train(model, optimizer, loader, 17)
    first = looks[0][2]
    assert loader.diagnosis().decision == "refresh"
    assert loader.diagnosis().noise_left == pytest.approx(AgingBelief(0.15).on_average(first.fresh))
    with torch.no_grad():
        model.weight.fill_(3.0)  # with which other examples are far off
    train(model, optimizer, loader, 8)
    second, found = looks[1][2], loader.diagnosis()
    assert found.step == 24
    lost = (second.now - second.fresh) / (1 - second.fresh)  # after what was seen was averaged with the 15 %
    assert 0.05 < lost < 0.95
    left = second.now if found.decision == "keep" else second.fresh
    assert found.noise_left == pytest.approx(AgingBelief(lost).on_average(left))


# --- where all are scored in the time of a look -----------------------------------------------------------


@pytest.fixture
def flat(monkeypatch):
    """A run by a clock on which scoring takes so many seconds, however many examples there are."""

    def start(seconds, rare=True, **options):
        auto, parts, now = build_timed(rare, **options)
        for name in ("__call__", "score_dataset"):
            function = getattr(dasgrad.ExampleScorer, name)

            def take_time(self, *args, function=function, **rest):
                now[0] += seconds
                return function(self, *args, **rest)

            monkeypatch.setattr(dasgrad.ExampleScorer, name, take_time)
        return auto, *parts

    return start


def test_where_all_are_scored_in_the_time_of_a_look_a_look_scores_all(flat, looks):
    auto, model, optimizer, loader = flat(0.5)
    train(model, optimizer, loader, 17)
    found = loader.diagnosis()
    assert not looks
    assert (found.step, found.decision, found.scoring_seconds) == (16, "refresh", 0.5)
    scores, weights = loader.sampler.scores, loader.sampler.weights
    left = float((weights * scores.square()).mean() / scores.square().mean())
    noise = USUAL
    assert found.noise_left_fresh == pytest.approx(noise.of_second_moment(left))
    aged = AgingBelief(0.15).on_average(found.noise_left_fresh)
    assert found.noise_left == pytest.approx(aged)
    assert found.time_factor == pytest.approx((1 + 0.5 / 16) * noise.steps_factor(aged))
    assert auto.num_quiet_steps() == 24 - 18  # scores that pay are made anew as planned
    train(model, optimizer, loader, 8)
    assert (loader.diagnosis().step, loader.diagnosis().decision) == (24, "refresh")


@pytest.mark.parametrize(("seconds", "whole"), [(1.9, True), (2.1, False)])
def test_looks_score_all_where_that_takes_less_than_two_of_them(flat, looks, seconds, whole):
    auto, model, optimizer, loader = flat(0.5)
    train(model, optimizer, loader, 17)
    auto._costs.seconds["gradient"], auto._look_seconds = seconds, 1.0
    train(model, optimizer, loader, 8)
    assert [step for step, *_ in looks] == ([] if whole else [24])


def test_scores_of_all_show_how_those_before_have_aged(flat):
    auto, model, optimizer, loader = flat(0.5)
    train(model, optimizer, loader, 17)
    before = loader.sampler.weights
    with torch.no_grad():
        model.weight.fill_(3.0)
    train(model, optimizer, loader, 8)
    scores, fresh, expected = loader.sampler.scores, loader.diagnosis().noise_left_fresh, AgingBelief()
    expected.observe(fresh, USUAL.of_second_moment(second_moment_left(scores, before)), effective_number(scores))
    assert auto.state_dict()["beliefs"]["aging"]["share"] == pytest.approx(expected.share)
    assert abs(expected.share - 0.15) > 0.02


def test_scores_of_all_are_kept_as_long_as_fresh_ones_should_hardly_be_better(flat):
    """Scores that cost as much as all steps until the look after the next are not made anew for a little less noise."""
    auto, model, optimizer, loader = flat(0.5)
    train(model, optimizer, loader, 17)
    fresh = loader.diagnosis().noise_left_fresh
    auto._costs.seconds["gradient"] = 12.0  # as if it had cost so much
    auto._look_seconds = 20.0
    auto._beliefs.aging.share = 0.05
    assert not auto._made_at_audit
    auto._made_at_audit = True  # as if a look at some had had them made
    train(model, optimizer, loader, 8)
    assert auto._made_at_audit
    found = loader.diagnosis()
    assert (found.step, found.decision, found.staleness) == (24, "keep", 8)
    now = fresh + 0.05 * (1 - fresh)
    assert found.noise_left == pytest.approx(AgingBelief(0.05).on_average(now))
    assert auto._beliefs.aging.share == pytest.approx(0.1)  # nothing was seen of it: half way back to what is usual
    auto._beliefs.aging.share = 0.15
    assert auto.num_quiet_steps() == 36 - 26
    assert auto.state_dict()["looks_kept"] == 1
    before = loader.sampler.weights
    auto._costs.seconds["gradient"] = 0.5
    with torch.no_grad():
        model.weight.fill_(3.0)  # with which other examples are far off
    train(model, optimizer, loader, 12)
    found = loader.diagnosis()
    assert (found.step, found.decision, found.staleness) == (36, "refresh", 0)
    assert not auto._made_at_audit
    scores, expected = loader.sampler.scores, AgingBelief()
    now = USUAL.of_second_moment(second_moment_left(scores, before))
    expected.observe(found.noise_left_fresh, now, effective_number(scores), 2)
    assert auto.state_dict()["beliefs"]["aging"]["share"] == pytest.approx(expected.share)
    assert abs(expected.share - 0.15) > 0.003
    assert auto.state_dict()["looks_kept"] == 0


@pytest.fixture
def long_memory(monkeypatch):
    """Draws are by scores long past, above all, as if they had foretold the next best."""
    monkeypatch.setattr(ScoreMemory, "_best", RETAINED.index(0.7))

    def remember(auto, name):
        generator = torch.Generator().manual_seed(1)
        auto._memory.learn(name, torch.rand(NUM_EXAMPLES, generator=generator, dtype=torch.float64), 0.2)

    return remember


def test_scores_of_all_are_worth_what_draws_by_memory_leave_of_fresh_ones(flat, long_memory):
    auto, model, optimizer, loader = flat(0.5)
    long_memory(auto, "gradient")
    fresh = []
    loader.on_refresh(lambda event: fresh.append(event.scores))
    train(model, optimizer, loader, 17)
    left = second_moment_left(fresh[-1], loader.sampler.weights)
    assert left > 1.2 * second_moment_left(fresh[-1], weights_of(fresh[-1], loader.sampler.floor))
    assert auto.last.noise_left_fresh == pytest.approx(USUAL.of_second_moment(left))


def test_a_look_at_some_foretells_what_draws_by_memory_would_leave(long_memory):
    auto = AutoRefresh(costs=CHEAP)
    _, _, loader = build(auto)
    long_memory(auto, "gradient")
    found = auto.audit(loader, 16, 100)
    indices = torch.cat(list(found.chunks))
    draws_by = auto._memory.foretell("gradient", found.scores, indices)
    left = second_moment_left(found.scores, weights_of(draws_by, loader.sampler.floor))
    assert left > 1.2 * second_moment_left(found.scores, weights_of(found.scores, loader.sampler.floor))
    assert found.fresh == pytest.approx(found.noise.of_second_moment(left))


@pytest.mark.parametrize(("due", "looked"), [(8, True), (9, False)])
def test_looks_that_score_all_by_a_cheaper_score_do_not_go_on_for_ever(flat, looks, due, looked):
    """Scoring all by it takes less than two looks: after three times as long as to the next one, tiers are compared."""
    auto, model, optimizer, loader = flat(0.5)
    train(model, optimizer, loader, 17)
    auto._costs.seconds |= {"gradient": 2.1, "loss": 0.1, "last_layer": 1e9}
    auto._look_seconds, auto._next_audit = 1.0, due
    auto._tiers._cheaper_than(loader.scorer)
    auto._tiers.present = "loss"
    train(model, optimizer, loader, 8)
    assert [step for step, *_ in looks] == ([24] if looked else [])


def test_aging_is_forgotten_while_draws_are_uniform(flat):
    """Or scores that were once seen to age fast would be made and thrown away for ever."""
    auto, model, optimizer, loader = flat(0.5, rare=False)
    auto._beliefs.aging.share = 1.9
    train(model, optimizer, loader, 17)
    assert not loader.sampler.refreshed
    assert auto._beliefs.aging.share == pytest.approx((1.9 + 0.15) / 2)


def test_scores_that_someone_else_gave_are_made_anew_at_the_first_look(flat):
    auto, model, optimizer, loader = flat(0.5)
    loader.refresh()
    train(model, optimizer, loader, 17)
    assert (loader.diagnosis().step, loader.diagnosis().decision) == (16, "refresh")
    assert auto.num_quiet_steps() == 24 - 18


def test_examples_that_are_never_drawn_are_nothing_to_win(flat, monkeypatch):
    """All gradients are about as long, but for those of examples that the target leaves out."""
    _, model, optimizer, loader = flat(0.5, rare=False)
    target = (torch.arange(NUM_EXAMPLES) % 2 == 0).double() * 2 / NUM_EXAMPLES
    loader.sampler = dasgrad.AdaptiveSampler(NUM_EXAMPLES, BATCH_SIZE, target=target)
    loader._rescoring._sampler = loader.sampler
    score_dataset = loader.scorer.score_dataset
    times = torch.where(target > 0, 1.0, 30.0)
    monkeypatch.setattr(
        loader.scorer, "score_dataset", lambda *args, **options: score_dataset(*args, **options) * times
    )
    train(model, optimizer, loader, 17)
    assert loader.diagnosis().decision == "off"
    assert loader.diagnosis().noise_left_fresh > 0.9


def test_scores_of_all_that_win_nothing_are_forgotten_for_a_hundred_times_their_time(flat):
    auto, model, optimizer, loader = flat(0.5, rare=False)
    train(model, optimizer, loader, 17)
    assert (loader.diagnosis().step, loader.diagnosis().decision) == (16, "off")
    assert not loader.sampler.refreshed
    assert auto.num_quiet_steps() == 16 + 50 - 18


def test_scores_of_all_that_win_a_little_are_made_again_the_sooner_the_more_they_win(flat, monkeypatch):
    """Half a step's time, at 1 % of the time where nothing is won, and at 20 % of what would be."""
    auto, model, optimizer, loader = flat(0.5)
    monkeypatch.setattr(auto_module, "second_moment_left", lambda scores, weights: 0.87)
    train(model, optimizer, loader, 17)
    found = loader.diagnosis()
    assert (found.step, found.decision) == (16, "off")
    promise = 1 - USUAL.steps_factor(found.noise_left_fresh)
    assert 0.1 < promise < 0.15
    assert auto.num_quiet_steps() == math.ceil(16 + 0.5 / (0.2 * promise)) - 18


def test_scores_of_all_that_are_too_dear_to_make_again_are_used_until_they_pay(flat):
    """They take 100 steps and are there by the look at step 16: what they cost is spent, so they are worth keeping."""
    _, model, optimizer, loader = flat(100.0, options=LAVISH)
    train(model, optimizer, loader, 17)
    found = loader.diagnosis()
    assert (found.step, found.decision) == (16, "refresh")
    noise, fresh = USUAL, found.noise_left_fresh
    factor = noise.steps_factor(AgingBelief(0.15).on_average(fresh))
    assert found.time_factor == pytest.approx(factor)
    now = fresh
    for step in (24, 36, 54, 81, 121, 181):
        train(model, optimizer, loader, step + 1 - loader.num_steps)
        found, now = loader.diagnosis(), now + 0.15 * (1 - now)
        kept = noise.steps_factor(AgingBelief(0.15).on_average(now))
        pays = (1 + 100.0 / (2 * (step // 2))) * factor < kept - HARDLY
        assert (found.step, found.decision) == (step, "refresh" if pays else "keep")
        if pays:
            break
    assert pays
    assert step > 24


def test_scores_of_all_that_have_aged_and_are_too_dear_to_make_again_are_forgotten_until_they_pay(flat):
    auto, model, optimizer, loader = flat(100.0, options=LAVISH)
    train(model, optimizer, loader, 17)
    fresh = loader.diagnosis().noise_left_fresh
    auto._left_then = 0.9  # as if they had aged so much
    train(model, optimizer, loader, 8)
    found = loader.diagnosis()
    assert (found.step, found.decision) == (24, "off")
    assert not loader.sampler.refreshed
    factor = USUAL.steps_factor(AgingBelief(0.15).on_average(fresh))
    step = auto.num_quiet_steps() + 26
    assert (1 + 100.0 / step) * factor <= 0.85 < (1 + 100.0 / (step - 2)) * factor


# --- what is chosen ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "decision", "age"), [(0.515, "keep", 8), (0.525, "refresh", 0)])
def test_scores_are_kept_where_fresh_ones_are_hardly_better(monkeypatch, factor, decision, age):
    auto = AutoRefresh(costs=CHEAP)
    model, optimizer, loader = build(auto)
    options = [Option("off", 1.0, 1.0, 1.0), Option("refresh", 0.5, 0.5, 0.5, loader.scorer)]
    monkeypatch.setattr(auto, "_options", lambda *args: options)
    train(model, optimizer, loader, 17)
    assert loader.diagnosis().decision == "refresh"
    options.append(Option("keep", factor, 0.5, 0.5))
    train(model, optimizer, loader, 8)
    found = loader.diagnosis()
    assert (found.step, found.decision, found.staleness) == (24, decision, age)


@pytest.fixture
def look_at(monkeypatch):
    """What is found at step 16 where scores take so long, by name; the last layer's take too long to be chosen."""

    def look(change=None, score="gradient", tier="", **seconds):
        auto, (model, optimizer, loader), _ = build_timed(options={"worth": 1.0, **LAVISH}, score=score)
        auto._tiers.present = tier
        look.tiers = auto._tiers
        monkeypatch.setattr(auto._costs, "of_all", lambda name, number: {"last_layer": 1e9, **seconds}[name])
        if change is not None:
            scores_of = auto._costs.scores_of
            monkeypatch.setattr(auto._costs, "scores_of", lambda *args: change(args[1].score, *scores_of(*args)))
        train(model, optimizer, loader, 17)
        return loader.diagnosis()

    return look


@pytest.mark.parametrize(("share", "score"), [(0.96, "gradient"), (0.94, "loss")])
def test_a_cheaper_score_must_be_clearly_better_than_the_exact_one(look_at, share, score):
    """Exact scores take 8 s, half as long as the steps until the look after the next; the loss such a share of all."""
    exact, free = look_at(gradient=8.0, loss=1e9), look_at(gradient=8.0, loss=0.0)
    assert (exact.score, free.score) == ("gradient", "loss")
    seconds = 16 * (share * exact.time_factor / free.time_factor - 1)
    assert 0 < seconds < 8
    found = look_at(gradient=8.0, loss=seconds)
    assert found.score == score
    assert found.time_factor == pytest.approx(exact.time_factor * (1 if score == "gradient" else share))


@pytest.mark.parametrize(("seconds", "score"), [(0.1, "gradient"), (8.0, "loss")])
def test_a_cheaper_score_in_use_is_compared_again_at_every_look(look_at, seconds, score):
    """Also where exact ones take next to nothing, so that a cheaper one would not be tried."""
    assert look_at(gradient=0.1, loss=0.0).score == "gradient"
    assert look_at(tier="loss", gradient=seconds, loss=0.0).score == score
    assert look_at.tiers.present == ("loss" if score == "loss" else "")


@pytest.mark.parametrize("problem", ["negative", "not finite", "not there"])
def test_a_cheaper_score_that_draws_cannot_follow_is_left_out(look_at, problem):
    def change(name, scores, seconds):
        if name == "loss":
            if problem == "not there":
                raise ValueError("this model has no such score")
            scores[0] = -1.0 if problem == "negative" else math.nan
        return scores, seconds

    assert look_at(change, gradient=8.0, loss=0.0).score == "gradient"


def test_nothing_takes_the_place_of_a_score_that_is_cheap_already(look_at):
    assert look_at(score="loss", loss=8.0, last_layer=0.0).score == "loss"
    assert look_at(gradient=8.0, loss=1e9, last_layer=0.0).score == "last_layer"
