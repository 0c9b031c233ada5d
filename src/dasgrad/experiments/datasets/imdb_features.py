"""IMDB movie reviews as inputs of models: bags of words, and sequences of words."""

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dasgrad import SparseRows
from dasgrad.experiments.datasets.imdb import Tokens, load_tokens
from dasgrad.experiments.datasets.split import Split

Values = Literal["counts", "log", "binary"]

PADDING, UNKNOWN, NUM_SPECIAL = 0, 1, 2
"""Numbers in sequences: after the end, a word that is not in the vocabulary, and where the words start."""


def load_imdb(num_words: int = 10_000, values: Values = "counts") -> Split:
    """The 25,000 + 25,000 movie reviews as sparse bags of the ``num_words`` most frequent training words.

    Inputs are `dasgrad.SparseRows` of shape ``[n, num_words]`` in float32, one column a word, the most frequent
    first: how often it stands in the review (``"counts"``), log(1 + that) (``"log"``) or 1 (``"binary"``). Targets
    are ``[n]`` int64, 0 for a negative and 1 for a positive review; all negative ones come first. What counts as a
    word says `dasgrad.experiments.datasets.imdb`. 123 texts stand in both halves, which is the data set's own leak.

    Raises:
        DataError: when the data set is not on this machine, or damaged.
        ValueError: for ``num_words`` or ``values`` out of range.
    """
    if values not in get_args(Values):
        raise ValueError(f"`load_imdb(values=...)` must be among {', '.join(get_args(Values))}, got {values!r}.")
    tokens = load_tokens()
    _check_num_words("load_imdb", num_words, tokens)
    train, test = _targets(tokens)
    rows = _count(tokens, num_words)
    if values == "log":
        rows.values.log1p_()
    elif values == "binary":
        rows.values.fill_(1.0)
    return Split((rows[: len(train)], train), (rows[len(train) :], test))


def load_imdb_tokens(length: int = 256, num_words: int = 10_000) -> Split:
    """The same reviews as sequences of words, for models that read.

    Inputs are ``[n, length]`` int64: 0 after the end of a review, 1 for a word that is not among the ``num_words``
    most frequent of training, and from 2 the words, the most frequent first; an embedding has ``num_words + 2``
    rows. Reviews longer than ``length`` lose their end. Targets are as in `load_imdb`.

    Raises:
        DataError: when the data set is not on this machine, or damaged.
        ValueError: for ``length`` or ``num_words`` out of range.
    """
    if length < 1:
        raise ValueError(f"`load_imdb_tokens(length=...)` must be at least 1, got {length!r}.")
    tokens = load_tokens()
    _check_num_words("load_imdb_tokens", num_words, tokens)
    train, test = _targets(tokens)
    sequences = torch.full((len(train) + len(test), length), PADDING)
    lengths = np.minimum(np.diff(tokens.starts), length)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ranks = tokens.ranks[tokens.starts[rows] + columns].astype(np.int64)
    numbers = np.where(ranks < num_words, ranks + NUM_SPECIAL, UNKNOWN)
    sequences[torch.from_numpy(rows), torch.from_numpy(columns)] = torch.from_numpy(numbers)
    return Split((sequences[: len(train)], train), (sequences[len(train) :], test))


def imdb_words(num_words: int = 10_000) -> list[str]:
    """The words of the columns of `load_imdb`; in sequences the k-th of them is k + 2.

    Raises:
        DataError: when the data set is not on this machine, or damaged.
        ValueError: for ``num_words`` out of range.
    """
    tokens = load_tokens()
    _check_num_words("imdb_words", num_words, tokens)
    return tokens.words[:num_words]


def _count(tokens: Tokens, num_words: int) -> SparseRows:
    """How often each word stands in each review."""
    lengths = np.diff(tokens.starts)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    known = tokens.ranks < num_words
    places, counts = np.unique(owners[known] * num_words + tokens.ranks[known], return_counts=True)
    owners, columns = np.divmod(places, num_words)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(lengths)))])
    parts = (torch.from_numpy(indptr), torch.from_numpy(columns), torch.from_numpy(counts.astype(np.float32)))
    return SparseRows(*parts, num_columns=num_words)


def _targets(tokens: Tokens) -> tuple[Tensor, Tensor]:
    train, test = (torch.repeat_interleave(torch.arange(2), torch.from_numpy(tokens.counts[k : k + 2])) for k in (0, 2))
    return train, test


def _check_num_words(function: str, num_words: int, tokens: Tokens) -> None:
    if not 1 <= num_words <= len(tokens.words):
        raise ValueError(f"`{function}(num_words=...)` must be in [1, {len(tokens.words)}], got {num_words!r}.")
