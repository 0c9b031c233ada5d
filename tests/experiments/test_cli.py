import csv
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dasgrad
from dasgrad.cli import main
from dasgrad.experiments import CENTROID, Settings, command, runner
from dasgrad.experiments.records import read_folder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["run"], "required: EXPERIMENT"),
        (
            ["run", "nope"],
            "unknown experiment 'nope'; there is centroid, cifar10, digits, imdb, mnist, multitask",
        ),
        (["run", "digits", "--seeds", "1"], "argument --seeds: must be an integer in [2, 10000], got '1'"),
        (["run", "digits", "--seeds", "10001"], "got '10001'"),
        (["run", "digits", "--steps", "0"], "argument --steps: must be an integer of at least 1, got '0'"),
        (["run", "digits", "--steps", "many"], "argument --steps: must be an integer of at least 1, got 'many'"),
        (["run", "digits", "--batch-size", "-3"], "argument --batch-size: must be an integer of at least 1, got '-3'"),
        (["run", "digits", "--batch-size", "1438"], "argument --batch-size: must be an integer in [1, 1437]"),
        (["run", "digits", "--refresh", "1.5"], "argument --refresh: must be an integer of at least 1, got '1.5'"),
        (["run", "digits", "--processes", "0"], "argument --processes: must be an integer of at least 1, got '0'"),
        (["run", "digits", "--device", "tpu"], "argument --device: must be cpu or cuda, got 'tpu'"),
        (["run", "digits", "--scores", "new"], "argument --scores: invalid choice: 'new'"),
        (["run", "digits", "--methods", "sgd"], "methods of digits must be among dasgrad, amsgrad"),
        (["run", "digits", "--methods", ","], "argument --methods: methods of digits must be among"),
        (["run", "digits", "--store"], "argument --store: must come with --tune"),
        (["run", "digits", "--quick", "--full"], "argument --full: not allowed with argument --quick"),
        (["run", "digits", "--what"], "unrecognized arguments: --what"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(arguments, capsys)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "argument --device: torch" in refused(["run", "digits", "--device", "cuda"], capsys)


def test_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    errors = refused(["run", "digits", "--out", str(tmp_path / "file")], capsys)
    assert "argument --out: must be a folder" in errors
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_has_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "dasgrad run digits --seeds 5" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"dasgrad {dasgrad.__version__}\n"


@pytest.mark.parametrize("name", ["pyarrow", "sklearn"])
def test_what_is_missing_is_named(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["run", "digits", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f'dasgrad run needs {name}: pip install "dasgrad[experiments]"\n'
    assert not list(tmp_path.iterdir())


def test_without_the_extra_the_command_says_how_to_get_it() -> None:
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'pyarrow', 'sklearn', 'tqdm'):\n"
        "    sys.modules[name] = None\n"
        "from dasgrad.cli import main\n"
        "sys.exit(main(['run', 'digits']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith(': pip install "dasgrad[experiments]"\n')
    assert "Traceback" not in done.stderr


def test_the_core_does_not_import_experiments() -> None:
    code = (
        "import sys, dasgrad\n"
        "parts = ('dasgrad.experiments', 'dasgrad.report', 'dasgrad.cli', 'matplotlib', 'pyarrow', 'sklearn')\n"
        "sys.exit(', '.join(name for name in parts if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_without_tqdm_and_matplotlib_runs_are_recorded_all_the_same(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'tqdm'):\n"
        "    sys.modules[name] = None\n"
        "from dasgrad.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["run", "centroid", "--seeds", "2", "--steps", "4", "--methods", "amsgrad", "--processes", "1"]
    command = [sys.executable, "-c", code, *arguments, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "centroid: 20/20 runs" in done.stderr
    assert "No figures were drawn, which needs matplotlib" in done.stderr
    assert len(list(tmp_path.glob("centroid/*.parquet"))) == 20


def test_a_missing_data_set_is_told_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DASGRAD_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "none"))
    runner._load_problem.cache_clear()
    assert main(["run", "imdb", "--out", str(tmp_path / "runs")]) == 1
    assert "to fetch it: dasgrad data fetch imdb" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_more_processes_than_cores_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_run", lambda *job: 0)
    assert main(["run", "digits", "--processes", "5000", "--out", str(tmp_path)]) == 0
    assert "5000 processes share" in capsys.readouterr().err


def test_list_shows_records_and_names_damaged_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", str(tmp_path / "none")]) == 1
    assert "is no folder" in capsys.readouterr().err
    assert main(["list", str(tmp_path)]) == 0
    assert "holds no records" in capsys.readouterr().out
    settings = replace(CENTROID.defaults, num_steps=4)
    for seed in range(3):
        for method in ("dasgrad", "adam"):
            config = runner.make_config(CENTROID, settings, method, 0.1, seed, "tail-100")
            runner.perform(config, tmp_path / "centroid" / config.file_name)
    assert main(["list", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "centroid, tail-100: 4 steps on cpu, 6 runs and 0 of tuning" in text
    assert "seeds 0–2" in text
    assert f"dasgrad {dasgrad.__version__}, torch {torch.__version__}" in text
    path = next(tmp_path.glob("centroid/tail-100-adam-*-seed1-*.parquet"))
    path.write_bytes(path.read_bytes()[:200])
    assert main(["list", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert f"{path}: not a readable Parquet file" in text
    assert "seeds 0, 2" in text


def test_quick_and_full_set_seeds_and_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr(command, "_run", lambda experiment, settings, *rest: seen.append(settings) or 0)
    for words in (["--quick"], ["--full"], ["--full", "--seeds", "7", "--scores", "frozen"]):
        assert main(["run", "digits", *words, "--out", str(tmp_path)]) == 0
    assert [(s.num_seeds, s.num_steps, s.scores) for s in seen] == [
        (3, 80, "own"),
        (100, 800, "own"),
        (7, 800, "frozen"),
    ]


def test_run_digits_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "digits", "--seeds", "2", "--steps", "40", "--processes", "1", "--out", str(tmp_path)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    folder = tmp_path / "digits"
    assert "68/68" in captured.err  # 4 methods × (5 rates × 3 tuning seeds + 2 seeds)
    assert (folder / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (folder / "digits.svg").read_text()
    lines = captured.out.splitlines()
    table = lines[: next(k for k, line in enumerate(lines) if line.startswith("Written:"))]
    assert max(len(line) for line in table) <= 100
    for phrase in ("2 paired seeds", "train loss", "dasgrad against amsgrad: final training loss", "On the clock"):
        assert phrase in captured.out
    rows = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    quantities = {row["quantity"] for row in rows if row["method"] == "dasgrad"}
    assert {"final_train_loss", "scoring_share", "improvement_over_amsgrad", "steps_to_amsgrad"} <= quantities
    before = (folder / "digits.svg").read_bytes()
    assert main(arguments) == 0
    assert "68 runs were there already" in capsys.readouterr().out
    assert (folder / "digits.svg").read_bytes() == before


def test_interruption_says_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*job: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "perform", stop)
    arguments = ["run", "digits", "--steps", "40", "--processes", "1", "--out", str(tmp_path)]
    assert main(arguments) == 130
    errors = capsys.readouterr().err
    assert f"Interrupted: 0 of 140 runs are kept in {tmp_path / 'digits'}" in errors
    assert f"To go on: dasgrad {' '.join(arguments)}" in errors


def test_a_full_disk_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*job: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner, "perform", fail)
    assert main(["run", "digits", "--processes", "1", "--out", str(tmp_path)]) == 1
    assert "No space left on device. Finished runs are kept" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to a process group")
def test_ctrl_c_ends_all_processes_and_keeps_records(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dasgrad", "run", "digits", "--steps", "400", "--processes", "2"]
    # A job in the background ignores interrupts, and so would whatever it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("digits/*.parquet")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    # The pipe ends when the last process that writes to it has gone, workers included.
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "of 140 runs are kept" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.glob("digits/*.parquet"))
    assert not list(tmp_path.glob("digits/.*.tmp"))


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_run_resumes_to_the_same_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "centroid", "--seeds", "2", "--steps", "60", "--methods", "dasgrad", "--out"]
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    command = [sys.executable, "-m", "dasgrad", *words, str(cut), "--processes", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(cut.glob("centroid/*.parquet")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=60)  # the pipe ends with the last worker: none stays behind
    num_kept = len(list(cut.glob("centroid/*.parquet")))
    assert 1 <= num_kept < 20
    for folder in (cut, whole):
        assert main([*words, str(folder), "--processes", "1"]) == 0
    assert f"{num_kept} runs were there already" in capsys.readouterr().out
    found = [read_folder(folder / "centroid") for folder in (cut, whole)]
    (resumed, _), (straight, _) = found
    assert [path.name for path in resumed] == [path.name for path in straight]
    for one, other in zip(resumed.values(), straight.values(), strict=True):
        for column in one.curves:
            if column not in ("seconds", "scoring_seconds"):
                np.testing.assert_array_equal(one.curves[column], other.curves[column])
