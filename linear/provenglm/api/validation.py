"""Validation of X, y, weights and offsets.

scikit-learn's own functions do the conversion and check shapes and feature names. This module adds
messages that say where the first NaN is, or which label or weight is wrong, and what to do.
Features keep their dtype and memory order: 8-bit pixels stay 8-bit pixels and are never copied as a
whole.
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
from provenglm.rows import csr_checks, disk_checks, non_numeric
from provenglm.rows.chunks import Chunks
from provenglm.rows.dask_rows import is_dask
from provenglm.rows.disk import on_disk
from provenglm.rows.far_parts import Data, Source
from provenglm.rows.mpi import Distributed
from provenglm.rows.non_numeric import shown, values_of
from provenglm.types import NumPyArray

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # in scikit-learn 1.5 it is a method

    def validate_data(  # type: ignore[no-untyped-def]
        estimator, /, X, *, reset, dtype, accept_sparse, ensure_all_finite
    ):
        """Validate as scikit-learn 1.6 and later."""
        return estimator._validate_data(
            X,
            reset=reset,
            dtype=dtype,
            accept_sparse=accept_sparse,
            force_all_finite=ensure_all_finite,
        )


_LABELS_TO_COUNT = 1 << 20
"""Labels are sorted, not counted, if the smallest and the largest differ by more than this."""

_NUMPY_2 = re.compile(r"np\.\w+\((.*)\)")
"""NumPy 2 writes ``np.str_('many')`` where NumPy 1 writes ``'many'``."""

_LEAST_TO_SQUARE = 1e-140
"""Squares of numbers from this to its inverse, and their sums, do not underflow or overflow."""

_FARTHEST = 100.0
"""Distance from the mean up to which exp() of an offset, times a target, is within float64."""


class Labels(NamedTuple):
    """The labels of a classifier, encoded as integers.

    Attributes
    ----------
    classes : numpy.ndarray of shape (K,)
        The distinct labels, sorted, in the dtype of y.
    codes : numpy.ndarray of shape (n,), integers
        The index of each sample's label in `classes`.
    """

    classes: NumPyArray
    codes: NumPyArray


def check_features(estimator: BaseEstimator, X: object, *, reset: bool) -> Data:
    """Return `X` as an array or CSR matrix of shape (n, p), without a copy if it is numeric.

    Chunks are returned as they are, and data on disk are read in blocks.

    Parameters
    ----------
    estimator : BaseEstimator
        Its ``n_features_in_`` and ``feature_names_in_`` are set or compared.
    X : array-like or sparse matrix of shape (n, p)
        Numbers or booleans of any dtype. Columns of different dtypes, as in a frame, get their
        common dtype; objects become float64. A sparse matrix or array in CSR format is used as it
        is, other formats are copied once; see :func:`provenglm.rows.csr_checks.canonical`.
    reset : bool
        True in ``fit``. If False, `X` must have the columns of ``fit``.

    Raises
    ------
    ValueError
        If it is empty, complex or not two-dimensional, if its columns are not those of ``fit``, if
        it contains NaN or infinity or, in ``fit``, numbers beyond 1e140.
    """
    name = type(estimator).__name__
    if isinstance(X, (Distributed, Source)):
        raise TypeError(
            f"X has rows of other processes, which only the fit of GLMClassifier and GLMRegressor "
            f"takes: give {name} rows of this process here"
        )
    if is_dask(X):
        raise TypeError(
            f"X is a Dask collection, which only fit, score and predictions of GLMClassifier and "
            f"GLMRegressor take: give {name} rows of this process here, such as X.compute()"
        )
    if isinstance(X, Chunks) and X.is_sparse:
        X = X.stacked()
    if isinstance(X, Chunks):
        disk_checks.check_columns(estimator, X, reset=reset)
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
                    f"X has {where}, and the square of such a number overflows float64: divide the "
                    "column by its largest number; its coefficient is then in these units"
                )
    return features


def check_target(
    name: str, y: object, features: Data, weight: NumPyArray | None, loss: Loss
) -> NumPyArray:
    """Return the target of a regressor, of shape (n,), in float64.

    Parameters
    ----------
    name : str
        Name of the estimator's class.
    y : array-like of shape (n,)
        Finite numbers. A column of shape (n, 1) is accepted with a DataConversionWarning.
    features : numpy.ndarray or CSR matrix of shape (n, p)
        The features, which `y` must match in length.
    weight : numpy.ndarray of shape (n,), or None
        The result of :func:`check_weight`.
    loss : Loss
        It makes further checks. For all losses but Huber's, squares must not overflow float64.

    Raises
    ------
    ValueError
        If it is missing, not one-dimensional, of another length or not finite, or if the loss does
        not accept it.
    """
    target = check_numbers(name, y, features.shape[0])
    if not loss.needs_all_targets:
        check_squares(target)
    loss.check_target(target, weight)
    return target


def check_numbers(name: str, y: object, n: int) -> NumPyArray:
    """Return y for n rows as float64, (n,); raise a ValueError if it is not numeric."""
    return _as_float64("y", _as_column(name, y, n, "needs numbers"))


def check_scored_labels(name: str, y: object, n: int) -> NumPyArray:
    """Return the true labels of n rows, (n,), converted as in a fit.

    Parameters and exceptions are those of :func:`check_labels`.
    """
    return _as_labels(name, y, n)


def check_labels(name: str, y: object, features: Data) -> Labels:
    """Return the labels of a classifier.

    Integers and booleans are counted, which is faster than sorting them.

    Parameters
    ----------
    name : str
        Name of the estimator's class.
    y : array-like of shape (n,)
        Integers of any dtype, booleans or strings. An object array is converted to the type of its
        elements.
    features : numpy.ndarray or CSR matrix of shape (n, p)
        The features, which `y` must match in length.

    Raises
    ------
    ValueError
        If it is missing, not one-dimensional or of another length, or if it contains fractions, NaN
        or objects that are not labels.
    """
    labels = _as_labels(name, y, features.shape[0])
    if labels.dtype.kind == "f":
        fractions = labels != np.trunc(labels)
        if fractions.any():
            raise ValueError(
                f"Unknown label type: y has {labels[np.argmax(fractions)]!s} in row "
                f"{int(np.argmax(fractions))}, a continuous target, and {name} needs classes: use "
                "GLMRegressor for numbers, or convert them to classes with "
                "sklearn.preprocessing.KBinsDiscretizer"
            )
    if labels.dtype.kind not in "biuf":
        return Labels(*np.unique(labels, return_inverse=True))
    least, most = int(labels.min()), int(labels.max())
    if most - least >= _LABELS_TO_COUNT or max(-least, most) > np.iinfo(np.int64).max:
        return Labels(*np.unique(labels, return_inverse=True))
    if on_disk(features):
        return Labels(*disk_checks.counted(labels, least, most))
    places = labels.astype(np.int64) - least
    present = np.bincount(places) > 0
    places_of_classes = np.flatnonzero(present)
    codes = places
    if not present.all():
        codes = (np.cumsum(present) - 1)[places]
    return Labels((places_of_classes + least).astype(labels.dtype), codes)


def check_weight(sample_weight: object, features: Data) -> NumPyArray | None:
    """Return the sample weights, of shape (n,) in float64, or None if there are none.

    Parameters
    ----------
    sample_weight : array-like of shape (n,), number, or None
        Finite, non-negative numbers that are not all 0. A single number only changes the strength
        of the penalty, which is relative to the sum of the weights.
    features : numpy.ndarray or CSR matrix of shape (n, p)
        The features, which the weights must match in length.

    Raises
    ------
    ValueError
        If the weights do not meet these conditions.
    """
    weight = check_weights(sample_weight, features.shape[0])
    if weight is not None:
        with np.errstate(over="ignore"):
            check_total(float(weight.sum()), len(weight))
    return weight


def check_weights(sample_weight: object, n: int) -> NumPyArray | None:
    """Return the sample weights of n rows, which may be 0 in all of them: see `check_weight`."""
    if sample_weight is None:
        return None
    weight = _one_per_row("sample_weight", "weight", sample_weight, n)
    if (weight < 0).any():
        row = int(np.argmax(weight < 0))
        raise ValueError(
            f"sample_weight is {weight[row]:g} in row {row}, and a loss with a negative weight has "
            "no minimum: give 0 to leave a row out"
        )
    return weight


def check_total(total: float, n: int) -> float:
    """Return the sum of the weights of n rows; raise a ValueError if it cannot divide."""
    if total == 0:
        raise ValueError(
            f"sample_weight is zero in all {n} rows, so there is nothing to fit: "
            "give at least one row a positive weight"
        )
    if not _LEAST_TO_SQUARE <= total <= 1 / _LEAST_TO_SQUARE:
        raise ValueError(
            f"sample_weight has the sum {total:g}, which is outside the range that float64 can "
            "divide by: divide the weights by their mean (the penalty of a classifier is relative "
            "to their sum, that of a regressor is not)"
        )
    return total


def check_offset(offset: object, n: int, outputs: int = 1) -> NumPyArray | None:
    """Return the offset of the scores, float64 of shape (n, K), or None.

    Parameters
    ----------
    offset : array-like of shape (n,) or (n, K), number, or None
        Finite numbers.
    n : int
        The number of rows.
    outputs : int
        K, the number of classes if there are more than two, else 1.

    Raises
    ------
    ValueError
        If the offset is not finite or has another shape.
    """
    if offset is None:
        return None
    if outputs == 1:
        return np.ascontiguousarray(_one_per_row("offset", "number", offset, n))[:, None]
    values = _as_float64("offset", values_of("offset", offset, "the fit needs numbers"))
    if values.ndim == 0:
        values = np.full((n, outputs), values)
    if values.shape != (n, outputs):
        raise ValueError(
            f"offset has the shape {values.shape}, and X has {n} rows of {outputs} classes: give "
            f"one number per row and class, in an array of shape ({n}, {outputs}) whose columns "
            "are in the order of classes_"
        )
    return np.ascontiguousarray(values)


def check_exposure(
    loss: Loss, offset: NumPyArray | None, weight: NumPyArray | None, has_intercept: bool
) -> None:
    """Raise a ValueError if exp() of the offset, up to the intercept, is beyond float64."""
    if offset is None or not loss.has_logarithm:
        return
    mean = float(np.average(offset[:, 0], weights=weight)) if has_intercept else 0.0
    farthest = max(float(offset.max()) - mean, mean - float(offset.min()))
    if farthest <= _FARTHEST:
        return
    # The largest offset overflows, unless only a small one is that far from the mean.
    row = int(np.argmax(offset))
    row = row if offset[row, 0] - mean > _FARTHEST else int(np.argmin(offset))
    raise ValueError(
        f"offset is {offset[row, 0]:g} in row {row}, and loss={loss.name!r} "
        "predicts exp(scores + offset), which is beyond any exposure: give the logarithm "
        "of the exposure, numpy.log(exposure)"
    )


def _one_per_row(name: str, what: str, given: object, n: int) -> NumPyArray:
    """Return `given` as float64 of shape (n,); a single number is repeated for all rows."""
    values = _as_float64(name, values_of(name, given, "the fit needs numbers"))
    if values.ndim == 0:
        values = np.full(n, values)
    if values.shape != (n,):
        raise ValueError(
            f"{name} has the shape {values.shape}, and X has {n} rows: give one {what} per row, in "
            f"an array of shape ({n},)"
        )
    return values


def with_class_weight(
    labels: Labels, weight: NumPyArray | None, class_weight: Mapping[object, float] | str | None
) -> NumPyArray | None:
    """Return the sample weights multiplied by the weights of their classes.

    Parameters
    ----------
    labels : Labels
        The labels of all samples.
    weight : numpy.ndarray of shape (n,), or None
        The weights of the samples.
    class_weight : dict, 'balanced' or None
        A dict of weights by label; missing labels have weight 1. 'balanced' gives each class the
        same total weight. As in scikit-learn since 1.8, it counts sample weights, so that weight 2
        is the same as repeating the row.

    Raises
    ------
    ValueError
        If it is something else, or if the weight of a class is negative or not finite.
    """
    if class_weight is None:
        return weight
    each: NumPyArray = class_weights(labels, weight, class_weight)[labels.codes]
    return each if weight is None else each * weight


def class_weights(
    labels: Labels, weight: NumPyArray | None, class_weight: Mapping[object, float] | str | None
) -> NumPyArray:
    """Return the weight of each class, (K,): see `with_class_weight`."""
    classes, codes = labels
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str) and class_weight == "balanced":
        sums = np.bincount(codes, weights=weight, minlength=len(classes))
        there = sums > 0
        factors = np.where(there, sums.sum() / (there.sum() * np.where(there, sums, 1.0)), 0.0)
    elif isinstance(class_weight, Mapping):
        values_of("class_weight", list(class_weight.values()), "the fit needs numbers")
        # With classes of float32 the result is float32.
        factors = compute_class_weight(dict(class_weight), classes=classes, y=classes).astype(
            np.float64
        )
        wrong = ~(np.isfinite(factors) & (factors >= 0))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(
                f"class_weight is {factors[at]:g} for the class {classes[at]!s}, and it must be a "
                "finite number of at least 0: give 0 to leave a class out"
            )
    else:
        raise ValueError(
            f"class_weight must be None, 'balanced' or a dict, got {class_weight!r}: 'balanced' "
            "gives each class the same total weight, a dict has a weight per label"
        )
    return np.asarray(factors)


def classes_with_weight(
    name: str, labels: Labels, weight: NumPyArray | None, n: int | None = None
) -> Labels:
    """Return the labels without classes whose samples all have weight 0.

    Weight 0 is the same as leaving the row out, so such a class does not exist. The codes of its
    rows are 0. A message says that there are n rows, by default as many as labels.

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
            f"y has {only} in its {len(codes) if n is None else n} rows{where}, and {name} needs "
            "at least two classes to tell apart: if the data are sorted by class, shuffle them "
            "before they are split"
        )
    return Labels(classes, codes)


