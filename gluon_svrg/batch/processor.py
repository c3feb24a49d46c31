"""BatchProcessor: the forward and backward pass of one batch."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.block import has_gradient, is_fresh, list_data, mark_fresh
from gluon_svrg._mxnet.trainer import scales_losses
from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.arrays.row_sparse import set_to_zero
from gluon_svrg.batch.parts import (
    BatchParts,
    call_network,
    compute_losses,
    split_over_contexts,
    unpack_batch,
    unpack_data,
)
from gluon_svrg.events import State
from gluon_svrg.run import Run
from mxnet import autograd, gluon
from mxnet.contrib import amp
from mxnet.gluon.contrib.estimator import BatchProcessor as _MXNetBatchProcessor
from mxnet.ndarray import NDArray

BatchResult = tuple[list[Any], list[Any], list[Any], list[NDArray]]
"""Data, label, output and loss of a batch: lists with one item per context."""


def fit_batch(run: Run, batch: object) -> BatchResult:
    """Run the forward and the backward pass of a batch, by the run's batch processor.

    If other workers have all samples of the batch, this worker's gradients become zero (or stay
    what has accumulated), and data, label, output and loss are empty lists.
    """
    if not is_empty(batch):
        parts: BatchResult = run.batch_processor.fit_batch(run, batch, run.batch_axis)
        return parts
    for context in run.context:
        clear_idle_gradients(run.net, context)
    if scales_losses(run.trainer):
        with amp.scale_loss([], run.trainer):
            pass  # this tells the trainer the loss scale that the others use
    return [], [], [], []


def evaluate_batch(run: Run, batch: object, batch_axis: int) -> BatchResult:
    """Run the forward pass of a batch, by the run's batch processor; as :func:`fit_batch`."""
    if is_empty(batch):
        return [], [], [], []
    parts: BatchResult = run.batch_processor.evaluate_batch(run, batch, batch_axis)
    return parts


def outputs_of_batch(label: object, pred: object, loss: object) -> dict[str, list[Any]]:
    """Return the arguments of a batch's events as lists, with one item per context.

    A user's batch processor may return single arrays.
    """
    return {"label": _as_list(label), "pred": _as_list(pred), "loss": _as_list(loss)}


