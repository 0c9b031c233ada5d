"""The real data sets, where they are on this machine: counts, shapes and numbers known from elsewhere."""

import pytest
import torch

from dasgrad.experiments.datasets import (
    DATASETS,
    imdb,
    load_cifar10,
    load_fashion_mnist,
    load_imdb,
    load_imdb_tokens,
    load_mnist,
    store,
)


def needs(name: str) -> pytest.MarkDecorator:
    here = store.find_folder(DATASETS[name]) is not None
    return pytest.mark.skipif(not here, reason=f"{name} is not on this machine: dasgrad data fetch {name}")


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name, d in DATASETS.items() if d.files])
def test_checksums(name):
    assert [state.problem for state in store.inspect(DATASETS[name])] == [None] * len(DATASETS[name].files)


@needs("mnist")
def test_mnist():
    split = load_mnist()
    assert (split.train[0].shape, split.test[0].shape) == ((60_000, 784), (10_000, 784))
    assert torch.bincount(split.train[1]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(split.test[1]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert float(split.train[0].mean()) == pytest.approx(0.1307, abs=1e-4)


@needs("fashion-mnist")
def test_fashion_mnist():
    split = load_fashion_mnist()
    assert (split.train[0].shape, split.test[0].shape) == ((60_000, 784), (10_000, 784))
    assert torch.bincount(split.train[1]).tolist() == [6000] * 10
    assert torch.bincount(split.test[1]).tolist() == [1000] * 10
    assert float(split.train[0].mean()) == pytest.approx(0.2860, abs=1e-4)


@needs("cifar10")
def test_cifar10():
    split = load_cifar10(torch.uint8)
    assert (split.train[0].shape, split.test[0].shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert torch.bincount(split.train[1]).tolist() == [5000] * 10
    assert torch.bincount(split.test[1]).tolist() == [1000] * 10
    means = [float(split.train[0][:, channel].double().mean()) / 255 for channel in range(3)]
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)


@needs("imdb")
def test_imdb():
    reviews = imdb.read_reviews()
    assert [len(texts) for texts in reviews.values()] == [12_500] * 4
    train, test = (
        {text for kind in ("neg", "pos") for text in reviews[f"{half}-{kind}.txt"]} for half in ("train", "test")
    )
    assert (len(train), len(test), len(train & test)) == (24_904, 24_801, 123)
    bags, sequences = load_imdb(), load_imdb_tokens(64)
    for split in (bags, sequences):
        for _, targets in (split.train, split.test):
            assert torch.bincount(targets).tolist() == [12_500, 12_500]
    assert (bags.train[0].shape, bags.test[0].shape) == ((25_000, 10_000), (25_000, 10_000))
    assert len(bags.train[0].values) == 3_234_617
    assert (sequences.train[0].shape, int(sequences.train[0].max())) == ((25_000, 64), 10_001)
