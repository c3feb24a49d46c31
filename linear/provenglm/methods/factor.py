"""Systems over some rows and columns of a symmetric matrix, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg

from provenglm import constants
from provenglm.types import NumPyArray

_RIDGE = 1e-13
"""Of the diagonal: what makes the Hessian of duplicate columns positive definite."""

_ROUNDING = 1e-10
"""Of the right side: a solution that leaves no more of it is exact."""


class Factor:
    """The Cholesky factor of some rows and columns of a matrix.

    If only a few rows join and leave, the next system has the same factor, and a small system
    beside it (block elimination): a row that leaves is held at 0 by a multiplier.
    """

    def __init__(self) -> None:
        self._rows = np.zeros(0, np.intp)
        self._lower = np.zeros((0, 0))
        self._is_regular = True

    def solve(
        self, matrix: NumPyArray, rows: NumPyArray, right: NumPyArray
    ) -> tuple[NumPyArray, bool]:
        """Return the solution of a system, and whether its matrix is regular.

        Parameters
        ----------
        matrix : numpy.ndarray, (m, m)
            Rows may join between calls; those that are there stay as they are.
        rows : numpy.ndarray
            The rows and columns of the system.
        right : numpy.ndarray, (m,)
            The right side: 0 in all other rows.

        Returns
        -------
        solution : numpy.ndarray, (m,)
            0 in all other rows.
        is_regular : bool
        """
        is_asked = np.zeros(len(matrix), bool)
        is_asked[rows] = True
        while True:
            joined = rows[~np.isin(rows, self._rows, assume_unique=True)]
            left = np.flatnonzero(~is_asked[self._rows])
            changed = len(joined) + len(left)
            if changed > constants.CHANGED_ROWS * len(rows) or (changed and not self._is_regular):
                self._factorise(matrix, rows)
                continue
            times = self._inverse(matrix, joined, left)
            solution = times(right)
            rest = np.where(is_asked, right - matrix @ solution, 0)
            if np.linalg.norm(rest) <= _ROUNDING * np.linalg.norm(right):
                return solution, self._is_regular
            if not changed:
                # Once more for what the ridge has changed.
                return solution + times(rest), self._is_regular
            self._factorise(matrix, rows)

    def _inverse(
        self, matrix: NumPyArray, joined: NumPyArray, left: NumPyArray
    ) -> Callable[[NumPyArray], NumPyArray]:
        """Return what solves the system that some rows have joined, and some have left."""
        rows, count, many = self._rows, len(joined), len(joined) + len(left)
        beside = np.zeros((len(rows), many), order="F")
        beside[:, :count] = matrix[np.ix_(rows, joined)]
        beside[left, np.arange(count, many)] = 1
        beside = self._forward(beside)
        small = -beside.T @ beside
        small[:count, :count] += matrix[np.ix_(joined, joined)]
        factor = scipy.linalg.lu_factor(small, check_finite=False) if many else None

        def solve(right: NumPyArray) -> NumPyArray:
            solution, part = np.zeros(len(matrix)), self._forward(right[rows])
            if many:
                of_joined = np.append(right[joined], np.zeros(len(left))) - beside.T @ part
                of_joined = scipy.linalg.lu_solve(factor, of_joined, check_finite=False)
                part -= beside @ of_joined
                solution[joined] = of_joined[:count]
            solution[rows] = self._forward(part, 1)
            solution[rows[left]] = 0
            return solution

        return solve

    def _forward(self, right: NumPyArray, transposed: int = 0) -> NumPyArray:
        return np.asarray(
            scipy.linalg.solve_triangular(
                self._lower, right, trans=transposed, lower=True, check_finite=False
            )
        )

    def _factorise(self, matrix: NumPyArray, rows: NumPyArray) -> None:
        ridge = _RIDGE
        part = matrix[np.ix_(rows, rows)]
        while True:
            ridged = part.copy(order="F")
            ridged.ravel(order="K")[:: len(rows) + 1] *= 1 + ridge
            try:
                self._lower, _ = scipy.linalg.cho_factor(
                    ridged, lower=True, overwrite_a=True, check_finite=False
                )
            except np.linalg.LinAlgError:
                ridge *= 100
                continue
            self._rows, self._is_regular = rows, ridge == _RIDGE
            return
