"""Products of features with each other, each made once: a squared loss has no other Hessian."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from provenglm.types import NumPyArray

if TYPE_CHECKING:
    from provenglm.objective import Objective


class KeptProducts:
    """Weighted products of the features that a run, or the runs of a path, have asked for.

    They know neither scores nor penalty. A copy of the columns is kept for the products with those
    that come later.
    """

    def __init__(self) -> None:
        self._place: NumPyArray | None = None
        self._count = 0
        self._columns = np.empty((0, 0))
        self._products = np.empty((0, 0))

    def over(self, objective: Objective, wanted: NumPyArray) -> NumPyArray:
        """Return the products of some features and, last, the intercept.

        Parameters
        ----------
        objective : Objective
            Of dense rows in float64; its rows, shares and coordinates are the same in each call.
        wanted : numpy.ndarray, (m,)
        """
        p = objective.rows.shape[1]
        wanted = np.append(wanted, p)
        if self._place is None:
            self._place = np.full(p + 1, -1)
        new = wanted[self._place[wanted] < 0]
        if len(new):
            self._add(objective, new)
        places = self._place[wanted]
        return np.asarray(self._products[np.ix_(places, places)])

    def _add(self, objective: Objective, new: NumPyArray) -> None:
        assert self._place is not None
        first, count = self._count, self._count + len(new)
        if count > len(self._products):
            size = min(2 * count, len(self._place))
            columns, products = np.empty((size, objective.n)), np.empty((size, size))
            if first:
                columns[:first] = self._columns[:first]
                products[:first, :first] = self._products[:first, :first]
            self._columns, self._products = columns, products
        self._write(objective, new, self._columns[first:count])
        products = self._columns[first:count] @ self._columns[:count].T
        self._products[first:count, :count] = products
        self._products[:first, first:count] = products[:, :first].T
        self._place[new] = np.arange(first, count)
        self._count = count

    @staticmethod
    def _write(objective: Objective, new: NumPyArray, out: NumPyArray) -> None:
        """Write features, centred and divided by their scales, times the roots of the shares."""
        features = new[new < objective.rows.shape[1]]
        center, inverse = objective.scaling.center[features], objective.scaling.inverse[features]
        for part in objective.rows.slices():
            out[: len(features), part] = objective.rows.block(part)[:, features].T
        out[len(features) :] = objective.intercept
        out[: len(features)] -= center[:, None]
        out[: len(features)] *= inverse[:, None]
        out *= np.sqrt(objective.share)
