"""Turns image files and arrays of pixels into the input of a network."""

from __future__ import annotations

import numbers
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import require

Image: TypeAlias = "str | os.PathLike[str] | NumPyArray"

_MODES = {1: "L", 3: "RGB"}
# Pillow's switches and Python's warning filters are global to the process.
_PILLOW = threading.Lock()
_ORIENTATION = 0x0112  # of EXIF
_NEEDS_PILLOW = "an image file or resize=True"


class Normalization(NamedTuple):
    """How pixels are normalised, as in training: ``(pixel * scale - mean) / std``.

    Attributes
    ----------
    mean, std : sequence of float
        One number per channel; of pixels times `scale`.
    scale : float
        1 / 255 if the mean and std are of pixels in [0, 1], as after Gluon's ``ToTensor``; 1 if
        they are of pixels in [0, 255].
    """

    mean: Sequence[float]
    std: Sequence[float]
    scale: float = 1 / 255


def check_normalization(given: object, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return `given`, a Normalization or such a tuple or dict, as plain data for the card.

    Raises
    ------
    TypeError, ValueError
        If it is none of these, or the model does not have one input of images, (channels, height,
        width).
    """
    try:
        normalization = _as_normalization(given)
    except TypeError as e:
        raise TypeError(
            f"normalization must be a Normalization, (mean, std) or (mean, std, scale), got "
            f"{given!r}: give the mean and the standard deviation of each channel"
        ) from e
    if len(shapes) != 1 or len(shapes[0]) != 3 or shapes[0][0] not in _MODES:
        raise ValueError(
            f"normalization is for one input of images, (1 or 3 channels, height, width), got "
            f"inputs of {[tuple(shape) for shape in shapes]}: leave it out"
        )
    channels = shapes[0][0]
    for name, values in (("mean", normalization.mean), ("std", normalization.std)):
        if not _are_finite(values, (channels,)):
            raise ValueError(
                f"{name} must have a finite number for each of the {channels} channels, got "
                f"{values!r}: give those with which the training data was normalised"
            )
    scale = normalization.scale
    is_above_0 = isinstance(scale, numbers.Real) and 0 < scale < np.inf
    if not is_above_0 or not (np.asarray(normalization.std) > 0).all():
        raise ValueError(
            f"std and scale must be above 0 and finite, got {normalization.std!r} and "
            f"{normalization.scale!r}: pixels are multiplied by scale and divided by std"
        )
    return {
        "scale": float(normalization.scale),
        "mean": [float(value) for value in normalization.mean],
        "std": [float(value) for value in normalization.std],
    }


def _as_normalization(given: Any) -> Normalization:
    return Normalization(**given) if isinstance(given, dict) else Normalization(*given)


def _are_finite(values: object, shape: tuple[int, ...]) -> bool:
    try:
        array = np.array(values, dtype="float64")
    except (TypeError, ValueError):
        return False
    return array.shape == shape and bool(np.isfinite(array).all())


def is_single_image(images: object) -> bool:
    """Return whether `images` is a single image: a path, or an array of fewer than four axes."""
    return isinstance(images, str | os.PathLike) or (
        isinstance(images, np.ndarray) and images.ndim < 4
    )


def read_images(
    images: Image | Iterable[Image],
    shape: Sequence[int],
    normalization: dict[str, Any],
    resize: bool,
) -> NumPyArray:
    """Return images as a batch, float32, (N, channels, height, width), normalised.

    Parameters
    ----------
    images : path, uint8 array or sequence of them
        JPEG and PNG files; arrays of (height, width, channels), or (height, width) for grey; a
        batch of arrays has four axes.
    shape : sequence of int
        The input of the network: (channels, height, width).
    normalization : dict
        That of the card.
    resize : bool
        Whether images of another size are resized (bilinear, the aspect ratio is not kept).

    Raises
    ------
    TypeError, ValueError
        If an image has another type, mode or size, or cannot be read.
    ImportError
        If Pillow is needed, to read a file or to resize an image, and not installed.
    """
    several: list[object]
    if is_single_image(images):
        several = [images]
    elif isinstance(images, Iterable):
        several = list(images)
    else:
        raise TypeError(
            f"images must be a path, a uint8 array or a sequence of them, got a "
            f"{type(images).__name__}: give the images to be read"
        )
    if not several:
        raise ValueError("images is empty: give at least one image")
    pixels = np.stack([_pixels_of(image, shape, resize) for image in several])
    mean, std = (np.asarray(normalization[name], "float32") for name in ("mean", "std"))
    scaled = pixels.astype("float32") * np.float32(normalization["scale"])
    return np.ascontiguousarray(((scaled - mean) / std).transpose(0, 3, 1, 2))


def _pixels_of(image: object, shape: Sequence[int], resize: bool) -> NumPyArray:
    """Return an image as uint8, (height, width, channels)."""
    channels, height, width = shape
    if isinstance(image, str | os.PathLike):
        pixels = _read_file(Path(image), shape, resize)
    elif isinstance(image, np.ndarray):
        pixels = _check_array(image, channels)
        if pixels.shape[:2] != (height, width):
            _check_size(f"an image of shape {image.shape}", pixels.shape[1::-1], shape, resize)
            pixels = _resized(pixels, height, width)
    else:
        raise TypeError(
            f"an image must be a path or a uint8 NumPy array, got a {type(image).__name__}: "
            "convert an image of PIL with numpy.asarray(image)"
        )
    return pixels.reshape(height, width, channels)


def _check_array(image: NumPyArray, channels: int) -> NumPyArray:
    if image.dtype != np.uint8:
        raise TypeError(
            f"pixels must be uint8, 0 to 255, got {image.dtype}: give the pixels as they are in "
            "the file, they are normalised here; give normalised data to predict()"
        )
    if channels == 1 and image.ndim == 2:
        return image[:, :, None]
    if image.ndim != 3 or image.shape[2] != channels:
        raise ValueError(
            f"an image must have the shape (height, width, {channels}), got {image.shape}: the "
            f"model takes {_MODES[channels]!r} images, channels last"
        )
    return image


def _read_file(path: Path, shape: Sequence[int], resize: bool) -> NumPyArray:
    require("PIL", "deploy", _NEEDS_PILLOW)
    from PIL import Image, ImageOps, UnidentifiedImageError

    channels, height, width = shape
    if not path.is_file():
        raise ValueError(f"there is no image file {str(path)!r}: give a JPEG or PNG file")
    try:
        with _strict_pillow(), Image.open(path, formats=("JPEG", "PNG")) as image:
            # Checked before the pixels are decoded: there a hostile file would take memory.
            if image.mode != _MODES[channels]:
                raise ValueError(
                    f"{str(path)!r} has the mode {image.mode!r}, the model takes "
                    f"{_MODES[channels]!r}: convert it with PIL's image.convert("
                    f"{_MODES[channels]!r})"
                )
            # A phone writes how it was held: 5 to 8 are on their side.
            is_on_side = image.getexif().get(_ORIENTATION, 1) >= 5
            size = image.size[::-1] if is_on_side else image.size
            if size != (width, height):
                _check_size(f"{str(path)!r}", size, shape, resize)
            upright = ImageOps.exif_transpose(image)
            if size != (width, height):
                upright = upright.resize((width, height), Image.Resampling.BILINEAR)
            return np.asarray(upright)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as e:
        raise ValueError(
            f"{str(path)!r} has too many pixels to be read ({e}): give a smaller image"
        ) from e
    except (UnidentifiedImageError, OSError, SyntaxError) as e:
        raise ValueError(
            f"{str(path)!r} cannot be read as an image ({e}): give an undamaged JPEG or PNG file"
        ) from e


@contextmanager
def _strict_pillow() -> Iterator[None]:
    """Let Pillow refuse a truncated file, which gluoncv makes it fill in, and a huge one."""
    from PIL import Image, ImageFile

    with _PILLOW, warnings.catch_warnings():
        # Above 89 million pixels Pillow warns, above twice that number it raises.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        before = ImageFile.LOAD_TRUNCATED_IMAGES
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = before


def _check_size(name: str, size: Sequence[int], shape: Sequence[int], resize: bool) -> None:
    if not resize:
        raise ValueError(
            f"{name} is {size[0]} x {size[1]} pixels, the model takes {shape[2]} x {shape[1]} "
            "(width x height): crop it, or ask for resize=True (--resize)"
        )


def _resized(pixels: NumPyArray, height: int, width: int) -> NumPyArray:
    require("PIL", "deploy", _NEEDS_PILLOW)
    from PIL import Image

    squeezed = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    return np.asarray(Image.fromarray(squeezed).resize((width, height), Image.Resampling.BILINEAR))
