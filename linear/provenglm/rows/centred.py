"""Arrays in coordinates: columns as ``(x - center) * inverse``."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from provenglm.types import NumPyArray


class Coordinates(Protocol):
    """Centre and inverse scale of each column; an inverse scale of 0 leaves a column out."""

    @property
    def center(self) -> NumPyArray:
        """What is subtracted, (p,)."""
        ...

    @property
    def inverse(self) -> NumPyArray:
        """By what the difference is multiplied, (p,)."""
        ...


def write_centred(block: Any, coordinates: Coordinates, out: NumPyArray) -> NumPyArray:
    """Write rows in coordinates to `out`, which may be the rows themselves, and return it.

    With coordinates in float64 the difference is: a column may be far from 0.
    """
    change = out if out.dtype == np.result_type(block, coordinates.center) else None
    change = np.subtract(block, coordinates.center, out=change)
    return np.multiply(change, coordinates.inverse, out=out, casting="same_kind")
