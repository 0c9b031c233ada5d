from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dasgrad.experiments import records
from dasgrad.report.collect import NothingToReport, collect
from report.made import make_draws, make_record, put, put_digits, put_draws


def test_runs_are_put_together_by_method_and_seed(tmp_path: Path) -> None:
    put_digits(tmp_path)
    put(tmp_path, make_record("dasgrad", 10_000))  # of the tuning
    (run_set,) = collect(tmp_path).sets
    assert run_set.name == run_set.experiment == "digits"
    assert [series.name for series in run_set.series] == ["dasgrad", "adam", "amsgrad"]
    assert run_set.series[0].seeds == [0, 1, 2, 3]
    assert run_set.num_tuning_runs == 1


def test_runs_that_cannot_be_compared_are_kept_apart(tmp_path: Path) -> None:
    put_digits(tmp_path / "new", 2)
    put_digits(tmp_path / "old", 2)
    put(tmp_path / "old", make_record(num_steps=200))
    put(tmp_path / "old", make_record(options={"variance": 4.0}))
    put(tmp_path / "old", make_record(options={"variance": 10.0}))
    names = [run_set.name for run_set in collect(tmp_path).sets]
    assert len(set(names)) == 5
    assert {"digits, variance 4", "digits, variance 10", "digits, 200 steps"} <= set(names)
    assert names.index("digits, variance 4") < names.index("digits, variance 10")
    assert sum("in old/digits" in name for name in names) == 1


def test_variants_of_a_method_are_told_apart(tmp_path: Path) -> None:
    for refresh, lr in ((10, 0.1), (50, 0.1), (50, 0.3)):
        put(tmp_path, make_record(refresh=refresh, lr=lr))
    (run_set,) = collect(tmp_path).sets
    names = {series.name for series in run_set.series}
    assert names == {"dasgrad (lr 0.1, refresh 10)", "dasgrad (lr 0.1, refresh 50)", "dasgrad (lr 0.3, refresh 50)"}


def test_what_cannot_be_read_is_named_and_the_rest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_digits(tmp_path, 3)
    folder = tmp_path / "digits"
    whole = sorted(folder.glob("dasgrad-*.parquet"))[0]
    whole.write_bytes(whole.read_bytes()[:1000])
    (folder / "holiday.jpg").write_bytes(b"\xff\xd8")
    (folder / "draws-none.npz").write_bytes(b"PK but no more")
    pq.write_table(
        pq.read_table(sorted(folder.glob("adam-*.parquet"))[0]).replace_schema_metadata({}), folder / "x.parquet"
    )
    monkeypatch.setattr(records, "SCHEMA_VERSION", 0)
    put(tmp_path, make_record(seed=77))
    monkeypatch.undo()
    for name in ("summary.csv", "digits.png", "digits.svg", "summary-a.csv", "digits-a.png", ".hidden"):
        (folder / name).write_text("ours, or nobody's business")
    collection = collect(tmp_path)
    reasons = {Path(left.file).name: left.reason for left in collection.left_out}
    assert len(reasons) == 5
    assert "not a readable Parquet file" in reasons[whole.name]
    assert reasons["holiday.jpg"] == "not a record of a run"
    assert "not a readable record of draws" in reasons["draws-none.npz"]
    assert "not written by dasgrad" in reasons["x.parquet"]
    assert any("schema version 0" in reason for reason in reasons.values())
    assert all(str(tmp_path) not in reason for reason in reasons.values())
    assert [len(series.runs) for series in collection.sets[0].series] == [2, 3, 3]


def test_an_empty_folder_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(NothingToReport, match="holds no finished runs: `dasgrad run NAME"):
        collect(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(NothingToReport, match=r"holds no finished runs \(1 other or unreadable files\)") as caught:
        collect(tmp_path)
    assert caught.value.left_out[0].file == "notes.txt"


def test_tuning_runs_alone_are_nothing_to_report(tmp_path: Path) -> None:
    put(tmp_path, make_record(seed=10_001))
    with pytest.raises(NothingToReport) as caught:
        collect(tmp_path)
    assert "1 tuning runs of 100 steps" in caught.value.left_out[0].reason


def test_runs_measured_elsewhere_and_copies_are_left_out(tmp_path: Path) -> None:
    put_digits(tmp_path, 2, dasgrad=0.4)
    odd = make_record(seed=5)
    odd.curves["step"][3] += 1
    put(tmp_path, odd)
    first = sorted((tmp_path / "digits").glob("*.parquet"))[0]
    (first.parent / f"zz-{first.name}").write_bytes(first.read_bytes())
    reasons = sorted(left.reason for left in collect(tmp_path).left_out)
    assert reasons == ["measured at other steps than the runs it belongs to", "the same run as another file"]


def test_draws_belong_to_their_record(tmp_path: Path) -> None:
    path = put(tmp_path, make_record())
    put(tmp_path, make_record("adam"))
    put_draws(path, make_draws())
    by_name = {series.name: series for series in collect(tmp_path).sets[0].series}
    shown = by_name["dasgrad"].draws
    assert shown is not None
    np.testing.assert_array_equal(shown.indices, make_draws().indices)
    assert by_name["adam"].draws is None


def test_an_earlier_report_is_no_news(tmp_path: Path) -> None:
    put_digits(tmp_path, 2)
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "report-figures").mkdir()
    (tmp_path / "report-figures" / "digits.png").write_text("old")
    ignore = [tmp_path / "report.html", tmp_path / "report-figures"]
    assert collect(tmp_path, ignore).left_out == []
    assert len(collect(tmp_path).left_out) == 2
