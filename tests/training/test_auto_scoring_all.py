"""Looks of ``refresh="auto"`` that score all examples, where that takes no longer than to look at some."""

import math

import pytest
import torch

import dasgrad
from dasgrad.training import AutoRefresh, evidence
from dasgrad.training.beliefs import USUAL_NOISE, AgingBelief
from dasgrad.training.findings import HARDLY
from dasgrad.training.forecast import Noise, effective_number, second_moment_left, weights_of
from dasgrad.training.memory import RETAINED, ScoreMemory
from training.auto_runs import BATCH_SIZE, CHEAP, LAVISH, NUM_EXAMPLES, build, build_timed, train

USUAL = Noise(USUAL_NOISE * BATCH_SIZE, BATCH_SIZE)
"""What is believed of the noise where it was not measured."""


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
    auto._evidence.beliefs.aging.share = 0.05
    assert not auto._made_at_audit
    auto._made_at_audit = True  # as if a look at some had had them made
    train(model, optimizer, loader, 8)
    assert auto._made_at_audit
    found = loader.diagnosis()
    assert (found.step, found.decision, found.staleness) == (24, "keep", 8)
    now = fresh + 0.05 * (1 - fresh)
    assert found.noise_left == pytest.approx(AgingBelief(0.05).on_average(now))
    assert auto._evidence.beliefs.aging.share == pytest.approx(0.1)  # nothing was seen: half way back to what is usual
    auto._evidence.beliefs.aging.share = 0.15
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
        scores = torch.rand(NUM_EXAMPLES, generator=generator, dtype=torch.float64)
        auto._evidence.memory.learn(name, scores, 16, 0.2)

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
    found = auto._audit(loader, 16, 100)
    indices = torch.cat(list(found.chunks))
    draws_by = auto._evidence.memory.foretell("gradient", found.scores, 16, indices)
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
    auto._evidence.beliefs.aging.share = 1.9
    train(model, optimizer, loader, 17)
    assert not loader.sampler.refreshed
    assert auto._evidence.beliefs.aging.share == pytest.approx((1.9 + 0.15) / 2)


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
    monkeypatch.setattr(evidence, "second_moment_left", lambda scores, weights: 0.87)
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
