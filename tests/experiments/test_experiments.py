"""Each experiment in small: few steps on few made-up examples, through the same loaders and the same loop."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dasgrad
from dasgrad.experiments import EXPERIMENTS, Experiment, centroid, cifar10, imdb, mnist, multitask, runner, shift
from dasgrad.experiments.curves import trace
from dasgrad.experiments.datasets import Split
from dasgrad.experiments.methods import METHODS
from dasgrad.experiments.problems import Problem
from dasgrad.experiments.records import COLUMNS, DRAW_COLUMNS
from dasgrad.experiments.runner import make_config, run_experiment
from dasgrad.experiments.tuning import read_stored
from dasgrad.report import write_reports

NUM_TRAIN, NUM_TEST = 400, 100


def fake_mnist(dtype: torch.dtype = torch.float32) -> Split:
    """Digits that can be told apart: each has bright pixels of its own."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(NUM_TRAIN + NUM_TEST) % 10
    images = torch.rand(len(labels), 784, generator=generator) * 0.5
    images[torch.arange(len(labels))[:, None], labels[:, None] * 70 + torch.arange(40)] += 0.3
    return Split((images[:NUM_TRAIN], labels[:NUM_TRAIN]), (images[NUM_TRAIN:], labels[NUM_TRAIN:]))


def fake_imdb(num_words: int = 50, values: str = "log") -> Split:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(NUM_TRAIN + NUM_TEST) % 2
    columns = torch.randint(25, (len(labels), 6), generator=generator) + 25 * labels[:, None]
    indptr = torch.arange(len(labels) + 1) * 6
    rows = dasgrad.SparseRows(indptr, columns.flatten(), torch.ones(columns.numel()), num_columns=50)
    return Split((rows[:NUM_TRAIN], labels[:NUM_TRAIN]), (rows[NUM_TRAIN:], labels[NUM_TRAIN:]))


def fake_cifar10(dtype: torch.dtype = torch.float32) -> Split:
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(60, 3, 32, 32, generator=generator), torch.arange(60) % 10
    return Split((images[:40], labels[:40]), (images[40:], labels[40:]))


@pytest.fixture(autouse=True)
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mnist, shift, multitask):
        monkeypatch.setattr(module, "load_mnist", fake_mnist)
    monkeypatch.setattr(imdb, "load_imdb", fake_imdb)
    monkeypatch.setattr(cifar10, "load_cifar10", fake_cifar10)
    clear_caches()


@pytest.fixture(autouse=True, scope="module")
def clear_at_the_end() -> object:
    yield
    clear_caches()


def clear_caches() -> None:
    for cached in (runner._load_problem, runner._warm_up, multitask.load_tasks):
        cached.cache_clear()


def test_the_papers_settings_are_the_defaults() -> None:
    figures = {name: experiment for name, experiment in EXPERIMENTS.items() if experiment.trace is None}
    full = {name: experiment.num_full_seeds for name, experiment in figures.items()}
    assert full == {"mnist": 100, "imdb": 100, "cifar10": 10, "centroid": 100, "shift": 20, "multitask": 20} | {
        "digits": 100
    }
    assert {e.defaults.batch_size for e in figures.values()} == {32}
    refreshes = {name: experiment.defaults.refresh for name, experiment in figures.items()}
    assert refreshes == dict.fromkeys(figures, 10) | {"cifar10": 300}
    assert EXPERIMENTS["shift"].defaults.num_steps == 2000
    variances = {case.partition("-")[2] for case in EXPERIMENTS["centroid"].cases if case.startswith("tail")}
    assert len(variances) >= 5


@pytest.mark.parametrize("name", ["mnist", "imdb"])
def test_all_baselines_come_with_both_kinds_of_draws(name: str) -> None:
    methods = EXPERIMENTS[name].methods
    assert {"dasgrad", "dasgrad-paper", "ap-sgd"} <= set(methods)
    for baseline in ("sgd", "adagrad", "rmsprop", "adam", "amsgrad"):
        assert METHODS[baseline].draws == "reshuffled"
        assert METHODS[f"{baseline}-iid"].draws == "independent"
        assert {baseline, f"{baseline}-iid"} <= set(methods)


