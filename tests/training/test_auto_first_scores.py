"""``refresh="auto"`` where first scores are dear, as on a GPU: when they are made, and what a glance at losses says."""

import functools

import pytest
import torch

import dasgrad
from dasgrad.training import AutoRefresh, costs, evidence
from dasgrad.training.evidence import Evidence
from dasgrad.training.forecast import second_moment_left, weights_of
from training.auto_runs import NUM_EXAMPLES, build, build_timed, losses_of, train

CALL = 5.0
"""Steps that a call of a scorer takes as long as."""


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A function that builds a run there, and a list of the steps, scores and numbers of examples of all calls."""
    monkeypatch.setattr(costs, "_is_on_cuda", lambda scorer: True)
    monkeypatch.setattr(costs.torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(costs, "_CALL", CALL)

    def start(**options):
        auto, (model, optimizer, loader), now = build_timed(**options)
        calls = []
        for name in ("__call__", "score_dataset"):
            function = getattr(dasgrad.ExampleScorer, name)

            def note(self, *args, function=function, **rest):
                scores = function(self, *args, **rest)
                calls.append((loader.num_steps + 1, self.score, len(scores)))
                return scores

            monkeypatch.setattr(dasgrad.ExampleScorer, name, note)
        return calls, auto, (model, optimizer, loader), now

    return start


def let_glances_find(monkeypatch, left, seconds=0.0):
    """All glances find that much left; returns the steps of glances."""
    steps = []

    def glance(self, loader, step):
        steps.append(step)
        return left, seconds

    monkeypatch.setattr(Evidence, "glance", glance)
    return steps


@pytest.mark.parametrize(("price", "step"), [(0.0, 25), (0.15, 25), (0.4, 42)])
def test_all_are_scored_without_a_trial_once_that_is_affordable_at_the_price_of_training(
    monkeypatch, on_a_gpu, price, step
):
    """First calls, as long as 15 steps, are affordable from step 25 on, and 5 + 50 · price steps by then or at 42."""
    calls, _, parts, _ = on_a_gpu()
    monkeypatch.setattr(costs, "_PRICE", price)
    train(*parts, step)
    assert calls == [(step, "gradient", NUM_EXAMPLES)]


def test_what_the_scorer_learns_first_is_not_taken_for_what_scoring_costs(monkeypatch, on_a_gpu):
    """Its look at the model takes 100 steps, and a score of all examples 2."""
    _, auto, parts, now = on_a_gpu()
    look_at, rescore = dasgrad.ExampleScorer.look_at, parts[-1].rescore

    def take(seconds, function, *args):
        now[0] += seconds
        return function(*args)

    monkeypatch.setattr(dasgrad.ExampleScorer, "look_at", lambda *args: take(100.0, look_at, *args))
    monkeypatch.setattr(parts[-1], "rescore", functools.partial(take, 2.0, rescore))
    monkeypatch.setattr(costs, "_PRICE", 0.0)
    train(*parts, 25)
    assert now[0] >= 25 + 102
    assert auto.last.scoring_seconds == 2.0


def test_a_trial_is_one_call_when_first_calls_are_affordable(monkeypatch, on_a_gpu):
    """At the price of training all would take 80 steps."""
    monkeypatch.setattr(costs, "_TRIED", 300)
    calls, _, parts, _ = on_a_gpu()
    assert costs._PRICE * NUM_EXAMPLES / 8 == 75
    train(*parts, 24)
    assert not calls
    assert str(parts[-1].diagnosis()).count("\n") == 0  # nothing is known yet
    train(*parts, 1)
    assert calls == [(25, "gradient", 300), (25, "gradient", NUM_EXAMPLES)]


@pytest.mark.parametrize(("first", "second", "expected"), [(65.0, 95.0, 85.0), (95.0, 65.0, 85.0), (2.0, 500.0, 5.27)])
def test_a_call_that_takes_too_long_is_timed_again(monkeypatch, on_a_gpu, first, second, expected):
    """5 steps whatever its size, and what is left goes with the number of examples, a tenth of it at least."""
    monkeypatch.setattr(costs, "_TRIED", 300)
    _, auto, parts, _ = on_a_gpu()
    taken = iter([first, second])
    time_once = costs.ScoringCosts.time_once
    monkeypatch.setattr(costs.ScoringCosts, "time_once", lambda *args: (next(taken), time_once(*args)[1]))
    monkeypatch.setattr(auto, "_look_at_all", lambda *args: None)
    train(*parts, 25)
    assert auto._costs.seconds["gradient"] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("seconds", "glances"),
    [(0.0, [25, 37, 55, 82, 123]), (2.0, [25, 45, 67, 100]), (50.0, [25])],
)
def test_where_losses_are_alike_first_scores_wait_until_they_take_a_small_share(
    monkeypatch, on_a_gpu, seconds, glances
):
    """First calls take 15 steps, a tenth of the time at step 150. Glances take no more than a tenth of it, either."""
    calls, auto, parts, _ = on_a_gpu(options={"most_auditing": 0.1})
    steps = let_glances_find(monkeypatch, 0.95, seconds)
    train(*parts, 149)
    assert steps == glances
    assert not calls
    assert auto.last.decision == "wait"
    assert "losses of examples are nearly alike" in str(auto.last)
    assert auto.last.brief == "uniform draws, losses of examples are nearly alike"
    train(*parts, 1)
    assert calls[0][:2] == (150, "gradient")


@pytest.mark.parametrize("left", [None, 0.1, 0.8])
def test_else_they_do_not_wait(monkeypatch, on_a_gpu, left):
    calls, _, parts, _ = on_a_gpu()
    let_glances_find(monkeypatch, left)
    train(*parts, 25)
    assert calls[0][:2] == (25, "gradient")


def test_a_cpu_does_not_glance(monkeypatch):
    steps = let_glances_find(monkeypatch, 1.0)
    auto, parts, _ = build_timed()
    train(*parts, 100)
    assert not steps
    assert auto.last.decision != "wait"


# --- what a glance sees ----------------------------------------------------------------------------------


def test_a_glance_is_at_losses_alone(monkeypatch):
    """It is what draws by their roots, floor included, would leave: of examples taken at random, all of them here."""
    auto = AutoRefresh()
    model, _, loader = build(auto)
    chosen = torch.arange(0, NUM_EXAMPLES, 3)
    monkeypatch.setattr(evidence, "draw_examples", lambda *args: chosen)
    left, seconds = auto._evidence.glance(loader, 7)
    inputs, targets = loader.dataset
    roots = losses_of(model(inputs), targets)[chosen].detach().double().sqrt()
    expected = second_moment_left(roots, weights_of(roots, loader.sampler.floor))
    assert left == pytest.approx(expected, rel=1e-6)
    assert left < 0.3
    assert seconds > 0
    assert not loader.sampler.refreshed


def test_a_glance_is_at_no_more_examples_than_are_scored_at_once(monkeypatch):
    auto = AutoRefresh()
    *_, loader = build(auto, scoring_chunk_size=60)
    numbers = []
    draw = evidence.draw_examples
    monkeypatch.setattr(evidence, "draw_examples", lambda *args: (numbers.append(args[-1]), draw(*args))[1])
    auto._evidence.glance(loader, 7)
    assert numbers == [60]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_losses_without_roots_say_nothing(value):
    auto = AutoRefresh()
    inputs, targets = torch.ones(NUM_EXAMPLES, 3), torch.zeros(NUM_EXAMPLES)
    *_, loader = build(auto, data=(inputs, targets))
    scorer = dasgrad.ExampleScorer(
        loader.scorer.model, lambda outputs, targets: outputs[:, 0] * 0 + value, loader.optimizer, score="gradient"
    )
    loader.scorer = scorer
    assert auto._evidence.glance(loader, 7)[0] is None


def test_a_score_of_ones_own_has_no_losses_to_glance_at():
    auto = AutoRefresh()
    *_, loader = build(auto, score=lambda model, data: torch.ones(len(data[1])))
    assert auto._evidence.glance(loader, 7) == (None, 0.0)
