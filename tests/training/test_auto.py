"""``refresh="auto"``: it rescores where that pays, stands aside where not, says why, and never stops training."""

import copy
import itertools
import math

import pytest
import torch

import dasgrad
from dasgrad.training import AutoRefresh, Costs
from dasgrad.training.beliefs import USUAL_NOISE, NoiseBelief
from dasgrad.training.forecast import Noise
from dasgrad.training.stopwatch import Stopwatch
from training.auto_runs import BATCH_SIZE, CHEAP, DEAR, LAVISH, NUM_EXAMPLES, build, make_data, train


def test_it_rescores_where_a_few_examples_carry_the_gradient():
    model, optimizer, loader = build(AutoRefresh(costs=CHEAP))
    train(model, optimizer, loader, 60)
    found = loader.diagnosis()
    assert loader.sampler.refreshed
    assert found.decision in ("refresh", "keep")
    assert found.noise_left < 0.6
    assert found.speedup > 1.2
    assert found.gain > 2


@pytest.mark.parametrize(("costs", "rare"), [(DEAR, True), (CHEAP, False)], ids=["too dear", "nothing to win"])
def test_where_it_does_not_pay_passes_are_reshuffled_and_weights_one(costs, rare):
    model, optimizer, loader = build(AutoRefresh(costs=costs, **LAVISH), rare)
    drawn, weights = [], []

    def note(batch):
        drawn.append(batch.indices)
        weights.append(batch.weights)

    train(model, optimizer, loader, 3 * len(loader), note)
    assert loader.diagnosis().decision == "off"
    assert (torch.cat(weights) == 1).all()
    for k in range(3):
        one_pass = torch.cat(drawn[k * len(loader) : (k + 1) * len(loader)])
        assert torch.equal(one_pass.sort().values, torch.arange(NUM_EXAMPLES))


def test_a_small_promise_is_not_enough():
    """The cost of scoring is set so that adaptive draws would take 0.82 of uniform's time, by the same forecast."""
    model, optimizer, loader = build(AutoRefresh(costs=CHEAP))
    train(model, optimizer, loader, 17)
    steps = loader.diagnosis().time_factor / (1 + CHEAP.example * NUM_EXAMPLES / 16)  # spread over two looks of 8 steps
    assert steps < 0.78
    for factor, worth, decision in ((0.82, 0.8, "off"), (0.78, 0.8, "refresh"), (0.82, 0.9, "refresh")):
        costs = Costs(step=1.0, example=(factor / steps - 1) * 16 / NUM_EXAMPLES)
        model, optimizer, loader = build(AutoRefresh(worth=worth, costs=costs, **LAVISH))
        train(model, optimizer, loader, 17)
        assert loader.diagnosis().decision == decision


def test_it_stops_sampling_when_nothing_is_left_to_win():
    model, optimizer, loader = build(AutoRefresh(costs=CHEAP))
    train(model, optimizer, loader, 30)
    assert loader.sampler.refreshed
    inputs, targets = make_data(rare=False)
    loader.dataset[0].copy_(inputs)
    loader.dataset[1].copy_(targets)
    train(model, optimizer, loader, 60)
    assert loader.diagnosis().decision == "off"
    assert loader.diagnosis().staleness is None
    assert not loader.sampler.refreshed


def test_scores_that_came_by_hand_are_kept_or_forgotten_as_others_are():
    """Too dear to be computed again: kept where they help, and forgotten where nothing is to be won."""
    for rare in (True, False):
        model, optimizer, loader = build(AutoRefresh(costs=DEAR), rare)
        train(model, optimizer, loader, 5)
        loader.refresh()
        weights = []
        train(model, optimizer, loader, 20, lambda batch, weights=weights: weights.append(batch.weights))
        found = loader.diagnosis()
        assert found.decision == ("keep" if rare else "off")
        assert found.staleness is None  # it was no decision of this object's
        assert loader.sampler.refreshed == rare
        assert (bool((weights[0] == 1).all()), bool((weights[-1] == 1).all())) == (False, not rare)


