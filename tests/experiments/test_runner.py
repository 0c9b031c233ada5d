import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dasgrad.experiments import DIGITS, Settings, runner, tuning
from dasgrad.experiments.records import COLUMNS, Record, RunConfig
from dasgrad.experiments.runner import Interrupted, Outcome, perform, run_experiment
from dasgrad.experiments.tuning import choose_learning_rates, read_stored, write_stored

SMALL = replace(
    DIGITS,
    methods=("dasgrad", "amsgrad", "adam"),
    comparisons=(("dasgrad", "amsgrad"),),
    learning_rates=(0.3, 1.0),
    num_tuning_seeds=1,
)
SETTINGS = Settings(num_seeds=2, num_steps=12, batch_size=16, refresh=6)
NUM_RUNS = 3 * (2 * 1 + 2)
TIMINGS = ("seconds", "scoring_seconds")


@pytest.fixture(autouse=True)
def nothing_stored(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "FOLDER", tmp_path_factory.mktemp("tuned"))


def run(folder: Path, processes: int = 1, tune: bool = False) -> Outcome:
    (outcome,) = run_experiment(SMALL, SETTINGS, folder, tune=tune, num_processes=processes, quiet=True)
    return outcome


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    calls: list[RunConfig] = []

    def counted(config: RunConfig, path: Path, cancelled: object) -> Record:
        calls.append(config)
        return perform(config, path)

    monkeypatch.setattr(runner, "perform", counted)
    return calls


def assert_same(first: Outcome, second: Outcome, timings: bool) -> None:
    assert first.learning_rates == second.learning_rates
    for method in SMALL.methods:
        for one, other in zip(first.records[method], second.records[method], strict=True):
            assert one.config == other.config
            for name in COLUMNS:
                if timings or name not in TIMINGS:
                    np.testing.assert_array_equal(one.curves[name], other.curves[name])


def test_all_runs_are_recorded_and_none_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch)
    first = run(tmp_path)
    assert len(calls) == NUM_RUNS
    assert first.num_resumed == 0
    assert len(list(tmp_path.glob("*.parquet"))) == NUM_RUNS
    calls.clear()
    second = run(tmp_path)
    assert calls == []
    assert second.num_resumed == NUM_RUNS
    assert_same(first, second, timings=True)


def test_pairs_share_seeds_and_tuning_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch)
    outcome = run(tmp_path)
    assert {tuple(r.config.seed for r in runs) for runs in outcome.records.values()} == {(0, 1)}
    tuned = [config.seed for config in calls[: -3 * SETTINGS.num_seeds]]
    assert set(tuned) == {10_000}
    for method, runs in outcome.records.items():
        assert {r.config.lr for r in runs} == {outcome.learning_rates[method]}


def test_an_interrupted_experiment_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole")

    def stopping(config: RunConfig, path: Path, cancelled: object) -> Record:
        if len(list(tmp_path.glob("cut/*.parquet"))) == 7:
            raise KeyboardInterrupt
        return perform(config, path)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "perform", stopping)
        with pytest.raises(Interrupted) as caught:
            run(tmp_path / "cut")
    assert (caught.value.num_kept, caught.value.num_runs) == (7, NUM_RUNS)
    calls = count_calls(monkeypatch)
    resumed = run(tmp_path / "cut")
    assert len(calls) == NUM_RUNS - 7
    assert resumed.num_resumed == 7
    assert_same(whole, resumed, timings=False)


def test_unusable_records_are_named_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(tmp_path)
    paths = sorted(tmp_path.glob("*.parquet"))
    paths[0].write_bytes(paths[0].read_bytes()[: paths[0].stat().st_size // 2])
    paths[5].write_bytes(paths[6].read_bytes())
    calls = count_calls(monkeypatch)
    second = run(tmp_path)
    errors = capsys.readouterr().err
    assert f"{paths[0]}: not a readable Parquet file" in errors
    assert f"{paths[5]}: holds another configuration" in errors
    assert errors.count("this run is done again") == 2
    assert len(calls) == 2
    assert_same(first, second, timings=False)
    run(tmp_path)
    assert capsys.readouterr().err == ""


def test_one_and_two_processes_give_the_same_records(tmp_path: Path) -> None:
    assert_same(run(tmp_path / "one"), run(tmp_path / "two", processes=2), timings=False)
    names = [sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in ("one", "two")]
    assert names[0] == names[1]


def tuning_records(losses: dict[tuple[str, float], list[float]]) -> list[Record]:
    made = []
    for (method, lr), finals in losses.items():
        for seed, final in enumerate(finals):
            config = RunConfig("digits", method, lr, seed, 1, 1, None, 1, "cpu")
            made.append(Record(config, {"train_loss": np.array([2.3, final])}, {}, {}))
    return made


def test_the_least_mean_loss_wins_and_divergence_loses() -> None:
    losses = {(method, lr): [lr, lr + 0.2] for method in SMALL.methods for lr in SMALL.learning_rates}
    losses["adam", 1.0] = [0.1, 0.1]
    losses["dasgrad", 0.3] = [0.0, math.nan]
    best = choose_learning_rates(SMALL, tuning_records(losses))
    assert best == {("", "dasgrad"): 1.0, ("", "amsgrad"): 0.3, ("", "adam"): 1.0}
    losses["dasgrad", 1.0] = [math.inf, 0.0]
    with pytest.raises(ValueError, match="dasgrad diverged at every learning rate"):
        choose_learning_rates(SMALL, tuning_records(losses))


def test_stored_rates_need_no_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_stored(SMALL, SETTINGS, {("", "dasgrad"): 0.3, ("", "amsgrad"): 1.0})
    calls = count_calls(monkeypatch)
    outcome = run(tmp_path)
    assert {config.method for config in calls if config.seed >= 10_000} == {"adam"}  # of which none is stored
    assert (outcome.learning_rates["dasgrad"], outcome.learning_rates["amsgrad"]) == (0.3, 1.0)
    assert outcome.stored_with["num_steps"] == SETTINGS.num_steps
    calls.clear()
    again = run(tmp_path, tune=True)
    assert {config.method for config in calls if config.seed >= 10_000} == {"dasgrad", "amsgrad"}
    assert again.stored_with == {}


def test_stored_rates_come_back_and_keep_those_of_other_methods() -> None:
    write_stored(SMALL, SETTINGS, {("", "dasgrad"): 0.3})
    path = write_stored(SMALL, SETTINGS, {("a", "adam"): 0.1, ("", "adam"): 1.0})
    assert read_stored(SMALL)[0] == {("", "dasgrad"): 0.3, ("", "adam"): 1.0, ("a", "adam"): 0.1}
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"digits\.json holds no learning rates"):
        read_stored(SMALL)


def test_an_optimum_at_the_edge_is_told() -> None:
    wide = replace(DIGITS, learning_rates=(0.1, 1.0, 10.0))
    rates = {"dasgrad": 1.0, "amsgrad": 10.0, "adam": 0.1}
    assert Outcome(wide, SETTINGS, rates, {}, 0).at_grid_edge == ["amsgrad", "adam"]


def test_settings_the_data_do_not_allow_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"in \[1, 1437\], the training examples of digits, got 1438"):
        run_experiment(SMALL, replace(SETTINGS, batch_size=1438), tmp_path)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        run_experiment(SMALL, SETTINGS, tmp_path, num_processes=0)
    assert not list(tmp_path.iterdir())
