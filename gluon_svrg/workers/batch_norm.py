"""Running statistics, such as BatchNorm's: the mean over all contexts and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg._typing import NumPyArray
from gluon_svrg.workers import Workers
from mxnet import gluon
from mxnet.ndarray import NDArray


def find_running_statistics(net: gluon.Block) -> list[list[NDArray]]:
    """Return the copies, by context, of each parameter that is updated without a gradient."""
    return [
        param.list_data()
        for param in net.collect_params().values()
        if not _mxnet.is_differentiable(param)
        and _mxnet.has_data(param)
        and is_float(param.list_data()[0])
    ]


def is_float(array: NDArray) -> bool:
    """Return whether an array has floating point numbers."""
    return np.dtype(array.dtype).kind == "f"


def average_copies(copies: Sequence[Sequence[NDArray]], workers: Workers) -> None:
    """Replace arrays by the mean of their copies on all contexts of all workers.

    If all copies are equal nothing changes, bit for bit. All have the same bits afterwards.

    Parameters
    ----------
    copies : sequence of sequences of NDArray
        The copies of each array on this worker, by context.
    workers : Workers
        The processes of the run; each has the same number of arrays.
    """
    if not copies:
        return
    # With static_shape MXNet does not order a read after the backward pass that writes them.
    mx.nd.waitall()
    local = [[copy.asnumpy() for copy in arrays] for arrays in copies]
    data = b"".join(copy.tobytes() for arrays in local for copy in arrays)
    all_workers = [
        _copies_in(part, local) for part in workers.all_gather_bytes(data, "running statistics")
    ]
    for number, arrays in enumerate(copies):
        mean = _mean([copy for worker in all_workers for copy in worker[number]])
        for array in arrays:
            _mxnet.as_legacy(array)[:] = mx.nd.array(mean, array.ctx, mean.dtype)


@contextmanager
def averaged_running_statistics(net: gluon.Block, workers: Workers) -> Iterator[None]:
    """Replace running statistics by their mean over all copies inside the ``with`` block.

    So all workers and contexts, which have seen different rows, evaluate the same network.
    """
    copies = find_running_statistics(net)
    if not workers.is_distributed and all(len(arrays) == 1 for arrays in copies):
        yield
        return
    mx.nd.waitall()
    saved = [[array.copy() for array in arrays] for arrays in copies]
    average_copies(copies, workers)
    try:
        yield
    finally:
        for arrays, values in zip(copies, saved, strict=True):
            for array, value in zip(arrays, values, strict=True):
                value.copyto(array)


def _copies_in(data: bytes, like: Sequence[Sequence[NumPyArray]]) -> list[list[NumPyArray]]:
    """Return a worker's copies of each array; workers may have different numbers of contexts."""
    kinds = [(arrays[0].dtype, arrays[0].shape, arrays[0].nbytes) for arrays in like]
    number = len(data) // sum(nbytes for _, _, nbytes in kinds)
    begin, copies = 0, []
    for dtype, shape, nbytes in kinds:
        values = np.frombuffer(data[begin : begin + number * nbytes], dtype)
        copies.append(list(values.reshape(number, *shape)))
        begin += number * nbytes
    return copies


def _mean(copies: Sequence[NumPyArray]) -> NumPyArray:
    # The sum of equal numbers, divided by how many, is not always that number.
    first = copies[0].astype("float64")
    difference = np.zeros_like(first)
    for copy in copies[1:]:
        difference += copy - first
    mean: NumPyArray = (first + difference / len(copies)).astype(copies[0].dtype)
    return mean
