"""`dasgrad run theory` in small: certified minima, records with terms and bounds, table, figure and page."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dasgrad import cli
from dasgrad.experiments import THEORY, convex, theory
from dasgrad.experiments.records import COLUMNS, DRAW_COLUMNS, Record
from dasgrad.experiments.runner import check_settings, make_config, run_experiment
from dasgrad.report import write_reports
from dasgrad.report.claims import CLAIMS, judge
from dasgrad.report.collect import collect
from dasgrad.report.theory import format_bounds, summarise_bounds


@pytest.mark.parametrize("case", convex.CASES)
def test_gradients_are_those_of_the_loss_and_the_minimum_is_one(case):
    problem = THEORY.build(case)
    inputs, targets = problem.data.train
    model = problem.make_model(0)
    point = torch.linspace(-0.9, 0.8, problem.finite_sum.dimension, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(point.reshape(model.weight.shape))
    losses = problem.loss_fn(model(inputs), targets)
    torch.testing.assert_close(losses, problem.finite_sum.losses(point))
    for i in (0, len(losses) - 1):
        (grad,) = torch.autograd.grad(losses[i], model.weight, retain_graph=True)
        torch.testing.assert_close(grad.flatten(), problem.finite_sum.gradients(point)[i])
    assert convex.duality_gap(problem.finite_sum) <= 1e-9
    assert problem.finite_sum.optimum.abs().max() <= 1
    assert problem.start.abs().max() <= 1


def test_sparse_features_are_sparse():
    inputs = THEORY.build("sparse").data.train[0]
    assert (inputs[:, 0] == 1).all()
    assert inputs[:, 10:].mean() < 0.1


@pytest.mark.parametrize("method", THEORY.methods)
def test_theorem_holds_along_every_run(method):
    settings = replace(THEORY.defaults, num_steps=30)
    for case in ("logistic", "adam-fails"):
        config = make_config(THEORY, settings, method, 0.5, 0, case)
        assert config.options["betas"] == ([0.0, 0.1] if case == "adam-fails" else (0.9, 0.99))
        curves = theory.trace(THEORY.build(case), config)
        assert curves["violation"][-1] <= 1e-10
        assert set(COLUMNS) <= set(curves)
        assert (set(DRAW_COLUMNS) <= set(curves)) == ("dasgrad" in method or method == "ap-sgd-theory")
        terms = sum(curves[name] for name in theory.TERM_COLUMNS)
        assert (curves["regret"] <= curves["linear_regret"] + 1e-12).all()
        assert curves["step"][0] == curves["regret"][0] == terms[0] == 0
        np.testing.assert_allclose(curves["train_loss"][1:], curves["regret"][1:] / curves["step"][1:])
        assert ("derived_bound" in curves) == (method != "adam-theory")
        assert ("printed_bound" in curves) == (method not in ("adam-theory", "adagrad-theory"))


def small(cases=("adam-fails",), methods=THEORY.methods):
    restricted = THEORY.restricted_to(methods)
    return replace(restricted, cases=cases, learning_rates=(0.5,), num_tuning_seeds=1)


def test_from_run_to_report_and_page(tmp_path: Path):
    experiment = small(("logistic",), ("ap-sgd-theory", "adam-theory", "dasgrad-constant-theory"))
    settings = replace(experiment.defaults, num_seeds=2, num_steps=20)
    folder = tmp_path / "theory"
    outcomes = run_experiment(experiment, settings, folder, tune=True, num_processes=1, quiet=True)
    text, files = write_reports(outcomes, folder)
    assert max(map(len, text.splitlines())) <= 100
    assert "at every step of every seed: held" in text
    assert "* vacuous" in text
    assert [path.name for path in files] == ["summary.csv", "theory-logistic.png", "theory-logistic.svg"]
    rows = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    assert [(row["statement"], row["vacuous"]) for row in rows] == [("2.1", "0"), ("–", "0"), ("4.1", "1")]
    assert [row["derived_bound"] != "" for row in rows] == [True, False, True]
    again = run_experiment(experiment, settings, folder, tune=True, num_processes=1, quiet=True)
    assert again[0].num_resumed == 3 * (2 + 1)
    assert cli.main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report-figures" / "theory.png").exists()
    verdicts = {j.claim.name: j.verdict for j in judge(CLAIMS, collect(folder).sets)}
    assert verdicts["bounds"] in ("reproduced", "partly")
    assert verdicts["cost"] == "not run"  # what was measured is on the clock


def made_up(method, regret, derived, printed, seed):
    """A record of a hundred steps whose regret grows like t^0.5."""
    steps = np.arange(0.0, 101.0, 10.0)
    curves = dict.fromkeys(COLUMNS, steps) | {"regret": regret * np.sqrt(steps / 100)}
    ends = {"derived_bound": derived, "printed_bound": printed, "violation": -0.1, "vacuous": 0.0}
    ends |= dict.fromkeys(theory.TERM_COLUMNS, regret)
    config = make_config(THEORY, replace(THEORY.defaults, num_steps=100), method, 0.5, seed, "logistic")
    return Record(config, curves | {name: np.full(11, value) for name, value in ends.items()}, {}, {})


def rows_of(regrets, derived, printed):
    runs = [made_up("dasgrad-theory", regret, derived, printed, seed) for seed, regret in enumerate(regrets)]
    return summarise_bounds({"dasgrad-theory": runs})[0], format_bounds("Made up", {"dasgrad-theory": runs})


def test_a_bound_is_held_against_the_limit_of_the_mean():
    row, text = rows_of([9.0, 10.0, 11.0], derived=20.0, printed=30.0)
    assert row.regret.upper_limit == pytest.approx(10 + 2.92 / 3**0.5, abs=1e-3)
    assert row.slack == pytest.approx(20 / row.regret.upper_limit)
    assert (row.statement, row.terms) == ("4.1", pytest.approx(40.0))
    assert row.exponent.mean == pytest.approx(0.5)
    assert not row.printed_fails
    assert "the limit is below all of them" in text
    assert "Sub-linear where promised: all of them" in text


def test_a_bound_below_the_limit_is_not_shown_and_a_print_that_fails_is_named():
    row, text = rows_of([9.0, 10.0, 11.0], derived=11.0, printed=-3.0)
    assert row.slack < 1
    assert row.printed_fails
    assert "Derived bounds: NOT shown for dasgrad, whose limit is above" in text
    assert "! as printed the bound FAILS: dasgrad" in text
    unclear, text = rows_of([0.0, 10.0, 20.0], derived=60.0, printed=8.0)
    assert not unclear.printed_fails  # the interval reaches below the print
    assert "FAILS" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-size", "4"], "argument --batch-size: must be 1 in theory, got 4"),
        (["--refresh", "7"], "argument --refresh: must be 1 in theory, got 7"),
    ],
)
def test_settings_the_theorems_do_not_have_are_refused(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", "theory", *words, "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"`Settings\(device=\.\.\.\)` must be 'cpu' in theory, got 'cuda'"):
        check_settings(THEORY, replace(THEORY.defaults, device="cuda"))
