"""What training data and a batch may be, and the forward and backward pass of one batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.contrib.estimator import BatchProcessor as _MXNetBatchProcessor
from mxnet.gluon.utils import split_and_load
from mxnet.ndarray import NDArray


def check_data(data: Any, name: str) -> None:
    """Raise ValueError, with the way out, where `data` cannot be iterated once an epoch.

    Parameters
    ----------
    data : object
        Training or validation data.
    name : str
        What the caller calls it.
    """
    if isinstance(data, mx.io.DataIter):
        raise ValueError(
            f"{name} must be an iterable of (data, label) batches, got the DataIter {data!r}: use "
            "a gluon.data.DataLoader, or a list of (batch.data[0], batch.label[0])"
        )
    if isinstance(data, Iterator):
        raise ValueError(
            f"{name} must be iterable again each epoch, got {data!r}, which is gone after one "
            "pass: give a DataLoader, or make a list of it"
        )
    if not isinstance(data, Iterable):
        raise ValueError(
            f"{name} must be an iterable of (data, label) batches, got {data!r}: give a "
            "DataLoader or a list of batches"
        )
    if isinstance(data, Sized) and len(data) == 0:
        raise ValueError(f"{name} is empty: give at least one batch")


class BatchProcessor(_MXNetBatchProcessor):
    """MXNet's batch processor, for any ``(data, label)`` pair and any batch size.

    A batch that the devices cannot share evenly is shared as evenly as possible; with fewer
    samples than devices, the last devices are idle and their gradients are zero. NumPy arrays are
    taken too: floating-point ones at the precision of the network, others as float32.
    """

    def fit_batch(self, estimator: Any, train_batch: Any, batch_axis: int = 0) -> tuple:
        """Run the forward and the backward pass of one batch.

        Parameters
        ----------
        estimator : Estimator
            Whose network, loss and contexts are used.
        train_batch : pair of NDArray or numpy.ndarray
            Data and label.
        batch_axis : int
            The axis that counts the samples.

        Returns
        -------
        data, label, pred, loss : lists of NDArray, one item a context that had samples

        Raises
        ------
        ValueError
            If the batch is not such a pair.
        """
        result = super().fit_batch(
            estimator, _as_ndarrays(train_batch, estimator.net, batch_axis), batch_axis
        )
        for context in estimator.context[len(result[0]) :]:
            _rest(estimator.net, context)
        return result

    def evaluate_batch(self, estimator: Any, val_batch: Any, batch_axis: int = 0) -> tuple:
        """Run the forward pass of one batch; parameters and results as for `fit_batch`."""
        return super().evaluate_batch(
            estimator, _as_ndarrays(val_batch, estimator.val_net, batch_axis), batch_axis
        )

    def _get_data_and_label(self, batch: Any, ctx: list[mx.Context], batch_axis: int = 0) -> tuple:
        data, label = batch
        devices = ctx[: data.shape[batch_axis]]
        return (
            split_and_load(data, devices, batch_axis, even_split=False),
            split_and_load(label, devices, batch_axis, even_split=False),
        )


def _as_ndarrays(batch: Any, net: mx.gluon.Block, batch_axis: int) -> tuple:
    if not isinstance(batch, (list, tuple)) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, Sized) else ""
        raise ValueError(
            f"a batch must be a (data, label) pair, got a {type(batch).__name__}{size}: let the "
            "loader yield pairs, or give the Estimator a batch_processor that knows this batch"
        )
    data, label = (_as_ndarray(array, net) for array in batch)
    if data.shape[batch_axis] != label.shape[batch_axis]:
        raise ValueError(
            f"data and label of a batch must have the same length along axis {batch_axis}, got "
            f"shapes {data.shape} and {label.shape}: look at how the loader pairs them"
        )
    return data, label


def _as_ndarray(array: Any, net: mx.gluon.Block) -> NDArray:
    if isinstance(array, NDArray):
        return array
    array = np.asarray(array)
    dtype = "float32"
    if array.dtype.kind == "f":
        dtype = next((param.dtype for param in net.collect_params().values()), dtype)
    return mx.nd.array(array, dtype=dtype)


def _rest(net: mx.gluon.Block, context: mx.Context) -> None:
    """Give an idle device the gradient that it has: zero, and fresh."""
    for param in net.collect_params().values():
        if param.grad_req == "null":
            continue
        if param.grad_req == "write":
            param.grad(context)[:] = 0
        param.data(context)._fresh_grad = True
