"""Bring a data set into the data folder: from a folder, from its own home, or from a mirror.

A file takes its name when it is whole and its checksum is right, never before. Archives on their way are kept in
``.partial`` inside the data set's folder, for the next attempt to go on with, and removed when they have been
unpacked.
"""

import errno
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from dasgrad import atomic
from dasgrad.experiments.datasets import store
from dasgrad.experiments.datasets.download import download
from dasgrad.experiments.datasets.model import Archive, ChecksumError, DataError, DataSet, File, Source, format_size
from dasgrad.progress import Progress

if sys.platform != "win32":
    import fcntl

PARTIAL = ".partial"
DAMAGED = (OSError, EOFError, KeyError, ValueError, tarfile.TarError, zlib.error)
FULL = (errno.ENOSPC, errno.EDQUOT)

Report = Callable[[str], None]


class FetchError(DataError):
    """No source has the data set; the message says why, and what to do."""


def fetch(
    dataset: DataSet,
    *,
    folder: Path | None = None,
    progress: Progress = False,
    report: Report = lambda message: None,
) -> Path:
    """Make sure that a data set is on this machine, every file of it verified; return its folder.

    Args:
        dataset: one with files.
        folder: take it from this folder, and from nowhere else. It may hold the files, plain or compressed, or
            archives of a source.
        progress: of downloads, in bytes.
        report: is told when one source has failed and the next is tried.

    Raises:
        FetchError: when no source has it.
        DataError: when the disk is full, or another process is at it.
        OSError: when the data folder cannot be written to.
    """
    own = store.folder_of(dataset)
    found = store.find_folder(dataset)
    if found is not None and found != own and not _wanted(dataset, found):
        return found  # a folder of the system
    own.mkdir(parents=True, exist_ok=True)
    with _alone(own, dataset):
        for file in dataset.files:
            atomic.remove_abandoned(own / file.name)
        if _wanted(dataset, own):
            _Fetcher(dataset, own, progress, report).run(folder)
        _remove_partial(own)
    return own


def _wanted(dataset: DataSet, folder: Path) -> list[File]:
    """Files that are missing or wrong."""
    return [state.file for state in store.inspect(dataset, folder) if state.problem is not None]


class _Fetcher:
    """One data set on its way into its folder."""

    def __init__(self, dataset: DataSet, own: Path, progress: Progress, report: Report) -> None:
        self._dataset = dataset
        self._own = own
        self._progress = progress
        self._report = report
        self._wanted = {file.name: file for file in _wanted(dataset, own)}
        self._failures: list[str] = []
        archives = (archive for source in dataset.sources for archive in source.archives)
        self._archives = {archive.name: archive for archive in archives}

    def run(self, folder: Path | None) -> None:
        """Try one place after the other until nothing is missing."""
        _keep_only(self._own / PARTIAL, self._archives)
        try:
            self._take_from_folder(folder or self._own)
            if folder is not None and self._wanted:
                raise FetchError(self._explain(f"{folder} does not hold {self._dataset.name}", "there"))
            for source in self._dataset.sources:
                if self._wanted:
                    self._take_from_source(source)
        except OSError as error:
            if error.errno not in FULL:
                raise
            _remove_partial(self._own)
            largest = max((archive.size for archive in self._archives.values()), default=0)
            raise DataError(
                f"the disk is full: {self._dataset.name} takes {format_size(self._dataset.size)} in {self._own}, and "
                f"up to {format_size(largest)} more while it comes; the download was removed ({error.strerror})"
            ) from error
        if self._wanted:
            raise FetchError(self._explain(f"{self._dataset.name} could not be fetched", f"into {self._own}"))

    def _take_from_folder(self, folder: Path) -> None:
        for file in list(self._wanted.values()):
            try:
                self._keep(file.name, store.read_good(folder, file))
            except FileNotFoundError:
                continue
            except ChecksumError as error:
                self._failures.append(str(error))
        for archive in self._archives.values():
            path = folder / archive.name
            if not self._needs(archive) or not path.is_file():
                continue
            try:
                archive.check_on_disk(path, str(path))
                self._unpack(archive, path)
            except DataError as error:
                self._failures.append(str(error))

    def _take_from_source(self, source: Source) -> None:
        if self._failures:
            self._report(f"{self._failures[-1]}; trying {source.title}")
        try:
            base_url = source.locate()
            for archive in filter(self._needs, source.archives):
                path = self._own / PARTIAL / archive.name
                path.parent.mkdir(exist_ok=True)
                download(base_url + archive.name, path, archive, self._progress)
                self._unpack(archive, path)
                path.unlink()
        except DataError as error:
            self._failures.append(f"{source.title}: {error}")

    def _needs(self, archive: Archive) -> bool:
        return not self._wanted.keys().isdisjoint(archive.makes)

    def _unpack(self, archive: Archive, path: Path) -> None:
        contents = archive.unpack(path)
        while True:
            try:
                name, content = next(contents)
            except StopIteration:
                break
            except DAMAGED as error:
                raise DataError(f"{path} cannot be unpacked ({type(error).__name__}: {error})") from error
            if name in self._wanted:
                self._keep(name, content)
        if self._needs(archive):
            raise DataError(f"{path} has no {', '.join(name for name in archive.makes if name in self._wanted)}")

    def _keep(self, name: str, content: bytes) -> None:
        self._wanted[name].check(content, name)
        atomic.write(self._own / name, content)
        del self._wanted[name]

    def _explain(self, what: str, where: str) -> str:
        """What failed, why, and what can be put where instead."""
        lines = [
            f"{what}; missing or wrong: {', '.join(self._wanted)}",
            *(f"  {failure}" for failure in self._failures),
        ]
        names = ", ".join(file.name for file in self._dataset.files)
        lines += [f"Without a network, put one of these {where} and run the command again:", f"  {names}"]
        compressed = {f"{file.name}.gz" for file in self._dataset.files}
        for source in self._dataset.sources:
            archives = [archive.name for archive in source.archives]
            offered = "these as .gz" if compressed.issuperset(archives) else ", ".join(archives)
            lines.append(f"  {offered}, {source.by_hand}")
        if self._dataset.hint:
            lines.append(self._dataset.hint)
        return "\n".join(lines)


# --- folders ------------------------------------------------------------------------------------------


@contextmanager
def _alone(folder: Path, dataset: DataSet) -> Iterator[None]:
    """Hold a lock on the folder; it ends with the process, however that ends, and leaves no file behind."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"another process is fetching {dataset.name} into {folder}; wait for it to end") from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                raise
        yield
    finally:
        os.close(descriptor)


def _keep_only(folder: Path, names: Container[str]) -> None:
    """Remove downloads of another version of the data set, with which nobody will go on."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.name not in names:
            path.unlink()


def _remove_partial(own: Path) -> None:
    if (own / PARTIAL).exists():
        shutil.rmtree(own / PARTIAL)