def _as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class BatchProcessor(_MXNetBatchProcessor):
    """MXNet's batch processor, for batches of any size, with several inputs, outputs and weights.

    A batch is ``(data, label)`` or ``(data, label, sample_weight)``, or a dict with these keys.
    Data and label are an array each, or arrays in tuples, lists and dicts: several data are the
    network's arguments by their order, or in a dict by their names; the loss is called with the
    network's output and the label as they are. Weights of one axis multiply the losses of the
    samples; others are the third argument of the loss.

    A batch is split over the devices as evenly as possible; with fewer samples than devices, the
    last devices are idle and their gradients are zero. NumPy arrays are converted to the precision
    of the network, and so are data of a dtype that the network does not accept.

    A class of your own defines :meth:`fit_batch`, and :meth:`evaluate_batch` if there is
    validation. If it carries something from one batch to the next (the hidden state of truncated
    backpropagation through time), it also defines :meth:`state_dict` and :meth:`load_state_dict`.
    """

    def fit_batch(self, estimator: Run, train_batch: object, batch_axis: int = 0) -> BatchResult:
        """Run the forward and the backward pass of one batch.

        Parameters
        ----------
        estimator : Estimator
            Whose network, loss and contexts are used.
        train_batch : tuple, list or dict of NDArray or numpy.ndarray
            Data, label and, if there are any, weights.
        batch_axis : int
            The axis that counts the samples.

        Returns
        -------
        data, label, pred, loss : lists, one item per context that had samples
            Each an NDArray, or NDArrays as the batch and the network have them; a loss is an
            NDArray.

        Raises
        ------
        ValueError
            If it is no such batch.
        """
        shares = self._shares(train_batch, estimator.net, estimator.context, batch_axis)
        with autograd.record():
            pred, loss = _forward(estimator.net, estimator.loss, shares)
            if scales_losses(estimator.trainer):
                with amp.scale_loss(loss, estimator.trainer) as scaled:
                    autograd.backward(scaled)
        if not scales_losses(estimator.trainer):
            for value in loss:
                value.backward()
        for context in estimator.context[len(shares) :]:
            clear_idle_gradients(estimator.net, context)
        return [s.data for s in shares], [s.label for s in shares], pred, loss

    def evaluate_batch(self, estimator: Run, val_batch: object, batch_axis: int = 0) -> BatchResult:
        """Run the forward pass of one batch; parameters and results as for `fit_batch`."""
        shares = self._shares(val_batch, estimator.val_net, estimator.context, batch_axis)
        pred, loss = _forward(estimator.val_net, estimator.val_loss, shares)
        return [s.data for s in shares], [s.label for s in shares], pred, loss

    def predict_batch(self, estimator: Run, batch: object, batch_axis: int = 0) -> list[Any]:
        """Return the network's output for one batch, on each context that has samples.

        By a class with an `evaluate_batch` of its own, the output that this returns.

        Parameters
        ----------
        estimator : Estimator
            Whose network for evaluations and contexts are used.
        batch : NDArray, numpy.ndarray, tuple, list or dict
            As for `fit_batch`, or data alone: an array, a tuple of one item, or a dict by the
            names of the network's arguments.
        batch_axis : int
            The axis that counts the samples.
        """
        if type(self).evaluate_batch is not BatchProcessor.evaluate_batch:
            pred = self.evaluate_batch(estimator, batch, batch_axis)[2]
            return list(pred) if isinstance(pred, (list, tuple)) else [pred]
        parts = BatchParts(unpack_data(batch, estimator.val_net), None)
        shares = parts.split(estimator.context, batch_axis)
        return [call_network(estimator.val_net, share.data) for share in shares]

    def begin_epoch(self, estimator: Run) -> None:
        """Hear that an epoch of training begins, before all handlers: here a state may be reset."""

    def state_dict(self) -> State | None:
        """Return what is carried from one batch to the next, as plain data; None: nothing is.

        SVRG's passes at the snapshot then carry a state of their own, and a checkpoint holds it.
        """
        return None

    def load_state_dict(self, state: State | None) -> None:
        """Continue from the result of :meth:`state_dict`, whose arrays are copies."""

    def _shares(
        self, batch: object, net: gluon.Block, contexts: list[mx.Context], batch_axis: int
    ) -> list[BatchParts]:
        """Return the parts of the batch for each context that gets samples."""
        parts = unpack_batch(batch, net, batch_axis, len(contexts))
        data, label = self._get_data_and_label(parts, contexts, batch_axis)
        weights = split_over_contexts(parts.weight, contexts[: len(data)], batch_axis)
        return [BatchParts(*share) for share in zip(data, label, weights, strict=True)]

    def _get_data_and_label(
        self, batch: BatchParts, ctx: list[mx.Context], batch_axis: int = 0
    ) -> tuple[list[Any], list[Any]]:
        shares = BatchParts(batch[0], batch[1]).split(ctx, batch_axis)
        return [share.data for share in shares], [share.label for share in shares]


def _forward(
    net: gluon.Block, loss: gluon.loss.Loss, shares: list[BatchParts]
) -> tuple[list[Any], list[NDArray]]:
    preds = [call_network(net, share.data) for share in shares]
    losses = [compute_losses(loss, share, pred) for pred, share in zip(preds, shares, strict=True)]
    return preds, losses


def clear_idle_gradients(net: mx.gluon.Block, context: mx.Context) -> None:
    """Zero the gradients of a device that got no samples; they are as fresh as the others'."""
    for param in net.collect_params().values():
        if not has_gradient(param):  # none, or not one that the snapshot wants
            continue
        if param.grad_req == "write":
            set_to_zero(param.grad(context))
        datas, device = list_data(param), param.list_ctx().index(context)
        mark_fresh(datas[device], any(map(is_fresh, datas)))
