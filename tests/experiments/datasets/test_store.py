"""Where data sets lie, and whether they are right."""

import sys
from pathlib import Path

import pytest

from dasgrad.experiments.datasets import fetch, store
from dasgrad.experiments.datasets.model import ChecksumError, DataError, format_size
from dasgrad.experiments.datasets.table import DATASETS, find_dataset


def test_the_data_folder_is_the_variable_or_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DASGRAD_DATA", str(tmp_path / "here"))
    assert store.data_folder() == tmp_path / "here"
    monkeypatch.setenv("DASGRAD_DATA", "~/data")
    assert store.data_folder() == Path.home() / "data"
    monkeypatch.setenv("DASGRAD_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert store.data_folder() == tmp_path / "cache/dasgrad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.data_folder() == Path.home() / ".cache/dasgrad"


def test_a_data_folder_that_is_a_file(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("DASGRAD_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match="DASGRAD_DATA must be a folder, got the file"):
        store.data_folder()


def test_reading_what_is_not_here_says_how_to_fetch_it(toy, data_folder):
    with pytest.raises(store.MissingDataError) as caught:
        store.read(toy.dataset, "images")
    assert str(caught.value) == (
        f"toy is not in {data_folder / 'toy'} (missing: images, labels); to fetch it: dasgrad data fetch toy"
    )


def test_nothing_damaged_is_ever_read(toy, data_folder):
    fetch(toy.dataset)
    assert store.read(toy.dataset, "images") == toy.contents["images"]
    (data_folder / "toy/images").write_bytes(toy.contents["images"][:-1])
    with pytest.raises(ChecksumError, match=r"images: expected sha256 .* found .*; to have it replaced: dasgrad data"):
        store.read(toy.dataset, "images")


def test_compressed_files_are_read_and_checked(toy, data_folder):
    (data_folder / "toy").mkdir(parents=True)
    for name, content in toy.home.items():
        (data_folder / "toy" / name).write_bytes(content)
    assert store.read(toy.dataset, "labels") == toy.contents["labels"]
    (data_folder / "toy/labels.gz").write_bytes(toy.home["labels.gz"][:-9])
    with pytest.raises(ChecksumError, match=r"labels.gz: cannot be decompressed"):
        store.read(toy.dataset, "labels")


def test_inspection_tells_good_missing_and_damaged(toy, data_folder):
    (data_folder / "toy").mkdir(parents=True)
    (data_folder / "toy/images").write_bytes(toy.contents["images"])
    assert [state.problem for state in store.inspect(toy.dataset)] == [None, f"{data_folder / 'toy/labels'}: missing"]
    (data_folder / "toy/labels").write_bytes(b"")
    problems = [state.problem for state in store.inspect(toy.dataset)]
    assert problems[0] is None
    assert "labels: expected sha256" in problems[1]
    (data_folder / "toy/labels").unlink()
    (data_folder / "toy/labels").mkdir()
    assert "labels: cannot be read" in store.inspect(toy.dataset)[1].problem


def test_the_table_is_sound():
    assert list(DATASETS) == ["digits", "mnist", "fashion-mnist", "cifar10", "imdb"]
    lengths = {"md5": 32, "sha1": 40, "sha256": 64}
    for dataset in DATASETS.values():
        assert dataset.terms
        names = {file.name for file in dataset.files}
        for source in dataset.sources:
            assert {name for archive in source.archives for name in archive.makes} == names
        for file in (*dataset.files, *(archive for source in dataset.sources for archive in source.archives)):
            algorithm, _, digest = file.checksum.partition(":")
            assert file.size > 0
            assert len(digest) == lengths[algorithm]
    with pytest.raises(
        ValueError, match="unknown data set 'nope'; there is digits, mnist, fashion-mnist, cifar10, imdb"
    ):
        find_dataset("nope")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (55_000, "55.0 kB"), (138_940_914, "138.9 MB"), (2 * 10**9, "2.0 GB")],
)
def test_sizes_for_people(num_bytes, text):
    assert format_size(num_bytes) == text
