"""Loaders and unpackers, on small data sets in the real formats."""

import gzip
import json
import struct
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dasgrad import atomic
from dasgrad.experiments.datasets import (
    DataError,
    cifar10,
    imdb,
    imdb_words,
    load_cifar10,
    load_fashion_mnist,
    load_imdb,
    load_imdb_tokens,
    load_mnist,
    mnist,
)
from dasgrad.experiments.datasets.model import ChecksumError, DataSet
from dasgrad.experiments.datasets.png import decode_png
from toy_data import describe, pack


def install(data_folder: Path, monkeypatch, module, constant: str, contents: dict[str, bytes]) -> DataSet:
    """Put small contents in the place of a data set's own."""
    files = tuple(describe(name, content) for name, content in contents.items())
    dataset = replace(getattr(module, constant), files=files)
    monkeypatch.setattr(module, constant, dataset)
    (data_folder / dataset.name).mkdir(parents=True)
    for name, content in contents.items():
        (data_folder / dataset.name / name).write_bytes(content)
    return dataset


# --- idx ----------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize(("constant", "load"), [("MNIST", load_mnist), ("FASHION_MNIST", load_fashion_mnist)])
def test_idx_files_as_tensors(data_folder, monkeypatch, constant, load):
    random = np.random.default_rng(0)
    images = {"train": random.integers(0, 256, (7, 28, 28)), "t10k": random.integers(0, 256, (3, 28, 28))}
    labels = {"train": random.integers(0, 10, 7), "t10k": random.integers(0, 10, 3)}
    contents = {f"{part}-images-idx3-ubyte": idx(array) for part, array in images.items()}
    contents |= {f"{part}-labels-idx1-ubyte": idx(array) for part, array in labels.items()}
    install(data_folder, monkeypatch, mnist, constant, contents)
    split, raw = load(), load(torch.uint8)
    for part, (inputs, targets), (pixels, _) in zip(
        images, (split.train, split.test), (raw.train, raw.test), strict=True
    ):
        assert inputs.dtype == torch.float32
        assert targets.dtype == torch.int64
        np.testing.assert_array_equal(pixels.numpy(), images[part].reshape(-1, 784))
        np.testing.assert_allclose(inputs.numpy(), images[part].reshape(-1, 784) / 255, rtol=1e-6)
        np.testing.assert_array_equal(targets.numpy(), labels[part])
    assert load(torch.float64).train[0].dtype == torch.float64
    with pytest.raises(ValueError, match=r"`dtype` must be torch.uint8 or a floating dtype, got torch.int64"):
        load(torch.int64)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x08", b"\0\0\x08\0", b"\0\0\x0d\x01\0\0\0\0", idx(np.zeros(3))[:-1], idx(np.zeros((2, 2))) + b"!"],
)
def test_what_is_no_idx_file_is_refused(content):
    with pytest.raises(ChecksumError, match="labels: not an idx file of bytes"):
        mnist.parse_idx(content, "labels")


# --- PNG and CIFAR-10 ---------------------------------------------------------------------------------


