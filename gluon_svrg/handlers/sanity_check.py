"""SanityCheckHandler: a look at the first batch, before anything is trained."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg._mxnet import reason_of
from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.data.array_sources import check_batch
from gluon_svrg.data.training_data import probe_batch
from gluon_svrg.events import BatchBegin, HandlesNonFinite, Order, Run, TrainBegin
from gluon_svrg.run.batch_parts import (
    BatchParts,
    CallError,
    call_network,
    compute_losses,
    unpack_batch,
)
from gluon_svrg.run.batch_processor import BatchProcessor
from gluon_svrg.run.metric_update import update_metric, update_with_losses
from gluon_svrg.run.position import require_estimator
from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

_WEIGHTS = (
    "the weights of its samples, as in (data, label, sample_weight): several inputs are "
    "((a, b), label), several labels (data, (a, b))"
)
_OFF = "; if it is meant so, fit(..., sanity_check=False)"
_ERRORS = (
    mx.base.MXNetError,
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
)


class SanityCheckHandler(TrainBegin, BatchBegin):
    """Checks the first batch of the training and of the validation before anything is trained.

    The Estimator adds it, unless ``fit(..., sanity_check=False)``. It runs the network, the loss
    and the metrics once, in prediction mode, so that a mismatch is reported at once, in one
    sentence with shapes and dtypes, and not after an epoch. It raises if

    - network, loss or a metric cannot take what they are given;
    - labels of a ``SoftmaxCrossEntropyLoss`` with ``sparse_label=True`` are not integers from 0 to
      the number of classes minus 1, but for those whose weight is 0;
    - data or labels hold NaN or infinity, if no handler that decides about NaN
      (:class:`gluon_svrg.NaNGuardHandler`) is among the handlers.

    Only the first batch is checked (each of several workers checks its own rows), and not the
    labels of other losses. The first batch of a list or of an ArrayLoader without transform is
    checked before the run begins. The first batch of other data is checked when it comes, because
    reading it earlier would change their order. Validation data are checked if they are one of
    these, or a DataLoader without workers. Runs with a user's own batch processor, and runs that
    continue from a checkpoint, are not checked.

    Neither parameters, running statistics, gradients, hybridized graphs nor random numbers change,
    unless the network itself draws in prediction; layers that infer their shapes do so again.

    Raises
    ------
    ValueError
        In `fit`, if something is wrong with the batch; says what, and what to do.
    """

    priority = Order.SANITY_CHECK

    def __init__(self) -> None:
        self._is_done = False

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Look at the first batches, if reading them early does not change their order."""
        require_estimator(self, estimator)
        self._is_done = estimator.resumed_from is not None or not _is_known(estimator)
        if self._is_done:
            return
        if estimator.data.keeps_batches:
            self._look(estimator, estimator.data.batch(0))

    def batch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Look at the first batches, if that was not possible before the run."""
        if not self._is_done:
            self._look(estimator, kwargs["batch"])

    def _look(self, estimator: Run, batch: object) -> None:
        """Check the first training batch, then that of the validation, which is often alike."""
        self._is_done = True
        if not is_empty(batch):  # the workers that have its rows check them
            _look_at_training(estimator, batch)
        first = None if estimator.val_data is None else probe_batch(estimator.val_data)
        if first is not None:
            _look_at_validation(estimator, first)


def _is_known(estimator: Run) -> bool:
    processor = type(estimator.batch_processor)
    return (
        issubclass(processor, BatchProcessor)
        and processor.fit_batch is BatchProcessor.fit_batch
        and processor.evaluate_batch is BatchProcessor.evaluate_batch
    )


def _share(estimator: Run, batch: object, net: gluon.Block) -> BatchParts:
    """Return the share of the first context."""
    axis, contexts = estimator.batch_axis, estimator.context
    return unpack_batch(batch, net, axis, len(contexts)).split(contexts, axis)[0]


def _has_three_items(batch: object) -> bool:
    """Return whether the place alone says what the items are: a dict has names for them."""
    return isinstance(batch, (list, tuple)) and len(batch) == 3


def _computed(
    net: gluon.Block, loss: gluon.loss.Loss, parts: BatchParts, name: str, has_three_items: bool
) -> tuple[Any, NDArray]:
    """Return output and losses in prediction; raises ValueError, with shapes and dtypes."""
    hint = f"; the third item of the batch was taken as {_WEIGHTS}" if has_three_items else ""
    with (
        _mxnet.forgotten_forward(net),
        _mxnet.forgotten_forward(loss),
        autograd.pause(train_mode=False),
    ):
        pred = _output(net, parts, name, hint)
        return pred, _losses(loss, parts, pred, name, hint)


def _output(net: gluon.Block, parts: BatchParts, name: str, hint: str) -> Any:
    try:
        pred = call_network(net, parts.data)
        mx.nd.waitall()
    except CallError as error:
        raise ValueError(f"the network cannot compute {name}: {error}{hint}") from error
    except _ERRORS as error:
        raise ValueError(
            f"the network cannot compute {name}: data {_kinds(parts.data)} "
            f"({reason_of(error)}): look at the shape of the data, and at the first layer{hint}"
        ) from error
    return pred


def _losses(
    loss: gluon.loss.Loss, parts: BatchParts, pred: object, name: str, hint: str
) -> NDArray:
    what = f"{name}: output {_kinds(pred)}, label {_kinds(parts.label)}"
    if parts.weight is not None:
        what += f", sample weights {_kinds(parts.weight)}"
    try:
        losses = compute_losses(loss, parts, pred)
        mx.nd.waitall()
    except _ERRORS as error:
        raise ValueError(
            f"{type(loss).__name__} cannot compute {what} ({reason_of(error)}): "
            + _way_out_for(loss, parts.label, pred)
            + hint
        ) from error
    if not isinstance(losses, NDArray):
        raise ValueError(
            f"{type(loss).__name__} must give one NDArray, with a loss per sample, got a "
            f"{type(losses).__name__} for {what}"
        )
    return losses


def _way_out_for(loss: gluon.loss.Loss, label: object, pred: object) -> str:
    is_of_classes = _mxnet.axis_of_classes(loss) is not None
    if is_of_classes and getattr(label, "shape", None) == getattr(pred, "shape", ()):
        return (
            "give labels that are one-hot, or probabilities, to SoftmaxCELoss(sparse_label=False), "
            "or make them the numbers of the classes, labels.argmax(axis=-1)"
        )
    return "look at the last layer and at the labels"


def _kinds(value: object) -> str:
    """Return shapes and dtypes in words."""
    text = [
        f"{leaf.shape} {np.dtype(leaf.dtype).name}"
        if isinstance(leaf, NDArray)
        else type(leaf).__name__
        for leaf in tree_leaves(value)
    ]
    return " and ".join(text)


def _check_finite(parts: BatchParts) -> None:
    for name, part in (("data", parts.data), ("label", parts.label), ("weight", parts.weight)):
        for leaf in tree_leaves(part):
            is_float = np.dtype(leaf.dtype).kind == "f" and leaf.stype == "default"
            # A sum is not finite if one number is not: copying the array would take longer.
            if is_float and not np.isfinite(mx.nd.sum(_mxnet.as_legacy(leaf) * 0).asscalar()):
                raise ValueError(
                    f"the {name} of the first batch, {_kinds(leaf)}, has NaN or infinity: clean "
                    f"the data, or give a NaNGuardHandler, which watches the whole run{_OFF}"
                )


def _check_classes(loss: gluon.loss.Loss, parts: BatchParts, pred: object) -> None:
    """Check the labels of a SoftmaxCrossEntropyLoss: MXNet takes the nearest class there is."""
    axis = _mxnet.axis_of_classes(loss)
    label = parts.label
    if axis is None or not isinstance(pred, NDArray) or not isinstance(label, NDArray):
        return
    classes, values = pred.shape[axis], label.asnumpy().astype("float64")
    is_wrong = (values != np.floor(values)) | (values < 0) | (values >= classes)
    if isinstance(parts.weight, NDArray):
        weight = parts.weight.asnumpy()
        if weight.ndim > values.ndim and weight.shape[-1] == 1:
            weight = weight[..., 0]
        weight = weight.reshape(weight.shape + (1,) * (values.ndim - weight.ndim))
        is_wrong = is_wrong & (weight != 0)
    if is_wrong.any():
        raise ValueError(
            f"the labels of the first batch must be integers from 0 to {classes - 1}, for the "
            f"{classes} outputs of the network, got {values[is_wrong].flat[0]:g} (they are from "
            f"{values.min():g} to {values.max():g}): give the last layer as many outputs as there "
            "are classes, or count the classes from 0; a label that is to be left out needs the "
            "sample weight 0, and labels that are probabilities SoftmaxCELoss(sparse_label=False)"
            f"{_OFF}"
        )


def _look_at_training(estimator: Run, batch: object) -> None:
    for leaf in tree_leaves(batch):
        check_batch(0, leaf)
    parts = _share(estimator, batch, estimator.net)
    has_three = _has_three_items(batch)
    if has_three:
        estimator.logger.info("the third item of a batch is taken as %s", _WEIGHTS)
    if not any(isinstance(handler, HandlesNonFinite) for handler in estimator.handlers):
        _check_finite(parts)
    pred, _ = _computed(estimator.net, estimator.loss, parts, "the first batch", has_three)
    _check_classes(estimator.loss, parts, pred)


def _look_at_validation(estimator: Run, batch: object) -> None:
    parts = _share(estimator, batch, estimator.val_net)
    name = "the first batch of the validation"
    pred, losses = _computed(
        estimator.val_net, estimator.val_loss, parts, name, _has_three_items(batch)
    )
    for metric in estimator.val_metrics:
        try:
            trial = copy.deepcopy(metric)
        except Exception:  # a metric of the user's own may hold anything
            continue
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # about values that say nothing yet
                if isinstance(trial, mx.metric.Loss):
                    update_with_losses(trial, [losses])
                else:
                    update_metric(trial, [parts.label], [pred])
        except _ERRORS as error:
            raise ValueError(
                f"metric {metric.name!r} cannot take {name}: label {_kinds(parts.label)}, output "
                f"{_kinds(pred)} ({reason_of(error)}): choose one that suits the output, or "
                "for another axis of classes than the last Accuracy(axis=...)"
            ) from error
