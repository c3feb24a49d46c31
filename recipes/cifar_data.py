"""The image data of the recipes: where it comes from, and how a batch is made of it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gluon_svrg.data import ArrayLoader, load_fashion_mnist
from gluon_svrg.data.datasets import FASHION_MNIST_DIRECTORY
from gluon_svrg.data.transforms import Compose, Normalize, ToFloat, Transform
from mxnet import gluon

Split = tuple[np.ndarray, np.ndarray]

NAMES = ("digits", "fashion-mnist", "cifar10", "synthetic")
_DIGITS = [str(digit) for digit in range(10)]
_FASHION = [
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
]
_CIFAR10 = [
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
]
_CIFAR10_DIRECTORY = "~/.mxnet/datasets/cifar10"
_CIFAR10_FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


class Data(NamedTuple):
    """Images (uint8, N x C x 32 x 32) with their labels, and what normalises them.

    `mean` and `std` are one number a channel, of pixels in [0, 1].
    """

    train: Split
    test: Split
    mean: list[float]
    std: list[float]
    class_names: list[str]


def load(options: argparse.Namespace) -> Data:
    """Return the data that ``--data`` names; end with a sentence where it is not there."""
    try:
        if options.data == "cifar10":
            # gluoncv's figures, which are not quite those of the training images.
            mean, std = [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]
            return Data(*_cifar10(options), mean, std, _CIFAR10)
        if options.data == "fashion-mnist":
            splits = load_fashion_mnist(options.data_dir or FASHION_MNIST_DIRECTORY)
            return _normalised(_padded(splits[0]), _padded(splits[1]), _FASHION)
    except FileNotFoundError as error:
        raise SystemExit(f"--data {options.data}: {error} (with --data-dir)") from None
    if options.data == "digits":
        return _normalised(*_digits(), _DIGITS)
    return _normalised(*_synthetic(options.samples), _DIGITS)


def loader(
    data: Data,
    split: Split,
    before: Sequence[Transform] = (),
    after: Sequence[Transform] = (),
    **settings: Any,
) -> ArrayLoader:
    """Return a loader of `split`: float32 images, normalised between the steps `before`, `after`.

    `settings` are ArrayLoader's.
    """
    images, labels = split
    normalise = [ToFloat(), Normalize(data.mean, data.std)]
    steps = Compose(*before, *normalise, *after)
    return ArrayLoader(images, labels.astype("float32"), transform=steps, **settings)


def _normalised(train: Split, test: Split, class_names: list[str]) -> Data:
    # From counts of the 256 bytes: a float copy of 60,000 images takes 500 MB.
    mean, std = [], []
    for channel in np.moveaxis(train[0], 1, 0):
        share = np.bincount(channel.ravel(), minlength=256) / channel.size
        pixels = np.arange(256) / 255
        mean.append(float(share @ pixels))
        std.append(float(np.sqrt(share @ (pixels - mean[-1]) ** 2)))
    return Data(train, test, mean, std, class_names)


def _padded(split: Split) -> Split:
    images, labels = split
    return np.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None], labels


def _digits() -> tuple[Split, Split]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    pixels = (images[order].reshape(-1, 1, 8, 8) * 15.9375).astype("uint8")
    pixels = pixels.repeat(4, axis=2).repeat(4, axis=3)
    labels = labels[order]
    return (pixels[297:], labels[297:]), (pixels[:297], labels[:297])


def _synthetic(samples: int) -> tuple[Split, Split]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, samples + 100)
    images = rng.integers(0, 256, (len(labels), 3, 32, 32))
    images[np.arange(len(labels)), :, labels] = 255  # a bright row tells the class
    images = images.astype("uint8")
    return (images[100:], labels[100:]), (images[:100], labels[:100])


def _cifar10(options: argparse.Namespace) -> tuple[Split, Split]:
    """Read CIFAR-10's binary version from a folder; MXNet downloads it there if asked to."""
    # Unlike Path.expanduser, it does not fail if there is no home.
    directory = Path(os.path.expanduser(options.data_dir or _CIFAR10_DIRECTORY))
    # Alex Krizhevsky's archive has such a folder, MXNet's copy has not.
    inner = directory / "cifar-10-batches-bin"
    if inner.is_dir():
        directory = inner
    missing = [name for name in _CIFAR10_FILES if not (directory / name).is_file()]
    if missing and options.download:
        try:
            gluon.data.vision.CIFAR10(root=str(directory))
        except (OSError, RuntimeError) as error:  # what requests and MXNet raise, without a network
            raise SystemExit(
                f"--data cifar10: the download failed ({type(error).__name__}), is there a "
                "network? Fetch cifar-10-binary.tar.gz where there is one, and unpack its six "
                f".bin files into {str(directory)!r}, or name their folder with --data-dir"
            ) from None
        missing = []
    if missing:
        raise FileNotFoundError(
            f"CIFAR-10 is not in {str(directory)!r} ({missing[0]} is missing): name the folder "
            "that has its binary version, or let MXNet download it there with --download"
        )
    # A record is a label and the 32 x 32 pixels of red, green and blue.
    records = [np.fromfile(directory / name, np.uint8).reshape(-1, 3073) for name in _CIFAR10_FILES]
    train, test = (
        (part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0])
        for part in (np.concatenate(records[:5]), records[5])
    )
    return train, test
