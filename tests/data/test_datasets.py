"""Fashion-MNIST from IDX files."""

import gzip
import os
import struct

import numpy as np
import pytest
from gluon_svrg.data import load_fashion_mnist
from gluon_svrg.data.datasets import FASHION_MNIST_DIRECTORY


def write(path, array, magic=b"\0\0\x08", cut=0):
    header = magic + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype("uint8").tobytes()
    path.write_bytes(gzip.compress(content[: len(content) - cut]))


def write_all(directory):
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3": rng.integers(0, 256, (6, 4, 5)),
        "train-labels-idx1": np.arange(6),
        "t10k-images-idx3": rng.integers(0, 256, (3, 4, 5)),
        "t10k-labels-idx1": np.arange(3),
    }
    for name, array in arrays.items():
        write(directory / f"{name}-ubyte.gz", array)
    return list(arrays.values())


def test_what_was_written_is_read(tmp_path):
    written = write_all(tmp_path)
    train, test = load_fashion_mnist(tmp_path)
    for ours, theirs in zip([*train, *test], written, strict=True):
        assert ours.dtype == "uint8"
        assert np.array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.isdir(FASHION_MNIST_DIRECTORY),
    reason="Fashion-MNIST is not there: install Debian's package dataset-fashion-mnist",
)
def test_the_real_files():
    (images, labels), (test_images, test_labels) = load_fashion_mnist()
    assert images.shape == (60_000, 28, 28)
    assert test_images.shape == (10_000, 28, 28)
    assert np.bincount(labels).tolist() == [6000] * 10
    assert np.bincount(test_labels).tolist() == [1000] * 10


def test_a_missing_file_says_how_to_get_it(tmp_path):
    write_all(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels.* is missing.*: install Debian's"):
        load_fashion_mnist(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"magic": b"\0\0\x0d"}, "is no IDX file of unsigned bytes: download the file again"),
        ({"cut": 2}, r"holds 118 bytes, its header says \(6, 4, 5\): download it again"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path, damage, message):
    images, *_ = write_all(tmp_path)
    write(tmp_path / "train-images-idx3-ubyte.gz", images, **damage)
    with pytest.raises(ValueError, match=message):
        load_fashion_mnist(tmp_path)
