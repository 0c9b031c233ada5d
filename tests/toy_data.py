"""A made-up data set for tests, and what a server on this machine offers of it."""

import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dasgrad.experiments.datasets.model import DataSet, File


def pack(members: dict[str, bytes]) -> bytes:
    """A compressed tar archive."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def describe(name: str, content: bytes) -> File:
    return File(name, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")


@dataclass
class Site:
    """What the server offers, how it fails, and what it was asked for."""

    url: str
    contents: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and the range asked for."""
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """After so many bytes of one answer the connection ends; one entry an answer, from the front."""
    stall_after: int | None = None
    """After so many bytes nothing more comes."""
    seconds_per_chunk: float = 0.0
    closing: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Toy:
    """A data set of two files, its content, and its archives as they are offered."""

    dataset: DataSet
    contents: dict[str, bytes]
    home: dict[str, bytes]
    package: bytes
    package_name: str = "toy-data-1.0.0.tgz"

    def check(self, folder: Path) -> None:
        """All is there, all is right, and nothing else is left."""
        assert sorted(os.listdir(folder)) == sorted(self.contents)
        for name, content in self.contents.items():
            assert (folder / name).read_bytes() == content


MakeToy = Callable[..., Toy]
