"""Checks of data that are read in blocks, and of labels that are not copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from sklearn.base import BaseEstimator

from provenglm.rows.blocks import parts_of
from provenglm.rows.chunks import Chunks
from provenglm.rows.disk import DiskRows, parts_in
from provenglm.rows.non_numeric import array_of, collected
from provenglm.types import NumPyArray
from provenglm.workers import Workers


def check_columns(estimator: BaseEstimator, chunks: Chunks, *, reset: bool) -> None:
    """Set ``n_features_in_`` and ``feature_names_in_``, or compare the columns with them.

    Raises
    ------
    ValueError
        If the columns differ from those of ``fit``.
    """
    width, columns = chunks.shape[1], chunks.columns
    if reset:
        estimator.n_features_in_ = width
        if columns is not None:
            estimator.feature_names_in_ = np.array(columns, dtype=object)
        elif hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
        return
    name = type(estimator).__name__
    if width != estimator.n_features_in_:
        raise ValueError(
            f"X has {width} features, but {name} is expecting {estimator.n_features_in_} features "
            "as input: give the columns of the fit"
        )
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and columns is not None and list(names) != columns:
        wrong = next(k for k in range(width) if names[k] != columns[k])
        raise ValueError(
            f"column {wrong} of X is {columns[wrong]!r}, and {name} was fitted with "
            f"{names[wrong]!r} there: give columns=model.feature_names_in_ to from_parquet"
        )


def first_where(
    features: NumPyArray | Chunks, is_wrong: Callable[[NumPyArray], NumPyArray]
) -> tuple[int, int, object, str] | None:
    """Return row, column, value and position of the first invalid number."""
    rows = DiskRows(parts_in(features))
    for part in rows.slices():
        block = rows.block(part)
        wrong = is_wrong(block)
        if wrong.any():
            row, column = (int(k) for k in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
            at = part.start + row
            return at, column, block[row, column], _place(features, at)
    return None


def are_all(features: NumPyArray | Chunks, are: Callable[[NumPyArray], bool]) -> bool:
    """Return whether a condition holds for all blocks."""
    rows = DiskRows(parts_in(features))
    workers = Workers(features.size)
    with workers.running():
        return all(workers.map(lambda part: are(rows.block(part)), rows.slices()))


def _place(features: NumPyArray | Chunks, row: int) -> str:
    """Return a text that says which chunk a row is in; empty if there is only one chunk."""
    if not isinstance(features, Chunks) or len(features.parts) == 1:
        return ""
    starts = np.cumsum([0, *features.lengths])
    k = int(np.searchsorted(starts, row, side="right")) - 1
    return f" (row {row - starts[k]} of chunk {k})"


def joined(name: str, values: object, features: object) -> object:
    """Return values as one array, if they are a list with one array per chunk.

    Raises
    ------
    ValueError
        If the lengths of the arrays are not those of the chunks.
    """
    if not isinstance(features, Chunks) or not _are_arrays(values):
        return values
    assert isinstance(values, Sequence)
    lengths = features.lengths
    if len(values) != len(lengths):
        raise ValueError(
            f"{name} has {len(values)} arrays, and X has {len(lengths)} chunks: give one array for "
            "each chunk, or one array for all rows"
        )
    # Keep a mask, so that `validation` can reject it.
    arrays = [array_of(collected(name, value)) for value in values]
    for k, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if array.shape[:1] != (length,):
            raise ValueError(
                f"{name}[{k}] has the shape {array.shape}, and chunk {k} has {length} rows: "
                "give one value for each row"
            )
    are_masked = any(isinstance(array, np.ma.MaskedArray) for array in arrays)
    concatenate: Any = np.ma.concatenate if are_masked else np.concatenate
    return cast("NumPyArray", concatenate(arrays))


def _are_arrays(values: object) -> bool:
    if not isinstance(values, (list, tuple)) or not values:
        return False
    return all(map(_is_array, values))


def _is_array(value: object) -> bool:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        return False
    return len(getattr(value, "shape", (0,))) > 0  # Arrow's arrays and lists have no shape


def counted(labels: NumPyArray, least: int, most: int) -> tuple[NumPyArray, NumPyArray]:
    """Return the distinct labels, and the index of each label among them.

    Labels are whole numbers from `least` to `most`. The indices have the smallest possible dtype.
    """
    present = np.zeros(most - least + 1, bool)
    for part in parts_of(len(labels)):
        present[labels[part].astype(np.int64) - least] = True
    classes = np.flatnonzero(present)
    place = (np.cumsum(present) - 1).astype(smallest(len(classes)))
    codes = np.empty(len(labels), place.dtype)
    for part in parts_of(len(labels)):
        codes[part] = place[labels[part].astype(np.int64) - least]
    return (classes + least).astype(labels.dtype), codes


def smallest(count: int) -> np.dtype[Any]:
    """Return the smallest dtype for `count` codes, which begin at 0."""
    return np.min_scalar_type(max(0, count - 1))
