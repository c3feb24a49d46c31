"""Keep columns of dense rows and their products: a squared loss has a constant Hessian."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from provenglm.methods.factor import Factor
from provenglm.model.objective import Objective, Snapshot
from provenglm.rows.copies import write_columns
from provenglm.rows.gram import gram_of_block
from provenglm.types import NumPyArray


class KeptColumns:
    """The columns that a run, or the runs of a path, have used.

    With an intercept the columns are centred, so that their products with the intercept are 0.

    Attributes
    ----------
    place : numpy.ndarray, (p,)
        The place of each feature among these columns; -1 if it is not among them.
    values : numpy.ndarray
        One row per feature; there may be unused rows.
    mean : numpy.ndarray, (m,)
        The difference of the means in theta's coordinates from the centred columns.
    square : numpy.ndarray, (m,)
        The weighted sums of squares.
    """

    def __init__(self) -> None:
        self.place = np.zeros(0, np.intp)
        self.values = np.empty((0, 0))
        self.mean = self.square = np.zeros(0)

    def count_with(self, wanted: NumPyArray) -> int:
        """Return the number of kept features after adding `wanted`."""
        new = len(wanted)
        if len(self.place):
            new = int((self.place[wanted] < 0).sum())
        return len(self.mean) + new

    def join(self, objective: Objective, wanted: NumPyArray) -> NumPyArray:
        """Add the features that are missing; return the places of all wanted features.

        Parameters
        ----------
        objective : Objective
            An objective of dense rows in float64. Its rows, shares and coordinates are the same in
            each call.
        wanted : numpy.ndarray
        """
        if not len(self.place):
            self.place = np.full(objective.rows.shape[1], -1)
        new = wanted[self.place[wanted] < 0]
        first, count = len(self.mean), len(self.mean) + len(new)
        if count > len(self.values):
            values = np.empty((min(2 * count, len(self.place)), objective.n))
            if first:
                values[:first] = self.values[:first]
            self.values = values
        added, mean = self.values[first:count], np.zeros(len(new))
        write_columns(objective.rows, new, objective.scaling, added, objective.workers)
        if objective.intercept:
            # The sample's centre leaves a small rest of the mean.
            mean = added @ objective.share
            added -= mean[:, None]
        self.mean = np.append(self.mean, mean)
        self.square = np.append(self.square, np.square(added) @ objective.share)
        self.place[new] = np.arange(first, count)
        return np.asarray(self.place[wanted])

    def scores(self, theta: NumPyArray) -> NumPyArray | None:
        """Return the scores of theta (p + 1,) without offsets, or None if a feature is missing."""
        used = np.flatnonzero(theta[:-1])
        if not len(self.place) or (self.place[used] < 0).any():
            return None
        weights = np.zeros(len(self.mean))
        weights[self.place[used]] = theta[used]
        scores = weights @ self.values[: len(weights)]
        scores += theta[-1] + self.mean @ weights
        return np.asarray(scores)


@dataclass
class ByKeptColumns(Objective):
    """The objective of dense rows, whose scores are computed from kept columns if possible.

    Attributes
    ----------
    columns : KeptColumns
    """

    columns: KeptColumns = field(default_factory=KeptColumns)

    def snapshot(self, theta: NumPyArray) -> Snapshot:
        """Return objective, gradient and scores at `theta`."""
        found = self.columns.scores(theta[:, 0])
        if found is None and theta[:-1].any():
            return super().snapshot(theta)
        scores = np.full((self.n, 1), theta[-1]) if found is None else found[:, None]
        if self.offset is not None:
            scores += self.offset
        return self.at_scores(theta, scores)


class KeptProducts:
    """The weighted products of some features with each other.

    Attributes
    ----------
    features : numpy.ndarray, (m,)
        The features, in the order in which they were added.
    factor : Factor
        The factor of `hessian`.
    hessian_of : tuple of numpy.ndarray, optional
        Features whose Hessian was computed at once, and that Hessian without a penalty.
    """

    def __init__(self) -> None:
        self.columns = KeptColumns()
        self.features = np.zeros(0, np.intp)
        self.factor = Factor()
        self.hessian_of: tuple[NumPyArray, NumPyArray] | None = None
        self._products = np.empty((0, 0))
        self._penalty = np.zeros(0)

    def join(self, objective: Objective, wanted: NumPyArray) -> NumPyArray:
        """Add the features that are missing; return the places of all wanted columns.

        Parameters
        ----------
        objective : Objective
            The objective; see `KeptColumns.join`.
        wanted : numpy.ndarray, sorted
        """
        columns = self.columns
        columns.join(objective, wanted)
        new = np.setdiff1d(wanted, self.features)
        first, count = len(self.features), len(self.features) + len(new)
        if count > len(self._products):
            size = min(2 * count, len(columns.place))
            larger = np.empty((size, size))
            larger[:first, :first] = self._products[:first, :first]
            self._products = larger
        self.features = np.append(self.features, new)
        places = columns.place[self.features]
        if len(new):
            added = columns.values[places[first:]]
            if first:
                # Multiply with all columns, because selecting the wanted ones would take longer.
                beside = (added * objective.share) @ columns.values[: len(columns.mean)].T
                self._products[first:count, :first] = beside[:, places[:first]]
                self._products[:first, first:count] = beside[:, places[:first]].T
            self._products[first:count, first:count] = gram_of_block(added.T, objective.share)
        return places

    def hessian(self, penalty: NumPyArray) -> NumPyArray:
        """Return the products plus a penalty (m,) on the diagonal; there may be unused rows."""
        count = len(self.features)
        if not np.array_equal(penalty[: len(self._penalty)], self._penalty):
            self.factor = Factor()
        self._penalty = penalty
        square = self.columns.square[self.columns.place[self.features]]
        np.fill_diagonal(self._products[:count, :count], square + penalty)
        return self._products
