"""The arithmetic and the bookkeeping of the wall-clock benchmark, and one small measurement from end to end."""

import argparse
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
if not (ROOT / "benchmarks").exists():
    pytest.skip("needs the repository", allow_module_level=True)
sys.path.append(str(ROOT))

from benchmarks.wallclock import command, drawing  # noqa: E402 - the repository comes onto the path above
from benchmarks.wallclock.campaign import Campaign, Settings, _warmed  # noqa: E402
from benchmarks.wallclock.cases import CASES, make_dense, scale_rows, thin  # noqa: E402
from benchmarks.wallclock.choosing import choose_config  # noqa: E402
from benchmarks.wallclock.models import make_perceptron  # noqa: E402
from benchmarks.wallclock.progress import OutOfTimeError, Progress  # noqa: E402
from benchmarks.wallclock.store import Store  # noqa: E402
from benchmarks.wallclock.training import RunConfig, make_optimizer, make_schedule, train  # noqa: E402
from benchmarks.wallclock.workers import Workers  # noqa: E402

import dasgrad  # noqa: E402
from benchmark_process import run_benchmark  # noqa: E402
from dasgrad.experiments.datasets import Split  # noqa: E402
from dasgrad.experiments.problems import Problem, binary_cross_entropy, count_right_signs  # noqa: E402

# --- tuning -----------------------------------------------------------------------------------------------


def test_under_cosine_decay_the_least_budget_that_ends_at_the_target_is_chosen(tmp_path):
    """Steps of one take twice as long: its loss is lower after as many of them, and it is there later for all that."""
    quick, slow = 0.001, 0.003
    shared = {"num_seeds": 2, "num_tuning_seeds": 2, "num_steps": 100, "num_points": 4, "num_rates": None}
    where = {"device": torch.device("cpu"), "clock": "cpu", "where": "here", "captured": False}
    settings = Settings(("adam",), (), ("cosine",), **shared, batch_sizes=(8,), **where)
    store, progress = Store(tmp_path / "runs.jsonl"), Progress(minutes=1.0)
    case = replace(CASES["rare"], cosine_rates=(quick, slow))
    campaign = Campaign("rare", case, small_problem(), settings, store, progress)
    campaign._steps = {8: 100}
    budgets = []

    def run(stage, configs):
        budgets.extend((config.lr, config.seed, config.num_steps) for config in configs)
        return {config: make_run(config) for config in configs}

    def make_run(config):
        share, own = config.num_steps / 100, config.lr == slow
        losses = [9.0, (4.0 if own else 5.0) - 2 * math.log2(2 * share)]
        return {"curves": {"seconds": [0.0, share * (2.0 if own else 1.0)], "train_loss": losses}}

    campaign._run = run
    runs = campaign._tuning_runs("cosine", [("adam", "adaptive:auto")], (8,))
    assert {(lr, seed) for lr, seed, steps in budgets if steps == 100} == {
        (lr, seed) for lr in (quick, slow) for seed in (2000, 2001)
    }
    assert {steps for *_, steps in budgets} == {50, 70, 100}
    (curve,) = {tuple(one["curves"]["train_loss"]) for one in runs[next(c for c in runs if c.lr == quick)]}
    assert curve == pytest.approx((5.0, 5 - 2 * math.log2(1.4), 3.0))

    def choose(moment, target):
        return choose_config(runs, "train_loss", moment, target=target, log=True).lr

    assert choose(1.0, target=3.0) == quick  # after 1 s, and 2 · 0.7 s
    assert choose(1.0, target=2.5) == slow  # which alone gets there
    assert choose(2.0, target=6.0) == slow  # both do at once, and its loss is lower


# --- what is kept on disk ---------------------------------------------------------------------------------