def test_with_given_costs_a_run_can_be_repeated():
    def draws():
        model, optimizer, loader = build(AutoRefresh(costs=CHEAP))
        found = []
        train(model, optimizer, loader, 60, lambda batch: found.append(batch.indices))
        return torch.cat(found)

    assert torch.equal(draws(), draws())


def test_a_state_goes_on_where_it_was():
    model, optimizer, loader = build(AutoRefresh(costs=CHEAP))
    train(model, optimizer, loader, 30)
    state = copy.deepcopy((loader.state_dict(), model.state_dict(), optimizer.state_dict()))
    again = build(AutoRefresh(costs=CHEAP))
    again[0].load_state_dict(state[1])
    again[1].load_state_dict(state[2])
    again[2].load_state_dict(state[0])
    assert again[2].diagnosis() == loader.diagnosis()
    found = [[], []]
    train(model, optimizer, loader, 40, lambda batch: found[0].append(batch.indices))
    train(*again, 40, lambda batch: found[1].append(batch.indices))
    assert torch.equal(torch.cat(found[0]), torch.cat(found[1]))
    assert again[2].diagnosis() == loader.diagnosis()


def test_every_part_of_a_state_is_kept():
    fresh = AutoRefresh().state_dict()
    state = {
        "auto": fresh["auto"],
        "num_steps": 40,
        "next_look": 54,
        "next_audit": 60,
        "refreshed_at": 36,
        "left_then": 0.3,
        "left_first": 0.2,
        "made_at_audit": False,
        "tier": "last_layer",
        "beliefs": {"noise": {"inverse": 0.5, "weight": 60.0}, "aging": {"share": 0.4}},
        "memory": {"name": "gradient", "left": [0.9, 0.8, 0.7], "squares": None, "step": 36},
        "scoring_seconds": {"gradient": 7.0},
        "lost": 0.8,
        "spent": 21.0,
        "num_looked_at": 9,
        "look_seconds": 1.5,
        "example_seconds": 0.01,
        "promise": 0.25,
        "looks_kept": 1.5,
        "failure": "scoring ran out of memory",
        "last": {**fresh["last"], "step": 36, "decision": "keep"},
    }
    assert [key for key in fresh if state[key] == fresh[key]] == ["auto"]
    auto = AutoRefresh()
    auto.load_state_dict(state)
    assert auto.state_dict() == state


def test_states_of_another_kind_of_refresh_are_refused():
    automatic, fixed = build("auto")[2], build(5)[2]
    with pytest.raises(ValueError, match="needs a loader with refresh=5, got 'auto'"):
        automatic.load_state_dict(fixed.state_dict())
    with pytest.raises(ValueError, match="needs a loader with refresh='auto', got 5"):
        fixed.load_state_dict(automatic.state_dict())


def test_states_of_another_version_are_refused_by_number():
    loader = build("auto")[2]
    state = loader.state_dict()
    (key,) = (key for key, value in state.items() if isinstance(value, dict) and "auto" in value)
    with pytest.raises(ValueError, match=r"state of version 9 of 'auto', got 2\."):
        loader.load_state_dict({**state, key: {**state[key], "auto": 2}})


def test_out_of_memory_leaves_the_last_probabilities_and_training_goes_on(monkeypatch):
    model, optimizer, loader = build(AutoRefresh(costs=CHEAP))
    train(model, optimizer, loader, 30)
    before = loader.sampler.probabilities
    taken = []

    def fail(*args, **kwargs):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(dasgrad.ExampleScorer, "__call__", fail)
    with pytest.warns(UserWarning, match="ran out of memory.*goes on with the last probabilities"):
        train(model, optimizer, loader, 60, lambda batch: taken.append(len(batch)))
    assert taken == [BATCH_SIZE] * 60
    torch.testing.assert_close(loader.sampler.probabilities, before)
    found = loader.diagnosis()
    assert "out of memory" in found.reason
    assert (found.step, found.staleness) == (91, 91 - loader.counter.state_dict()["refreshed_at"])
    assert (found.time_factor, found.speedup) == (None, None)
    assert found.brief.endswith("scoring ran out of memory")
    assert loader.counter.num_quiet_steps() > 10**9  # there will be no other look


