"""Running statistics, as BatchNorm's: each worker and each context has its own; here their mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg._compat import NumPyArray
from gluon_svrg.workers import Workers
from mxnet import gluon
from mxnet.ndarray import NDArray


def running_statistics_of(net: gluon.Block) -> list[list[NDArray]]:
    """Return the copies, on all contexts, of each parameter that moves without a gradient."""
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


def even_out(copies: Sequence[Sequence[NDArray]], workers: Workers) -> None:
    """Replace arrays by the mean of their copies on all contexts of all workers.

    Where all copies are equal nothing changes, bit for bit; and all have the same bits after it.

    Parameters
    ----------
    copies : sequence of sequences of NDArray
        The copies of each array on this worker, by context.
    workers : Workers
        Who have as many arrays.
    """
    if not copies:
        return
    # With static_shape MXNet does not order a read after the backward pass that writes them.
    mx.nd.waitall()
    own = [[copy.asnumpy() for copy in arrays] for arrays in copies]
    data = b"".join(copy.tobytes() for arrays in own for copy in arrays)
    everybody = [_copies_in(part, own) for part in workers.gather(data, "running statistics")]
    for number, arrays in enumerate(copies):
        mean = _mean([copy for worker in everybody for copy in worker[number]])
        for array in arrays:
            _mxnet.as_legacy(array)[:] = mx.nd.array(mean, array.ctx, mean.dtype)


@contextmanager
def evened_out(net: gluon.Block, workers: Workers) -> Iterator[None]:
    """Let the running statistics be their mean over all copies inside the ``with`` block.

    So all evaluate one network: a worker or a context has seen its own rows of the batches only.
    """
    copies = running_statistics_of(net)
    if not workers.are_several and all(len(arrays) == 1 for arrays in copies):
        yield
        return
    mx.nd.waitall()
    own = [[array.copy() for array in arrays] for arrays in copies]
    even_out(copies, workers)
    try:
        yield
    finally:
        for arrays, saved in zip(copies, own, strict=True):
            for array, value in zip(arrays, saved, strict=True):
                value.copyto(array)


def _copies_in(data: bytes, like: Sequence[Sequence[NumPyArray]]) -> list[list[NumPyArray]]:
    """Return a worker's copies of each array; it may have another number of contexts."""
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
