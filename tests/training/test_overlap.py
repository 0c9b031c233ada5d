"""Scoring beside training: K decides what is drawn and speed does not; nothing is lost, left behind or touched."""

import contextlib
import copy
import gc
import itertools
import random
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dasgrad
import helpers
from dasgrad.scoring.isolation import beside_training
from dasgrad.training import AutoRefresh, Costs
from dasgrad.training.overlap import Scored, _threads_beside
from dasgrad.training.stopwatch import Stopwatch

N, BATCH_SIZE = 40, 4
NAME = "dasgrad-scoring"


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def build(overlap=3, refresh=8, model=None, losses=None, data=None, **options):
    inputs, targets, _ = helpers.regression(N)
    model = make_model() if model is None else model
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.02)
    given = {"loss_fn": helpers.squared_losses} if losses is None else {"losses": losses}
    scorer = dasgrad.ExampleScorer(model, optimizer=optimizer, **given)
    data = (inputs, targets) if data is None else data(inputs, targets)
    loader = dasgrad.AdaptiveLoader(
        data, BATCH_SIZE, scorer=scorer, refresh=refresh, overlap=overlap, scoring_chunk_size=16, seed=5, **options
    )
    return model, optimizer, loader


def batches_of(loader):
    return itertools.chain.from_iterable(itertools.repeat(loader))


def train(model, optimizer, loader, num_steps, each=lambda: None):
    """The draws of so many steps, and their weights."""
    drawn = []
    for batch in itertools.islice(batches_of(loader), num_steps):
        optimizer.zero_grad()
        batch.weighted_mean(helpers.squared_losses(model(batch.inputs), batch.targets)).backward()
        optimizer.step()
        drawn.append(torch.stack([batch.indices.double(), batch.weights]))
        each()
    return torch.stack(drawn)


def train_slowly(overlap, refresh, num_steps, model=None):
    """The reference: scores at step t by the live model, kept until step t + K."""
    inputs, targets, _ = helpers.regression(N)
    model = make_model() if model is None else model
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.02)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    sampler = dasgrad.AdaptiveSampler(N, BATCH_SIZE, seed=5)
    waiting, drawn = {}, []
    for step in range(1, num_steps + 1):
        if step in waiting:
            sampler.refresh(waiting.pop(step))
        if step % refresh == 0:
            waiting[step + overlap] = scorer.score_dataset((inputs, targets), 16)
        indices, weights = sampler.draw()
        optimizer.zero_grad()
        batch = dasgrad.WeightedBatch((inputs[indices], targets[indices]), indices, weights)
        batch.weighted_mean(helpers.squared_losses(model(batch.inputs), batch.targets)).backward()
        optimizer.step()
        drawn.append(torch.stack([indices.double(), weights]))
    return torch.stack(drawn)


def sleepy_losses(model, data):
    if threading.current_thread().name == NAME:
        time.sleep(0.01)
    return helpers.squared_losses(model(data[0]), data[1])


def scoring_threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@contextlib.contextmanager
def scoring_held():
    """Scoring that starts inside goes on until the function that is yielded was called."""
    allowed = threading.Event()

    def losses(model, data):
        if threading.current_thread().name == NAME:
            assert allowed.wait(30)
        return helpers.squared_losses(model(data[0]), data[1])

    try:
        yield losses, allowed.set
    finally:
        allowed.set()


# --- what is drawn ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "refresh"), [(1, 2), (3, 8), (7, 8)])
@pytest.mark.parametrize("speed", ["fast scoring", "slow scoring", "slow training"])
def test_draws_are_those_of_the_reference_however_fast_scoring_is(overlap, refresh, speed):
    losses = sleepy_losses if speed == "slow scoring" else None
    model, optimizer, loader = build(overlap, refresh, losses=losses)
    pause = (lambda: time.sleep(0.004)) if speed == "slow training" else lambda: None
    drawn = train(model, optimizer, loader, 36, pause)
    assert torch.equal(drawn, train_slowly(overlap, refresh, 36))
    assert drawn[:, 1].unique().numel() > 20  # weights are not all 1, so there was something to get wrong


