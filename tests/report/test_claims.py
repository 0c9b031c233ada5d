from pathlib import Path

import pytest

from dasgrad.experiments.statistics import Interval
from dasgrad.report.claims import CLAIMS, Finding, decide, judge, variance_of
from dasgrad.report.collect import collect
from report.made import make_record, put, put_digits


def verdicts(folder: Path) -> dict[str, str]:
    return {own.claim.name: own.verdict for own in judge(CLAIMS, collect(folder).sets)}


def put_experiment(folder: Path, experiment: str, seeds: int = 4, **levels: float) -> None:
    changes = {"options": levels.pop("options")} if "options" in levels else {}
    for method, level in levels.items():
        for seed in range(seeds):
            put(folder, make_record(method, seed, level, experiment=experiment, **changes))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([], "not run"),
        ([(1, 0.5, 2)], "reproduced"),
        ([(1, 0.5, 2), (1, -1, 3)], "partly"),
        ([(1, -1, 3), (-2, -3, -1)], "not reproduced"),
        ([(1, float("nan"), float("nan"))], "not reproduced"),  # one seed proves nothing
    ],
)
def test_the_rule(values: list[tuple[float, float, float]], verdict: str) -> None:
    assert decide([Finding("", Interval(*value)) for value in values]) == verdict


def test_claims_of_experiments_that_were_not_run(tmp_path: Path) -> None:
    put_digits(tmp_path)
    found = verdicts(tmp_path)
    assert found.pop("digits") == "reproduced"
    assert found.pop("cost") == "reproduced"  # the made records of adaptive methods take three times as long
    assert set(found.values()) == {"not run"}


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        ({"dasgrad": 0.4, "adam": 0.5, "amsgrad": 0.6}, "reproduced"),
        ({"dasgrad": 0.55, "adam": 0.5, "amsgrad": 0.6}, "partly"),
        ({"dasgrad": 0.7, "adam": 0.5, "amsgrad": 0.6}, "not reproduced"),
        ({"dasgrad": 0.4}, "not run"),  # nothing to compare with
    ],
)
def test_a_figure_is_judged_by_paired_intervals(tmp_path: Path, levels: dict[str, float], verdict: str) -> None:
    put_experiment(tmp_path, "mnist", **levels)
    found = verdicts(tmp_path)
    assert found["mnist"] == verdict
    assert found["mnist-steps"] == verdict


def test_one_seed_is_not_enough(tmp_path: Path) -> None:
    put_experiment(tmp_path, "mnist", seeds=1, dasgrad=0.4, adam=0.5)
    assert verdicts(tmp_path)["mnist"] == "not run"


def test_improvements_of_two_experiments(tmp_path: Path) -> None:
    put_experiment(tmp_path, "mnist", dasgrad=0.45, adam=0.5, amsgrad=0.5)
    assert verdicts(tmp_path)["sparse-features"] == "not run"
    put_experiment(tmp_path, "imdb", dasgrad=0.3, adam=0.5, amsgrad=0.5)
    put_experiment(tmp_path, "cifar10", dasgrad=0.49, adam=0.5, amsgrad=0.5)
    found = verdicts(tmp_path)
    assert found["sparse-features"] == "reproduced"
    assert found["complexity"] == "not reproduced"


def test_improvement_growing_with_variance(tmp_path: Path) -> None:
    for variance, level in ((1.0, 0.49), (4.0, 0.4), (20.0, 0.2)):
        put_experiment(
            tmp_path, "centroid", options={"problem": "tail", "variance": variance}, dasgrad=level, amsgrad=0.5
        )
    assert verdicts(tmp_path)["variance-tail"] == "reproduced"
    put_experiment(tmp_path, "centroid", options={"problem": "tail", "variance": 50.0}, dasgrad=0.3, amsgrad=0.5)
    assert verdicts(tmp_path)["variance-tail"] == "partly"
    assert [variance_of(s) for s in collect(tmp_path).sets] == [1.0, 4.0, 20.0, 50.0]


def test_shift_is_judged_on_held_out_data(tmp_path: Path) -> None:
    put_experiment(tmp_path, "shift", **{"dasgrad": 0.4, "amsgrad": 0.5, "amsgrad-weighted": 0.1})
    (judgement,) = (own for own in judge(CLAIMS, collect(tmp_path).sets) if own.claim.name == "shift")
    assert judgement.verdict == "reproduced"  # the weighted loss is not a baseline of the paper
    assert all("held-out" in finding.text for finding in judgement.findings)


def test_claims_have_names_of_their_own_and_say_where_they_stand() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert all(claim.source and claim.text for claim in CLAIMS)
