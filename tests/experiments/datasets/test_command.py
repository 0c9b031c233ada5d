"""``dasgrad data`` on the command line."""

import subprocess
import sys

import pytest

from dasgrad.cli import main
from dasgrad.experiments.datasets import command
from dasgrad.experiments.datasets.table import DATASETS


@pytest.fixture(autouse=True)
def table(toy, data_folder, monkeypatch):
    monkeypatch.setitem(DATASETS, "toy", toy.dataset)


def test_list(toy, data_folder, capsys):
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "size", "here", "what"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:7]}
    assert rows["mnist"][:3] == ["55.0", "MB", "no"]
    assert rows["toy"] == ["200.0", "kB", "no", "random", "bytes"]
    assert rows["digits"][:2] == ["-", "yes"]
    assert "  toy: nobody's" in lines
    assert any("Zalando SE" in line and "MIT licence" in line for line in lines)
    assert lines[-1] == f"The data folder is {data_folder}."
    assert max(len(line) for line in lines) <= 100
    (data_folder / "toy").mkdir(parents=True)
    (data_folder / "toy/images").write_bytes(b"")
    main(["data", "list"])
    assert "toy            200.0 kB  in part  random bytes" in capsys.readouterr().out
    main(["data", "fetch", "toy"])
    main(["data", "list"])
    assert "toy            200.0 kB  yes   random bytes" in capsys.readouterr().out


def test_fetch_verify_where(toy, data_folder, capsys):
    assert main(["data", "where", "toy"]) == 0
    assert capsys.readouterr().out == f"{data_folder / 'toy'}\n"
    assert main(["data", "fetch", "toy", "digits", "toy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"toy: 2 files, 200.0 kB, verified, in {data_folder / 'toy'} (")
    assert lines[1:] == ["digits: nothing to fetch, it ships with scikit-learn"]
    toy.check(data_folder / "toy")
    assert main(["data", "verify"]) == 0
    assert capsys.readouterr().out == f"toy: 2 files, 200.0 kB, verified, in {data_folder / 'toy'}\n"
    assert main(["data", "where"]) == 0
    assert capsys.readouterr().out == f"{data_folder}\n"


def test_verify_names_what_is_wrong(toy, data_folder, capsys):
    assert main(["data", "verify"]) == 0
    assert capsys.readouterr().out == f"Nothing to verify in {data_folder}.\n"
    assert main(["data", "verify", "toy"]) == 1
    assert f"  {data_folder / 'toy/images'}: missing" in capsys.readouterr().out
    main(["data", "fetch", "toy"])
    (data_folder / "toy/images").write_bytes(b"others")
    capsys.readouterr()
    assert main(["data", "verify"]) == 1
    text = capsys.readouterr().out
    assert "toy: 1 of 2 files are not right" in text
    assert f"images: expected {toy.dataset.files[0].checksum.replace(':', ' ')}, found " in text
    assert "To have them replaced: dasgrad data fetch toy" in text
    assert (data_folder / "toy/images").read_bytes() == b"others"  # it only looks


def test_a_failure_does_not_stop_the_others(toy, site, data_folder, capsys, monkeypatch):
    monkeypatch.setitem(DATASETS, "other", command.find_dataset("toy").__class__("other", "", "", toy.dataset.files))
    assert main(["data", "fetch", "other", "toy"]) == 1
    captured = capsys.readouterr()
    assert "dasgrad: other could not be fetched; missing or wrong: images, labels" in captured.err
    assert captured.out.startswith("toy: 2 files")


def test_fetch_from_a_folder(toy, data_folder, tmp_path, capsys):
    assert main(["data", "fetch", "toy", "--from", str(tmp_path / "nowhere")]) == 1
    assert "--from must be a folder, got" in capsys.readouterr().err
    (tmp_path / "stick").mkdir()
    (tmp_path / "stick" / toy.package_name).write_bytes(toy.package)
    assert main(["data", "fetch", "toy", "--from", str(tmp_path / "stick")]) == 0
    toy.check(data_folder / "toy")


@pytest.mark.parametrize("action", ["fetch", "verify", "where"])
def test_unknown_names_are_refused_with_those_there_are(action, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["data", action, "nope"])
    assert caught.value.code == 2
    assert "unknown data set 'nope'; there is digits, mnist, fashion-mnist, cifar10, imdb" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["list"], ["fetch"], ["verify"], ["where"]])
def test_help_has_examples(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["data", *arguments, "--help"])
    assert caught.value.code == 0
    assert "dasgrad data fetch mnist imdb" in capsys.readouterr().out


def test_an_action_is_needed(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["data"])
    assert caught.value.code == 2
    assert "required: ACTION" in capsys.readouterr().err


def test_ctrl_c(capsys, monkeypatch):
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "fetch", interrupt)
    assert main(["data", "fetch", "toy"]) == 130
    assert "the same command goes on from there" in capsys.readouterr().err


def test_a_data_folder_that_cannot_be(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("DASGRAD_DATA", str(tmp_path / "file"))
    assert main(["data", "fetch", "toy"]) == 1
    assert "DASGRAD_DATA must be a folder" in capsys.readouterr().err
    monkeypatch.setenv("DASGRAD_DATA", str(tmp_path / "file/below"))
    assert main(["data", "fetch", "toy"]) == 1
    assert "Not a directory" in capsys.readouterr().err


def test_without_the_extra_it_says_how_to_get_it(monkeypatch, capsys):
    for name in ("matplotlib", "pyarrow", "sklearn", "tqdm"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["data", "fetch", "toy"]) == 1
    assert capsys.readouterr().err == 'dasgrad data fetch needs tqdm: pip install "dasgrad[experiments]"\n'
    assert main(["data", "list"]) == 0  # needs nothing


def test_a_reader_that_has_seen_enough():
    process = subprocess.Popen(
        [sys.executable, "-m", "dasgrad", "data", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1