@pytest.mark.parametrize(("overlap", "refresh"), [(1, 2), (3, 8), (7, 8)])
def test_draws_made_for_several_steps_at_once_end_before_scores_take_effect(overlap, refresh):
    model, optimizer, loader = build(overlap, refresh)
    expected = build(overlap, refresh)
    seen = []
    loader.on_refresh(lambda event: seen.append(event.step))
    dasgrad.CapturedLoop(loader).run(36)
    train(*expected, 36)
    assert seen == [step + overlap for step in range(refresh, 37, refresh) if step + overlap <= 36]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected[0].parameters(), strict=True))
    assert torch.equal(train(model, optimizer, loader, 4), train(*expected, 4))


def test_k_decides_the_draws():
    drawn = [train(*build(overlap), 36) for overlap in (0, 2, 3)]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_scores_that_are_ready_early_wait_for_their_step():
    model, optimizer, loader = build()
    seen = []
    loader.on_refresh(lambda event: seen.append((event.step, event.seconds > 0, event.waited_seconds > 0)))

    def wait_for_scoring():
        for thread in scoring_threads():
            thread.join()
        assert loader.sampler.refreshed == (loader.num_steps >= 11 or bool(seen))

    train(model, optimizer, loader, 28, wait_for_scoring)
    assert seen == [(11, True, True), (19, True, True), (27, True, True)]


def test_training_goes_on_while_examples_are_scored():
    with scoring_held() as (losses, release):
        model, optimizer, loader = build(losses=losses)
        train(model, optimizer, loader, 10)  # scoring started before step 8
        assert loader.pending
        assert not loader.sampler.refreshed
        assert len(scoring_threads()) == 1
        release()
        train(model, optimizer, loader, 1)
        assert loader.sampler.refreshed
        assert not scoring_threads()


def test_draws_are_the_same_through_workers():
    drawn = [train(*build(data=helpers.Rows, num_workers=1, prefetch_factor=2), 24) for _ in range(2)]
    assert torch.equal(drawn[0], drawn[1])
    assert drawn[0][:, 1].unique().numel() > 10


def test_a_refresh_by_hand_takes_the_place_of_pending_scores():
    with scoring_held() as (losses, release):
        model, optimizer, loader = build(losses=losses)
        train(model, optimizer, loader, 8)
        threading.Timer(0.05, release).start()
        loader.refresh()
        assert not loader.pending
    expected = loader.sampler.scores
    train(model, optimizer, loader, 4)
    assert torch.equal(loader.sampler.scores, expected)


# --- what is scored -----------------------------------------------------------------------------------


