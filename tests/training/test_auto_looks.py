"""The looks of ``refresh="auto"``: when they come, how large they are, what they measure and what follows from it."""

import math

import pytest
import torch

import dasgrad
from dasgrad.training import AutoRefresh, Costs, cadence, evidence, trials
from dasgrad.training import auto as auto_module
from dasgrad.training.beliefs import AgingBelief
from dasgrad.training.findings import Option, draw_examples
from dasgrad.training.forecast import Noise
from training.auto_runs import BATCH_SIZE, CHEAP, DEAR, LAVISH, NUM_EXAMPLES, build, build_timed, train

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
    monkeypatch.setattr(evidence, "second_moment_left", lambda scores, weights: left)
    auto = AutoRefresh(costs=CHEAP)
    loader = build(auto)[2]
    if refreshed:
        loader.refresh()
    auto._audit(loader, 16, 256)
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
    monkeypatch.setattr(evidence, "second_moment_left", lambda scores, weights: 0.5)
    monkeypatch.setattr(auto_module, "CLEARLY", clearly)
    loader = build(AutoRefresh(costs=CHEAP))[2]
    auto = AutoRefresh(costs=Costs(step=1.0, example=scored / loader.sampler.num_examples))
    auto._audit(loader, 20, 256)
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
    auto._audit(loader, step, 400)
    assert noise == [number]


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
    assert sizes == [64, 64, 64, 400, 400]  # and no more
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
    scales = [auto._audit(loader, step, 64).noise.scale for step in range(1, 6)]
    assert math.isfinite(scales[0])
    assert scales == [scales[0]] * 5


@pytest.mark.parametrize(("chunk_size", "num_chunks"), [(1024, 1), (100, 4)])
def test_what_all_scores_cost_is_reckoned_from_a_few(monkeypatch, chunk_size, num_chunks):
    """A chunk takes 5 s and 0.5 s an example. Tried are 8 and 64 examples, which takes longer than 8 steps."""
    monkeypatch.setattr(trials, "_SMALLEST", 8)
    options = {"options": {"num_audited": 64}, "scoring_chunk_size": chunk_size}
    _, (model, optimizer, loader), now = build_timed(rare=False, **options)
    score, sizes = dasgrad.ExampleScorer.__call__, []

    def take_time(self, data):
        now[0] += 5 + 0.5 * len(data[0])
        sizes.append(len(data[0]))
        return score(self, data)

    monkeypatch.setattr(dasgrad.ExampleScorer, "__call__", take_time)
    train(model, optimizer, loader, 17)
    assert sizes[:5] == [8, 8, 8, 64, 64]
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
