"""BatchProcessor: the forward and backward pass of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TYPE_CHECKING

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from mxnet import autograd
from mxnet.contrib import amp
from mxnet.gluon.contrib.estimator import BatchProcessor as _MXNetBatchProcessor
from mxnet.gluon.utils import split_and_load
from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from gluon_svrg.events import Run


Parts = tuple[list[NDArray], list[NDArray], list[NDArray], list[NDArray]]
"""Data, label, output and loss of a batch, one array per context each."""


class BatchProcessor(_MXNetBatchProcessor):
    """MXNet's batch processor, for any ``(data, label)`` pair and any batch size.

    A batch that the devices cannot share evenly is shared as evenly as possible; with fewer
    samples than devices, the last devices are idle and their gradients are zero. NumPy arrays are
    taken too, at the precision of the network.
    """

    def fit_batch(self, estimator: Run, train_batch: object, batch_axis: int = 0) -> Parts:
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
        data, label, pred, loss : lists of NDArray, one item per context that had samples

        Raises
        ------
        ValueError
            If the batch is not such a pair.
        """
        batch = _as_ndarrays(train_batch, estimator.net, batch_axis, len(estimator.context))
        if _mxnet.scales_losses(estimator.trainer):
            result = self._fit_scaled(estimator, batch, batch_axis)
        else:
            result = super().fit_batch(estimator, batch, batch_axis)
        for context in estimator.context[len(result[0]) :]:
            _clear_idle_gradients(estimator.net, context)
        return result

    def evaluate_batch(self, estimator: Run, val_batch: object, batch_axis: int = 0) -> Parts:
        """Run the forward pass of one batch; parameters and results as for `fit_batch`."""
        return super().evaluate_batch(
            estimator,
            _as_ndarrays(val_batch, estimator.val_net, batch_axis, len(estimator.context)),
            batch_axis,
        )

    def _fit_scaled(self, estimator: Run, batch: tuple[NDArray, NDArray], batch_axis: int) -> Parts:
        """Do as MXNet's, with the losses times the loss scale of MXNet's AMP."""
        data, label = self._get_data_and_label(batch, estimator.context, batch_axis)
        with autograd.record():
            pred = [estimator.net(x) for x in data]
            loss = [estimator.loss(y_hat, y) for y_hat, y in zip(pred, label, strict=True)]
            with amp.scale_loss(loss, estimator.trainer) as scaled:
                autograd.backward(scaled)
        return data, label, pred, loss

    def _get_data_and_label(
        self, batch: tuple[NDArray, NDArray], ctx: list[mx.Context], batch_axis: int = 0
    ) -> tuple[list[NDArray], list[NDArray]]:
        devices = ctx[: batch[0].shape[batch_axis]]
        data, label = (
            split_and_load(array, devices, _axis(array, batch_axis), even_split=False)
            for array in batch
        )
        return data, label


def _as_ndarrays(
    batch: object, net: mx.gluon.Block, batch_axis: int, contexts: int
) -> tuple[NDArray, NDArray]:
    if not isinstance(batch, (list, tuple)) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, Sized) else ""
        raise ValueError(
            f"a batch must be a (data, label) pair, got a {type(batch).__name__}{size}: let the "
            "loader yield pairs, or give the Estimator a batch_processor that knows this batch"
        )
    data, label = (
        _as_ndarray(array, name, net) for array, name in zip(batch, ("data", "label"), strict=True)
    )
    # Along another axis than the first, MXNet asks for equal lengths only to share a batch out.
    is_checked = batch_axis == 0 or contexts > 1
    if is_checked and data.shape[batch_axis] != label.shape[_axis(label, batch_axis)]:
        raise ValueError(
            f"data and label of a batch must have the same length along axis {batch_axis}, got "
            f"shapes {data.shape} and {label.shape}: look at how the loader pairs them"
        )
    return data, label


def _axis(array: NDArray, batch_axis: int) -> int:
    """Return the axis that counts the samples: a label may have no other than the first."""
    return batch_axis if array.ndim > batch_axis else 0


def _as_ndarray(array: object, name: str, net: mx.gluon.Block) -> NDArray:
    if isinstance(array, NDArray):
        return array
    if isinstance(array, (list, tuple)):
        raise ValueError(
            f"the {name} of a batch must be one array, got a {type(array).__name__} of "
            f"{len(array)}: give the Estimator a batch_processor that knows this batch"
        )
    array = np.asarray(array)
    dtype = np.dtype(next((p.dtype for p in net.collect_params().values()), "float32"))
    if array.dtype.kind != "f" and name == "label" and dtype == "float16":
        dtype = np.dtype("float32")  # float16 cannot count the classes beyond 2,048
    return mx.nd.array(array, dtype=dtype)


def _clear_idle_gradients(net: mx.gluon.Block, context: mx.Context) -> None:
    """Zero the gradients of a device that got no samples, and mark them as fresh."""
    for param in net.collect_params().values():
        if not _mxnet.has_gradient(param):  # none, or not one that the snapshot wants
            continue
        if param.grad_req == "write":
            param.grad(context)[:] = 0
        _mxnet.mark_fresh(param.data(context), True)


def backward_of(run: Run) -> Callable[[object], list[NDArray]]:
    """Return the run's own forward and backward pass: one batch in, its losses out."""

    def backward(batch: object) -> list[NDArray]:
        losses: list[NDArray] = run.batch_processor.fit_batch(run, batch, run.batch_axis)[3]
        return losses

    return backward


def shape_inference_of(run: Run) -> Callable[[object], None]:
    """Return what lets layers that infer their shapes see a batch, outside of training."""

    def infer(batch: object) -> None:
        _infer_shapes(run, batch)

    return infer


def _infer_shapes(run: Run, batch: object) -> None:
    if all(map(_mxnet.has_shape, run.net.collect_params().values())):
        return
    own = run.val_net, run.val_loss
    # Labels of training may be soft when those of the evaluation are not.
    run.val_net, run.val_loss = run.net, run.loss
    try:
        run.batch_processor.evaluate_batch(run, batch, run.batch_axis)
    finally:
        run.val_net, run.val_loss = own