class Tied(nn.Module):
    """Tied weights, running statistics and a number that training changes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 1)
        self.temperature = 1.0

    def forward(self, x):
        return self.last(self.norm(self.second(torch.tanh(self.first(x))))) / self.temperature


def stepped(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    helpers.squared_losses(model(inputs), targets).mean().backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:BatchNorm in training mode")
@pytest.mark.parametrize("kind", ["DASGrad", "AdamW"])
def test_a_snapshot_scores_as_its_model_did_and_takes_new_values_in_place(kind):
    inputs, targets, _ = helpers.regression(N)
    torch.manual_seed(0)
    model = Tied().double()
    optimizer = dasgrad.DASGrad(model.parameters()) if kind == "DASGrad" else torch.optim.AdamW(model.parameters())
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    twin = scorer.snapshot()  # before there is any optimizer state
    assert twin.model.first.weight is twin.model.second.weight
    places = [p.data_ptr() for p in twin.model.parameters()]
    for _ in range(3):
        then = scorer(inputs, targets)
        assert twin.copy_from(scorer)
        stepped(model, optimizer, inputs, targets)
        model.temperature *= 2
        optimizer.param_groups[0]["lr"] *= 0.5
        assert torch.equal(twin(inputs, targets), then)
        assert not torch.equal(scorer(inputs, targets), then)
    assert places == [p.data_ptr() for p in twin.model.parameters()]
    assert all(p.grad is None for p in twin.model.parameters())


def test_a_model_with_other_parameters_is_copied_anew():
    model, optimizer, loader = build()
    train(model, optimizer, loader, 12)
    model.append(nn.Linear(1, 1).double())
    optimizer.add_param_group({"params": list(model[-1].parameters()), "lr": 0.1})
    train(model, optimizer, loader, 3)
    expected = loader.scorer.score_dataset(loader.dataset, 16)
    train(model, optimizer, loader, 4)  # scored before step 16
    torch.testing.assert_close(loader.sampler.scores, expected)


def test_a_cheaper_score_is_that_of_the_model_copied_anew():
    model, optimizer, loader = build()
    cheaper = loader.scorer.with_score("loss")
    for _ in range(2):
        loader.rescore_beside(cheaper, 3)
        found = loader.take_effect(now=True)
        assert torch.equal(found.scores, cheaper.score_dataset(loader.dataset, 16))
        model.append(nn.Linear(1, 1).double())
        optimizer.add_param_group({"params": list(model[-1].parameters()), "lr": 0.1})


def test_a_loss_with_parameters_of_its_own_and_a_frozen_layer_are_part_of_the_snapshot():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, outputs, targets):
            return helpers.squared_losses(outputs, targets) * self.scale

    inputs, targets, _ = helpers.regression(N)
    model, loss_fn = make_model(), Scaled()
    optimizer = dasgrad.DASGrad([*model.parameters(), *loss_fn.parameters()])
    scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)
    twin = scorer.snapshot()
    then = scorer(inputs, targets)
    with torch.no_grad():
        loss_fn.scale.mul_(3)
    model[0].requires_grad_(False)
    assert torch.equal(twin(inputs, targets), then)
    assert twin.copy_from(scorer)
    assert torch.equal(twin(inputs, targets), scorer(inputs, targets))


def test_compiled_parts_are_scored_as_they_were_before():
    inputs, targets, _ = helpers.regression(N)
    model = make_model()
    expected = dasgrad.ExampleScorer(model, helpers.squared_losses, score="gradient")(inputs, targets)
    model[0] = torch.compile(model[0], backend="eager")
    twin = dasgrad.ExampleScorer(model, helpers.squared_losses, score="gradient").snapshot()
    assert [type(module) for module in twin.model] == [nn.Linear, nn.Tanh, nn.Linear]
    assert torch.equal(twin(inputs, targets), expected)


class Holder(nn.Linear):
    def __deepcopy__(self, memo):
        raise RuntimeError("not this one")


def test_a_model_that_cannot_be_copied_is_named_with_the_option():
    model, optimizer, loader = build(model=Holder(3, 1).double())
    with pytest.raises(TypeError, match=r"overlap=\.\.\..*fails on Holder \(RuntimeError: not this one\).*overlap=0"):
        train(model, optimizer, loader, 9)
    assert loader.num_steps == 7
    assert not loader.pending


# --- what is left alone -------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Random in training mode and, if asked, in eval mode."""

    def __init__(self, always=False):
        super().__init__()
        self.inner = make_model()
        self.always = always

    def forward(self, x):
        if self.training or self.always:
            x = x + 0.1 * torch.randn_like(x) + 0.1 * random.random() + 0.1 * np.random.random()  # noqa: NPY002 - the global one is what matters
        return self.inner(x)


def seed_everything():
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 - the global one is what matters


@pytest.mark.parametrize("always", [False, True], ids=["training mode", "always"])
@pytest.mark.filterwarnings("ignore:.*scoring draws random numbers")
def test_random_numbers_of_training_are_those_of_a_run_that_is_not_scored(always):
    """Until the first scores take effect, the two runs must not differ in anything."""

    def run(**options):
        seed_everything()
        model, optimizer, loader = build(model=Noisy(always), losses=sleepy_losses, **options)
        train(model, optimizer, loader, 10)
        for thread in scoring_threads():
            thread.join()
        numbers = [random.random(), np.random.random(), torch.rand(1).item()]  # noqa: NPY002 - the global one
        return [p.detach() for p in model.parameters()], numbers

    params, numbers = run(overlap=3, refresh=8)
    expected_params, expected_numbers = run(overlap=0, refresh=1000)
    assert numbers == expected_numbers
    assert all(torch.equal(a, b) for a, b in zip(params, expected_params, strict=True))


def test_a_model_that_is_random_when_scored_is_scored_before_training_goes_on():
    def run():
        seed_everything()
        with pytest.warns(UserWarning, match="scoring draws random numbers.*before training goes on"):
            return train(*build(model=Noisy(always=True), losses=sleepy_losses), 24)

    assert torch.equal(run(), run())


