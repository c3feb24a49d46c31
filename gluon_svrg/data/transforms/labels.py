"""Transforms that make labels soft: a probability for each class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.data.draw import Draw
from gluon_svrg.data.transforms.base import (
    RandomTransform,
    Transform,
    check_fraction,
    check_images,
    labels_of,
)


class MixUp(RandomTransform):
    """Mixes each sample with another of its batch, and their labels in the same proportion.

    With lambda from Beta(alpha, alpha), one per sample, images and labels become
    lambda * own + (1 - lambda) * partner's (H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz,
    "mixup: beyond empirical risk minimization", ICLR 2018, equation 1). The partner is the sample
    that is a random number of places further in the batch, the same number for all; so here, and
    only here, what a sample gets depends on its batch too. A batch of one is not mixed.

    The labels are N x `classes`, float32: the loss has to take such, as
    ``gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)`` does.

    Parameters
    ----------
    classes : int
        How many there are.
    alpha : float
        Positive. Small: mostly lambda near 0 or 1; 1: uniform.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or, when it is applied, if images are not float, or
        labels neither classes nor N x `classes`.
    """

    def __init__(self, classes: int, alpha: float = 1.0) -> None:
        self._classes = check_integer("classes", classes, 1, "the number of classes")
        self._alpha = check_number("alpha", alpha, "lambda is from Beta(alpha, alpha)", 0, True)

    @property
    def mixes_samples(self) -> bool:
        """Whether what a sample gets depends on the other samples of its batch: it does."""
        return True

    def apply(self, arrays: list[NumPyArray], draw: Draw) -> Sequence[NumPyArray]:
        """Return the arrays: images as given, labels N x `classes`, float32, both mixed."""
        images, labels, rest = arrays[0], labels_of(self, arrays), arrays[2:]
        check_images(self, images)
        if images.dtype == np.uint8:
            raise ValueError("MixUp takes float images, got uint8: put ToFloat before MixUp")
        if labels.ndim == 1:
            labels = _one_hot(self, labels, self._classes)
        elif labels.shape[1:] != (self._classes,):
            raise ValueError(
                f"MixUp takes labels of shape (N,) or (N, {self._classes}), got {labels.shape}: "
                "give it the classes' numbers, or OneHot's labels of that many classes"
            )
        generator = draw.generator()
        samples = len(images)
        own = generator.beta(self._alpha, self._alpha, samples)
        shift = int(generator.integers(1, samples)) if samples > 1 else 0
        labels = labels.astype(np.float32, copy=False)
        return [_mixed(images, own, shift), _mixed(labels, own, shift), *rest]


class OneHot(Transform):
    """Makes of each label, a class's number, a row with its class's probability.

    With smoothing e and K classes, the class has 1 - e + e / K, each other e / K (C. Szegedy et
    al., "Rethinking the Inception architecture for computer vision", CVPR 2016, section 7).

    Parameters
    ----------
    classes : int
        How many there are, K.
    smoothing : float in [0, 1]
        0 for none.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or, when it is applied, if the labels are no classes.
    """

    is_by_sample = True

    def __init__(self, classes: int, smoothing: float = 0.0) -> None:
        self._classes = check_integer("classes", classes, 1, "the number of classes")
        self._smoothing = check_fraction(
            "smoothing", smoothing, "that part of the probability is spread over all classes"
        )

    def apply(self, arrays: list[NumPyArray], draw: Draw) -> Sequence[NumPyArray]:
        """Return the arrays, the labels N x `classes`, float32."""
        labels = labels_of(self, arrays)
        if labels.ndim != 1:
            raise ValueError(
                f"OneHot takes the classes' numbers, shape (N,), got labels of shape "
                f"{labels.shape}, soft already: put OneHot before MixUp, and only once"
            )
        rows = _one_hot(self, labels, self._classes)
        rows = rows * np.float32(1 - self._smoothing) + np.float32(self._smoothing / self._classes)
        return [arrays[0], rows, *arrays[2:]]


def _one_hot(transform: Transform, labels: NumPyArray, classes: int) -> NumPyArray:
    indices = labels.astype(np.int64)
    is_wrong = (indices != labels) | (indices < 0) | (indices >= classes)
    if is_wrong.any():
        raise ValueError(
            f"{type(transform).__name__} takes labels from 0 to {classes - 1}, got "
            f"{labels[is_wrong][0]}: they are the numbers of the classes={classes}"
        )
    return np.eye(classes, dtype=np.float32)[indices]


def _mixed(array: NumPyArray, own: NumPyArray, shift: int) -> NumPyArray:
    share = own.astype(array.dtype).reshape(-1, *[1] * (array.ndim - 1))
    mixed: NumPyArray = array * share + np.roll(array, -shift, axis=0) * (1 - share)
    return mixed
