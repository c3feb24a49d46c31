"""Scores of held-out rows along a path; the data are read once for many points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse

from provenglm import constants
from provenglm.api.base import LinearEstimator
from provenglm.api.routing import is_of_sklearn
from provenglm.model.problem import Problem
from provenglm.path.folds import PathPoint
from provenglm.rows.kinds import taken
from provenglm.types import NumPyArray


class HeldOut:
    """A stand-in for the rows of a test set whose scores are already known.

    scikit-learn's scorers pass X to the estimator and do not read it, so they need no copy.
    """

    def __init__(self, rows: NumPyArray, width: int) -> None:
        self.shape = (len(rows), width)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]


class PointOfPath(LinearEstimator):
    """Base class of an estimator that scorers see as one point of the path."""

    def at(self, point: PathPoint, rows: object, scores: NumPyArray) -> PointOfPath:
        """Set the coefficients to those of `point`; `scores` belong to the held-out rows."""
        self._keep(point.coef, point.intercept)
        self.n_features_in_ = len(point.coef)
        self._known = rows, scores
        return self


def scores_of_points(
    problem: Problem, rows: NumPyArray, points: Sequence[PathPoint]
) -> Iterator[NumPyArray]:
    """Yield the scores of each point for the given rows, with offsets: (len(rows), K), float64."""
    features, outputs = problem.features, points[0].coef.shape[1]
    offset = None if problem.offset is None else problem.offset[rows]
    together = max(1, constants.SMALL_DATA // max(1, len(rows) * outputs))
    for first in range(0, len(points), together):
        part = points[first : first + together]
        coef = np.hstack([point.coef for point in part])
        table = np.empty((len(rows), coef.shape[1]))
        # Copies of sparse rows have no zeros, so blocks can be larger.
        width = 1 if issparse(features) else coef.shape[0]
        size = max(constants.LEAST_BLOCK_ROWS, constants.PART_ROWS // width)
        for start in range(0, len(rows), size):
            some = slice(start, start + size)
            table[some] = taken(features, rows[some], np.dtype(np.float64)) @ coef
        table += np.concatenate([point.intercept for point in part])
        for k in range(len(part)):
            scores = table[:, k * outputs : (k + 1) * outputs]
            yield scores if offset is None else scores + offset


def score_path(
    scorer: Any,
    model: PointOfPath,
    problem: Problem,
    test: NumPyArray,
    target: NumPyArray,
    points: Sequence[PathPoint],
    params: Mapping[str, Any],
) -> list[float]:
    """Return the score of each point on the rows of a test set.

    Parameters
    ----------
    model : PointOfPath
        The estimator that the scorer gets, set to each point in turn.
    problem : Problem
        All rows.
    test : numpy.ndarray
        Indices of the rows of the test set.
    target : numpy.ndarray, (n,)
        The labels or values of all rows that the user gave.
    params : mapping
        Parameters of the scorer, for the test rows.
    """
    features = problem.features
    rows = HeldOut(test, features.shape[1]) if is_of_sklearn(scorer) else taken(features, test)
    # A custom scorer that predicts other rows than these gets a warning: they have no offset.
    model._keep_offset(problem.offset)
    return [
        float(scorer(model.at(point, rows, scores), rows, target[test], **params))
        for point, scores in zip(points, scores_of_points(problem, test, points), strict=True)
    ]