def test_random_scoring_is_named_once_and_training_stands_still_for_all_of_it():
    model, optimizer, loader = build(model=Noisy(always=True))
    told = []
    loader.on_refresh(told.append)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        for _ in range(2):
            loader.rescore_beside(loader.scorer, 3)
            loader.take_effect(now=True)
            model.inner.append(nn.Linear(1, 1).double())  # which lets the model be copied anew
            optimizer.add_param_group({"params": list(model.inner[-1].parameters()), "lr": 0.1})
    assert len(noted) == 1
    assert len(told) == 2
    assert all(event.waited_seconds >= event.seconds > 0 for event in told)


def test_shared_settings_are_left_alone_while_scoring_goes_on():
    with scoring_held() as (losses, release):
        model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(12, 1))
        data = torch.randn(N, 3, 4)
        model, optimizer, loader = build(model=model, losses=losses, data=lambda _, targets: (data, targets.float()))
        filters, stance = list(warnings.filters), torch.compiler.set_stance
        seen = []

        def look():
            if scoring_threads():
                seen.append((torch.backends.mha.get_fastpath_enabled(), warnings.filters == filters))

        train(model, optimizer, loader, 10, look)
        assert torch.get_num_threads() == 1
        release()
    assert seen == [(True, True)] * 3
    assert stance is torch.compiler.set_stance


