from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

import dasgrad
from dasgrad.experiments import DIGITS, Settings, find_experiment
from dasgrad.experiments.batches import independent_indices, reshuffled_indices
from dasgrad.experiments.curves import CancelledError, evaluation_interval, trace
from dasgrad.experiments.datasets import load_digits
from dasgrad.experiments.methods import METHODS, resolve_options
from dasgrad.experiments.problems import Problem
from dasgrad.experiments.records import COLUMNS, DRAW_COLUMNS, RunConfig
from dasgrad.experiments.registry import Experiment, register
from dasgrad.experiments.runner import make_config

TIMINGS = ("seconds", "scoring_seconds")
HERE = [name for name, method in METHODS.items() if method.target in ("uniform", "objective")]
SETTINGS = Settings(num_seeds=2, num_steps=30, batch_size=32, refresh=10)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return DIGITS.build("")


def config_of(method: str, seed: int = 0, **changes: object) -> RunConfig:
    return replace(make_config(DIGITS, SETTINGS, method, 0.3, seed), **changes)


def test_split_is_fixed_stratified_and_scaled() -> None:
    split, again = load_digits(), load_digits()
    assert (len(split.train[1]), len(split.test[1])) == (1437, 360)
    assert split.train[0].dtype == torch.float32
    assert (float(split.train[0].min()), float(split.train[0].max())) == (0.0, 1.0)
    assert torch.equal(split.train[0], again.train[0])
    assert torch.equal(split.test[1], again.test[1])
    shares = [torch.bincount(targets, minlength=10) / len(targets) for _, targets in (split.train, split.test)]
    torch.testing.assert_close(shares[0], shares[1], atol=0.005, rtol=0)
    with pytest.raises(ValueError, match=r"must be in \(0, 1\), got 1.5"):
        load_digits(1.5)


@pytest.mark.parametrize("method", HERE)
def test_the_same_seed_gives_the_same_curves(problem: Problem, method: str) -> None:
    first, second = (trace(problem, config_of(method)) for _ in range(2))
    other = trace(problem, config_of(method, seed=1))
    assert tuple(first) == (*COLUMNS, *(DRAW_COLUMNS if METHODS[method].adaptive else ()))
    for name in first:
        if name not in TIMINGS:
            np.testing.assert_array_equal(first[name], second[name])
    assert not np.array_equal(first["train_loss"], other["train_loss"])


def test_all_methods_start_alike(problem: Problem) -> None:
    starts = [trace(problem, config_of(method, num_steps=1)) for method in HERE]
    for curves in starts:
        assert curves["train_loss"][0] == pytest.approx(np.log(10))
        assert curves["step"][0] == 0


