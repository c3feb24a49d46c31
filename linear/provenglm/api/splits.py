"""The parameters of a cross-validation: grid of penalties and folds."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import NoReturn

import numpy as np
from sklearn.model_selection import check_cv

from provenglm.arguments import check_integer
from provenglm.rows.chunks import Chunks
from provenglm.rows.far_parts import Data
from provenglm.rows.non_numeric import values_of
from provenglm.types import NumPyArray


def checked_strengths(one: str, values: object) -> int | NumPyArray:
    """Return the strengths of the penalty, (n_strengths,) in float64, or their number.

    Parameters
    ----------
    one : str
        Name of one strength. With an s it is the name of the parameter.
    values : object
        The value that the user gave.
    """
    name = f"{one}s"
    if isinstance(values, numbers.Integral) and not isinstance(values, bool):
        return check_integer(name, values, 1, f"a number of {name}, or a list of them")
    message = (
        f"{name} must be a number of {name} or a list of them, got {values!r}: such as [0.1, 1, 10]"
    )
    try:
        strengths = np.array(values_of(name, values, "they are numbers"), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(message) from error
    if isinstance(values, bool) or strengths.ndim != 1:
        raise TypeError(message)
    if len(strengths) == 0:
        raise ValueError(
            f"{name} must have at least one {one}, got {values!r}: such as [0.1, 1, 10]"
        )
    return strengths


def checked_ratios(ratios: object) -> NumPyArray:
    """Return the checked shares of the L1 penalty, (n_l1_ratios,) in float64."""
    message = f"l1_ratios must be a list of numbers from 0 to 1, got {ratios!r}: (0.0,) is L2 only"
    try:
        shares = np.array(values_of("l1_ratios", ratios, "they are numbers"), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(message) from error
    if shares.ndim != 1:
        raise TypeError(message)
    if len(shares) == 0 or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(message)
    return shares


def indices_of(rows: Iterable[int], n: int) -> NumPyArray:
    """Return `rows` as non-negative indices; it may be a mask."""
    places = np.asarray(rows)
    if places.dtype == np.bool_:
        places = np.flatnonzero(places)
    if places.ndim != 1 or len(places) == 0 or places.dtype.kind not in "iu":
        raise ValueError(
            f"cv gives indices of the dtype {places.dtype} and the shape {places.shape}, but a "
            "fold needs training and test rows: give at least one of each, in arrays of integers"
        )
    if places.min() < -n or places.max() >= n:
        raise ValueError(
            f"cv gives indices from {places.min()} to {places.max()}, but X has {n} rows: give "
            "splits of these data"
        )
    return np.where(places < 0, places + n, places) if places.min() < 0 else places


class _Unread:
    """A stand-in for rows on disk: it has a length, and raises if a splitter reads the rows."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, *_: object, **__: object) -> NoReturn:
        """Raise a TypeError."""
        raise TypeError(
            "cv reads the rows of X, which is not possible for Chunks: give pairs of training and "
            "test indices as cv"
        )

    __array__ = __getitem__


def splits_of(
    cv: object,
    features: Data,
    target: NumPyArray,
    params: Mapping[str, object],
    is_classifier: bool,
) -> tuple[list[NumPyArray], list[NumPyArray]]:
    """Return, per fold, how often it trains on each row, and the indices of its test rows."""
    n = len(target)
    rows = _Unread(features.shape) if isinstance(features, Chunks) else features
    splitter = check_cv(cv, target, classifier=is_classifier)
    counts, tests = [], []
    for train, test in splitter.split(rows, target, **params):
        counts.append(counts_of(indices_of(train, n), n))
        tests.append(indices_of(test, n).astype(np.min_scalar_type(n), copy=False))
    if not counts:
        raise ValueError(
            f"cv is {cv!r}, which has no folds: give at least one pair of training and test "
            "indices, or a number of folds"
        )
    return counts, tests


def counts_of(train: NumPyArray, n: int) -> NumPyArray:
    """Return how often each row is in a training set, in the smallest possible dtype."""
    counts = np.bincount(train, minlength=n)
    return counts.astype(np.min_scalar_type(int(counts.max())))


def best_of(scores: NumPyArray) -> tuple[int, int]:
    """Return the indices of strength and ratio with the best score, of (n_l1_ratios, n_strengths).

    Among equal scores the first strength wins, then the first ratio, as in LogisticRegressionCV.
    NaN is ignored.
    """
    if np.isnan(scores).all():
        raise ValueError(
            "all scores of the path are NaN: the scorer is not defined on the test rows of the "
            "folds (for example, they have one class or one row); use other folds or another "
            "scoring"
        )
    k, r = np.unravel_index(int(np.nanargmax(scores.T)), scores.T.shape)
    return int(k), int(r)


def within_one_error(scores: NumPyArray, penalties: NumPyArray) -> tuple[int, int]:
    """Return the indices of the greatest penalty that is as good as the best up to its error.

    This is the one-standard-error rule (Breiman, Friedman, Olshen & Stone 1984, section 3.4.3), as
    glmnet's ``lambda.1se`` applies it: among the strengths of the best ratio, the greatest penalty
    whose mean score is at most a standard error of the best mean below that.

    Parameters
    ----------
    scores : numpy.ndarray, (n_folds, n_l1_ratios, n_strengths)
    penalties : numpy.ndarray, (n_l1_ratios, n_strengths)
    """
    if len(scores) < 2:
        raise ValueError(
            "refit='one-standard-error' needs at least two folds, and cv gives one: a standard "
            "error is that of a mean over folds"
        )
    mean = scores.mean(axis=0)
    k, r = best_of(mean)
    error = float(scores[:, r, k].std(ddof=1)) / math.sqrt(len(scores))
    is_good = mean[r] >= mean[r, k] - error
    return int(np.argmax(np.where(is_good, penalties[r], -np.inf))), r