def test_the_plain_path_of_attention_is_taken_beside_training():
    """Inside the thread as outside it: the inference path of a padded encoder answers otherwise."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 1))
    data = (torch.randn(N, 3, 4), torch.randn(N))
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, score="last_layer")
    with beside_training():
        found = scorer.snapshot()(*data)
    assert torch.equal(found, scorer(*data))


def test_the_number_of_threads_of_others_stays(monkeypatch):
    monkeypatch.setattr("dasgrad.training.overlap._threads_beside", lambda: 3)
    before, found = torch.get_num_threads(), {}

    def losses(model, data):
        found[threading.current_thread().name] = torch.get_num_threads()
        return helpers.squared_losses(model(data[0]), data[1])

    model, optimizer, loader = build(losses=losses)
    train(model, optimizer, loader, 12)
    later = threading.Thread(target=lambda: found.update(later=torch.get_num_threads()))
    later.start()
    later.join()
    assert torch.get_num_threads() == before
    assert found == {"MainThread": before, NAME: 3, "later": before}


@pytest.mark.parametrize(("cores", "training", "scoring"), [(4, 1, 3), (4, 4, 1), (2, 5, 1)])
def test_scoring_takes_the_cores_that_training_leaves_free(monkeypatch, cores, training, scoring):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: training)
    assert _threads_beside() == scoring


# --- what goes wrong ----------------------------------------------------------------------------------


def failing_losses(kind):
    def losses(model, data):
        if threading.current_thread().name == NAME:
            raise kind("broken on purpose")
        return helpers.squared_losses(model(data[0]), data[1])

    return losses


def test_an_error_comes_up_where_scores_were_to_take_effect_and_training_can_go_on():
    model, optimizer, loader = build(losses=failing_losses(KeyError))
    with pytest.raises(KeyError, match="broken on purpose") as caught:
        train(model, optimizer, loader, 20)
    assert caught.traceback[-1].name == "losses"  # the place in the other thread
    assert loader.num_steps == 10
    assert not loader.pending
    assert not loader.sampler.refreshed
    loader.scorer._losses = loader._rescoring._beside._twins["dasgrad"]._losses = sleepy_losses
    seen = []
    loader.on_refresh(lambda event: seen.append(event.step))
    train(model, optimizer, loader, 12)
    assert seen == [19]


@pytest.mark.parametrize("policy", ["raise", "keep"])
def test_scores_that_are_not_finite(policy):
    def poisoned(inputs, targets):
        inputs[7] = float("nan")
        return TensorDataset(inputs, targets)

    _, optimizer, loader = build(data=poisoned, nonfinite=policy)
    what = "1 of 40 examples have a score that is not finite .indices 7"
    with pytest.raises(ValueError, match=what) if policy == "raise" else pytest.warns(UserWarning, match=what):
        for _ in itertools.islice(batches_of(loader), 11):
            optimizer.step()
    assert loader.num_steps == (10 if policy == "raise" else 11)
    assert loader.sampler.refreshed == (policy == "keep")


def test_running_out_of_memory_for_good_turns_auto_off_and_training_goes_on():
    auto = AutoRefresh(costs=Costs(step=1.0, example=1e-4))
    model, optimizer, loader = build(overlap=2, refresh=auto, losses=failing_losses(torch.OutOfMemoryError))
    with (
        pytest.warns(UserWarning, match="does not fit into memory"),
        pytest.warns(UserWarning, match="ran out of memory.*goes on with the last probabilities"),
    ):
        train(model, optimizer, loader, 40)
    assert "out of memory" in loader.diagnosis().reason
    assert not loader.sampler.refreshed


def test_a_wait_that_is_interrupted_can_be_taken_up_again(monkeypatch):
    model, optimizer, loader = build(losses=sleepy_losses)
    train(model, optimizer, loader, 8)
    join = threading.Thread.join

    def interrupted(self, timeout=None):
        monkeypatch.setattr(threading.Thread, "join", join)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, loader, 8)
    assert loader.pending
    assert loader.num_steps == 10
    train(model, optimizer, loader, 1)
    assert not loader.pending
    assert loader.sampler.refreshed


def test_no_thread_outlives_its_loader():
    with scoring_held() as (losses, release):
        model, optimizer, loader = build(losses=losses)
        train(model, optimizer, loader, 8)
        assert len(scoring_threads()) == 1
        threading.Timer(0.05, release).start()
        del loader
        gc.collect()
        assert not scoring_threads()


@pytest.mark.parametrize("ending", ["pass", "raise KeyboardInterrupt", "sys.exit(3)"])
def test_the_interpreter_ends_cleanly_while_scoring_goes_on(ending):
    program = f"""
        import sys, time, threading, torch, dasgrad
        torch.set_num_threads(1)
        model = torch.nn.Linear(3, 1)
        optimizer = dasgrad.DASGrad(model.parameters())
        def losses(model, data):
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.1)
            return model(data[0])[:, 0].square()
        scorer = dasgrad.ExampleScorer(model, optimizer=optimizer, losses=losses)
        data = (torch.randn(10_000, 3), torch.randn(10_000))
        loader = dasgrad.AdaptiveLoader(
            data, 2, scorer=scorer, refresh=2, overlap=1, scoring_chunk_size=10)  # 100 s
        batches = iter(loader)
        next(batches)
        optimizer.step()
        next(batches)
        assert threading.active_count() == 2
        print("ending", flush=True)
        {ending}
    """
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ending\n"
    assert done.returncode == {"pass": 0, "sys.exit(3)": 3}.get(ending, done.returncode)
    assert done.returncode in (0, 1, 3, -2, 130)
    assert ("KeyboardInterrupt" in done.stderr) == ("KeyboardInterrupt" in ending)
    assert "terminate" not in done.stderr
    assert "Fatal" not in done.stderr
    assert time.perf_counter() - started < 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap": -1}, "must be a non-negative integer.*got -1"),
        ({"overlap": True}, "must be a non-negative integer.*got True"),
        ({"overlap": 1.5}, "must be a non-negative integer.*got 1.5"),
        ({"overlap": "auto"}, "'auto' with refresh='auto', got 'auto'"),
        ({"overlap": 8}, "must be below refresh=8.*got 8"),
        ({"overlap": 10, "refresh": None}, "must be below refresh=10"),
        ({"data": helpers.Rows}, "tensors in memory, or `num_workers` of at least 1"),
        ({"collate_fn": torch.utils.data.default_collate, "data": TensorDataset}, "tensors in memory, or"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_without_a_scorer_there_is_nothing_to_overlap():
    with pytest.raises(ValueError, match="needs `scorer`"):
        dasgrad.AdaptiveLoader((torch.randn(3, 2),), 2, overlap=1)


# --- state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [7, 8, 9, 10, 11, 21])
@pytest.mark.parametrize("auto", [False, True], ids=["fixed", "auto"])
def test_a_run_resumed_while_scores_are_pending_makes_the_same_draws(tmp_path, stopped, auto):
    def make():
        refresh = AutoRefresh(first=8, worth=0.95, costs=Costs(step=1.0, example=0.05, lost=0.1)) if auto else 8
        return build(overlap="auto" if auto else 3, refresh=refresh, losses=sleepy_losses)

    model, optimizer, loader = make()
    train(model, optimizer, loader, stopped)
    pending = loader.pending
    dasgrad.save_checkpoint(tmp_path / "run.pt", model=model, optimizer=optimizer, loader=loader)
    assert loader.pending == pending
    expected = train(model, optimizer, loader, 30)
    again = make()
    dasgrad.load_checkpoint(tmp_path / "run.pt", model=again[0], optimizer=again[1], loader=again[2])
    assert again[2].pending == pending == (stopped in (8, 9, 10))
    assert torch.equal(train(*again, 30), expected)


def test_a_state_is_loaded_over_a_scoring_that_goes_on():
    model, optimizer, loader = build()
    start = copy.deepcopy((model.state_dict(), optimizer.state_dict(), loader.state_dict()))
    with scoring_held() as (losses, release):
        model, optimizer, loader = build(losses=losses)
        train(model, optimizer, loader, 9)
        threading.Timer(0.05, release).start()
        for part, state in zip((model, optimizer, loader), start, strict=True):
            part.load_state_dict(state)
        assert not loader.pending
    assert torch.equal(train(model, optimizer, loader, 20), train(*build(), 20))


def test_a_failed_scoring_does_not_keep_a_run_from_being_saved():
    model, optimizer, loader = build(losses=failing_losses(KeyError))
    train(model, optimizer, loader, 8)
    assert loader.state_dict()["pending"] is None
    with pytest.raises(KeyError, match="broken on purpose"):
        train(model, optimizer, loader, 8)


def test_states_of_before_and_of_another_overlap():
    fresh = build(overlap=0)[2]
    old = {k: v for k, v in fresh.state_dict().items() if k not in ("overlap", "pending")} | {"version": 2}
    fresh.load_state_dict(old)
    with pytest.raises(ValueError, match="needs a loader with overlap=0, got 3"):
        build(overlap=3)[2].load_state_dict(old)


# --- refresh="auto" -----------------------------------------------------------------------------------


def automatic(**costs):
    return build(overlap="auto", refresh=AutoRefresh(worth=0.95, costs=Costs(**costs)), losses=sleepy_losses)


def test_auto_takes_as_many_steps_as_scoring_should():
    model, optimizer, loader = automatic(step=1.0, example=0.05, lost=0.1)  # 40 examples: 2 s, with a margin 3
    seen = []
    loader.on_refresh(lambda event: seen.append(event.step))
    train(model, optimizer, loader, 30)
    assert seen[0] == 16 + 3
    assert loader.diagnosis().decision in ("refresh", "keep")


def test_auto_reckons_with_the_draws_until_scores_take_effect():
    """Three of the 16 steps over which a refresh is reckoned are still uniform, the others by aging scores."""
    model, optimizer, loader = automatic(step=1.0, example=0.05, lost=0.1)
    train(model, optimizer, loader, 17)
    found = loader.diagnosis()
    fresh = found.noise_left_fresh
    assert found.decision == "refresh"
    assert fresh < 0.9
    assert found.noise_left == pytest.approx(3 / 16 + 13 / 16 * (fresh + 0.15 * (1 - fresh) / 2))


def test_auto_does_not_look_while_scores_are_pending():
    """Scores of step 16 take effect at step 28, before which there would be a look at step 24."""
    costs = Costs(step=1.0, example=0.2, lost=0.0)
    auto = AutoRefresh(num_audited=16, worth=1.0, most_auditing=0.9, costs=costs)
    model, optimizer, loader = build(overlap="auto", refresh=auto)
    train(model, optimizer, loader, 27)
    assert loader.pending
    assert loader.diagnosis().step == 16
    train(model, optimizer, loader, 1)
    assert loader.diagnosis().step == 28


def test_auto_with_given_costs_can_be_repeated():
    costs = {"step": 1.0, "example": 0.05, "lost": 0.3}
    assert torch.equal(train(*automatic(**costs), 60), train(*automatic(**costs), 60))


def test_auto_reckons_with_what_training_loses_alone():
    """Scoring so dear that it would never pay if training stood still, and that costs training nothing."""

    def decision(lost):
        model, optimizer, loader = automatic(step=1.0, example=0.1, lost=lost)
        train(model, optimizer, loader, 17)
        return loader.diagnosis().decision

    assert decision(1.0) == "off"
    assert decision(0.0) == "refresh"


def test_auto_measures_what_it_loses():
    model, optimizer, loader = build(overlap="auto", refresh="auto", losses=sleepy_losses)
    train(model, optimizer, loader, 120, lambda: time.sleep(0.0005))
    assert loader._schedule._lost <= 1.0


@pytest.mark.parametrize(("waited", "lost"), [(1.0, 0.85), (9.0, 1.0)])
def test_what_training_loses_is_slower_steps_and_the_wait_in_the_end(waited, lost):
    """Steps of 1 s alone and of 4 s beside a scoring, which takes 10 s."""
    ticks = iter([0.0, 1.0, 10.0, 14.0])
    auto = AutoRefresh(clock=lambda: next(ticks))
    for beside in (False, True):
        auto.stopwatch.start(torch.device("cpu"), beside=beside)
        auto.stopwatch.stop()
    auto._note_costs(Scored(torch.ones(3), 8, 11, "dasgrad", seconds=10.0, waited_seconds=waited))
    state = auto.state_dict()
    assert state["lost"] == pytest.approx(lost)
    assert state["scoring_seconds"] == {"dasgrad": 10.0}


@pytest.mark.parametrize("lost", [-0.1, 1.1])
def test_a_share_is_a_share(lost):
    with pytest.raises(ValueError, match=r"Costs\(lost=\.\.\.\)` must be in \[0, 1\]"):
        Costs(step=1.0, example=1.0, lost=lost)


def test_steps_beside_a_scoring_are_timed_apart():
    ticks = iter([0.0, 1.0, 10.0, 14.0])
    watch = Stopwatch(lambda: next(ticks))
    assert watch.lost_beside() is None
    for beside in (False, True):
        watch.start(torch.device("cpu"), beside=beside)
        watch.stop()
    assert watch.seconds() == 1.0
    assert watch.seconds(beside=True) == 4.0
    assert watch.lost_beside() == 0.75


# --- CUDA ---------------------------------------------------------------------------------------------

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none")


def on_cuda(overlap, width=512, data_on="cuda"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    model = model.cuda()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20_000, 64, generator=generator)
    targets = inputs.sum(1) + torch.where(torch.arange(20_000) % 50 == 0, 20.0, 0.1)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=1e-3)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader(
        (inputs.to(data_on), targets.to(data_on)),
        64,
        scorer=scorer,
        refresh=10,
        overlap=overlap,
        device="cuda",
        scoring_chunk_size=2048,
    )
    return model, optimizer, loader


@cuda
@pytest.mark.parametrize("data_on", ["cuda", "cpu"])
def test_scores_on_a_side_stream_are_those_of_the_snapshot(data_on):
    """The model is overwritten as soon as scoring starts: what is not ordered between streams shows in the scores."""
    model, optimizer, loader = on_cuda(overlap=5, data_on=data_on)
    for _ in range(3):
        train(model, optimizer, loader, 1)
        expected = loader.scorer.score_dataset(loader.dataset, 2048)
        kept = [p.detach().clone() for p in model.parameters()]
        torch.cuda._sleep(20_000_000)  # the snapshot itself is still to be taken when scoring starts
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.5)
            for p, k in zip(model.parameters(), kept, strict=True):
                p.copy_(k)
        loader.rescore_beside(loader.scorer, 5)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(float("nan"))
        scored = loader.take_effect(now=True)
        torch.testing.assert_close(scored.scores, expected, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            for p, k in zip(model.parameters(), kept, strict=True):
                p.copy_(k)
        del scored


@cuda
def test_runs_on_the_gpu_can_be_repeated():
    drawn = [train(*on_cuda(overlap=5), 60) for _ in range(2)]
    assert torch.equal(drawn[0][:, 0], drawn[1][:, 0])
    torch.testing.assert_close(drawn[0][:, 1], drawn[1][:, 1])
    assert drawn[0][:, 1].unique().numel() > 100


@cuda
def test_random_numbers_of_the_gpu_are_left_alone():
    def run(overlap, refresh):
        model, optimizer, loader = on_cuda(overlap)
        loader._schedule.interval = refresh
        torch.cuda.manual_seed(3)
        found = []
        train(model, optimizer, loader, 14, lambda: found.append(torch.rand(3, device="cuda")))
        return torch.stack(found)

    assert torch.equal(run(5, 10), run(0, 1000))


@cuda
def test_memory_on_the_gpu_does_not_grow_from_refresh_to_refresh():
    model, optimizer, loader = on_cuda(overlap=5)
    train(model, optimizer, loader, 40)
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    train(model, optimizer, loader, 100)
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= 1.1 * before + 2**22
