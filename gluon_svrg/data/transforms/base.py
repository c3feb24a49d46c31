"""Transform: a function of a batch whose random numbers, if any, are a function of the draw."""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_active_mode
from gluon_svrg._typing import NumPyArray
from gluon_svrg.data.draw import Draw
from mxnet.ndarray import NDArray


class Transform(ABC):
    """A function of the arrays of a batch, normally images and labels.

    It is called with NumPy arrays or with NDArrays, and returns the same kind, on the same
    context: a tuple of the same number, or for a single array that array alone. Your own
    implements :meth:`apply`, which must not change its arrays in place, and draw no random number
    but those of the `draw` that it is given; one that draws derives from
    :class:`RandomTransform`.

    Attributes
    ----------
    is_by_sample : bool
        Whether a sample gets the same, bit for bit, whatever else is in its batch. Several workers
        then transform only their own samples; otherwise each transforms the whole batch. False
        unless a class says otherwise; a subclass that draws for the batch as a whole, with
        ``draw.generator()``, sets it to False again.
    keeps_labels : bool
        Whether all arrays but the first stay as they are, so that the labels of a data set are
        known without a pass. False unless a class says otherwise.
    """

    is_by_sample: bool = False
    keeps_labels: bool = False

    @property
    def is_random(self) -> bool:
        """Whether it draws."""
        return False

    @property
    def mixes_samples(self) -> bool:
        """Whether what a sample gets depends on the other samples of its batch."""
        return False

    @abstractmethod
    def apply(self, arrays: list[NumPyArray], draw: Draw) -> Sequence[NumPyArray]:
        """Return the arrays of the batch: the same number, each with the same samples.

        Parameters
        ----------
        arrays : list of numpy.ndarray
            The batch, not to be changed in place.
        draw : Draw
            Its random numbers.
        """

    def __call__(self, *arrays: NDArray | NumPyArray, draw: Draw | None = None) -> Any:
        """Return the batch, transformed.

        Parameters
        ----------
        *arrays : numpy.ndarray or NDArray
            The batch.
        draw : Draw, optional
            Its random numbers; a random transform needs it.

        Raises
        ------
        TypeError
            If an array is neither a NumPy array nor an NDArray.
        ValueError
            If there is no array, no draw if one is needed, or something that the transform
            cannot take.
        """
        name = type(self).__name__
        if not arrays:
            raise ValueError(f"{name} got no array: give the arrays of a batch, images first")
        inputs = [_as_numpy(name, array) for array in arrays]
        if draw is None:
            if self.is_random:
                raise ValueError(
                    f"{name} draws random numbers and got no draw: use it in a "
                    "gluon_svrg.data.ArrayLoader, or give draw=Draw(seed, number, samples)"
                )
            draw = Draw(0, 0, np.arange(len(inputs[0])))
        elif not isinstance(draw, Draw):
            raise TypeError(f"draw must be a Draw, got {draw!r}: Draw(seed, number, samples)")
        applied = self.apply(inputs, draw)
        if not isinstance(applied, (list, tuple)):
            raise TypeError(
                f"{name}.apply must return a list of arrays, got a {type(applied).__name__}: "
                "return every array that was given, in a list"
            )
        outputs = list(applied)
        expected, lengths = ([len(array) for array in part] for part in (inputs, outputs))
        if lengths != expected:
            raise ValueError(
                f"{name}.apply must return an array for each that it gets, of the same number of "
                f"samples, {expected}, got {lengths}: return every array that was given"
            )
        results = tuple(
            to_active_mode(mx.nd.array(output, dtype=output.dtype, ctx=array.ctx))
            if isinstance(array, NDArray)
            else output
            for array, output in zip(arrays, outputs, strict=True)
        )
        return results if len(results) > 1 else results[0]


class RandomTransform(Transform):
    """A transform that draws: in :meth:`apply`, from ``draw.uniform(counter)`` and its siblings."""

    @property
    def is_random(self) -> bool:
        """Whether it draws: it does."""
        return True


class Compose(Transform):
    """One transform after the other.

    Parameters
    ----------
    *transforms : Transform
        Or one list of them. Those of a ``Compose`` among them are taken out of it.

    Attributes
    ----------
    transforms : tuple of Transform
        In the order in which they are applied.

    Raises
    ------
    TypeError
        If one is no Transform.
    """

    def __init__(self, *transforms: Transform | Sequence[Transform]) -> None:
        if len(transforms) == 1 and isinstance(transforms[0], (list, tuple)):
            transforms = tuple(transforms[0])
        self.transforms: tuple[Transform, ...] = tuple(_flat(transforms))
        self.is_by_sample = all(transform.is_by_sample for transform in self.transforms)
        self.keeps_labels = all(transform.keeps_labels for transform in self.transforms)

    @property
    def is_random(self) -> bool:
        """Whether one of them draws."""
        return any(transform.is_random for transform in self.transforms)

    @property
    def mixes_samples(self) -> bool:
        """Whether one of them mixes the samples of a batch."""
        return any(transform.mixes_samples for transform in self.transforms)

    def apply(self, arrays: list[NumPyArray], draw: Draw) -> Sequence[NumPyArray]:
        """Return the arrays after all transforms; each has random numbers of its own."""
        for position, transform in enumerate(self.transforms):
            arrays = list(transform.apply(arrays, draw.at(position)))
        return arrays


def check_images(transform: Transform, images: NumPyArray) -> None:
    """Raise ValueError if `images` are no uint8 or float images: four axes, samples first."""
    name = type(transform).__name__
    if images.ndim != 4:
        raise ValueError(
            f"{name} takes images N x C x H x W, got shape {images.shape}: give images without "
            "channels an axis for them, with x[:, None], and put channels first"
        )
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise ValueError(
            f"{name} takes uint8 or float images, got {images.dtype}: convert them with "
            "x.astype('uint8')"
        )


def labels_of(transform: Transform, arrays: Sequence[NumPyArray]) -> NumPyArray:
    """Return the second array of the batch; raises ValueError if there is none."""
    if len(arrays) < 2:
        raise ValueError(
            f"{type(transform).__name__} takes images and labels, got {len(arrays)} array: give "
            "the loader the labels as its second array"
        )
    return arrays[1]


def check_fraction(name: str, value: object, meaning: str) -> float:
    """Return `value` as a float in [0, 1]; raises TypeError or ValueError."""
    message = f"{name} must be a number in [0, 1], got {value!r}: {meaning}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    if not 0 <= float(value) <= 1:
        raise ValueError(message)
    return float(value)


def _as_numpy(name: str, array: object) -> NumPyArray:
    if isinstance(array, NDArray):
        return array.asnumpy()
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"{name} takes NumPy arrays or NDArrays, got a {type(array).__name__}: make it an "
            "array with np.asarray(x)"
        )
    return array


def _flat(transforms: Sequence[object]) -> Iterator[Transform]:
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from transform.transforms
        elif isinstance(transform, Transform):
            yield transform
        else:
            raise TypeError(
                f"Compose takes objects of gluon_svrg.data.transforms, got {transform!r}: derive "
                "a transform of your own from Transform, or from RandomTransform if it draws"
            )
