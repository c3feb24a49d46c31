"""Average running statistics, such as BatchNorm's, over all contexts and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import has_data, is_differentiable
from gluon_svrg._typing import NumPyArray
from gluon_svrg.workers import Workers
from mxnet import gluon
from mxnet.ndarray import NDArray


def find_running_statistics(net: gluon.Block) -> list[list[NDArray]]:
    """Return each parameter that is updated without a gradient: its copies by context."""
    return [
        param.list_data()
        for param in net.collect_params().values()
        if not is_differentiable(param) and has_data(param) and is_float(param.list_data()[0])
    ]


def is_float(array: NDArray) -> bool:
    """Return whether the dtype of an array is floating-point."""
    return np.dtype(array.dtype).kind == "f"


def average_copies(copies: Sequence[Sequence[NDArray]], workers: Workers) -> None:
    """Replace the copies of each array by their mean over all contexts of all workers.

    Afterwards all copies are bit-identical. Copies that were already identical do not change.

    Parameters
    ----------
    copies : sequence of sequences of NDArray
        For each array, its copies on this worker, by context.
    workers : Workers
        The workers; each has the same number of arrays.
    """
    if not copies:
        return
    # With static_shape, MXNet does not wait for the backward pass that writes these arrays.
    mx.nd.waitall()
    local = [[copy.asnumpy() for copy in arrays] for arrays in copies]
    data = b"".join(copy.tobytes() for arrays in local for copy in arrays)
    all_workers = [
        _copies_in(part, local) for part in workers.all_gather_bytes(data, "running statistics")
    ]
    for number, arrays in enumerate(copies):
        mean = _mean([copy for worker in all_workers for copy in worker[number]])
        for array in arrays:
            to_nd(array)[:] = mx.nd.array(mean, array.ctx, mean.dtype)


@contextmanager
def averaged_running_statistics(net: gluon.Block, workers: Workers) -> Iterator[None]:
    """Use the mean of the running statistics inside the ``with`` block.

    Contexts and workers have trained on different samples. With the mean, all evaluate the same
    network.
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
    """Decode the copies of a worker, which may have another number of contexts."""
    kinds = [(arrays[0].dtype, arrays[0].shape, arrays[0].nbytes) for arrays in like]
    number = len(data) // sum(nbytes for _, _, nbytes in kinds)
    begin, copies = 0, []
    for dtype, shape, nbytes in kinds:
        values = np.frombuffer(data[begin : begin + number * nbytes], dtype)
        copies.append(list(values.reshape(number, *shape)))
        begin += number * nbytes
    return copies


def _mean(copies: Sequence[NumPyArray]) -> NumPyArray:
    # Not the sum divided by the number, which may differ from the copies even if all are equal.
    first = copies[0].astype("float64")
    difference = np.zeros_like(first)
    for copy in copies[1:]:
        difference += copy - first
    mean: NumPyArray = (first + difference / len(copies)).astype(copies[0].dtype)
    return mean
