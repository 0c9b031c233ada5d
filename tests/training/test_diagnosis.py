"""What a diagnosis says, in words and numbers, and when it is made."""

import itertools
import time
from dataclasses import replace

import pytest
import torch

import dasgrad
from dasgrad.training.costs import ScoringCosts
from dasgrad.training.diagnosis import Diagnosis
from dasgrad.training.evidence import Evidence
from dasgrad.training.forecast import Noise
from training.auto_runs import BATCH_SIZE, NUM_EXAMPLES, build, make_data, train


def test_the_diagnosis_of_fixed_refreshes_is_made_on_demand_and_changes_nothing():
    model, optimizer, loader = build(10)
    train(model, optimizer, loader, 30)
    before = loader.state_dict()["sampler"]["tree"], torch.get_rng_state()
    found = loader.diagnosis()
    assert found.decision == "keep"
    assert found.noise_left < 0.7
    assert "every 10 steps" in str(found)
    assert torch.equal(torch.get_rng_state(), before[1])
    assert build(10)[2].diagnosis().decision == "off"


def test_before_the_first_refresh_it_says_what_draws_by_fresh_scores_would_be_worth():
    model, optimizer, loader = build(1000)
    train(model, optimizer, loader, 60)
    found = loader.diagnosis()
    assert (found.decision, found.noise_left) == ("off", pytest.approx(1.0))
    scoring = found.scoring_seconds / (1000 * found.step_seconds)
    steps = Noise(found.noise_scale, BATCH_SIZE).steps_factor(found.noise_left_fresh)
    assert steps < 0.7
    assert found.time_factor == pytest.approx(steps * (1 + scoring))
    assert f"once they are made, the same loss in {found.time_factor:.0%} of the time" in str(found)
    assert f"speed-up {1 / found.time_factor:.2g}" in found.brief


def test_before_a_step_was_timed_there_is_no_forecast():
    found = build(10)[2].diagnosis()
    assert found.step_seconds is None
    assert (found.time_factor, found.speedup, found.larger_batch_factor) == (None, None, None)
    assert "Forecast: not known." in str(found)


def test_a_progress_bar_does_not_look_anew_at_every_step(monkeypatch):
    seen, score = [], dasgrad.ExampleScorer.noise
    model, optimizer, loader = build(40)

    def note(self, chunks):
        seen.append(loader.num_steps)
        return score(self, chunks)

    monkeypatch.setattr(dasgrad.ExampleScorer, "noise", note)
    train(model, optimizer, loader, 60, lambda batch: loader.diagnosis().brief)
    assert 39 in seen or 40 in seen  # after a refresh
    later = [step for step in seen if step > 4]
    assert all(b >= 1.25 * a or a < 40 <= b + 1 for a, b in itertools.pairwise(later))
    assert len(later) < 20


def test_what_an_example_takes_in_a_large_batch_is_not_what_a_few_hundred_take(monkeypatch):
    """These are mostly calls: gradients of 1,024 take 10 s by this clock, and scores of all 40 ms."""
    evidence = Evidence(ScoringCosts(None, time.perf_counter))
    loader = build(10)[2]
    evidence.beliefs.noise.observe(1000.0, 1.0, 100)
    noise = evidence.beliefs.noise.at(BATCH_SIZE)
    evidence.example_seconds = 1e-2
    assert evidence.larger_batch_factor(noise, loader, 1e-3) == noise.larger_batch_factor(4, 1e-3, 1e-2)
    evidence.costs.seconds["gradient"] = NUM_EXAMPLES * 1e-5
    expected = noise.larger_batch_factor(4, 1e-3, 1e-5)
    assert evidence.larger_batch_factor(noise, loader, 1e-3) == pytest.approx(expected)
    assert expected < 1 < noise.larger_batch_factor(4, 1e-3, 1e-2)


def test_a_diagnosis_on_demand_tells_the_noise_where_nothing_is_to_be_won():
    model, optimizer, loader = build(10, rare=False)
    train(model, optimizer, loader, 30)
    found = loader.diagnosis()
    assert found.noise_left_fresh > 0.9
    assert found.noise_scale > 0
    assert found.larger_batch_factor is not None


def test_words_and_numbers():
    found = Diagnosis(100, "refresh", 0.001, 0.05, "dasgrad", 500.0, 0.25, 0.3, 0, 0.4, 0.9)
    text = str(found)
    for part in ("Step 100", "1 ms", "50 ms", "as long as 50 steps", "25%", "30%", "40%", "four times as large"):
        assert part in text
    assert found.brief == "adaptive draws, gain 4, speed-up 2.5"
    assert found.scalars()["gain"] == 4
    assert all(isinstance(value, float) for value in found.scalars().values())
    off = Diagnosis(100, "off", 0.001, 5.0, noise_left_fresh=0.9, larger_batch_factor=0.5)
    assert "would not pay" in str(off)
    assert "a batch four times as large would do more" in str(off)
    assert "larger" not in str(replace(off, larger_batch_factor=1.4))
    assert off.brief.startswith("uniform draws")
    early = Diagnosis(1, "wait")
    assert str(early) == "Step 1: it is too early for scores to pay, and draws are uniform."
    assert "as long as 50 steps" in str(Diagnosis(16, "wait", 0.001, 0.05))
    assert early.brief == "uniform draws, nothing measured yet"
    assert set(early.scalars()) == {"noise_left", "time_factor", "speedup", "adaptive"}


def test_without_a_scorer_there_is_no_diagnosis():
    loader = dasgrad.AdaptiveLoader(make_data(True), BATCH_SIZE)
    with pytest.raises(ValueError, match=r"diagnosis.*needs `scorer`"):
        loader.diagnosis()