def encode_png(pixels: np.ndarray, filters: list[int]) -> bytes:
    """A picture whose rows have the filters given, by the words of the PNG specification."""
    height, width, _ = pixels.shape
    lines = []
    for y in range(height):
        line = [filters[y % len(filters)]]
        for x in range(width):
            for c in range(3):
                a = int(pixels[y, x - 1, c]) if x else 0
                b = int(pixels[y - 1, x, c]) if y else 0
                corner = int(pixels[y - 1, x - 1, c]) if x and y else 0
                p = a + b - corner
                pa, pb, pc = abs(p - a), abs(p - b), abs(p - corner)
                paeth = a if pa <= pb and pa <= pc else b if pb <= pc else corner
                guess = [0, a, b, (a + b) // 2, paeth][line[0]]
                line.append((int(pixels[y, x, c]) - guess) % 256)
        lines.append(bytes(line))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packed = zlib.compress(b"".join(lines))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    middle = chunk(b"tEXt", b"Title\0a note") + chunk(b"IDAT", packed[:20]) + chunk(b"IDAT", packed[20:])
    return b"\x89PNG\r\n\x1a\n" + header + middle + chunk(b"IEND", b"")


@pytest.mark.parametrize("filters", [[0], [1], [2], [3], [4], [1, 1, 4, 0, 2, 3]])
def test_every_filter_of_png(filters, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (13, 11, 3)).astype(np.uint8)
    picture = encode_png(pixels, filters)
    np.testing.assert_array_equal(decode_png(picture), pixels)
    (tmp_path / "picture.png").write_bytes(picture)
    image = pytest.importorskip("PIL.Image", reason="Pillow, another reader to compare with, is not installed")
    with image.open(tmp_path / "picture.png") as opened:
        np.testing.assert_array_equal(np.asarray(opened), pixels)


def test_other_pictures_are_refused():
    good = encode_png(np.zeros((2, 2, 3), np.uint8), [0])
    with pytest.raises(ValueError, match="not a PNG"):
        decode_png(b"GIF89a")
    with pytest.raises(ValueError, match="cut short"):
        decode_png(good[:-14])
    with pytest.raises(ValueError, match="8-bit RGB without interlacing, got"):
        decode_png(good.replace(b"\x08\x02\0\0\0", b"\x08\x06\0\0\0"))
    with pytest.raises(ValueError, match="unknown filter 5"):
        decode_png(with_pixels(good, bytes([0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0])))
    with pytest.raises(ValueError, match="a picture of 2 × 2 pixels has 13 bytes"):
        decode_png(with_pixels(good, bytes(13)))
    with pytest.raises(zlib.error):
        decode_png(good.replace(b"IDAT\x78", b"IDAT\x79"))


def with_pixels(picture: bytes, filtered: bytes) -> bytes:
    """The picture with other bytes in it."""
    packed = zlib.compress(filtered)
    chunk = struct.pack(">I", len(packed)) + b"IDAT" + packed + bytes(4)
    return picture[: picture.index(b"IDAT") - 4] + chunk + picture[picture.index(b"IEND") - 4 :]


def test_cifar10_from_pictures_and_from_the_binary_archive(data_folder, monkeypatch, tmp_path):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (6, 4, 3, 32, 32)).astype(np.uint8)  # six files of four pictures
    labels = random.integers(0, 10, (6, 4)).astype(np.uint8)
    contents = {
        name: np.concatenate([labels[k, :, None], pixels[k].reshape(4, -1)], axis=1).tobytes()
        for k, name in enumerate(cifar10.NAMES)
    }
    rows = pixels.reshape(6, 4, 3, 1024).transpose(0, 1, 3, 2)  # one picture a row of RGB pixels
    members = {
        f"package/{name.removesuffix('.bin')}.png": encode_png(rows[k], [1, 4, 1]) for k, name in enumerate(contents)
    }
    members["package/test_lables.json"] = json.dumps(labels[5].tolist()).encode()
    members["package/train_lables.json"] = json.dumps(labels[:5].flatten().tolist()).encode()
    (tmp_path / "mirror.tgz").write_bytes(pack(members))
    home = {f"cifar-10-batches-bin/{name}": content for name, content in contents.items()}
    (tmp_path / "home.tar.gz").write_bytes(pack({"cifar-10-batches-bin/readme.html": b"", **home}))
    sources = [source.archives[0] for source in cifar10.CIFAR10.sources]
    assert dict(sources[0].unpack(tmp_path / "home.tar.gz")) == contents
    assert dict(sources[1].unpack(tmp_path / "mirror.tgz")) == contents

    install(data_folder, monkeypatch, cifar10, "CIFAR10", contents)
    split = load_cifar10()
    assert split.train[0].shape == (20, 3, 32, 32)
    assert split.test[0].shape == (4, 3, 32, 32)
    np.testing.assert_allclose(split.test[0].numpy(), pixels[5] / 255, rtol=1e-6)
    np.testing.assert_array_equal(split.train[1].numpy(), labels[:5].flatten())
    np.testing.assert_array_equal(load_cifar10(torch.uint8).train[0].numpy(), pixels[:5].reshape(20, 3, 32, 32))


