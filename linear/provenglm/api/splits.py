"""The arguments of a cross-validation: which penalties, and which rows are in which fold."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import NoReturn

import numpy as np
from sklearn.model_selection import check_cv

from provenglm.arguments import check_integer
from provenglm.rows.chunks import Chunks
from provenglm.rows.kinds import Data
from provenglm.rows.non_numeric import values_of
from provenglm.types import NumPyArray


def checked_strengths(one: str, values: object) -> int | NumPyArray:
    """Return strengths of the penalty, (n_strengths,) in float64, or how many there shall be.

    Parameters
    ----------
    one : str
        What one of them is called; the argument is called the same with an s.
    values : object
        What was given.
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
    """Return the shares of the L1 penalty, (n_l1_ratios,) in float64."""
    message = f"l1_ratios must be a list of numbers from 0 to 1, got {ratios!r}: (0.0,) is L2 alone"
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
    """Return indices, of a mask those where it is set."""
    places = np.asarray(rows)
    if places.dtype == np.bool_:
        places = np.flatnonzero(places)
    if places.ndim != 1 or len(places) == 0 or places.dtype.kind not in "iu":
        raise ValueError(
            f"cv gives indices of the dtype {places.dtype} and the shape {places.shape}, and a "
            "fold needs training and test rows: give at least one of each, in arrays of integers"
        )
    if places.min() < -n or places.max() >= n:
        raise ValueError(
            f"cv gives indices from {places.min()} to {places.max()}, and X has {n} rows: were "
            "they made for other data?"
        )
    return np.where(places < 0, places + n, places) if places.min() < 0 else places


class _Unread:
    """What a splitter gets for rows on disk: their number, and an error if it looks at them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, *_: object, **__: object) -> NoReturn:
        """Refuse."""
        raise TypeError(
            "cv looks at the rows of X, and those of Chunks are not read for it: give pairs of "
            "training and test indices as cv"
        )

    __array__ = __getitem__


def splits_of(
    cv: object,
    features: Data,
    target: NumPyArray,
    params: Mapping[str, object],
    is_classifier: bool,
) -> tuple[list[NumPyArray], list[NumPyArray]]:
    """Return of each fold how often each row is trained on, and the indices of its test rows."""
    n = len(target)
    rows = _Unread(features.shape) if isinstance(features, Chunks) else features
    splitter = check_cv(cv, target, classifier=is_classifier)
    counts, tests = [], []
    for train, test in splitter.split(rows, target, **params):
        counts.append(counts_of(indices_of(train, n), n))
        tests.append(indices_of(test, n).astype(np.min_scalar_type(n), copy=False))
    if not counts:
        raise ValueError(
            f"cv is {cv!r}, which gives no fold: give at least one pair of training and test "
            "indices, or a number of folds"
        )
    return counts, tests


def counts_of(train: NumPyArray, n: int) -> NumPyArray:
    """Return how often each row is in a training set, in as few bytes as will do."""
    counts = np.bincount(train, minlength=n)
    return counts.astype(np.min_scalar_type(int(counts.max())))


def best_of(scores: NumPyArray) -> tuple[int, int]:
    """Return the places of strength and ratio of the greatest score, of (n_l1_ratios, n_strengths).

    The first strength has it of equal ones, then the first ratio, as in LogisticRegressionCV; NaN
    is none.
    """
    if np.isnan(scores).all():
        raise ValueError(
            "no point of the path has a score that is a number: the scorer is not defined on the "
            "folds' test rows (of one class or of one row, for example); take other folds or "
            "another scoring"
        )
    k, r = np.unravel_index(int(np.nanargmax(scores.T)), scores.T.shape)
    return int(k), int(r)
