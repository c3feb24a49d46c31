"""Find values that must not be converted to numbers: dates, masked values, text.

NumPy silently converts dates, durations and masked values to numbers. They are therefore found
before the conversion: by the dtypes of columns, and one by one among objects. Text is looked for
after a conversion has failed. All containers are supported.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from provenglm.types import NumPyArray

_CODED = (
    "encode it, for instance with sklearn.preprocessing.OneHotEncoder in a "
    "sklearn.compose.make_column_transformer, or leave it out"
)
NUMERIC = "make numbers of it with astype(float)"
_SPLIT = "make a column of each part, or leave it out"
DATED = "give the days since a date, or parts of it such as the month, or leave it out"
_MISSING = "drop such rows, or put sklearn.impute.SimpleImputer before it"

_DATES = re.compile(r"(dictionary<values=)?(date|time|duration|period|month_day)", re.IGNORECASE)
"""The beginnings of the names of dates' and durations' dtypes in pandas, Polars, Arrow and
NumPy."""

_NESTED = re.compile(r"(large_)?(struct|list|array|map|fixed_size_list)", re.IGNORECASE)
"""The beginnings of the names of dtypes whose values have several parts."""

_DATE_TYPES = (
    *(datetime.date, datetime.time, datetime.timedelta),
    *(np.datetime64, np.timedelta64),
)


class _Columns(NamedTuple):
    names: Sequence[object]
    """The columns of an array, which have no names."""
    dtypes: list[str]
    values: Callable[[int], object]


def first_column(X: object, *, dates_alone: bool = False) -> tuple[str, str] | None:
    """Describe the first column that is not numeric and what to do; None if all are numeric.

    Parameters
    ----------
    X : array-like of shape (n, p)
        A data frame, an array or nested lists.
    dates_alone : bool
        Whether text is ignored. Only columns of objects are then read.
    """
    is_wrong = is_date if dates_alone else _is_no_number
    if dates_alone and not any(map(_may_have_dates, set(_dtypes(X)))):
        return None
    names, dtypes, values = _columns(X)
    for place, (name, dtype) in enumerate(zip(names, dtypes, strict=True)):
        called = f"column {place}" if name is None else f"column {place} ({name!r})"
        if _DATES.match(dtype):
            return f"{called} of X is of {dtype}", DATED
        if _NESTED.match(dtype):
            return f"{called} of X is of {dtype}", _SPLIT
        if dates_alone and not _may_have_dates(dtype):
            continue
        column = np.asarray(values(place))
        if column.dtype.kind in "mM":  # categories of dates
            return f"{called} of X is of {column.dtype}", DATED
        row = _first_row(column, is_wrong)
        if row is None and column.dtype.kind in "SU" and not dates_alone:
            row = 0  # such an array is not converted at all
        if row is not None:
            value = column[row : row + 1].tolist()[0]
            return f"{called} of X has {shown(value)} in row {row}", _way(value)
    return None


def values_of(
    name: str, values: object, needed: str, way: str = "give numbers, no dates or durations"
) -> NumPyArray:
    """Return an array with one value per row, after checking that it has no dates and no mask.

    Parameters
    ----------
    name : str
        The name of the values in messages.
    values : array-like
    needed : str
        The requirement as a clause, such as 'the fit needs numbers'.
    way : str
        The advice for dates.

    Raises
    ------
    ValueError
        If there is a date, a duration or a masked value. The message names its row.
    """
    array = array_of(without_mask(name, collected(name, values)))
    if array.dtype.kind in "mM":
        raise ValueError(f"{name} is of {array.dtype}, and {needed}: {way}")
    row = _first_row(array.reshape(-1), is_date) if array.dtype.kind == "O" else None
    if row is not None and not is_missing(array.flat[row]):
        raise ValueError(f"{name} has {shown(array.flat[row])} in row {row}, and {needed}: {way}")
    return array


def array_of(values: Any) -> NumPyArray:
    """Return values as an array, with their mask if there is one.

    A list that contains text becomes an array of objects, because NumPy would convert all values,
    including NaN, to text.
    """
    array: NumPyArray = np.asanyarray(values)
    if not isinstance(values, (list, tuple)) or array.ndim != 1 or array.dtype.kind not in "SU":
        return array
    kinds = set(map(type, values))
    is_text = kinds <= {str, np.str_} or kinds <= {bytes, np.bytes_}
    return array if is_text else np.array([*values, None], dtype=object)[:-1]


def without_mask(name: str, values: Any) -> Any:
    """Return the values without their mask, after checking that the mask is not set.

    Raises
    ------
    ValueError
        If the mask is set. The message names the first row.
    """
    kinds = set(map(type, values)) if isinstance(values, (list, tuple)) else ()
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        values = np.ma.stack(values)
    if not isinstance(values, np.ma.MaskedArray):
        return values
    mask = np.atleast_1d(values.mask)
    if mask.any():
        row, *column = np.argwhere(mask)[0].tolist()
        where = f"row {row}" + (f", column {column[0]}" if column else "")
        raise ValueError(
            f"{name} has a masked value in {where}, and what is under a mask is no number: drop "
            "such rows, or fill it in with numpy.ma.filled"
        )
    return values.data


def collected(name: str, values: Any) -> Any:
    """Return the values; raise TypeError if they are a query that has not been run."""
    kind = type(values)
    if hasattr(kind, "collect") and not hasattr(kind, "__array__"):
        call = "toPandas" if hasattr(kind, "toPandas") else "collect"
        raise TypeError(
            f"{name} is a {kind.__name__}, a query that has no rows yet: give {name}.{call}()"
        )
    return values


def with_nan(objects: NumPyArray) -> NumPyArray:
    """Return numeric or missing objects as float64, with NaN for missing ones."""
    missing = np.frompyfunc(is_missing, 1, 1)(objects).astype(bool)
    return np.where(missing, np.nan, objects).astype(np.float64)


def first_no_number(values: NumPyArray) -> int | None:
    """Return the index of the first object that is not a number."""
    return _first_row(values, lambda value: _is_no_number(value) or is_missing(value))


def is_date(value: object) -> bool:
    """Return whether a value is a date, a time, a duration or a period."""
    return isinstance(value, _DATE_TYPES) or type(value).__name__ in ("Period", "NaTType")


def is_missing(value: object) -> bool:
    """Return whether a value means that a value is missing."""
    if value is None or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant"):
        return True
    if isinstance(value, (float, np.floating, np.datetime64, np.timedelta64)):
        return bool(value != value)
    return False


def shown(value: object) -> str:
    """Return a value as it is displayed in a message."""
    if isinstance(value, (float, np.floating)) and value != value:
        return "NaN"
    if is_date(value) or is_missing(value):
        text = str(value)
    else:  # NumPy 2 writes np.str_('many')
        text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_no_number(value: object) -> bool:
    if is_date(value):
        return True
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return value is not None  # None becomes NaN
    return False


def _way(value: object) -> str:
    if is_missing(value):
        return _MISSING
    if is_date(value):
        return DATED
    if isinstance(value, (str, bytes)) and _is_no_number(value):
        return _CODED
    return NUMERIC


def _may_have_dates(dtype: object) -> bool:
    if isinstance(dtype, np.dtype):  # to write its name takes longer than all else
        return dtype.kind in "mMO"
    name = str(dtype)
    return bool(_DATES.match(name) or _NESTED.match(name)) or name.lower() == "object"


def _is_arrow(X: object) -> bool:
    return hasattr(type(X), "column_names") and hasattr(type(X), "schema")


def _is_frame(X: object) -> bool:
    return hasattr(type(X), "columns") and hasattr(type(X), "dtypes")


def _dtypes(X: Any) -> Iterable[Any]:
    """Return the dtypes of a data frame's or table's columns, or the dtype of an array."""
    if _is_arrow(X):
        return list(X.schema.types)
    return X.dtypes if _is_frame(X) else [np.asarray(X).dtype]


def _columns(X: Any) -> _Columns:
    """Return the columns of a data frame, a table or an array."""
    if _is_arrow(X):
        return _Columns(X.column_names, list(map(str, _dtypes(X))), X.column)
    if _is_frame(X):
        names, by_place = list(X.columns), hasattr(X, "iloc")

        def column(k: int) -> object:
            return X.iloc[:, k] if by_place else X[names[k]]

        return _Columns(names, list(map(str, _dtypes(X))), column)
    values = np.asarray(X)
    if values.dtype.kind in "SU" and not isinstance(X, np.ndarray):
        values = np.asarray(X, dtype=object)
    count = values.shape[1] if values.ndim == 2 else 0
    return _Columns([None] * count, [str(values.dtype)] * count, values.T.__getitem__)


def _first_row(column: NumPyArray, is_wrong: Callable[[object], bool]) -> int | None:
    """Return the row of the first invalid value in a column of objects or text."""
    if column.dtype.kind not in "SUO":
        return None
    if is_wrong is is_date:
        # Check one value of each type first: most types have no invalid values.
        one_of = {type(value): value for value in column.tolist()}
        if not any(map(is_date, one_of.values())):
            return None
    return next((row for row, value in enumerate(column) if is_wrong(value)), None)
