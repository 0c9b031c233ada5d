"""``refresh="auto"`` where first scores are dear, as on a GPU: when they are made, and what a glance at losses says."""

import functools
import math
import sys

import pytest
import torch

import dasgrad
from dasgrad.training import AutoRefresh, costs, evidence
from dasgrad.training.evidence import Evidence
from dasgrad.training.forecast import second_moment_left, weights_of
from training.auto_runs import NUM_EXAMPLES, build, build_timed, losses_of, make_data, train

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
    assert calls == [(step, "loss", NUM_EXAMPLES), (step, "gradient", NUM_EXAMPLES)]


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
    assert calls == [(25, "loss", NUM_EXAMPLES), (25, "gradient", 300), (25, "gradient", NUM_EXAMPLES)]


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


def test_they_wait_no_longer_than_until_they_take_the_share_although_the_last_glance_saw_alike(monkeypatch, on_a_gpu):
    """From step 150 on nobody glances any more."""
    _, auto, parts, _ = on_a_gpu(options={"most_auditing": 0.1})
    steps = let_glances_find(monkeypatch, 0.95)
    monkeypatch.setattr(auto, "_look_at_all", lambda *args: None)
    train(*parts, 300)
    assert max(steps) < 150


@pytest.mark.parametrize(("worth", "waits"), [(0.5, True), (0.7, False)])
def test_how_alike_goes_by_what_adaptive_draws_must_promise(monkeypatch, on_a_gpu, worth, waits):
    """A left of 0.55 is at least a factor of 0.58 at the most noise that is believed."""
    _, auto, parts, _ = on_a_gpu(options={"worth": worth})
    let_glances_find(monkeypatch, 0.55)
    factor = auto._evidence.beliefs.least_factor(0.55, parts[-1].batch_size)
    assert 0.5 < factor < 0.7
    train(*parts, 25)
    assert (auto.last.decision == "wait") == waits


def test_what_it_says_while_it_waits_names_the_score_and_the_time_of_a_step(monkeypatch, on_a_gpu):
    _, auto, parts, _ = on_a_gpu()
    let_glances_find(monkeypatch, 0.95)
    train(*parts, 30)
    assert (auto.last.score, auto.last.step_seconds) == ("gradient", 1.0)
    assert "by 'gradient'" in str(auto.last)


def test_nobody_glances_where_scores_are_in_use_already(monkeypatch, on_a_gpu):
    """They were made by hand; what they are worth is for a look to say."""
    _, _, parts, _ = on_a_gpu()
    steps = let_glances_find(monkeypatch, 1.0)
    parts[-1].refresh()
    train(*parts, 40)
    assert not steps


def test_nobody_glances_where_nothing_is_to_wait(monkeypatch, on_a_gpu):
    calls, _, parts, _ = on_a_gpu(options={"most_scoring": math.inf})
    steps = let_glances_find(monkeypatch, 1.0)
    train(*parts, 16)
    assert not steps
    assert calls[0][:2] == (16, "gradient")


@pytest.mark.parametrize("share", [5e-324, 1e-310])
def test_the_least_shares_are_no_reason_to_fail(monkeypatch, on_a_gpu, share):
    _, auto, parts, _ = on_a_gpu(options={"most_auditing": share})
    let_glances_find(monkeypatch, 1.0, 50.0)
    monkeypatch.setattr(costs, "_CALL", 1e-3)
    monkeypatch.setattr(auto, "_step_seconds", lambda: 1e-3)
    train(*parts, 40)
    assert auto._next_look == sys.maxsize


def test_what_was_found_while_waiting_outlasts_a_checkpoint(monkeypatch, on_a_gpu):
    _, auto, parts, _ = on_a_gpu()
    let_glances_find(monkeypatch, 1.0)
    train(*parts, 40)
    _, other, again, _ = on_a_gpu()
    again[-1].load_state_dict(parts[-1].state_dict())
    assert (other.last, other._next_look) == (auto.last, auto._next_look)


@pytest.mark.parametrize("chunk_size", [None, 60])
def test_a_trial_is_of_no_more_examples_than_are_scored_at_once(on_a_gpu, chunk_size):
    calls, _, parts, _ = on_a_gpu(scoring_chunk_size=chunk_size)
    train(*parts, 25)
    number = NUM_EXAMPLES if chunk_size is None else chunk_size
    assert calls[:2] == [(25, "loss", number), (25, "gradient", number)]