def test_a_killed_measurement_finds_what_it_had(tmp_path):
    path = tmp_path / "folder" / "runs.jsonl"
    store = Store(path)
    assert store.find({"seed": 0}) is None
    store.add({"seed": 0, "lr": 0.1}, {"losses": [1.0, math.inf]})
    store.add({"seed": 1, "lr": 0.1}, [2])
    with path.open("a") as file:
        file.write('{"key": {"seed": 2}, "val')  # cut short
    again = Store(path)
    assert len(again) == 2
    assert again.find({"lr": 0.1, "seed": 0}) == {"losses": [1.0, math.inf]}
    again.add({"seed": 2}, 3)
    assert Store(path).find({"seed": 2}) == 3


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"key": {}, "value": 1}\n[]\n')
    with pytest.raises(ValueError, match="line 2"):
        Store(path)


def test_time_runs_out(capsys):
    progress = Progress(minutes=0.0, seconds_between=0.0)
    progress.start("tune", 4)
    with pytest.raises(OutOfTimeError, match="25%"):
        progress.advance(1, "a run")
    assert "25%" in capsys.readouterr().err


# --- problems, methods ------------------------------------------------------------------------------------


def small_problem(num_examples=64):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(num_examples, 5, generator=generator)
    targets = (inputs[:, 0] > 1).long()
    make = lambda seed: make_perceptron(seed, num_inputs=5, num_hidden=4)  # noqa: E731
    return Problem(Split((inputs, targets), (inputs, targets)), make, binary_cross_entropy, count_right_signs)


def training_of(problem, batch_size=8):
    model = problem.make_model(0)
    optimizer = make_optimizer("adam", model, 1e-2, 0.0)
    return drawing.Training(problem, model, optimizer, batch_size, 0, torch.device("cpu"), {"preconditioner": "frozen"})


@pytest.mark.parametrize("draws", ["reshuffled", "last-layer", "loss:2", "adaptive:2", "adaptive:never"])
def test_every_way_to_draw_lowers_the_loss(draws):
    problem = small_problem()
    training = training_of(problem)

    def loss():
        with torch.no_grad():
            return float(training.losses(*problem.data.train).mean())

    before, stream = loss(), drawing.find_stream(draws)(training)
    for _ in range(60):
        next(stream)
        training.optimizer.step()
    assert loss() < 0.9 * before
    assert (training.num_scored > 0) == (draws in ("loss:2", "adaptive:2"))


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("draws", ["adaptive:5", "adaptive:never", "reshuffled", "last-layer"])
def test_captured_steps_are_those_of_an_ordinary_loop(draws, schedule):
    """Where they can be captured."""
    config = RunConfig("rare", schedule, "adam", draws, 0.01, 8, 0, 20, 4, 64, "wall", "here")
    case, device = CASES["rare"], torch.device("cpu")
    ordinary = train(small_problem(), case, config, device)["curves"]["train_loss"]
    captured = train(small_problem(), case, replace(config, captured=True), device)["curves"]["train_loss"]
    assert captured == pytest.approx(ordinary, rel=1e-6)


def test_held_out_examples_are_for_choices_or_for_the_report():
    """Targets of every second one are turned round: a model that is right about the others is wrong about these."""
    problem = small_problem()
    inputs, targets = problem.data.test
    turned = targets.clone()
    turned[1::2] = 1 - turned[1::2]
    problem = replace(problem, data=Split(problem.data.train, (inputs, turned)))
    config = RunConfig("rare", "constant", "adam", "reshuffled", 0.01, 8, 0, 60, 4, 64, "wall", "here")
    curves = train(problem, CASES["rare"], config, torch.device("cpu"))["curves"]
    last = {name: curve[-1] for name, curve in curves.items()}
    assert last["validation_accuracy"] > 0.8
    assert last["test_accuracy"] < 0.2
    assert last["validation_loss"] < last["test_loss"]
    mean = (last["validation_accuracy"] + 1 - last["test_accuracy"]) / 2
    assert mean == pytest.approx(last["train_accuracy"])


