"""Transforms of whole batches of images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.data.draw import Draw
from gluon_svrg.data.transforms.base import (
    RandomTransform,
    Transform,
    check_fraction,
    check_images,
)

_LUMA = np.array([0.299, 0.587, 0.114])  # of R, G, B, ITU-R BT.601; MXNet's image operators' too
_CHANNELS = (1, 3, 4)  # gray, colour, colour with alpha


class _ImageTransform(Transform):
    """Changes the first array of a batch, images of the layout that it is told."""

    is_by_sample = True
    keeps_labels = True

    def __init__(self, layout: str | None) -> None:
        if layout not in (None, "NCHW", "NHWC"):
            raise ValueError(
                f"layout must be 'NCHW' or 'NHWC', got {layout!r}: whether the images have their "
                "channels first, as MXNet's convolutions take them, or last"
            )
        self._layout = layout

    def apply(self, arrays: list[NumPyArray], draw: Draw) -> Sequence[NumPyArray]:
        """Return the arrays, the images changed, in their own layout."""
        images, *rest = arrays
        check_images(self, images)
        _check_layout(type(self).__name__, images.shape, self._layout)
        if self._layout != "NHWC":
            return [self._change(images, draw), *rest]
        # A copy: sums over pixels are added up in the order of the memory, and so to the same bits.
        changed = self._change(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), draw)
        return [np.ascontiguousarray(changed.transpose(0, 2, 3, 1)), *rest]

    @abstractmethod
    def _change(self, images: NumPyArray, draw: Draw) -> NumPyArray:
        """Return images N x C x H x W, changed."""


class RandomCrop(_ImageTransform, RandomTransform):
    """Pads the images and cuts a window out, at any place with the same probability.

    Parameters
    ----------
    size : int or (int, int), optional
        Height and width of the window in pixels; by default those of the images.
    pad : int
        How many pixels are added on each side; 0 for none.
    fill : float
        What they hold, in the units of the images.
    layout : 'NCHW' or 'NHWC', optional
        Whether the images have channels first or last. By default first; images that look like
        N x H x W x C are refused then.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or, when it is applied, if the window does not fit.
    """

    def __init__(
        self,
        size: int | tuple[int, int] | None = None,
        pad: int = 4,
        fill: float = 0,
        layout: str | None = None,
    ) -> None:
        super().__init__(layout)
        self._size = None if size is None else _height_and_width(size)
        self._pad = check_integer("pad", pad, 0, "that many pixels are added on each side")
        self._fill = check_number("fill", fill, "what the pixels that are added hold")

    def _change(self, images: NumPyArray, draw: Draw) -> NumPyArray:
        """Return the arrays, the images cropped: N x C x size, dtype as given."""
        height, width = self._size or images.shape[2:]
        padded = self._padded(images)
        rows, columns = padded.shape[2] - height + 1, padded.shape[3] - width + 1
        if rows < 1 or columns < 1:
            raise ValueError(
                f"RandomCrop cannot cut {height} x {width} pixels out of {padded.shape[2]} x "
                f"{padded.shape[3]} (with pad={self._pad}): use a smaller size or a larger pad"
            )
        tops, lefts = draw.integers(0, rows), draw.integers(1, columns)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (2, 3))  # type: ignore[call-overload]  # NumPy's hints know no tuple
        cropped: NumPyArray = windows[np.arange(len(images)), :, tops, lefts]
        return cropped

    def _padded(self, images: NumPyArray) -> NumPyArray:
        if images.dtype == np.uint8 and not (0 <= self._fill <= 255 and self._fill % 1 == 0):
            raise ValueError(
                f"RandomCrop cannot fill uint8 images with {self._fill:g}: use an integer from 0 "
                "to 255, or put ToFloat before RandomCrop"
            )
        pad = self._pad
        if pad == 0:
            return images
        samples, channels, height, width = images.shape
        shape = (samples, channels, height + 2 * pad, width + 2 * pad)
        padded = np.full(shape, self._fill, images.dtype)
        padded[:, :, pad:-pad, pad:-pad] = images
        return padded


class RandomFlipLeftRight(_ImageTransform, RandomTransform):
    """Mirrors each image with a probability.

    Parameters
    ----------
    probability : float in [0, 1]
        The probability that a sample is mirrored.
    layout : 'NCHW' or 'NHWC', optional
        Whether the images have channels first or last. By default first; images that look like
        N x H x W x C are refused then.

    Raises
    ------
    TypeError, ValueError
        If it is no such number.
    """

    def __init__(self, probability: float = 0.5, layout: str | None = None) -> None:
        super().__init__(layout)
        self._probability = check_fraction(
            "probability", probability, "an image is mirrored with this probability"
        )

    def _change(self, images: NumPyArray, draw: Draw) -> NumPyArray:
        """Return the arrays, some images mirrored; shape and dtype as given."""
        is_flipped = draw.uniform(0) < self._probability
        flipped = images.copy()
        flipped[is_flipped] = images[is_flipped][..., ::-1]
        return flipped


class RandomColorJitter(_ImageTransform, RandomTransform):
    """Changes brightness, contrast and saturation of each image, in random order.

    As in Gluon: each by a factor that is uniform in [max(0, 1 - x), 1 + x]; contrast moves pixels
    away from the mean gray of the image, saturation away from the gray of the pixel. The dtype
    stays; uint8 is rounded and clipped once, after all three, and floats are not clipped. (MXNet
    1.9.1's operator for saturation takes 0.114 times blue for the gray of a pixel; this does not.)

    Parameters
    ----------
    brightness, contrast, saturation : float
        Non-negative, the x of each; 0 leaves it as it is. With 1 channel, saturation does nothing.
    layout : 'NCHW' or 'NHWC', optional
        Whether the images have channels first or last. By default first; images that look like
        N x H x W x C are refused then.

    Raises
    ------
    TypeError, ValueError
        If one is no such number, or, when it is applied, if images have neither 1 nor 3 channels.
    """

    def __init__(
        self,
        brightness: float = 0,
        contrast: float = 0,
        saturation: float = 0,
        layout: str | None = None,
    ) -> None:
        super().__init__(layout)
        meaning = "the factor is uniform in [1 - x, 1 + x]"
        self._amounts = (
            check_number("brightness", brightness, meaning, 0),
            check_number("contrast", contrast, meaning, 0),
            check_number("saturation", saturation, meaning, 0),
        )
        if not np.isfinite(self._amounts).all():
            raise ValueError(
                f"brightness, contrast and saturation must be finite, got {self._amounts}: "
                f"{meaning}"
            )

    def _change(self, images: NumPyArray, draw: Draw) -> NumPyArray:
        """Return the arrays, the images' colours changed; shape and dtype as given."""
        if images.shape[1] not in (1, 3):
            raise ValueError(
                f"RandomColorJitter takes images with 1 or 3 channels, got {images.shape[1]} "
                f"(shape {images.shape}): put channels first, red, green, blue"
            )
        jittered = images.astype(np.result_type(images.dtype, np.float32))
        order = np.argsort(np.stack([draw.uniform(3 + k) for k in range(3)]), axis=0)
        factors = [_factors(draw.uniform(k), amount) for k, amount in enumerate(self._amounts)]
        for step in order:
            for k, change in enumerate((_scaled, _with_contrast, _with_saturation)):
                chosen = step == k
                if self._amounts[k] and chosen.any():
                    factor = factors[k][chosen].astype(jittered.dtype)[:, None, None, None]
                    jittered[chosen] = change(jittered[chosen], factor)
        if images.dtype == np.uint8:
            jittered = np.clip(np.rint(jittered), 0, 255)
        return jittered.astype(images.dtype)


class Cutout(_ImageTransform, RandomTransform):
    """Sets a square of each image to 0, which is the mean after `Normalize`.

    Its centre is uniform over the pixels, so part of the square may be outside of the image
    (T. DeVries, G. W. Taylor, "Improved regularization of convolutional neural networks with
    Cutout", 2017).

    Parameters
    ----------
    length : int
        Positive, the square's side in pixels.
    layout : 'NCHW' or 'NHWC', optional
        Whether the images have channels first or last. By default first; images that look like
        N x H x W x C are refused then.

    Raises
    ------
    TypeError, ValueError
        If it is no such integer.
    """

    def __init__(self, length: int, layout: str | None = None) -> None:
        super().__init__(layout)
        self._length = check_integer("length", length, 1, "the square's side in pixels")

    def _change(self, images: NumPyArray, draw: Draw) -> NumPyArray:
        """Return the arrays, a square of each image 0; shape and dtype as given."""
        rows, columns = (
            self._is_inside(draw.integers(counter, size), size)
            for counter, size in enumerate(images.shape[2:])
        )
        square = (rows[:, :, None] & columns[:, None, :])[:, None]
        return np.where(square, images.dtype.type(0), images)

    def _is_inside(self, centres: NumPyArray, size: int) -> NumPyArray:
        distances = np.arange(size) - (centres - self._length // 2)[:, None]
        return (distances >= 0) & (distances < self._length)


class ToFloat(Transform):
    """Makes float32 images of integer ones.

    Parameters
    ----------
    scale : float
        Positive, what each value is multiplied by; by default 0 to 255 becomes 0 to 1.

    Raises
    ------
    TypeError, ValueError
        If it is no such number, or, when it is applied, if the images are float already.
    """

    is_by_sample = True
    keeps_labels = True

    def __init__(self, scale: float = 1 / 255) -> None:
        self._scale = np.float32(
            check_number("scale", scale, "values are multiplied by it", 0, True)
        )

    def apply(self, arrays: list[NumPyArray], draw: Draw) -> Sequence[NumPyArray]:
        """Return the arrays, the images float32."""
        images, *rest = arrays
        check_images(self, images)
        if images.dtype != np.uint8:
            raise ValueError(
                f"ToFloat takes uint8 images, got {images.dtype}: they are float already, so leave "
                "it out, or put it before what makes them so"
            )
        return [np.multiply(images, self._scale, dtype=np.float32), *rest]


class Normalize(_ImageTransform):
    """Subtracts a mean and divides by a standard deviation, channel by channel.

    Parameters
    ----------
    mean, std : float or sequence of float
        For all channels, or one per channel, in the units of the images that come in: after
        ``ToFloat()`` those of 0 to 1, before it of 0 to 255. `std` is positive.
    layout : 'NCHW' or 'NHWC', optional
        Whether the images have channels first or last. By default first; images that look like
        N x H x W x C are refused then.

    Raises
    ------
    TypeError, ValueError
        If they are no such numbers, or, when it is applied, if the images have other channels.
    """

    def __init__(
        self, mean: float | Sequence[float], std: float | Sequence[float], layout: str | None = None
    ) -> None:
        super().__init__(layout)
        self._mean = _per_channel("mean", mean)
        self._std = _per_channel("std", std)
        if not (self._std > 0).all():
            raise ValueError(
                f"std must be positive, got {std!r}: use 1 for a channel without spread"
            )
        if len({self._mean.size, self._std.size} - {1}) > 1:
            raise ValueError(
                f"mean and std must be of the same number of channels, got {mean!r} and {std!r}: "
                "give one number per channel, or one for all"
            )

    def _change(self, images: NumPyArray, draw: Draw) -> NumPyArray:
        """Return the arrays, the images normalised: float32 of uint8, else of their own dtype."""
        channels = max(self._mean.size, self._std.size)
        if channels not in (1, images.shape[1]):
            raise ValueError(
                f"Normalize has a mean or std of {channels} channels, got images of "
                f"{images.shape[1]} (shape {images.shape}): give one number per channel, or "
                "one for all"
            )
        dtype = np.dtype(np.float32) if images.dtype == np.uint8 else images.dtype
        normalised = np.subtract(images, _broadcast(self._mean, dtype), dtype=dtype)
        normalised /= _broadcast(self._std, dtype)
        return normalised


def _check_layout(name: str, shape: tuple[int, ...], layout: str | None) -> None:
    """Raise ValueError if images are of the other layout, by the numbers of their channels."""
    first, last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
    if layout is None and last and not first:
        raise ValueError(
            f"{name} takes images N x C x H x W, got shape {shape}, which looks like N x H x W x "
            "C: give layout='NHWC', or put channels first with x.transpose(0, 3, 1, 2), as MXNet's "
            "convolutions take them; or say layout='NCHW' if the images are that narrow"
        )
    if layout == "NHWC" and first and not last:
        raise ValueError(
            f"{name} has layout='NHWC', got shape {shape}, which looks like N x C x H x W: leave "
            "layout out"
        )


def _height_and_width(size: object) -> tuple[int, int]:
    pair = size if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2:
        raise ValueError(
            f"size must be one or two integers, got {size!r}: height and width in pixels"
        )
    height, width = (check_integer("size", n, 1, "the window's side in pixels") for n in pair)
    return height, width


def _per_channel(name: str, value: object) -> NumPyArray:
    message = (
        f"{name} must be a number or one per channel, got {value!r}: in the units of the images"
    )
    try:
        array = np.atleast_1d(np.asarray(value, np.float64))
    except (TypeError, ValueError):
        raise TypeError(message) from None
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(message)
    return array


def _broadcast(values: NumPyArray, dtype: np.dtype[Any]) -> NumPyArray:
    return values.astype(dtype)[:, None, None]


def _factors(uniform: NumPyArray, amount: float) -> NumPyArray:
    low = max(0.0, 1 - amount)
    return low + (1 + amount - low) * uniform


def _gray(images: NumPyArray) -> NumPyArray:
    """Return the gray of each pixel, N x 1 x H x W."""
    if images.shape[1] == 1:
        return images
    gray: NumPyArray = np.einsum("nchw,c->nhw", images, _LUMA.astype(images.dtype))
    return gray[:, None]


def _scaled(images: NumPyArray, factor: NumPyArray) -> NumPyArray:
    scaled: NumPyArray = images * factor
    return scaled


def _with_contrast(images: NumPyArray, factor: NumPyArray) -> NumPyArray:
    mean: NumPyArray = _gray(images).mean(axis=(1, 2, 3), keepdims=True)
    return _scaled(images, factor) + _scaled(mean, 1 - factor)


def _with_saturation(images: NumPyArray, factor: NumPyArray) -> NumPyArray:
    return _scaled(images, factor) + _scaled(_gray(images), 1 - factor)