def _validated(estimator: BaseEstimator, X: object, reset: bool) -> Data:
    """Return features as scikit-learn converts them; an error names the non-numeric column."""
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


# --- Shared helpers ----------------------------------------------------------------------------


def _as_column(name: str, y: object, n: int, needs: str) -> NumPyArray:
    if y is None:
        raise ValueError(
            f"This {name} estimator requires y to be passed, but the target y is None: give one "
            f"value for each of the {n} rows of X"
        )
    if type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "biuf" and y.flags.c_contiguous:
        column: NumPyArray = y  # scikit-learn's check for frames takes 0.3 ms
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
    """Return the labels; an object array is converted to the type of its elements."""
    labels = _as_column(name, y, n, "needs whole numbers, booleans or text")
    if labels.dtype.kind in "OV":
        labels = _typed_labels(name, labels)
    if labels.dtype.kind == "f":
        _check_finite("y", labels, "labels")
    return labels


def _typed_labels(name: str, labels: NumPyArray) -> NumPyArray:
    """Convert an object array of labels to the type of its elements; text stays as it is."""
    values = labels.tolist()
    if set(map(type, values)) <= {str, np.str_}:
        return labels
    row = next((row for row, label in enumerate(values) if non_numeric.is_missing(label)), None)
    if row is not None:
        missing = shown(values[row])
        raise ValueError(f"y has {missing} in row {row}, and the fit needs labels: drop such rows")
    text = "convert all labels to text with numpy.asarray(y).astype(str)"
    rows: dict[type, int] = {}
    for row, label in enumerate(values):
        rows.setdefault(_kind_of_label(label), row)
    if object in rows:
        row = rows[object]
        raise ValueError(
            f"Unknown label type: y has {shown(values[row])} in row {row}, and {name} needs whole "
            f"numbers, booleans or text: {text}"
        )
    if len(rows) > 1:
        one, other = sorted(rows.values())[:2]
        raise ValueError(
            f"Unknown label type: y has {shown(values[one])} in row {one} and "
            f"{shown(values[other])} in row {other}, which cannot be sorted: {text}, or to numbers "
            "with astype(float)"
        )
    found = np.array(values)
    if found.dtype.kind != "O":
        return found
    floats = found.astype(np.float64)
    row = next((row for row, value in enumerate(floats.tolist()) if value != values[row]), None)
    if row is not None:
        raise ValueError(
            f"Unknown label type: y has {shown(values[row])} in row {row}, which float64 cannot "
            f"represent: {text}"
        )
    return floats