def test_adaptive_draws_that_stand_aside_take_the_steps_of_uniform_ones():
    config = RunConfig("rare", "constant", "adam", "reshuffled", 0.01, 8, 3, 20, 4, 64, "wall", "here")
    case, device = CASES["rare"], torch.device("cpu")
    uniform = train(small_problem(), case, config, device)["curves"]["train_loss"]
    aside = train(small_problem(), case, replace(config, draws="adaptive:never"), device)["curves"]["train_loss"]
    assert aside == pytest.approx(uniform, rel=1e-6)


def where_am_i(problem, case, word):
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), torch.get_num_threads(), problem.num_examples, word


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_train_as_this_one_does_on_one_thread_and_without_a_gpu():
    """A forked process cannot use CUDA, and torch's optimizers ask for it in every step."""
    problem, case = small_problem(), CASES["rare"]
    config = RunConfig("rare", "constant", "adam", "reshuffled", 0.01, 8, 0, 8, 2, 64, "cpu", "here")
    workers = Workers(1, problem, case)
    try:
        pid, devices, *rest = workers.call(where_am_i, "word")
        ((found, run),) = workers.train_all([config])
    finally:
        workers.close()
    assert pid != os.getpid()
    assert devices == ""
    assert rest == [1, 64, "word"]
    assert found == config
    expected = train(problem, case, config, torch.device("cpu"))["curves"]["train_loss"]
    assert run["curves"]["train_loss"] == pytest.approx(expected, rel=1e-6)


def test_presampled_gradients_are_unbiased(monkeypatch):
    """With the test of variance passed from the start, the mean of many gradients is that of all examples."""
    monkeypatch.setattr(drawing, "TAU_THRESHOLD", -1.0)
    problem = small_problem(24)
    training = training_of(problem)
    training.losses(*problem.data.train).mean().backward()
    weight = next(training.model.parameters())
    expected = weight.grad.clone()
    stream, found = drawing.find_stream("last-layer")(training), []
    for _ in range(2000):
        next(stream)
        found.append(weight.grad.clone())
    gradients = torch.stack(found)
    errors = (gradients.mean(0) - expected) / (gradients.std(0) / len(found) ** 0.5 + 1e-12)
    assert training.num_scored == 2000 * 24
    assert float(errors.abs().max()) < 5


def test_the_last_layers_bound_is_that_of_the_scorer():
    problem = small_problem()
    training = training_of(problem)
    scorer = dasgrad.ExampleScorer(training.model, problem.loss_fn, score="last_layer")
    found = drawing.output_norms(training, *problem.data.train)
    torch.testing.assert_close(found, scorer(*problem.data.train), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("draws", ["", "adaptive", "adaptive:0", "adaptive:x", "loss:auto", "loss", "uniform:3"])
def test_unknown_methods_are_refused(draws):
    with pytest.raises(ValueError, match="adaptive:auto"):
        drawing.find_stream(draws)


def test_unknown_optimizers_and_schedules_are_refused():
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="adamw"):
        make_optimizer("sgd", model, 0.1, 0.0)
    with pytest.raises(ValueError, match="cosine"):
        make_schedule("linear", make_optimizer("adam", model, 0.1, 0.0), 3)


def test_rows_are_scaled_to_length_one_and_empty_ones_stay_empty():
    rows = dasgrad.SparseRows([0, 2, 2, 3], [0, 1, 1], [3.0, 4.0, -2.0], num_columns=2)
    torch.testing.assert_close(scale_rows(rows).to_dense(), torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]]))


def test_grids_fit_their_schedules():
    for case in CASES.values():
        assert case.rates("constant") == tuple(sorted(case.learning_rates))
        assert case.rates("cosine") == (tuple(sorted(case.cosine_rates)) or case.learning_rates)
        assert case.rates("inverse-sqrt") == tuple(sorted(case.falling_rates))
        assert 32 in case.batch_sizes
    assert CASES["mnist"].rates("cosine") != CASES["mnist"].rates("constant")
    assert thin(small_problem(), 4).num_examples == 16


