"""Where data sets lie on this machine, and whether they are what they should be.

Each has a folder of its name in the data folder: the variable ``DASGRAD_DATA``, or else the user's cache. Folders
``datasets/NAME`` of the system (``XDG_DATA_DIRS``), where packages of a distribution put data, are looked at too. A
folder that holds the files is used as it is, and a file may be there compressed, as ``NAME.gz``.
"""

import gzip
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from dasgrad.experiments.datasets.model import ChecksumError, DataError, DataSet, File

VARIABLE = "DASGRAD_DATA"
SYSTEM_FOLDERS = "/usr/local/share:/usr/share"  # what the XDG base directory specification says where it is not set


class MissingDataError(DataError):
    """A data set is not on this machine; the message has the command that brings it."""


@dataclass(frozen=True)
class FileState:
    """What was found of one file."""

    file: File
    path: Path
    """Where it is, or would be."""
    problem: str | None
    """None for a good file."""


def data_folder() -> Path:
    """The folder that has a folder for each data set; it need not exist.

    Raises:
        DataError: when it is a file.
    """
    chosen = os.environ.get(VARIABLE)
    folder = Path(chosen).expanduser() if chosen else _user_cache() / "dasgrad"
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{VARIABLE} must be a folder, got the file {str(folder)!r}")
    return folder


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def folder_of(dataset: DataSet) -> Path:
    """The data set's own folder in the data folder; it need not exist."""
    return data_folder() / dataset.name


def find_folder(dataset: DataSet) -> Path | None:
    """The first folder that has a file of each name, or None; what is in the files is not looked at."""
    system = [Path(part) for part in (os.environ.get("XDG_DATA_DIRS") or SYSTEM_FOLDERS).split(os.pathsep) if part]
    folders = [folder_of(dataset), *(folder / "datasets" / dataset.name for folder in system)]
    return next((folder for folder in folders if not missing_files(dataset, folder)), None)


def missing_files(dataset: DataSet, folder: Path) -> list[str]:
    """Names of the files that the folder has neither plain nor compressed."""
    return [file.name for file in dataset.files if not find_file(folder, file.name).exists()]


def find_file(folder: Path, name: str) -> Path:
    """Where the file is, plain or compressed; its plain path where it is neither."""
    plain, compressed = folder / name, folder / f"{name}.gz"
    return compressed if compressed.exists() and not plain.exists() else plain


def read_good(folder: Path, file: File) -> bytes:
    """The content of a file, decompressed, after its checksum was compared.

    Raises:
        FileNotFoundError: when it is not there.
        ChecksumError: when it is not the file expected.
    """
    path = find_file(folder, file.name)
    content = path.read_bytes()
    if path.name != file.name:
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ChecksumError(f"{path}: cannot be decompressed ({error})") from error
    file.check(content, str(path))
    return content


def read(dataset: DataSet, name: str) -> bytes:
    """The content of a file of a data set, wherever it is; its checksum was compared.

    Raises:
        MissingDataError: when the data set is not on this machine.
        ChecksumError: when a file is not the one expected.
    """
    folder = find_folder(dataset)
    if folder is None:
        raise MissingDataError(
            f"{dataset.name} is not in {folder_of(dataset)} ({describe_missing(dataset)}); to fetch it: "
            f"dasgrad data fetch {dataset.name}"
        )
    (file,) = (file for file in dataset.files if file.name == name)
    try:
        return read_good(folder, file)
    except ChecksumError as error:
        raise ChecksumError(f"{error}; to have it replaced: dasgrad data fetch {dataset.name}") from error


def describe_missing(dataset: DataSet, folder: Path | None = None) -> str:
    """Which files a folder lacks, for a message."""
    return f"missing: {', '.join(missing_files(dataset, folder or folder_of(dataset)))}"


def inspect(dataset: DataSet, folder: Path | None = None) -> list[FileState]:
    """Recompute every checksum, in ``folder`` or where the data set is."""
    folder = folder or find_folder(dataset) or folder_of(dataset)
    states = []
    for file in dataset.files:
        problem = None
        path = find_file(folder, file.name)
        try:
            read_good(folder, file)
        except FileNotFoundError:
            problem = f"{path}: missing"
        except ChecksumError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{path}: cannot be read ({error.strerror or error})"
        states.append(FileState(file, path, problem))
    return states
