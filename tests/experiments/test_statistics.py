import numpy as np
import pytest

from dasgrad.experiments.records import COLUMNS, Record, RunConfig
from dasgrad.experiments.statistics import (
    difference_band,
    first_reaching,
    mean_band,
    mean_interval,
    relative_band,
    relative_improvement_band,
    resample_shares,
    summarise,
)


def make_records(method: str, losses: list[list[float]], seconds: float = 2.0, scoring: float = 0.0) -> list[Record]:
    made = []
    for seed, curve in enumerate(losses):
        count = len(curve)
        curves = {name: np.zeros(count) for name in COLUMNS}
        curves["step"] = np.arange(count) * 10.0
        curves["train_loss"] = np.array(curve)
        curves["seconds"] = np.linspace(0, seconds, count)
        curves["scoring_seconds"] = np.linspace(0, scoring, count)
        config = RunConfig("digits", method, 0.1, seed, 10 * (count - 1), 32, None, 10, "cpu")
        made.append(Record(config, curves, {}, {}))
    return made


def test_two_seeds_by_hand() -> None:
    # Resamples of {0, 1}: the mean is 0, ½ or 1 with probability ¼, ½, ¼, so both 2.5 % points are the ends.
    interval = mean_interval([0.0, 1.0])
    assert (interval.mean, interval.low, interval.high) == (0.5, 0.0, 1.0)


def test_equal_values_have_no_width() -> None:
    interval = mean_interval([3.0] * 5)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((3.0, 3.0, 3.0))


def test_interval_matches_a_plain_bootstrap() -> None:
    values = np.random.default_rng(1).exponential(size=20)
    draws = np.random.default_rng(2).integers(0, 20, size=(20_000, 20))
    low, high = np.quantile(values[draws].mean(1), [0.025, 0.975])
    interval = mean_interval(values)
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(low, abs=0.02)
    assert interval.high == pytest.approx(high, abs=0.02)


def test_shares_are_fixed_and_sum_to_one() -> None:
    shares = resample_shares(7)
    assert shares.shape == (10_000, 7)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    np.testing.assert_allclose(shares.mean(0), 1 / 7, atol=0.005)
    resample_shares.cache_clear()
    np.testing.assert_array_equal(shares, resample_shares(7))


def test_coverage_is_near_its_level() -> None:
    samples = np.random.default_rng(0).normal(size=(20, 2000))
    band = mean_band(samples)
    covered = ((band.low <= 0) & (band.high >= 0)).mean()
    assert 0.90 < covered < 0.96  # a percentile bootstrap of 20 is known to fall a little short of 95 %


def test_pairing_cancels_what_seeds_share() -> None:
    common = np.random.default_rng(3).normal(10, 5, size=20)
    gained = (common + 1.0) - common
    interval = mean_interval(gained)
    assert interval.low == pytest.approx(1.0)
    assert interval.high == pytest.approx(1.0)
    relative = relative_band(gained[:, None], (common + 1.0)[:, None])
    assert relative.mean[0] == pytest.approx(1.0 / (common + 1.0).mean())
    assert relative.low[0] < relative.mean[0] < relative.high[0]


def test_relative_improvement_is_constant_for_proportional_losses() -> None:
    baseline = [[4.0, 2.0], [8.0, 6.0], [2.0, 1.0]]
    ours = [[0.75 * loss for loss in curve] for curve in baseline]
    band = relative_improvement_band(make_records("amsgrad", baseline), make_records("dasgrad", ours))
    for curve in (band.mean, band.low, band.high):
        np.testing.assert_allclose(curve, 0.25)


def test_first_reaching() -> None:
    assert first_reaching(np.array([3.0, 2.0, 1.0, 0.5]), 1.0) == 2
    assert first_reaching(np.array([3.0, 2.0]), 1.0) is None


