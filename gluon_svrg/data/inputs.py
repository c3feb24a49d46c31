"""The input of `predict`: batches or whole arrays."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
from gluon_svrg.arguments import check_integer
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.data.training_data import batches_of
from mxnet.ndarray import NDArray


def batches_to_predict(data: object, batch_size: int | None) -> Iterator[Any]:
    """Return batches as :meth:`gluon_svrg.BatchProcessor.predict_batch` takes them.

    Parameters
    ----------
    data : iterable of batches, NDArray, numpy.ndarray, or dict of them
        An array, or a dict of arrays, is cut into batches along its first axis.
    batch_size : int or None
        For arrays: by default 128.

    Raises
    ------
    ValueError
        If the data cannot be iterated or are empty, the arrays of a dict have other lengths, or
        batches are given with a `batch_size`.
    """
    if isinstance(data, (NDArray, np.ndarray, Mapping)):
        return _slices(data, _check_size(batch_size))
    if batch_size is not None:
        raise ValueError(
            f"batch_size={batch_size!r} is for arrays, and the data are batches already: leave it "
            "out"
        )
    if isinstance(data, ArrayLoader) and data.shuffle:
        warnings.warn(
            "the data to predict are an ArrayLoader with shuffle=True: the outputs are in its "
            "order, not in that of its arrays; give the arrays, or a loader with shuffle=False",
            stacklevel=3,
        )
    if hasattr(data, "tocsr") or hasattr(data, "to_numpy"):  # SciPy's and pandas'
        way = "toarray()" if hasattr(data, "tocsr") else "to_numpy()"
        raise ValueError(
            f"the data to predict must be an array, a dict of arrays, or batches, got a "
            f"{type(data).__name__}: give data.{way}"
        )
    return batches_of(data, "data")


def _check_size(batch_size: int | None) -> int:
    if batch_size is None:
        return 128
    return check_integer("batch_size", batch_size, 1, "each pass takes that many samples")


def _slices(data: Any, batch_size: int) -> Iterator[Any]:
    lengths = [len(array) for array in tree_leaves(data)]
    if len(set(lengths)) != 1 or not lengths[0]:
        raise ValueError(
            f"the arrays to predict must have samples along axis 0, all the same number, got "
            f"{lengths}"
        )
    for begin in range(0, lengths[0], batch_size):
        rows = slice(begin, begin + batch_size)
        yield (tree_map(itemgetter(rows), data),)
