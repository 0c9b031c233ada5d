"""What goes wrong beside training: errors, interrupts, the end of loader or interpreter, options that cannot be."""

import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from torch.utils.data import TensorDataset

import dasgrad
import helpers
from dasgrad.training import AutoRefresh, Costs
from training.overlap_runs import (
    NAME,
    batches_of,
    build,
    failing_losses,
    scoring_held,
    scoring_threads,
    sleepy_losses,
    train,
)


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
    found = loader.diagnosis()
    assert "out of memory" in found.reason
    assert not loader.sampler.refreshed
    assert (found.decision, found.noise_left, found.time_factor, found.staleness) == ("off", 1.0, None, None)
    assert found.step == loader.num_steps + 1
    assert "Forecast: not known." in str(found)
    assert found.brief.startswith("uniform draws, gain ")
    assert found.brief.endswith(", scoring ran out of memory")


def test_scores_that_never_came_say_nothing_of_how_scores_age():
    auto = AutoRefresh(worth=1.0, costs=Costs(step=1.0, example=1e-4))
    model, optimizer, loader = build(overlap=2, refresh=auto, losses=failing_losses(KeyError))
    with pytest.raises(KeyError, match="broken on purpose"):
        train(model, optimizer, loader, 20)
    before = auto.state_dict()["beliefs"]["aging"]
    train(model, optimizer, loader, 7)
    assert loader.diagnosis().step == 24
    assert auto.state_dict()["beliefs"]["aging"] == before


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


def test_a_scoring_that_nobody_waits_for_ends_after_its_chunk():
    sizes = []

    def losses(model, data):
        if threading.current_thread().name == NAME:
            assert loader._rescoring._beside._job._abandoned.wait(30)
            sizes.append(len(data[1]))
        return helpers.squared_losses(model(data[0]), data[1])

    loader = build(losses=losses)[2]
    loader.rescore_beside(loader.scorer, 3)
    loader.refresh()
    assert sizes == [16]


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
