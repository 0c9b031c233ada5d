"""What a data set is: its files with their checksums, and the places that offer them.

A data set is a few *files*, each known by size and checksum. A publisher may offer them in another form, an
*archive*: compressed, packed together, or as pictures. So an archive has a checksum of its own and a function that
turns it into files. A *source* is a place that has all archives needed.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK = 1 << 20


class DataError(Exception):
    """A data set cannot be had, or is not what it should be; the message says what to do."""


class ChecksumError(DataError):
    """A file is not the one expected."""


@dataclass(frozen=True)
class File:
    """A file known by its content."""

    name: str
    size: int
    """In bytes."""
    checksum: str
    """``algorithm:digest``, as published where the publisher or a well-known library does, else SHA-256."""

    def check(self, content: bytes, label: str) -> None:
        """See that this is the content.

        Raises:
            ChecksumError: when it is not, naming ``label``, the checksum expected and the one found.
        """
        digest = new_digest(self.checksum)
        digest.update(content)
        self.compare(digest.hexdigest(), label)

    def check_on_disk(self, path: Path, label: str) -> None:
        """As `check`, for a file that need not fit in memory."""
        digest = new_digest(self.checksum)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        self.compare(digest.hexdigest(), label)

    def compare(self, found: str, label: str) -> None:
        """As `check`, with the digest at hand."""
        algorithm, _, expected = self.checksum.partition(":")
        if found != expected:
            raise ChecksumError(f"{label}: expected {algorithm} {expected}, found {found}")


@dataclass(frozen=True)
class Archive(File):
    """A file as it is offered, which holds files of a data set in another form."""

    makes: tuple[str, ...]
    """The names of the files in it."""
    unpack: Callable[[Path], Iterator[tuple[str, bytes]]]
    """Gives name and content of each of them; may raise what reading a damaged file raises."""


class Source(Protocol):
    """A place that offers a data set."""

    @property
    def title(self) -> str:
        """For messages."""

    @property
    def archives(self) -> tuple[Archive, ...]:
        """What it offers; all of them together make the data set."""

    @property
    def by_hand(self) -> str:
        """How a person gets the archives."""

    def locate(self) -> str:
        """The address in front of an archive's name.

        Raises:
            DataError: when it cannot be told.
        """


@dataclass(frozen=True)
class Home:
    """A place on the web, the publisher's own or a copy."""

    base_url: str
    """Ends in a slash."""
    archives: tuple[Archive, ...]
    title: str = "its own home"

    @property
    def by_hand(self) -> str:
        """Where a browser finds them."""
        return f"from {self.base_url}"

    def locate(self) -> str:
        """The address as it stands."""
        return self.base_url


@dataclass(frozen=True)
class DataSet:
    """A data set by its name, with what a user wants to know before fetching it."""

    name: str
    what: str
    terms: str
    """Who publishes it, and under which terms."""
    files: tuple[File, ...] = ()
    """None where it ships with a library."""
    sources: tuple[Source, ...] = ()
    """In the order in which they are tried."""
    hint: str = ""
    """Another way to have it, for the message when no source can be reached."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


def new_digest(checksum: str) -> "hashlib._Hash":
    """A fresh digest by the algorithm that ``checksum`` names."""
    return hashlib.new(checksum.partition(":")[0], usedforsecurity=False)


def format_size(num_bytes: int) -> str:
    """A size for people: ``11.5 MB``."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
