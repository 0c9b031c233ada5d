"""Reading archives: nothing is ever extracted to a path that an archive names."""

import gzip
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


def unpack_gzip(path: Path) -> Iterator[tuple[str, bytes]]:
    """One compressed file, which is called as the archive is without its ``.gz``."""
    with gzip.open(path) as file:
        yield path.name.removesuffix(".gz"), file.read()


def read_members(path: Path, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of those members of a tar archive, in the order in which they are in it."""
    wanted = set(names)
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name in wanted:
                file = archive.extractfile(member)
                if file is not None:
                    yield member.name, file.read()


def unpack_members(path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Members of a tar archive under new names: ``{member: file}``."""
    for member, content in read_members(path, names):
        yield names[member], content