def test_after_running_out_of_memory_a_diagnosis_measures_nothing(monkeypatch):
    auto = AutoRefresh(costs=CHEAP)
    model, optimizer, loader = build(auto, rare=False)
    train(model, optimizer, loader, 20)

    def fail(*args, **kwargs):
        raise torch.OutOfMemoryError("no memory left")

    for name in ("__call__", "noise"):
        monkeypatch.setattr(dasgrad.ExampleScorer, name, fail)
    with pytest.warns(UserWarning, match="ran out of memory"):
        train(model, optimizer, loader, 10)
    found = loader.diagnosis()
    assert "out of memory" in found.reason
    assert found.noise_scale is None


def test_a_clock_that_jumps_does_no_harm():
    ticks = itertools.count()
    jumps = {40: -1e6, 41: 1e9, 90: -1e9, 150: 1e6}
    offset = [0.0]

    def clock():
        tick = next(ticks)
        offset[0] += jumps.get(tick, 0.0)
        return tick * 1e-3 + offset[0]

    model, optimizer, loader = build(AutoRefresh(clock=clock))
    train(model, optimizer, loader, 200)
    found = loader.diagnosis()
    assert found.step_seconds == pytest.approx(1e-3, rel=0.5)
    assert math.isfinite(found.time_factor)
    assert loader.num_steps == 200


@pytest.mark.parametrize("now", [itertools.repeat(7.0), itertools.repeat(math.nan), itertools.count(0.0, -1e-3)])
def test_a_clock_that_does_not_go_on_is_said_once(now):
    model, optimizer, loader = build(AutoRefresh(clock=lambda: next(now)))
    with pytest.warns(UserWarning, match=r"AutoRefresh\(clock=...\)` must return seconds that go on") as said:
        train(model, optimizer, loader, 300)
    assert len(said) == 1
    assert loader.num_steps == 300
    assert not loader.sampler.refreshed


def test_an_auto_refresh_is_that_of_one_loader():
    auto = AutoRefresh(costs=CHEAP)
    build(auto)
    with pytest.raises(ValueError, match="`AutoRefresh` of its own, got another loader's"):
        build(auto)


def test_measured_costs_decide_on_a_real_clock():
    model, optimizer, loader = build("auto")
    while (found := loader.diagnosis()).decision == "wait" and loader.num_steps < 2000:
        train(model, optimizer, loader, 40)  # more of them where other work has made a first score slow
    assert found.decision != "wait"
    assert found.step_seconds > 0
    assert found.scoring_seconds > 0


def test_a_data_set_of_single_examples():
    inputs, targets = make_data(rare=True)
    model, optimizer, loader = build(AutoRefresh(costs=CHEAP), data=list(zip(inputs, targets, strict=True)))
    train(model, optimizer, loader, 40)
    assert loader.sampler.refreshed


