"""Which data sets there are."""

from dasgrad.experiments.datasets.cifar10 import CIFAR10
from dasgrad.experiments.datasets.digits import DIGITS
from dasgrad.experiments.datasets.imdb import IMDB
from dasgrad.experiments.datasets.mnist import FASHION_MNIST, MNIST
from dasgrad.experiments.datasets.model import DataSet

DATASETS: dict[str, DataSet] = {dataset.name: dataset for dataset in (DIGITS, MNIST, FASHION_MNIST, CIFAR10, IMDB)}
"""All of them by name."""


def find_dataset(name: str) -> DataSet:
    """The data set of that name.

    Raises:
        ValueError: for an unknown name, listing those there are.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; there is {', '.join(DATASETS)}")
    return DATASETS[name]
