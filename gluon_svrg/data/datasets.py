"""Read data sets from files on disk."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from gluon_svrg._typing import NumPyArray

FASHION_MNIST_DIRECTORY = "/usr/share/datasets/fashion-mnist"
"""Where Debian's package dataset-fashion-mnist puts the files."""


def load_fashion_mnist(
    directory: str | Path = FASHION_MNIST_DIRECTORY,
) -> tuple[tuple[NumPyArray, NumPyArray], tuple[NumPyArray, NumPyArray]]:
    """Read Fashion-MNIST from its four gzipped IDX files.

    Parameters
    ----------
    directory : str or Path
        The folder with ``train-images-idx3-ubyte.gz`` and its three siblings.

    Returns
    -------
    train, test : pairs of numpy.ndarray
        Images, uint8 of shape (60000, 28, 28) and (10000, 28, 28), and labels, uint8.

    Raises
    ------
    FileNotFoundError
        If a file is not there; says how to get it.
    ValueError
        If a file is no IDX file of unsigned bytes.

    References
    ----------
    H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine
    learning algorithms", 2017. IDX: the format of the MNIST files.
    """
    directory = Path(directory)
    train, test = (
        tuple(_read_idx(directory / f"{part}-{content}-ubyte.gz") for content in contents)
        for part, contents in (
            ("train", ("images-idx3", "labels-idx1")),
            ("t10k", ("images-idx3", "labels-idx1")),
        )
    )
    return train, test  # type: ignore[return-value]


def _read_idx(path: Path) -> NumPyArray:
    if not path.is_file():
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {str(path.parent)!r} ({path.name} is missing): install "
            "Debian's package dataset-fashion-mnist, or name the folder that has the four "
            "gzipped IDX files"
        )
    with gzip.open(path) as file:
        content = file.read()
    # Two zeros, the type (8: unsigned byte), the number of dimensions, then each as big-endian.
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{str(path)!r} is no IDX file of unsigned bytes: download the file again")
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if data.size != np.prod(shape):
        raise ValueError(
            f"{str(path)!r} holds {data.size} bytes, its header says {shape}: download it again"
        )
    return data.reshape(shape)