def test_a_score_of_ones_own_says_nothing_of_the_noise():
    """Without a loss it is taken for the usual, and nobody is told that it was measured."""

    def score(model, data):
        return (model(data[0])[:, 0] - data[1]).abs()

    model, optimizer, loader = build(AutoRefresh(costs=CHEAP), score=score)
    train(model, optimizer, loader, 17)
    found = loader.diagnosis()
    assert (found.noise_scale, found.larger_batch_factor) == (None, None)
    assert "Noise scale: not measured." in str(found)
    assert "larger" not in str(found)
    usual = Noise(USUAL_NOISE * BATCH_SIZE, BATCH_SIZE)
    assert found.time_factor == pytest.approx(
        usual.steps_factor(found.noise_left) * (1 + 1e-4 * NUM_EXAMPLES / 16), rel=1e-6
    )
    assert loader.sampler.refreshed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AutoRefresh(num_audited=1), r"AutoRefresh\(num_audited=...\).*at least 2, got 1"),
        (lambda: AutoRefresh(first=0), r"AutoRefresh\(first=...\).*at least 2, got 0"),
        (lambda: AutoRefresh(growth="2"), r"AutoRefresh\(growth=...\).*a number, got '2'"),
        (lambda: AutoRefresh(costs=3), r"AutoRefresh\(costs=...\).*`Costs` or None, got 3"),
        (lambda: AutoRefresh(clock=3), r"AutoRefresh\(clock=...\).*function that returns seconds, got 3"),
        (lambda: AutoRefresh(growth=1.0), r"AutoRefresh\(growth=...\).*above 1, got 1.0"),
        (lambda: AutoRefresh(worth=0.0), r"AutoRefresh\(worth=...\).*in \(0, 1\], got 0.0"),
        (lambda: AutoRefresh(most_auditing=1.0), r"AutoRefresh\(most_auditing=...\).*in \(0, 1\), got 1.0"),
        (lambda: Costs(step=0.0, example=1.0), r"Costs\(step=...\).*positive number of seconds, got 0.0"),
        (lambda: Costs(step=1.0, example=math.nan), r"Costs\(example=...\).*positive"),
    ],
)
def test_bad_options_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_pause_between_step_and_next_batch_is_not_timed():
    now = [0.0]
    watch = Stopwatch(lambda: now[0])
    assert watch.seconds() is None
    for _ in range(3):
        watch.start(torch.device("cpu"))
        now[0] += 2.0
        watch.stop()
        now[0] += 100.0  # the user evaluates
        watch.stop()  # a step without a batch
    assert watch.seconds() == 2.0


@pytest.mark.parametrize(
    ("num_steps", "beside", "expected"), [(16, False, 4), (128, False, 32), (640, False, 32 + 32), (640, True, 640)]
)
def test_one_step_in_four_is_timed_later_one_in_sixteen_and_beside_a_scoring_all(num_steps, beside, expected):
    readings = []
    watch = Stopwatch(lambda: readings.append(1) or float(len(readings)))
    for _ in range(num_steps):
        watch.start(torch.device("cpu"), beside=beside)
        watch.stop()
    assert len(readings) == 2 * expected
    assert watch.seconds(beside=beside) == 1.0


def test_a_step_of_several_batches_is_timed_from_the_first():
    now = [0.0]
    watch = Stopwatch(lambda: now[0])
    for _ in range(3):
        for _ in range(4):
            watch.start(torch.device("cpu"))
            now[0] += 1.0
        watch.stop()
    assert watch.seconds() == 4.0


def test_an_example_without_a_finite_loss_does_not_blind_it():
    inputs, targets = make_data(rare=True)
    targets[3::10] = math.nan
    auto = AutoRefresh(costs=DEAR)
    loader = build(auto, data=(inputs, targets))[2]
    found = auto._audit(loader, 1, 256)
    assert not found.finite.all()
    assert 0 < found.fresh < 0.7
    assert found.now == pytest.approx(1.0)


def test_forgotten_scores_are_the_target_again():
    target = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    sampler = dasgrad.AdaptiveSampler(3, 2, target=target)
    sampler.refresh([1.0, 2.0, 9.0])
    torch.testing.assert_close(sampler.weights_of(torch.tensor([2, 0])), sampler.weights[[2, 0]])
    sampler.forget()
    assert not sampler.refreshed
    torch.testing.assert_close(sampler.probabilities, target)
    assert (sampler.weights_of(torch.tensor([0, 1])) == 1).all()
    assert sampler.from_target(torch.tensor([0.1, 0.6, 0.95], dtype=torch.float64)).tolist() == [0, 1, 2]


def test_a_look_tells_what_it_believes_of_the_noise(monkeypatch):
    """64 examples in each half, and the batch size as the prior has it."""
    monkeypatch.setattr(dasgrad.ExampleScorer, "noise", lambda self, chunks: (1e6, 1e5))
    auto = AutoRefresh(num_audited=64, costs=CHEAP)
    loader = build(auto)[2]
    belief = NoiseBelief()
    belief.observe(1e6, 1e5, 32)
    assert auto._audit(loader, 1, 64).noise.scale == pytest.approx(belief.at(loader.batch_size).scale)