# --- IMDB ---------------------------------------------------------------------------------------------

REVIEWS = {
    "train-neg.txt": ["Bad, BAD film.<br /><br />Don't!", "the film was bad"],
    "train-pos.txt": ["A good film", "Très good: the well-made film"],
    "test-neg.txt": ["the film was bad", "unseen words"],
    "test-pos.txt": ["good, good, très good", "..."],
}


@pytest.fixture
def reviews(data_folder, monkeypatch) -> DataSet:
    contents = {name: imdb.join_reviews(text.encode() for text in texts) for name, texts in REVIEWS.items()}
    return install(data_folder, monkeypatch, imdb, "IMDB", contents)


def test_both_sources_of_reviews_give_the_same_files(tmp_path):
    home, order = {}, {}
    for name, texts in REVIEWS.items():
        half, kind = name.removesuffix(".txt").split("-")
        home |= {f"aclImdb/{half}/{kind}/{k}_{k + 1}.txt": text.encode() for k, text in enumerate(texts)}
        order[name] = [{"t": text, "s": int(kind == "pos")} for text in reversed(texts)]
    home |= {"aclImdb/train/unsup/0_0.txt": b"no label", "aclImdb/README": b"", "aclImdb/train/urls_pos.txt": b""}
    (tmp_path / "home.tar.gz").write_bytes(pack(home))

    def mirror(*names: str) -> bytes:
        listed = [review for name in names for review in order[f"{name}.txt"]]
        return pack({"package/reviews.json": json.dumps(listed).encode()})

    (tmp_path / "mirror.tgz").write_bytes(mirror("test-neg", "train-neg", "test-pos", "train-pos"))
    sources = [source.archives[0] for source in imdb.IMDB.sources]
    unpacked = [dict(sources[0].unpack(tmp_path / "home.tar.gz")), dict(sources[1].unpack(tmp_path / "mirror.tgz"))]
    assert unpacked[0] == unpacked[1]
    assert unpacked[0]["train-neg.txt"].decode() == "Bad, BAD film.<br /><br />Don't!\nthe film was bad\n"
    (tmp_path / "mirror.tgz").write_bytes(mirror("train-pos", "test-pos", "train-neg", "test-neg"))
    with pytest.raises(ValueError, match="not in the order expected"):
        dict(sources[1].unpack(tmp_path / "mirror.tgz"))
    with pytest.raises(ValueError, match="more than one line"):
        imdb.join_reviews([b"one\ntwo"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's BAD.<br /><br />Don't!", ["it's", "bad", "don't"]),
        ("well-made, 10/10 'quoted' snake_case", ["well", "made", "10", "10", "quoted", "snake", "case"]),
        ("Très déjà\x85vu", ["très", "déjà", "vu"]),
        ("...", []),
    ],
)
def test_words(text, words):
    assert imdb.find_words(text) == words


def test_words_are_ranked_by_the_training_half(reviews):
    # film 4; bad 3; good, the 2; the others 1. Test reviews would put good first.
    ranked = ["film", "bad", "good", "the", "a", "don't", "made", "très", "was", "well"]
    assert imdb_words(10) == ranked
    with pytest.raises(ValueError, match=r"`imdb_words\(num_words=...\)` must be in \[1, 10\], got 11"):
        imdb_words(11)
    with pytest.raises(ValueError, match="got 0"):
        imdb_words(0)


