"""Which column of features has no numbers: looked for after the conversion has failed."""

from __future__ import annotations

from typing import Any

import numpy as np

from provenglm.types import NumPyArray

_CODED = (
    "encode it, for instance with sklearn.preprocessing.OneHotEncoder in a "
    "sklearn.compose.make_column_transformer, or leave it out"
)
_NUMERIC = "make numbers of it with astype(float)"
_DATED = "give the days since a date, or parts of it such as the month, or leave it out"


def first_column(X: object) -> tuple[str, str] | None:
    """Return what the first column without numbers has, and what to do; None if all have numbers.

    Parameters
    ----------
    X : array-like of shape (n, p)
        A frame, an array or nested lists.
    """
    for place, name, column in _columns(X):
        called = f"column {place}" if name is None else f"column {place} ({name!r})"
        if column.dtype.kind in "mM":
            return f"{called} of X is of {column.dtype}", _DATED
        row = _first_text(column)
        if row is not None:
            value = column[row : row + 1].tolist()[0]
            shown = str(value) if hasattr(value, "isoformat") else repr(value)
            return f"{called} of X has {shown} in row {row}", _way(value)
    return None


def _way(value: object) -> str:
    if hasattr(value, "isoformat"):
        return _DATED
    return _CODED if _is_text(value) else _NUMERIC


def _is_text(value: object) -> bool:
    """Return whether a value is text that is no number."""
    if not isinstance(value, (str, bytes)):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def _columns(X: Any) -> list[tuple[int, object, NumPyArray]]:
    """Return place, name and values of each column."""
    names = getattr(X, "columns", None)
    if names is not None and hasattr(X, "shape"):
        by_place = X.iloc.__getitem__ if hasattr(X, "iloc") else None
        return [
            (k, name, np.asarray(X[name] if by_place is None else by_place((slice(None), k))))
            for k, name in enumerate(names)
        ]
    values = np.asarray(X)
    if values.dtype.kind in "SU" and not isinstance(X, np.ndarray):
        values = np.asarray(X, dtype=object)
    return [(k, None, values[:, k]) for k in range(values.shape[1])] if values.ndim == 2 else []


def _first_text(column: NumPyArray) -> int | None:
    """Return the row of the first value that is text or a date."""
    if column.dtype.kind not in "SUO":
        return None
    for row, value in enumerate(column):
        if hasattr(value, "isoformat") or _is_text(value):
            return row
    return None if column.dtype.kind == "O" else 0  # such an array is not converted at all