def test_sparse_rows_are_made_dense_for_a_graph_and_dense_ones_left_alone():
    small = small_problem()
    assert make_dense(small) is small
    rows = dasgrad.SparseRows([0, 2, 2, 3], [0, 1, 1], [3.0, 4.0, -2.0], num_columns=2)
    part = rows, torch.tensor([0, 1, 0])
    sparse = replace(small, data=Split(part, part))
    assert command.lay_out(small, "here", in_graph=True) == (small, "here")
    assert command.lay_out(sparse, "here", in_graph=False) == (sparse, "here")
    dense, where = command.lay_out(sparse, "here", in_graph=True)
    assert where == "here, rows made dense"  # runs of before are not taken for these
    for inputs, targets in vars(dense.data).values():
        assert inputs.tolist() == [[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]]
        assert targets is part[1]


# --- from end to end --------------------------------------------------------------------------------------


def call(tmp_path, *arguments):
    return run_benchmark(tmp_path, "wallclock", *arguments, num_examples=400)


def test_a_measurement_from_end_to_end_and_again_from_disk(tmp_path):
    """On a made-up problem, without any package that measuring does not need."""
    methods = ["amsgrad", "adaptive:5", "adaptive:fixed", "adaptive:auto"]
    arguments = ["rare", "--quick", "--steps", "16", "--methods", *methods, "--threads", "1"]
    arguments += ["--clock", "cpu", "--device", "cpu", "--processes", "2"]
    files = ["--json", "rows.json", "--md", "page.md", "--runs", "runs.jsonl"]
    first = call(tmp_path, *arguments, *files)
    assert first.returncode == 0, first.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {(row["schedule"], row["batches"]) for row in rows} == {
        (schedule, batches)
        for schedule in ("constant", "inverse-sqrt", "cosine")
        for batches in ("any batch", "batch 32")
    }
    assert {row["method"] for row in rows} == {"uniform, other seeds", *methods}
    for row in rows:
        assert row["num_seeds"] == 2
        assert row["peer"] > 0
        low, high = (math.inf if row[f"held_out_{end}"] is None else row[f"held_out_{end}"] for end in ("low", "high"))
        assert low <= high  # None is infinite, which JSON does not have
        if row["ratio"] is None:
            assert row["ours"] is None
        else:
            assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert row["peer_batch_size"] in (32, 128)
        assert row["batches"] == "any batch" or row["batch_size"] == row["peer_batch_size"] == 32
    assert "uniform, other seeds" in (tmp_path / "page.md").read_text()
    num_runs = len((tmp_path / "runs.jsonl").read_text().splitlines())
    again = call(tmp_path, *arguments, *files)
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == num_runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "problems must be among rare"),
        (["rare", "--methods", "adaptive:0"], "adaptive:auto"),
        (["rare", "--methods", "reshuffled"], "adam, amsgrad and adamw"),
        (["rare", "--seeds", "1"], "at least 2"),
        (["rare", "--points", "6"], "multiple of 4"),
        (["rare", "--steps", "0"], "--steps must be at least 1"),
        (["rare", "--clock", "cpu"], "--threads 1 --device cpu"),
        (["rare", "--processes", "2"], "--processes above 1 needs --clock cpu, got 2"),
    ],
)
def test_bad_options_are_refused(arguments, message):
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*")
    command.add_arguments(parser)
    options = parser.parse_intermixed_args(arguments)
    with pytest.raises(SystemExit, match=message):
        command.check(tuple(options.parts), options)


@pytest.mark.parametrize(
    ("methods", "draws"),
    [
        ([], []),
        (["loss:300", "last-layer"], ["loss:2", "last-layer"]),
        (["adaptive:auto", "adaptive:fixed"], ["adaptive:2", "adaptive:auto"]),  # auto may not score at its first look
        (["adaptive:never"], ["adaptive:2", "adaptive:never"]),
    ],
)
def test_all_that_methods_do_is_done_once_before_the_clock_starts(methods, draws):
    assert _warmed(methods) == ["reshuffled", *draws]