def _kind_of_label(label: object) -> type:
    """Return `float`, `str` or `bytes`: kinds that can be sorted; `object` if it is no label."""
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
                f"{name} has {shown(value)} in row {row}, and the fit needs finite numbers: {way}"
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


def check_squares(target: NumPyArray) -> None:
    """Raise a ValueError if the square of the largest target is 0 or infinite in float64."""
    size = np.abs(target)
    row = int(np.argmax(size))
    largest = float(size[row])
    if largest != 0 and not _LEAST_TO_SQUARE <= largest <= 1 / _LEAST_TO_SQUARE:
        raise ValueError(
            f"y is {target[row]:g} in row {row}, its largest value, and the square of such a "
            f"number is outside the range of float64: divide y by {largest:.0e}; coef_ and "
            "intercept_ are then in these units"
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

    Then every number is, too, and the test costs one product at the speed of memory. False proves
    nothing: float32 overflows early, and a non-contiguous array is not tested, to avoid a copy.
    """
    if on_disk(features):
        return disk_checks.are_all(features, _have_small_squares)
    assert isinstance(features, np.ndarray)
    return _have_small_squares(features)


def _have_small_squares(features: NumPyArray) -> bool:
    """Return the result of :func:`_has_small_squares` for an array in memory."""
    contiguous = features.flags.c_contiguous or features.flags.f_contiguous
    if not contiguous or features.dtype.itemsize < 4:
        return False
    numbers = features.ravel(order="K")
    with np.errstate(all="ignore"):
        return bool(np.dot(numbers, numbers) < 1 / _LEAST_TO_SQUARE)


def _first_where(
    features: Data, is_wrong: Callable[[NumPyArray], NumPyArray], names: NumPyArray | None
) -> str | None:
    """Return a text with the first wrong number, in the order of the rows, and its position."""
    if on_disk(features):
        first_wrong = disk_checks.first_where(features, is_wrong)
        found = None if first_wrong is None else first_wrong[:3]
        place = "" if first_wrong is None else first_wrong[3]
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
    """Return row, column and value of the first wrong number."""
    rows = max(1, constants.PART_ROWS // features.shape[1])
    for first in range(0, len(features), rows):
        wrong = is_wrong(features[first : first + rows])
        if wrong.any():
            row, column = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            return first + int(row), int(column), features[first + row, column]
    return None


def _name_of(value: object) -> str:
    return "NaN" if value != value else str(value)
