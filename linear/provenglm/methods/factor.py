"""Solve a sequence of systems over some rows and columns of a symmetric matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg

from provenglm import constants
from provenglm.types import NumPyArray

_RIDGE = 1e-13
"""Relative ridge on the diagonal that makes the Hessian of duplicate columns positive definite."""

_ROUNDING = 1e-10
"""A solution is exact if its residual is at most this part of the right side."""


class Factor:
    """The Cholesky factor of some rows and columns of a matrix.

    If only a few rows join or leave, the next system reuses the factor together with a small system
    (block elimination). A multiplier holds each row that left at 0.
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
            The matrix. Rows may be added between calls; existing ones must not change.
        rows : numpy.ndarray
            The rows and columns of the system.
        right : numpy.ndarray, (m,)
            The right side, which is 0 in all other rows.

        Returns
        -------
        solution : numpy.ndarray, (m,)
            The solution, which is 0 in all other rows.
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
                # A second step corrects the effect of the ridge.
                return solution + times(rest), self._is_regular
            self._factorise(matrix, rows)

    def _inverse(
        self, matrix: NumPyArray, joined: NumPyArray, left: NumPyArray
    ) -> Callable[[NumPyArray], NumPyArray]:
        """Return the function that solves the system after some rows have joined or left."""
        rows, count, many = self._rows, len(joined), len(joined) + len(left)
        beside = np.zeros((len(rows), many), order="F")
        beside[:, :count] = matrix[np.ix_(rows, joined)]
        beside[left, np.arange(count, many)] = 1
        beside = self._forward(beside)
        small = -beside.T @ beside
        small[:count, :count] += matrix[np.ix_(joined, joined)]
        factor = scipy.linalg.lu_factor(small, check_finite=False) if many else None

        def solve(right: NumPyArray) -> NumPyArray:
            solution, inner = np.zeros(len(matrix)), self._forward(right[rows])
            if many:
                joined_solution = np.append(right[joined], np.zeros(len(left))) - beside.T @ inner
                joined_solution = scipy.linalg.lu_solve(factor, joined_solution, check_finite=False)
                inner -= beside @ joined_solution
                solution[joined] = joined_solution[:count]
            solution[rows] = self._forward(inner, 1)
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
