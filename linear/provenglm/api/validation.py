"""What the estimators are given: checked once, and refused in one sentence with the way out.

scikit-learn's own functions do what they can do: conversion, shapes, feature names. What they leave
open is here: where the first NaN stands, which label or weight is wrong. Features keep their dtype
and order: 8-bit pixels stay 8-bit pixels, and are never copied as a whole.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_class_weight

from provenglm import constants
from provenglm.model.losses import Loss
from provenglm.rows import csr_checks, large, non_numeric
from provenglm.rows.chunks import Chunks
from provenglm.rows.disk import on_disk
from provenglm.rows.kinds import Data
from provenglm.rows.non_numeric import values_of
from provenglm.types import NumPyArray

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn 1.5 has it as a method

    def validate_data(  # type: ignore[no-untyped-def]
        estimator, /, X, *, reset, dtype, accept_sparse, ensure_all_finite
    ):
        """Do as scikit-learn 1.6 and later."""
        return estimator._validate_data(
            X,
            reset=reset,
            dtype=dtype,
            accept_sparse=accept_sparse,
            force_all_finite=ensure_all_finite,
        )


# If least and greatest label are further apart, the labels are sorted instead of counted.
_LABELS_TO_COUNT = 1 << 20
# The squares of 1e-140 and 1e140, and sums of them, have all digits of float64.
_NUMPY_2 = re.compile(r"np\.\w+\((.*)\)")
"""NumPy 2 writes ``np.str_('many')``, and NumPy 1 ``'many'``."""

_LEAST_TO_SQUARE = 1e-140

_FARTHEST = 100.0
"""From the mean, of offsets that are logarithms: exp() of it and of targets is within float64."""


class Labels(NamedTuple):
    """The labels of a classifier, as numbers.

    Attributes
    ----------
    classes : numpy.ndarray of shape (K,)
        The distinct labels, sorted, in the dtype that they were given in.
    codes : numpy.ndarray of shape (n,), whole numbers
        The place of each sample's label in `classes`.
    """

    classes: NumPyArray
    codes: NumPyArray


def check_features(estimator: BaseEstimator, X: object, *, reset: bool) -> Data:
    """Return `X` as an array or CSR matrix of shape (n, p), not copied if it is one of numbers.

    Chunks are returned as they are, and what is on disk is read in blocks.

    Parameters
    ----------
    estimator : BaseEstimator
        Its ``n_features_in_`` and ``feature_names_in_`` are set or compared.
    X : array-like or sparse matrix of shape (n, p)
        Numbers or booleans of any dtype. Columns of several dtypes, as in a frame, get their common
        dtype; objects become float64. Of sparse matrices and arrays CSR is taken as it is, others
        by one copy; see :func:`provenglm.rows.csr_checks.canonical`.
    reset : bool
        True in ``fit``; False when `X` has to agree with what ``fit`` saw.

    Raises
    ------
    ValueError
        If it is empty, complex, or not of two dimensions, if its columns are not those of ``fit``,
        if it has NaN or infinity, or, in ``fit``, numbers beyond 1e140.
    """
    name = type(estimator).__name__
    if isinstance(X, Chunks) and X.is_sparse:
        X = X.stacked()
    if isinstance(X, Chunks):
        large.check_columns(estimator, X, reset=reset)
        features: Data = X
    else:
        features = _validated(estimator, X, reset)
    numbers = features
    if issparse(features):
        features = csr_checks.canonical(name, features)
        numbers = features.data
    if features.dtype.kind == "f" and not _has_small_squares(numbers):
        names = getattr(estimator, "feature_names_in_", None)
        where = _first_where(features, lambda block: ~np.isfinite(block), names)
        if where is not None:
            # SimpleImputer refuses infinity.
            way = "put" if where.startswith("NaN") else "make them NaN and put"
            raise ValueError(
                f"X has {where}, and {name} needs finite numbers: drop such rows, or {way} "
                "sklearn.impute.SimpleImputer before it"
            )
        if reset:
            where = _first_where(
                features,
                lambda block: np.abs(block.astype(np.float64)) > 1 / _LEAST_TO_SQUARE,
                names,
            )
            if where is not None:
                raise ValueError(
                    f"X has {where}, and the squares of such numbers are beyond float64: divide "
                    "the column by its greatest number; its coefficient is then in these units"
                )
    return features


def check_target(
    name: str, y: object, features: Data, weight: NumPyArray | None, loss: Loss
) -> NumPyArray:
    """Return the target of a regressor, of shape (n,) and float64.

    Parameters
    ----------
    name : str
        The estimator's class.
    y : array-like of shape (n,)
        Finite numbers; a column of shape (n, 1) is taken with a DataConversionWarning.
    features : numpy.ndarray or CSR matrix of shape (n, p)
        `y` has to be as long.
    weight : numpy.ndarray of shape (n,), or None
        As :func:`check_weight` returns it.
    loss : Loss
        It checks what it needs beside. For all but Huber's, squares must be within float64.

    Raises
    ------
    ValueError
        If it is missing, not of one dimension, of another length, not of finite numbers, or not
        what the loss needs.
    """
    target = check_numbers(name, y, features.shape[0])
    if not loss.needs_all_targets:
        _check_squares(target)
    loss.check_target(target, weight)
    return target


def check_numbers(name: str, y: object, n: int) -> NumPyArray:
    """Return the targets of n rows as float64, (n,); raise ValueError if they are no numbers."""
    return _as_float64("y", _as_column(name, y, n, "needs numbers"))


def check_scored_labels(name: str, y: object, n: int) -> NumPyArray:
    """Return the true labels of n rows, (n,), as those of a fit are read.

    The parameters, and what is raised, are as for :func:`check_labels`.
    """
    return _as_labels(name, y, n)


def check_labels(name: str, y: object, features: Data) -> Labels:
    """Return the labels of a classifier.

    Whole numbers and booleans are counted, which is faster than to sort them.

    Parameters
    ----------
    name : str
        The estimator's class.
    y : array-like of shape (n,)
        Whole numbers of any dtype, booleans, or strings. Objects are what they contain.
    features : numpy.ndarray or CSR matrix of shape (n, p)
        `y` has to be as long.

    Raises
    ------
    ValueError
        If it is missing, not of one dimension, of another length, of numbers with fractions or
        without a value, or of objects that are no labels.
    """
    labels = _as_labels(name, y, features.shape[0])
    if labels.dtype.kind == "f":
        fractions = labels != np.trunc(labels)
        if fractions.any():
            raise ValueError(
                f"Unknown label type: y has {labels[np.argmax(fractions)]!s} in row "
                f"{int(np.argmax(fractions))}, a continuous target, and {name} needs classes: take "
                "SVRGRegressor for numbers, or make classes of them with "
                "sklearn.preprocessing.KBinsDiscretizer"
            )
    if labels.dtype.kind not in "biuf":
        return Labels(*np.unique(labels, return_inverse=True))
    least, most = int(labels.min()), int(labels.max())
    if most - least >= _LABELS_TO_COUNT or max(-least, most) > np.iinfo(np.int64).max:
        return Labels(*np.unique(labels, return_inverse=True))
    if on_disk(features) and len(labels) > constants.LONG_ROWS:
        return Labels(*large.counted(labels, least, most))
    places = labels.astype(np.int64) - least
    present = np.bincount(places) > 0
    places_of_classes = np.flatnonzero(present)
    codes = places
    if not present.all():
        codes = (np.cumsum(present) - 1)[places]
    return Labels((places_of_classes + least).astype(labels.dtype), codes)


def check_weight(sample_weight: object, features: Data) -> NumPyArray | None:
    """Return the weights of the samples, of shape (n,) and float64; None if all are 1.

    Parameters
    ----------
    sample_weight : array-like of shape (n,), number, or None
        Finite, not negative, not 0 everywhere. One number is as good as None but for the strength
        of the penalty, which is relative to the sum.
    features : numpy.ndarray or CSR matrix of shape (n, p)
        The weights have to be as many.

    Raises
    ------
    ValueError
        If they are not that.
    """
    if sample_weight is None:
        return None
    weight = _one_per_row("sample_weight", "weight", sample_weight, features.shape[0])
    if (weight < 0).any():
        row = int(np.argmax(weight < 0))
        raise ValueError(
            f"sample_weight is {weight[row]:g} in row {row}, and a loss with a negative weight has "
            "no least value: give 0 to leave a row out"
        )
    if not weight.any():
        raise ValueError(
            f"sample_weight is zero in all {len(weight)} rows, so there is nothing to fit: "
            "give at least one row a positive weight"
        )
    with np.errstate(over="ignore"):
        total = float(weight.sum())
    if not _LEAST_TO_SQUARE <= total <= 1 / _LEAST_TO_SQUARE:
        raise ValueError(
            f"sample_weight has the sum {total:g}, which is beyond what float64 can divide by: "
            "divide the weights by their mean (the penalty of a classifier is relative to their "
            "sum, that of a regressor is not)"
        )
    return weight


def check_offset(offset: object, n: int, outputs: int = 1) -> NumPyArray | None:
    """Return what is added to the scores, float64 of shape (n,) or (n, K), or None.

    Parameters
    ----------
    offset : array-like of shape (n,) or (n, K), number, or None
        Finite.
    n : int
        The number of rows.
    outputs : int
        K: the number of classes if there are more than two, else 1.

    Raises
    ------
    ValueError
        If they are not that.
    """
    if offset is None:
        return None
    if outputs == 1:
        return np.ascontiguousarray(_one_per_row("offset", "number", offset, n))
    values = _as_float64("offset", values_of("offset", offset, "the fit needs numbers"))
    if values.ndim == 0:
        values = np.full((n, outputs), values)
    if values.shape != (n, outputs):
        raise ValueError(
            f"offset has the shape {values.shape}, and X has {n} rows of {outputs} classes: give "
            f"one number for each row and class, in an array of shape ({n}, {outputs}) whose "
            "columns are in the order of classes_"
        )
    return np.ascontiguousarray(values)


def check_exposure(
    loss: Loss, offset: NumPyArray | None, weight: NumPyArray | None, has_intercept: bool
) -> None:
    """Raise a ValueError if exp() of offsets beside the intercept is beyond float64."""
    if offset is None or not loss.has_logarithm:
        return
    mean = float(np.average(offset, weights=weight)) if has_intercept else 0.0
    farthest = max(float(offset.max()) - mean, mean - float(offset.min()))
    if farthest <= _FARTHEST:
        return
    # The greatest is the one that overflows, unless only a small one is that far off.
    row = int(np.argmax(offset))
    row = row if offset[row] - mean > _FARTHEST else int(np.argmin(offset))
    raise ValueError(
        f"offset is {offset[row]:g} in row {row}, and loss={loss.name!r} "
        "predicts exp(scores + offset), which is beyond any exposure: give the logarithm "
        "of the exposure, numpy.log(exposure)"
    )


def _one_per_row(name: str, what: str, given: object, n: int) -> NumPyArray:
    """Return `given` as float64 of shape (n,); one number stands for all rows."""
    values = _as_float64(name, values_of(name, given, "the fit needs numbers"))
    if values.ndim == 0:
        values = np.full(n, values)
    if values.shape != (n,):
        raise ValueError(
            f"{name} has the shape {values.shape}, and X has {n} rows: give one {what} for each, "
            f"in an array of shape ({n},)"
        )
    return values


def with_class_weight(
    labels: Labels, weight: NumPyArray | None, class_weight: Mapping[object, float] | str | None
) -> NumPyArray | None:
    """Return the weights of the samples times those of their classes.

    Parameters
    ----------
    labels : Labels
        The labels of all samples.
    weight : numpy.ndarray of shape (n,), or None
        The weights of the samples.
    class_weight : dict, 'balanced' or None
        By label; a label that is not in it has the weight 1. 'balanced' gives each class the same
        sum of weights, as scikit-learn does since 1.8: the weights of the samples are counted, so
        that a weight of 2 is as good as a row that stands there twice.

    Raises
    ------
    ValueError
        If it is something else, or if a class's weight is not a finite number of at least 0.
    """
    if class_weight is None:
        return weight
    classes, codes = labels
    if isinstance(class_weight, str) and class_weight == "balanced":
        sums = np.bincount(codes, weights=weight, minlength=len(classes))
        there = sums > 0
        of_class = np.where(there, sums.sum() / (there.sum() * np.where(there, sums, 1.0)), 0.0)
    elif isinstance(class_weight, Mapping):
        values_of("class_weight", list(class_weight.values()), "the fit needs numbers")
        # float64 all the same, should the classes be of float32.
        of_class = compute_class_weight(dict(class_weight), classes=classes, y=classes).astype(
            np.float64
        )
        wrong = ~(np.isfinite(of_class) & (of_class >= 0))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(
                f"class_weight is {of_class[at]:g} for the class {classes[at]!s}, and it must be a "
                "finite number of at least 0: give 0 to leave a class out"
            )
    else:
        raise ValueError(
            f"class_weight must be None, 'balanced' or a dict, got {class_weight!r}: 'balanced' "
            "gives each class the same weight, a dict has a weight by label"
        )
    each: NumPyArray = of_class[codes]
    return each if weight is None else each * weight


def classes_with_weight(name: str, labels: Labels, weight: NumPyArray | None) -> Labels:
    """Return the labels without those classes whose samples all have the weight 0.

    To give a row the weight 0 is to leave it out, its class as well. The codes of such rows are 0.

    Raises
    ------
    ValueError
        If fewer than two classes are left.
    """
    classes, codes = labels
    if weight is not None:
        there = np.bincount(codes, weights=weight, minlength=len(classes)) > 0
        if not there.all():
            codes = np.maximum(np.cumsum(there) - 1, 0)[codes] * there[codes]
            classes = classes[there]
    if len(classes) < 2:
        only = f"the one class {classes[:1].tolist()[0]!r}" if len(classes) else "no class"
        where = "" if weight is None else " with a positive weight"
        raise ValueError(
            f"y has {only} in its {len(codes)} rows{where}, and {name} needs at least two classes "
            "to tell apart: is the data sorted by class, and cut into parts?"
        )
    return Labels(classes, codes)


def _validated(estimator: BaseEstimator, X: object, reset: bool) -> Data:
    """Return what scikit-learn makes of features; an error names the column that has no numbers."""
    needs = f"and {type(estimator).__name__} needs numbers"
    given = X
    X = non_numeric.without_mask("X", non_numeric.collected("X", X))
    try:
        if isinstance(X, (list, tuple)):
            X = np.asarray(X)
        elif type(X).__name__ == "RecordBatch":  # scikit-learn reads the names of a Table alone
            X = sys.modules["pyarrow"].Table.from_batches([X])
        if not ((type(X) is np.ndarray and X.dtype.kind in "biuf") or issparse(X)):
            found = non_numeric.first_column(X, dates_alone=True)
            if found is not None:
                raise ValueError(f"{found[0]}, {needs}: {found[1]}")
        features: Any = validate_data(
            estimator, X, reset=reset, dtype="numeric", accept_sparse="csr", ensure_all_finite=False
        )
        # scikit-learn leaves a frame with a categorical column as it is.
        return features.astype(np.float64) if features.dtype.kind == "O" else features
    except (TypeError, ValueError) as error:
        found = non_numeric.first_column(given)
        if found is None:
            raise
        what, way = found
        if isinstance(error, TypeError) and way == non_numeric.NUMERIC:
            raise TypeError(f"{what}, {needs}: {way} ({error})") from error
        raise ValueError(f"{what}, {needs}: {way}") from error


# --- What they share ---------------------------------------------------------------------------


def _as_column(name: str, y: object, n: int, needs: str) -> NumPyArray:
    if y is None:
        raise ValueError(
            f"This {name} estimator requires y to be passed, but the target y is None: give one "
            f"value for each of the {n} rows of X"
        )
    if type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "biuf" and y.flags.c_contiguous:
        column: NumPyArray = y  # scikit-learn takes 0.3 ms to find that it is no frame
    else:
        needed = f"{name} {needs}"
        way = "give the days since a date, or parts of it such as the month"
        values = values_of("y", y, needed, way)
        _check_real("y", values)
        column = column_or_1d(values, warn=True)
    if len(column) != n:
        raise ValueError(
            f"y has {len(column)} values, and X has {n} rows, inconsistent numbers of samples: "
            "give one value for each row"
        )
    return column


def _as_labels(name: str, y: object, n: int) -> NumPyArray:
    """Return labels in the dtype that they are of; objects get that of what they contain."""
    labels = _as_column(name, y, n, "needs whole numbers, booleans or text")
    if labels.dtype.kind in "OV":
        labels = _of_objects(name, labels)
    if labels.dtype.kind == "f":
        _check_finite("y", labels, "labels")
    return labels


def _of_objects(name: str, labels: NumPyArray) -> NumPyArray:
    """Return objects in the dtype of what they contain; text stays as it is."""
    values = labels.tolist()
    if set(map(type, values)) <= {str, np.str_}:
        return labels
    row = next((row for row, label in enumerate(values) if non_numeric.is_missing(label)), None)
    if row is not None:
        missing = non_numeric.shown(values[row])
        raise ValueError(f"y has {missing} in row {row}, and the fit needs labels: drop such rows")
    text = "make text of all labels with numpy.asarray(y).astype(str)"
    rows: dict[type, int] = {}
    for row, label in enumerate(values):
        rows.setdefault(_kind_of_label(label), row)
    if object in rows:
        row = rows[object]
        raise ValueError(
            f"Unknown label type: y has {values[row]!r} in row {row}, and {name} needs whole "
            f"numbers, booleans or text: {text}"
        )
    if len(rows) > 1:
        one, other = sorted(rows.values())[:2]
        raise ValueError(
            f"Unknown label type: y has {values[one]!r} in row {one} and {values[other]!r} in row "
            f"{other}, which have no order: {text}, or numbers with astype(float)"
        )
    found = np.array(values)
    if found.dtype.kind != "O":
        return found
    floats = found.astype(np.float64)
    row = next((row for row, value in enumerate(floats.tolist()) if value != values[row]), None)
    if row is not None:
        raise ValueError(
            f"Unknown label type: y has {values[row]!r} in row {row}, which is no number of "
            f"float64: {text}"
        )
    return floats


def _kind_of_label(label: object) -> type:
    """Return what labels have in common that can be sorted; `object` for what is no label."""
    if isinstance(label, (Real, Decimal, np.bool_)):
        return float
    return next((kind for kind in (str, bytes) if isinstance(label, kind)), object)


def _as_float64(name: str, values: NumPyArray) -> NumPyArray:
    _check_real(name, values)
    if values.dtype.kind == "O":
        row = non_numeric.first_no_number(values.reshape(-1))
        if row is not None:
            value, row = values.flat[row], _row_of(values, row)
            way = "drop such rows" if non_numeric.is_missing(value) else "give numbers"
            raise ValueError(
                f"{name} has {non_numeric.shown(value)} in row {row}, and the fit needs finite "
                f"numbers: {way}"
            )
    try:
        numbers: NumPyArray = values.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        reason = _NUMPY_2.sub(r"\1", str(error))
        raise ValueError(
            f"{name} has something that is not a number ({reason}): give numbers"
        ) from error
    _check_finite(name, numbers, "finite numbers")
    return numbers


def _check_squares(target: NumPyArray) -> None:
    size = np.abs(target)
    row = int(np.argmax(size))
    largest = float(size[row])
    if largest != 0 and not _LEAST_TO_SQUARE <= largest <= 1 / _LEAST_TO_SQUARE:
        raise ValueError(
            f"y is {target[row]:g} in row {row}, its greatest value, and the squares of such "
            f"numbers are beyond float64: divide y by {largest:.0e}; coef_ and intercept_ are then "
            "in these units"
        )


def _check_real(name: str, values: object) -> None:
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":
        raise ValueError(f"{name} is complex: give its real part, or its absolute value")


def _check_finite(name: str, values: NumPyArray, needed: str) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        first = int(np.argmin(finite))
        row = _row_of(values, first)
        raise ValueError(
            f"{name} has {_name_of(values.flat[first])} in row {row}, and the fit needs {needed}: "
            "drop such rows"
        )


def _row_of(values: NumPyArray, place: int) -> int:
    """Return the row of a place in the flat array."""
    return place // values.shape[1] if values.ndim > 1 else place


def _has_small_squares(features: Data) -> bool:
    """Return whether the sum of all squares is finite and far from overflow.

    Then so is every number, and it takes one product as fast as memory is read. False means nothing
    yet: float32 overflows early, and an array with gaps would be copied, so that it is not tried.
    """
    if on_disk(features):
        return large.are_all(features, _have_small_squares)
    assert isinstance(features, np.ndarray)
    return _have_small_squares(features)


def _have_small_squares(features: NumPyArray) -> bool:
    """Return the same for an array in memory."""
    contiguous = features.flags.c_contiguous or features.flags.f_contiguous
    if not contiguous or features.dtype.itemsize < 4:
        return False
    numbers = features.ravel(order="K")
    with np.errstate(all="ignore"):
        return bool(np.dot(numbers, numbers) < 1 / _LEAST_TO_SQUARE)


def _first_where(
    features: Data, is_wrong: Callable[[NumPyArray], NumPyArray], names: NumPyArray | None
) -> str | None:
    """Return the first number that is wrong, in the order of the rows, and where it stands."""
    if on_disk(features):
        of_large = large.first_where(features, is_wrong)
        found = None if of_large is None else of_large[:3]
        place = "" if of_large is None else of_large[3]
    else:
        search: Any = csr_checks.first_where if issparse(features) else _first_of_dense
        found, place = search(features, is_wrong), ""
    if found is None:
        return None
    row, column, value = found
    name = "" if names is None else f" ({names[column]!r})"
    return f"{_name_of(value)} in row {row}, column {column}{name}{place}"


def _first_of_dense(
    features: NumPyArray, is_wrong: Callable[[NumPyArray], NumPyArray]
) -> tuple[int, int, object] | None:
    """Return row, column and value of the first number that is wrong."""
    rows = max(1, constants.PART_ROWS // features.shape[1])
    for first in range(0, len(features), rows):
        wrong = is_wrong(features[first : first + rows])
        if wrong.any():
            row, column = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            return first + int(row), int(column), features[first + row, column]
    return None


def _name_of(value: object) -> str:
    return "NaN" if value != value else str(value)