@pytest.mark.parametrize("num_words", [10, 3])
def test_bags_of_words(reviews, num_words):
    words = imdb_words(num_words)
    split = load_imdb(num_words)
    for half, (inputs, targets) in zip(("train", "test"), (split.train, split.test), strict=True):
        texts = [text for kind in ("neg", "pos") for text in sorted(REVIEWS[f"{half}-{kind}.txt"], key=str.encode)]
        counted = [Counter(imdb.find_words(text)) for text in texts]
        expected = torch.tensor([[float(count[word]) for word in words] for count in counted])
        torch.testing.assert_close(inputs.to_dense(), expected)
        assert inputs.distinct
        assert targets.tolist() == [0, 0, 1, 1]
    assert split.train[0].dtype == torch.float32
    dense = split.train[0].to_dense()
    torch.testing.assert_close(load_imdb(num_words, "log").train[0].to_dense(), dense.log1p())
    torch.testing.assert_close(load_imdb(num_words, "binary").train[0].to_dense(), (dense > 0).float())
    with pytest.raises(ValueError, match=r"`load_imdb\(values=...\)` must be among counts, log, binary, got 'tfidf'"):
        load_imdb(num_words, "tfidf")


@pytest.mark.parametrize("length", [1, 3, 20])
def test_sequences_of_words(reviews, length):
    words = imdb_words(5)
    split = load_imdb_tokens(length, num_words=5)
    for half, (inputs, targets) in zip(("train", "test"), (split.train, split.test), strict=True):
        texts = [text for kind in ("neg", "pos") for text in sorted(REVIEWS[f"{half}-{kind}.txt"], key=str.encode)]
        for row, text in zip(inputs.tolist(), texts, strict=True):
            expected = [words.index(word) + 2 if word in words else 1 for word in imdb.find_words(text)][:length]
            assert row == expected + [0] * (length - len(expected))
        assert targets.tolist() == [0, 0, 1, 1]
    assert split.train[0].dtype == torch.int64
    with pytest.raises(ValueError, match=r"`load_imdb_tokens\(length=...\)` must be at least 1, got 0"):
        load_imdb_tokens(0)


def test_words_are_counted_once_and_kept(reviews, data_folder, monkeypatch):
    before = load_imdb(10).train[0].to_dense()
    kept = data_folder / f"imdb/tokens-{imdb.VERSION}.npz"
    assert kept.exists()
    monkeypatch.setattr(imdb, "count_words", lambda reviews: pytest.fail("counted again"))
    assert torch.equal(load_imdb(10).train[0].to_dense(), before)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "foreign", "other data"])
def test_kept_words_that_are_not_right_are_counted_again(reviews, data_folder, monkeypatch, damage):
    before = load_imdb(10).train[0].to_dense()
    kept = data_folder / f"imdb/tokens-{imdb.VERSION}.npz"
    good = kept.read_bytes()
    place = good.index(imdb.load_tokens().ranks.tobytes())
    if damage == "other data":
        imdb._write_tokens(kept, "another key", replace(imdb.load_tokens(), words=["wrong"]))
    else:
        kept.write_bytes(
            {
                "flipped": good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :],
                "truncated": good[:-30],
                "empty": b"",
                "foreign": gzip.compress(b"mine"),
            }[damage]
        )
    assert torch.equal(load_imdb(10).train[0].to_dense(), before)
    assert kept.read_bytes() == good


def test_a_disk_without_room_for_kept_words(reviews, data_folder, monkeypatch):
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "replacing", full)
    assert load_imdb(10).train[0].shape == (4, 10)
    assert not list((data_folder / "imdb").glob("tokens*"))


# --- all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "load"),
    [("mnist", load_mnist), ("fashion-mnist", load_fashion_mnist), ("cifar10", load_cifar10), ("imdb", load_imdb)],
)
def test_a_data_set_that_is_not_here_is_named_with_the_command(name, load, data_folder):
    with pytest.raises(DataError, match=f"to fetch it: dasgrad data fetch {name}"):
        load()
