import sys
from pathlib import Path

import pytest

from dasgrad.cli import main
from report.made import make_record, put, put_digits


def test_a_report_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_digits(tmp_path, 2)
    (tmp_path / "digits" / "cut.parquet").write_bytes(b"PAR1")
    assert main(["report", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert f"{tmp_path / 'report.html'}: 6 runs of digits" in captured.out
    assert "left out digits/cut.parquet: not a readable Parquet file" in captured.err
    page = (tmp_path / "report.html").read_text()
    assert "digits/cut.parquet" in page
    assert (tmp_path / "report-figures" / "digits.svg").exists()
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().err.count("left out") == 1  # the first report is no news to the second
    assert (tmp_path / "report.html").read_text() == page


def test_the_page_can_go_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_digits(tmp_path / "runs", 2)
    assert main(["report", str(tmp_path / "runs" / "digits"), "--out", str(tmp_path / "a" / "b.html")]) == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b-figures", "b.csv", "b.html"]
    assert list((tmp_path / "runs").iterdir()) == [tmp_path / "runs" / "digits"]


def test_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no finished runs" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_many_foreign_files_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, make_record())
    for k in range(30):
        (tmp_path / f"{k}.txt").write_text("")
    assert main(["report", str(tmp_path)]) == 0
    assert "left out 10 more files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "required: RUNS"),
        (["report", "nowhere"], "argument RUNS: must be a folder, got 'nowhere'"),
        (["report", ".", "--out", "page.pdf"], "argument --out: must be a file ending in .html, got 'page.pdf'"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_page_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_digits(tmp_path / "runs", 2)
    (tmp_path / "file").write_text("mine")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "file" / "page.html")]) == 1
    assert "The records are as they were." in capsys.readouterr().err


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err == 'dasgrad report needs pyarrow: pip install "dasgrad[experiments]"\n'


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    assert "dasgrad report runs/digits" in capsys.readouterr().out
