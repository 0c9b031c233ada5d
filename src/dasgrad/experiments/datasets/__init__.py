"""Real data as tensors in memory, with a train/test split that is the same for every seed.

`table` has all data sets and `model` what one is; each has a module of its own. `store` knows where they lie on this
machine, `fetching` brings them there. The loaders read files whose checksums are right, and fetch nothing: where a data
set is missing, the error has the command that brings it.
"""

from dasgrad.experiments.datasets.cifar10 import load_cifar10
from dasgrad.experiments.datasets.digits import load_digits
from dasgrad.experiments.datasets.fetching import fetch
from dasgrad.experiments.datasets.imdb_features import imdb_words, load_imdb, load_imdb_tokens
from dasgrad.experiments.datasets.mnist import load_fashion_mnist, load_mnist
from dasgrad.experiments.datasets.model import ChecksumError, DataError, DataSet
from dasgrad.experiments.datasets.split import Split
from dasgrad.experiments.datasets.store import data_folder
from dasgrad.experiments.datasets.table import DATASETS, find_dataset

__all__ = [
    "DATASETS",
    "ChecksumError",
    "DataError",
    "DataSet",
    "Split",
    "data_folder",
    "fetch",
    "find_dataset",
    "imdb_words",
    "load_cifar10",
    "load_digits",
    "load_fashion_mnist",
    "load_imdb",
    "load_imdb_tokens",
    "load_mnist",
]