def test_summary_by_hand() -> None:
    records = {
        "dasgrad": make_records("dasgrad", [[2.0, 1.0, 0.5], [2.0, 2.0, 1.5]], seconds=8.0, scoring=6.0),
        "amsgrad": make_records("amsgrad", [[2.0, 1.8, 1.5], [2.0, 2.0, 2.5]]),
        "adam": make_records("adam", [[2.0, 3.0, 4.0], [2.0, 3.0, 4.0]]),
    }
    summary = summarise(records, [("dasgrad", "amsgrad"), ("dasgrad", "adam")], "amsgrad")
    assert summary.num_seeds == 2
    ours, reference = summary.methods["dasgrad"], summary.methods["amsgrad"]
    assert ours.finals["train_loss"].mean == 1.0
    assert ours.finals["seconds"].mean == 8.0
    assert ours.scoring_share == 0.75
    assert reference.scoring_share == 0.0
    # amsgrad ends at 2.0 on average; the mean curve of dasgrad is 2.0, 1.5, 1.0.
    assert ours.steps_to_reference == 0
    assert [(i.baseline, i.difference.mean) for i in summary.improvements] == [("amsgrad", 1.0), ("adam", 3.0)]
    assert summary.improvements[0].difference.low == 1.0
    assert summary.improvements[0].relative.mean == 0.5
    assert summary.improvements[1].relative.mean == 0.75


def test_scoring_is_charged_and_other_columns_are_summarised() -> None:
    records = {
        "dasgrad": make_records("dasgrad", [[2.0, 1.0, 0.5], [2.0, 1.0, 0.5]]),
        "amsgrad": make_records("amsgrad", [[2.0, 1.5, 1.0], [2.0, 1.5, 1.0]]),
    }
    for k, record in enumerate(records["dasgrad"]):
        record.curves["gradient_evaluations"] = np.array([0.0, 32.0, 64.0])
        record.curves["scored_examples"] = np.array([0.0, 100.0, 200.0])
        record.curves["gain"] = np.array([np.nan, 2.0, 3.0 + k])
        record.curves["test_loss_rare"] = np.array([1.0, 1.0, 4.0])
    summary = summarise(records, [("dasgrad", "amsgrad")], "amsgrad")
    ours = summary.methods["dasgrad"]
    assert (ours.steps_to_reference, ours.evaluations_to_reference) == (10, 132)
    assert (ours.draws["gain"].mean, ours.draws["gain"].low, ours.draws["gain"].high) == (3.5, 3.0, 4.0)
    assert ours.extras["test_loss_rare"].mean == 4.0
    assert summary.methods["amsgrad"].draws == {}
    by_seconds = summarise(records, [("dasgrad", "amsgrad")], "amsgrad", column="seconds")
    assert by_seconds.improvements[0].difference.mean == 0.0


def test_differences_along_a_run_are_paired() -> None:
    before, after = (make_records(name, [[1.0, 2.0], [5.0, 9.0]]) for name in ("adam", "dasgrad"))
    for record in after:
        record.curves["train_loss"] = record.curves["train_loss"] + np.array([0.0, 0.5])
    band = difference_band(before, after, "train_loss")
    for curve in (band.mean, band.low, band.high):
        np.testing.assert_allclose(curve, [0.0, 0.5])


def test_a_mark_that_is_never_reached_is_none() -> None:
    records = {
        "dasgrad": make_records("dasgrad", [[2.0, 1.5], [2.0, 1.5]]),
        "amsgrad": make_records("amsgrad", [[2.0, 1.0], [2.0, 1.0]]),
    }
    ours = summarise(records, [("dasgrad", "amsgrad")], "amsgrad").methods["dasgrad"]
    assert ours.steps_to_reference is None
    assert ours.seconds_to_reference is None


def test_unpaired_seeds_are_refused() -> None:
    records = {"dasgrad": make_records("dasgrad", [[1.0]] * 2), "amsgrad": make_records("amsgrad", [[1.0]] * 3)}
    with pytest.raises(ValueError, match="must be paired"):
        summarise(records, [("dasgrad", "amsgrad")], "amsgrad")


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(ValueError, match=r"at least 2.*got \(1, 1\)"):
        mean_interval([1.0])
    with pytest.raises(ValueError, match="must have the shape"):
        relative_band(np.ones((2, 1)), np.ones((3, 1)))
