"""Conjugate gradients for a positive definite system that is given by its products."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

from provenglm import constants
from provenglm.types import NumPyArray

_TINY = float(np.finfo(np.float64).tiny)

Map = Callable[[NumPyArray], NumPyArray]


class Solved(NamedTuple):
    """The approximate solution of a system.

    Attributes
    ----------
    step : numpy.ndarray
    first, square : float
        The squared sizes of the right side and of the residual, in the preconditioner's metric.
    lengths, ratios : list of float
        The length of each step, and the part of the square that it left.
    """

    step: NumPyArray
    first: float
    square: float
    lengths: list[float]
    ratios: list[float]

    @property
    def least_eigenvalue(self) -> float:
        """The least Ritz value of the preconditioned matrix (Golub & Van Loan 2013, 11.3)."""
        if not self.lengths:
            return 1.0
        inverse, ratio = 1 / np.array(self.lengths), np.array(self.ratios[:-1])
        diagonal = inverse.copy()
        diagonal[1:] += ratio * inverse[:-1]
        beside = np.sqrt(ratio) * inverse[:-1]
        values = scipy.linalg.eigh_tridiagonal(
            diagonal, beside, eigvals_only=True, select="i", select_range=(0, 0)
        )
        return max(float(values[0]), _TINY)


def conjugate_gradients(
    product: Map,
    right: NumPyArray,
    preconditioned: Map,
    leaves: float,
    taken: Callable[[float, float, NumPyArray], bool] | None = None,
) -> Solved:
    """Solve a system approximately by preconditioned conjugate gradients.

    Parameters
    ----------
    product : callable
        Return the matrix times a step, as an array that the caller may overwrite.
    preconditioned : callable
        Return the symmetric preconditioner times a right side, as a new array.
    leaves : float
        The size of the residual at which to stop, relative to the right side, in that metric.
    taken : callable, optional
        A function that is called after each step with its length, the square before it and the
        residual; it returns whether to stop.
    """
    step, rest = np.zeros_like(right), right.copy()
    scaled = preconditioned(rest)
    direction = scaled.copy()
    square = first = float(np.vdot(rest, scaled))
    lengths: list[float] = []
    ratios: list[float] = []
    while square > leaves**2 * first and len(lengths) < constants.MOST_STEPS:
        image = product(direction)
        curvature = float(np.vdot(direction, image))
        if not curvature > 0:
            break  # rounding
        length = square / curvature
        step += length * direction
        image *= length
        rest -= image
        scaled = preconditioned(rest)
        before = square
        lengths.append(length)
        ratios.append(float(np.vdot(rest, scaled)) / square)
        square *= ratios[-1]
        if taken is not None and taken(length, before, rest):
            break
        direction *= ratios[-1]
        direction += scaled
    return Solved(step, first, square, lengths, ratios)