def test_baselines_see_the_same_batches(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two baselines with the same optimizer take the same path: seed and nothing else decides the order.
    monkeypatch.setitem(METHODS, "adam", METHODS["amsgrad"])
    first, second = (trace(problem, config_of(method)) for method in ("adam", "amsgrad"))
    np.testing.assert_array_equal(first["train_loss"], second["train_loss"])


def test_reshuffled_passes_visit_every_example_once() -> None:
    batches = list(islice(reshuffled_indices(10, 4, seed=0), 6))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    first, second = torch.cat(batches[:3]), torch.cat(batches[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert not torch.equal(first, second)
    again = list(islice(reshuffled_indices(10, 4, seed=0), 6))
    assert torch.equal(torch.cat(batches), torch.cat(again))


def test_independent_draws_are_with_replacement_and_fixed_by_the_seed() -> None:
    first, again = (torch.stack(list(islice(independent_indices(10, 4, seed=3), 100))) for _ in range(2))
    assert torch.equal(first, again)
    assert any(len(batch.unique()) < 4 for batch in first)
    assert set(first.flatten().tolist()) == set(range(10))


def test_columns_of_the_draws(problem: Problem) -> None:
    curves = trace(problem, config_of("dasgrad", evaluation_interval=3))
    assert curves["staleness"].tolist()[4:8] == [3, 6, 9, 2]  # scores of before step 10, after 12, 15, 18 and 21
    assert np.isnan(curves["gain"][0])
    assert np.isnan(curves["staleness"][:4]).all()
    assert (curves["effective_sample_size"][0], curves["largest_weight"][0]) == (pytest.approx(1), pytest.approx(1))
    assert curves["entropy"][0] == pytest.approx(np.log(1437))
    assert curves["gain"][-1] > 1
    assert 0 < curves["effective_sample_size"][-1] < 1
    assert 1 < curves["largest_weight"][-1] <= 5  # the floor is 0.2
    assert curves["entropy"][-1] < np.log(1437)


def test_the_literal_method_is_algorithm_2() -> None:
    options = resolve_options("dasgrad-paper", 0.0)
    assert (options["weighting"], options["preconditioner"], options["momentum"]) == ("update", "own", True)
    assert (options["stratified"], options["bias_correction"]) == ("none", False)
    assert 0 < options["floor"] <= 0.01
    assert resolve_options("dasgrad-paper", 0.0, "frozen")["preconditioner"] == "frozen"


def test_dasgrad_is_the_public_loop_of_the_documentation(problem: Problem) -> None:
    model = problem.make_model(0)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.3, betas=(0.9, 0.99), weight_decay=1e-4, bias_correction=True)
    schedule = dasgrad.InverseSqrtLR(optimizer)
    sampler = dasgrad.AdaptiveSampler(1437, 32, seed=0)
    scorer = dasgrad.ExampleScorer(model, problem.loss_fn, optimizer)
    loader = dasgrad.AdaptiveLoader(problem.data.train, sampler=sampler, scorer=scorer, refresh=10)
    for batch in islice(loader, 30):
        optimizer.zero_grad()
        batch.weighted_mean(problem.loss_fn(model(batch.inputs), batch.targets)).backward()
        optimizer.step()
        schedule.step()
    inputs, targets = problem.data.train
    with torch.no_grad():
        squares = sum(float(param.double().square().sum()) for param in model.parameters())
        final = float(problem.loss_fn(model(inputs), targets).double().mean()) + 0.5 * 1e-4 * squares
    assert trace(problem, config_of("dasgrad"))["train_loss"][-1] == pytest.approx(final, rel=1e-6)


def test_costs_are_counted(problem: Problem) -> None:
    ours, baseline = (trace(problem, config_of(method, num_steps=46)) for method in ("dasgrad", "amsgrad"))
    assert ours["gradient_evaluations"][-1] == 46 * 32
    assert baseline["gradient_evaluations"][-1] == 1437 + 32  # the last batch of a pass is what is left
    assert ours["scored_examples"][-1] == 4 * 1437  # before steps 10, 20, 30 and 40
    assert baseline["scored_examples"][-1] == 0
    assert 0 < ours["scoring_seconds"][-1] < ours["seconds"][-1]
    assert baseline["scoring_seconds"][-1] == 0
    assert (np.diff(ours["seconds"]) > 0).all()


@pytest.mark.parametrize(("num_steps", "interval"), [(1, 1), (40, 1), (1000, 20), (1010, 20)])
def test_curves_have_about_fifty_points(num_steps: int, interval: int) -> None:
    assert evaluation_interval(num_steps) == interval


def test_the_last_step_is_always_measured(problem: Problem) -> None:
    curves = trace(problem, config_of("adam", num_steps=7, evaluation_interval=3))
    assert curves["step"].tolist() == [0, 3, 6, 7]


def test_training_leaves_the_global_random_state(problem: Problem) -> None:
    before = torch.get_rng_state()
    for method in HERE:
        trace(problem, config_of(method, num_steps=12))
    assert torch.equal(before, torch.get_rng_state())


def test_a_cancelled_run_stops(problem: Problem) -> None:
    with pytest.raises(CancelledError, match="step 1 of 30"):
        trace(problem, config_of("adam"), cancelled=lambda: True)


def test_options_are_resolved_from_the_library() -> None:
    ours = resolve_options("dasgrad", 0.1)
    assert ours["optimizer"].endswith(".DASGrad")
    assert ours["floor"] == dasgrad.AdaptiveSampler(1, 1).floor
    assert ours["draws"] == "adaptive"
    assert resolve_options("amsgrad", 0.1)["amsgrad"] is True
    assert resolve_options("adam", 0.1)["betas"] == (0.9, 0.99)
    assert config_of("adam").refresh is None  # so that baselines are not repeated for another J
    assert config_of("dasgrad").refresh == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_seeds": 1}, r"Settings\(num_seeds=...\)` must be an integer in \[2, 10000\], got 1"),
        ({"num_seeds": 10_001}, "got 10001"),
        ({"num_steps": 0}, r"Settings\(num_steps=...\)` must be an integer of at least 1, got 0"),
        ({"batch_size": 2.5}, "got 2.5"),
        ({"refresh": -1}, "got -1"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **change)


def test_registry_refuses_unknown_and_doubled_names() -> None:
    with pytest.raises(ValueError, match=r"unknown experiment 'nope'; there is .*digits"):
        find_experiment("nope")
    with pytest.raises(ValueError, match="got 'digits' again"):
        register(DIGITS)
    with pytest.raises(ValueError, match="got 'nope'"):
        Experiment(**{**vars(DIGITS), "methods": ("nope",)})
    assert not set(DIGITS.tuning_seeds) & set(range(DIGITS.defaults.num_seeds))