@pytest.mark.parametrize("name", ["mnist", "imdb", "shift", "multitask", "centroid"])
def test_every_method_of_every_case_learns(name: str) -> None:
    experiment = EXPERIMENTS[name]
    settings = replace(experiment.defaults, num_steps=40)
    for case in experiment.cases[-2:]:
        problem = experiment.build(case)
        for method in experiment.methods:
            grid = experiment.grid_of(method)
            config = make_config(experiment, settings, method, grid[(len(grid) - 1) // 2], 0, case)
            curves = trace(problem, config)
            assert curves["train_loss"][-1] < curves["train_loss"][0], (case, method)
            assert set(COLUMNS) <= set(curves)
            assert (set(DRAW_COLUMNS) <= set(curves)) == METHODS[method].adaptive


def test_cifar10_runs_and_its_seeds_start_apart() -> None:
    experiment = EXPERIMENTS["cifar10"]
    before = torch.get_rng_state()
    first, again, other = (experiment.build("").make_model(seed)[0].weight for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    settings = replace(experiment.defaults, num_steps=3, refresh=2)
    for method in ("dasgrad", "dasgrad-paper", "amsgrad"):
        curves = trace(experiment.build(""), make_config(experiment, settings, method, 0.001, 0))
        assert np.isfinite(curves["train_loss"]).all()
    pictures = experiment.build("").data.train[0]
    torch.testing.assert_close(pictures.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)


SMALL: dict[str, Callable[[Experiment], Experiment]] = {
    "mnist": lambda e: e.restricted_to(["dasgrad", "dasgrad-paper", "amsgrad"]),
    "imdb": lambda e: e.restricted_to(["dasgrad", "sgd", "sgd-iid"]),
    "shift": lambda e: e,
    "multitask": lambda e: replace(e, cases=e.cases[:2]),
    "centroid": lambda e: replace(e, cases=e.cases[-2:]).restricted_to(["dasgrad", "amsgrad"]),
}


@pytest.mark.parametrize("name", SMALL)
def test_from_run_to_report(name: str, tmp_path: Path) -> None:
    experiment = replace(SMALL[name](EXPERIMENTS[name]), learning_rates=(0.03, 0.1), grids={}, num_tuning_seeds=1)
    settings = replace(experiment.defaults, num_seeds=2, num_steps=12, refresh=5)
    outcomes = run_experiment(experiment, settings, tmp_path, tune=True, num_processes=1, quiet=True)
    assert [outcome.case for outcome in outcomes] == list(experiment.cases)
    text, files = write_reports(outcomes, tmp_path)
    assert all(outcome.title in text for outcome in outcomes)
    assert all(path.exists() for path in files)
    assert f"{name}.svg" in {path.name for path in files}
    again = run_experiment(experiment, settings, tmp_path, tune=True, num_processes=1, quiet=True)
    assert again[0].num_resumed == len(experiment.cases) * len(experiment.methods) * (2 + 2)


def test_shift_removes_nine_in_ten_of_two_digits() -> None:
    labels = torch.arange(1000) % 10
    kept = labels[shift.remove_most(labels)]
    assert torch.bincount(kept).tolist() == [100, 10, 100, 10, *[100] * 6]
    assert torch.equal(shift.remove_most(labels), shift.remove_most(labels))


def test_shift_weights_as_derived_and_as_printed() -> None:
    problem = EXPERIMENTS["shift"].build("")
    labels = problem.data.train[1]
    derived, printed = problem.targets["objective"], problem.targets["printed"]
    shares = torch.zeros(10, dtype=torch.float64)
    torch.testing.assert_close(shares.index_add(0, labels, derived), torch.full((10,), 0.1, dtype=torch.float64))
    # The test set is balanced: weights as printed are all alike, and the training set's own shares stay.
    torch.testing.assert_close(printed, torch.full_like(printed, 1 / len(printed)))


def optimum_by_descent(problem: Problem, weight_decay: float) -> float:
    """The least loss, found by another way than Newton's."""
    inputs, answers = problem.data.train
    model = problem.make_model(0).double()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        losses = problem.loss_fn(model(inputs.double()), answers)
        loss = problem.targets["objective"] @ losses
        loss = loss + 0.5 * weight_decay * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(closure().detach())


@pytest.mark.parametrize("case", ["small", "odd"])
def test_newton_finds_the_optimum_of_a_task(case: str) -> None:
    experiment = EXPERIMENTS["multitask"]
    problem = experiment.build(case)
    assert problem.least == pytest.approx(optimum_by_descent(problem, experiment.weight_decay), abs=1e-6)


def test_centroid_features_have_the_variance_of_their_name() -> None:
    for case in EXPERIMENTS["centroid"].cases:
        kind, _, variance = case.partition("-")
        found = float((centroid.make_features(case) - 1).square().mean())
        assert found == pytest.approx(float(variance), rel=0.15), case
        assert centroid.describe_case(case) == {"problem": kind, "variance": float(variance)}


def test_centroid_least_is_the_centroids_risk() -> None:
    problem = centroid.build_problem("tail-5")
    theta = problem.data.train[1].double().mean(0, keepdim=True)
    risk = float(0.5 * (theta - problem.data.train[1].double()).square().sum(1).mean())
    assert problem.least == pytest.approx(risk)


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_stored_rates_are_of_known_cases_methods_and_grids(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for (case, method), lr in read_stored(experiment)[0].items():
        assert case in experiment.cases
        assert method in experiment.methods
        assert lr in experiment.grid_of(method)