def test_a_scorer_looks_at_few_examples(monkeypatch, on_a_gpu):
    _, _, parts, _ = on_a_gpu()
    look_at, numbers = dasgrad.ExampleScorer.look_at, []
    monkeypatch.setattr(
        dasgrad.ExampleScorer, "look_at", lambda self, data: (numbers.append(len(data[1])), look_at(self, data))[1]
    )
    train(*parts, 25)
    assert numbers == [8]


def test_a_clock_that_runs_backwards_makes_no_example_free_of_cost_or_worse(monkeypatch, on_a_gpu):
    _, auto, parts, _ = on_a_gpu()
    time_once = costs.ScoringCosts.time_once
    monkeypatch.setattr(costs.ScoringCosts, "time_once", lambda *args: (-9.0, time_once(*args)[1]))
    monkeypatch.setattr(auto, "_look_at_all", lambda *args: None)
    train(*parts, 25)
    assert auto._costs.seconds["gradient"] == CALL


# --- what a glance sees ----------------------------------------------------------------------------------


def test_a_glance_is_at_losses_alone(monkeypatch):
    """It is what draws by their roots, floor included, would leave: of the examples that it was given."""
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


class Rows(torch.utils.data.Dataset):
    """Examples read one by one, which draws random numbers."""

    def __init__(self, data):
        self.data, self.number = data, 0

    def __len__(self):
        return len(self.data[1])

    def __getitem__(self, index):
        self.number += 1
        return self.data[0][index] + 0 * torch.rand(3), self.data[1][index]


@pytest.mark.parametrize(
    ("chunk_size", "fetched", "expected"), [(None, False, 400), (60, False, 60), (None, True, 256)]
)
def test_how_many_examples_a_glance_is_at(monkeypatch, chunk_size, fetched, expected):
    auto = AutoRefresh()
    data = Rows(make_data(True)) if fetched else None
    *_, loader = build(auto, data=data, scoring_chunk_size=chunk_size)
    numbers = []
    draw = evidence.draw_examples

    def draw_and_count(*args):
        found = draw(*args)
        numbers.append(len(found))
        return found

    monkeypatch.setattr(evidence, "draw_examples", draw_and_count)
    state = torch.get_rng_state()
    auto._evidence.glance(loader, 7)
    assert numbers == [expected]
    assert torch.equal(torch.get_rng_state(), state)
    assert not fetched or data.number == expected


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_losses_without_roots_say_nothing(value):
    auto = AutoRefresh()
    *_, loader = build(auto)
    loader.scorer = dasgrad.ExampleScorer(
        loader.scorer.model, lambda outputs, targets: outputs[:, 0] * 0 + value, loader.optimizer, score="gradient"
    )
    assert auto._evidence.glance(loader, 7)[0] is None


@pytest.mark.parametrize("score", ["loss", "last_layer", lambda model, data: torch.ones(len(data[1]))])
def test_only_gradients_are_judged_by_losses(score):
    auto = AutoRefresh()
    model, optimizer, loader = build(auto)
    loader.scorer = dasgrad.ExampleScorer(model, losses_of, optimizer, score=score)
    assert auto._evidence.glance(loader, 7) == (None, 0.0)


def test_a_glance_is_in_the_scorers_precision_and_takes_half_where_memory_is_short():
    """Data in float64 for a model in float32, and no more than 300 examples fit."""
    auto = AutoRefresh()
    inputs, targets = make_data(True)
    model, optimizer, loader = build(auto, data=(inputs.double(), targets.double()))

    def losses(model, data):
        if len(data[1]) > 300:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return losses_of(model(data[0]), data[1])

    loader.scorer = dasgrad.ExampleScorer(model, optimizer=optimizer, losses=losses, score="gradient", dtype="float32")
    with pytest.warns(UserWarning, match="does not fit into memory"):
        left, _ = auto._evidence.glance(loader, 7)
    assert 0 < left < 1


def test_losses_of_the_wrong_shape_are_named_at_the_first_glance(on_a_gpu):
    _, _, (model, optimizer, loader), _ = on_a_gpu()
    loader.scorer = dasgrad.ExampleScorer(
        model, lambda outputs, targets: (outputs[:, 0] - targets).square().mean(), optimizer, score="gradient"
    )
    with pytest.raises(ValueError, match="the loss must be one value per example"):
        train(model, optimizer, loader, 25)
