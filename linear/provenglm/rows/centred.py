"""Transform arrays to coordinates: columns become ``(x - center) * inverse``."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from provenglm.types import NumPyArray


class Coordinates(Protocol):
    """The centre and inverse scale of each column; an inverse scale of 0 makes a column 0."""

    @property
    def center(self) -> NumPyArray:
        """The numbers to subtract, (p,)."""
        ...

    @property
    def inverse(self) -> NumPyArray:
        """The factors of the differences, (p,)."""
        ...


class Scaled(NamedTuple):
    """The coordinates of some columns."""

    center: NumPyArray
    inverse: NumPyArray


def is_identity(coordinates: Coordinates) -> bool:
    """Return whether the columns stay as they are."""
    return bool((coordinates.inverse == 1).all()) and not coordinates.center.any()


def in_coordinates(values: NumPyArray, columns: NumPyArray, coordinates: Coordinates) -> NumPyArray:
    """Return the stored numbers of sparse rows, (q,), in coordinates; absent ones stay 0."""
    if is_identity(coordinates):
        return values
    return np.asarray((values - coordinates.center[columns]) * coordinates.inverse[columns])


def write_centred(block: Any, coordinates: Coordinates, out: NumPyArray) -> NumPyArray:
    """Write rows in coordinates to `out`, which may be the rows themselves, and return it.

    With coordinates in float64 the difference is in float64, because a column may be far from 0.
    """
    change = out if out.dtype == np.result_type(block, coordinates.center) else None
    change = np.subtract(block, coordinates.center, out=change)
    return np.multiply(change, coordinates.inverse, out=out, casting="same_kind")
