"""`predict`: the outputs of a network for all samples of some data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg.arguments import check_integer
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from gluon_svrg.arrays.sync import wait_for
from gluon_svrg.batch.parts import cannot_compute
from gluon_svrg.batch.processor import BatchProcessor
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.data.training_data import batches_of
from gluon_svrg.run import Run
from mxnet import autograd
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


def predict(run: Run, batches: Iterable[object], batch_axis: int) -> Any:
    """Return the outputs of the run's `val_net`, in the order of the samples.

    Each of several workers computes the outputs of all samples by itself, so any of them may call
    it, and the result does not depend on their number.

    Parameters
    ----------
    run : Run
        The run, with its `val_net`, batch processor and weights to evaluate.
    batches : iterable
        At least one batch.
    batch_axis : int
        The axis of the samples in data and outputs; outputs with fewer axes have them along the
        first.

    Raises
    ------
    ValueError
        If there is no batch, or the batches have outputs that cannot be joined.
    """
    first: Any = None
    columns: list[list[NDArray]] = []
    last: list[NDArray] = []
    with run.evaluation_weights(), autograd.pause(train_mode=False):
        for batch in batches:
            wait_for(last)  # else all batches are in memory before the first is computed
            last = [column[-1] for column in columns]
            for output in _predict_batch(run, batch, batch_axis):
                leaves = tree_leaves(output)
                if first is None:
                    first, columns = output, [[] for _ in leaves]
                if len(leaves) != len(columns):
                    raise ValueError(
                        f"the network gave {len(columns)} outputs for the first batch and "
                        f"{len(leaves)} for another: they cannot be joined"
                    )
                for column, leaf in zip(columns, leaves, strict=True):
                    column.append(to_nd(leaf).as_in_context(mx.cpu()))
    if first is None:
        raise ValueError(
            "there is no batch to predict: the data are empty, or can be iterated only once"
        )
    joined = iter([_joined(column, batch_axis) for column in columns])
    return tree_map(lambda _: next(joined), first)


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


def _predict_batch(run: Run, batch: object, batch_axis: int) -> list[Any]:
    try:
        return _outputs_of(run, batch, batch_axis)
    except mx.base.MXNetError as error:
        raise cannot_compute("the data to predict", batch, error) from error


def _outputs_of(run: Run, batch: object, batch_axis: int) -> list[Any]:
    processor = run.batch_processor
    if isinstance(processor, BatchProcessor):
        return processor.predict_batch(run, batch, batch_axis)
    pred = processor.evaluate_batch(run, batch, batch_axis)[2]
    return list(pred) if isinstance(pred, (list, tuple)) else [pred]


def _joined(arrays: list[NDArray], batch_axis: int) -> NDArray:
    axis = batch_axis if arrays[0].ndim > batch_axis else 0
    shapes = {array.shape[:axis] + array.shape[axis + 1 :] for array in arrays}
    if len(shapes) > 1:
        raise ValueError(
            f"outputs of shapes {sorted({array.shape for array in arrays})} cannot be joined along "
            f"axis {axis}: predict batches of one shape at a time"
        )
    joined: NDArray = mx.nd.concat(*arrays, dim=axis) if len(arrays) > 1 else arrays[0]
    return to_active_mode(joined)
