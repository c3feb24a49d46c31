"""SanityCheckHandler: a look at the first batch, before anything is trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import (
    axis_of_classes,
    expected_output,
    forgotten_forward,
    labels_are_probabilities,
    labels_are_signed,
    last_operator,
)
from gluon_svrg._mxnet.symbol import reason_of
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.arrays.nested import as_numpy, tree_leaves
from gluon_svrg.batch.parts import (
    BatchParts,
    CallError,
    call_network,
    compute_losses,
    unpack_batch,
)
from gluon_svrg.batch.processor import BatchProcessor
from gluon_svrg.data.array_sources import check_batch
from gluon_svrg.data.training_data import TrainingData, training_data
from gluon_svrg.events import BatchBegin, Order, RequiresRun, Run, TrainBegin
from gluon_svrg.handlers.nan_guard import NaNGuardHandler
from gluon_svrg.metrics.handler import try_metric
from gluon_svrg.metrics.outputs import outputs_of
from gluon_svrg.metrics.setup import flatten_metrics
from gluon_svrg.reporting.logger import get_logger
from mxnet import autograd, gluon
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.ndarray import NDArray

_WEIGHTS = (
    "the weights of its samples, as in (data, label, sample_weight): several inputs are "
    "((a, b), label), several labels (data, (a, b))"
)
_OFF = "; if it is meant so, fit(..., sanity_check=False)"
# MXNet's softmax sums to 1 within 1e-5 for 100,000 classes in float32, 0.04 for 1,000 in float16.
_ROUNDING, _ROUNDING_OF_HALF = 1e-4, 0.05
# The loss of equal probabilities is 14 for a million classes. Raw 8-bit noise gave up to 570 with
# linear models, MLPs, LeNet and ResNet-18, the same data times 63 mostly 1,300 to 31,000.
_MOST_FIRST_LOSS = 1000
_ERRORS = (
    mx.base.MXNetError,
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
)


class SanityCheckHandler(TrainBegin, BatchBegin, RequiresRun):
    """Checks the first batch of the training and of the validation before anything is trained.

    The Estimator adds it, unless ``fit(..., sanity_check=False)``. It runs the network, the loss
    and the metrics once, in prediction mode, so that a mismatch is reported at once, in one
    sentence with shapes and dtypes, and not after an epoch. It raises if

    - network, loss or a metric cannot take what they are given;
    - labels of a ``SoftmaxCrossEntropyLoss`` with ``sparse_label=True`` are not integers from 0 to
      the number of classes minus 1, those of a ``SigmoidBinaryCrossEntropyLoss`` are not from 0 to
      1, or those of a loss that takes -1 and 1 (``HingeLoss``, ``LogisticLoss``) are 0 and 1, but
      for those whose weight is 0;
    - data or labels hold NaN or infinity, if there is no :class:`gluon_svrg.NaNGuardHandler`;
    - the network ends in the softmax or sigmoid that the loss applies itself, or its outputs are no
      probabilities and the loss takes such (``from_sigmoid=True``).

    Of an ArrayLoader, a list of batches or a DataLoader of an ``ArrayDataset`` all labels are
    checked, once, and all weights of an ArrayLoader and a DataLoader for NaN; not if a transform, a
    sampler or a ``batchify_fn`` of the user's own may change or choose them. Of other data, and of
    all features, only the first batch is checked (each of several workers checks its own rows).

    The first batch of a list or of an ArrayLoader without transform is checked before the run
    begins. The first training batch of other data is checked when it comes, because reading it
    earlier would change their order. The first batch of all validation data is read before the
    first epoch, also of those of a ValidationHandler: NumPy's and Python's generators and the
    data's position are restored. The exception is an iterator of MXNet's C++ library, which cannot
    be put back. Runs with a user's own batch processor, and runs that continue from a checkpoint,
    are not checked.

    It warns if the loss takes logarithms of probabilities (``from_logits=True``) but gets scores,
    and if the loss of the first batch shows that the data are not scaled.

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
        self._validation: list[tuple[TrainingData, Any]] = []

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Look at the first batches, if reading them early does not change their order."""
        self._is_done = estimator.resumed_from is not None or not _is_known(estimator)
        if self._is_done:
            return
        # Read now, because another pass over the same data may have begun later.
        self._validation = [
            (data, data.probe_batch()) for data in map(_as_data, _validation_data(estimator))
        ]
        if estimator.data.keeps_batches:
            self._look(estimator, estimator.data.batch(0))

    def batch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Look at the first batches, if that was not possible before the run."""
        if not self._is_done:
            self._look(estimator, kwargs["batch"])

    def _look(self, estimator: Run, batch: object) -> None:
        """Check the first training batch, then that of the validation, which is often alike."""
        self._is_done = True
        validation, self._validation = self._validation, []
        if not is_empty(batch):  # the workers that have its rows check them
            _look_at_training(estimator, batch)
        for data, first in validation:
            if first is not None:
                _look_at_validation(estimator, data, first)


def _validation_data(estimator: Run) -> Iterable[Any]:
    """Return the data of all ValidationHandlers, each once."""
    handlers = [h for h in estimator.handlers if isinstance(h, mx_estimator.ValidationHandler)]
    return {id(handler.val_data): handler.val_data for handler in handlers}.values()


def _as_data(data: object) -> TrainingData:
    return training_data(data, "val_data")


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
    net: gluon.Block, loss: gluon.loss.Loss, parts: BatchParts, name: str, batch: object
) -> tuple[Any, NDArray]:
    """Return output and losses in prediction; raises ValueError, with shapes and dtypes."""
    is_third = _has_three_items(batch)
    hint = f"; the third item of the batch was taken as {_WEIGHTS}" if is_third else ""
    with (
        forgotten_forward(net),
        forgotten_forward(loss),
        autograd.pause(train_mode=False),
    ):
        if all(isinstance(leaf, NDArray) for leaf in tree_leaves(batch)):  # NumPy's are exact
            net.apply(_watch_ids)
        pred = _output(net, parts, name, hint)
        return pred, _losses(loss, parts, pred, name, hint)


def _watch_ids(block: gluon.Block) -> None:
    """Let an Embedding whose ids are floats warn if they cannot count its rows."""
    if isinstance(block, gluon.nn.Embedding):
        block.register_forward_pre_hook(_warn_of_ids)


def _warn_of_ids(block: gluon.nn.Embedding, inputs: tuple[Any, ...]) -> None:
    rows, dtype = block.weight.shape[0], np.dtype(inputs[0].dtype)
    if dtype.kind == "f" and rows > 2 ** (np.finfo(dtype).nmant + 1):
        get_logger().warning(
            "the ids of %s, which has %d rows, come as %s, which holds whole numbers up to %d only:"
            " give them as int64, mx.nd.array(ids, dtype='int64')",
            block.name,
            rows,
            dtype.name,
            2 ** (np.finfo(dtype).nmant + 1),
        )


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
    is_of_classes = axis_of_classes(loss) is not None
    if is_of_classes and getattr(label, "shape", None) == getattr(pred, "shape", ()):
        return (
            "give labels that are one-hot, or probabilities, to SoftmaxCELoss(sparse_label=False), "
            "or make them the numbers of the classes, labels.argmax(axis=-1)"
        )
    if not is_of_classes and isinstance(pred, NDArray) and isinstance(label, NDArray):
        outputs, samples = (*pred.shape, 1)[1], label.shape[0]
        if pred.ndim == 2 and outputs > 1 and label.size == samples and _are_integers(label):
            return (
                f"if the labels are the numbers of {outputs} classes, take SoftmaxCELoss(); else "
                "give the network one output per label"
            )
    return "look at the last layer and at the labels"


def _are_integers(label: NDArray) -> bool:
    values = label.asnumpy()
    return bool((values == np.floor(values)).all())


def _kinds(value: object) -> str:
    """Return shapes and dtypes in words."""
    text = [
        f"{leaf.shape} {np.dtype(leaf.dtype).name}"
        if isinstance(leaf, NDArray)
        else type(leaf).__name__
        for leaf in tree_leaves(value)
    ]
    return " and ".join(text)


def _check_finite(parts: BatchParts, what: str) -> None:
    for name, part in (("data", parts.data), ("label", parts.label), ("weight", parts.weight)):
        for leaf in tree_leaves(part):
            is_float = np.dtype(leaf.dtype).kind == "f" and leaf.stype == "default"
            # A sum is not finite if one number is not: copying the array would take longer.
            if is_float and not np.isfinite(mx.nd.sum(to_nd(leaf) * 0).asscalar()):
                raise ValueError(
                    f"the {name} of {what}, {_kinds(leaf)}, has NaN or infinity: clean the data, "
                    f"or give a NaNGuardHandler, which watches the whole run{_OFF}"
                )


def _check_labels(
    loss: gluon.loss.Loss, label: NumPyArray, weight: object, pred: object, what: str
) -> None:
    """Check the range of labels. MXNet takes the nearest class that there is."""
    axis = axis_of_classes(loss)
    if not isinstance(pred, NDArray) or not label.size:
        return
    if axis is not None:
        highest = pred.shape[axis] - 1
    elif labels_are_probabilities(loss):
        highest = 1
    else:
        if labels_are_signed(loss):
            _check_signed(loss, label, weight, what)
        return
    lowest, greatest = label.min(), label.max()
    is_whole = label.dtype.kind != "f" or axis is None or (label == np.floor(label)).all()
    if lowest >= 0 and greatest <= highest and is_whole:
        return
    values = label.astype("float64")
    is_wrong = ~((values >= 0) & (values <= highest))  # NaN, too
    if axis is not None:
        is_wrong |= values != np.floor(values)
    if weight is not None:
        is_wrong &= _aligned(as_numpy(weight), values.ndim) != 0
    if not is_wrong.any():
        return
    place = np.argwhere(is_wrong)[0]
    span = f"they are from {np.nanmin(values):g} to {np.nanmax(values):g}"
    got = f"got {values[tuple(place)]:g} ({span}) in sample {place[0]}"
    if axis is None:
        raise ValueError(
            f"{what} must be from 0 to 1 for {type(loss).__name__}, {got}: make them 0 and 1, or "
            f"probabilities{_OFF}"
        )
    raise ValueError(
        f"{what} must be integers from 0 to {highest}, for the {highest + 1} outputs of the "
        f"network, {got}: {_way_out_of_range(values, highest)}{_OFF}"
    )


def _check_signed(loss: gluon.loss.Loss, label: NumPyArray, weight: object, what: str) -> None:
    """Check that labels of -1 and 1 are not 0 and 1: what is 0 would not be trained as a class."""
    is_zero = label == 0
    if not (is_zero | (label == 1)).all():
        return
    if weight is not None:
        is_zero &= _aligned(as_numpy(weight), label.ndim) != 0
    if is_zero.any():
        raise ValueError(
            f"{what} must be -1 and 1 for {type(loss).__name__}, got 0 in sample "
            f"{np.argwhere(is_zero)[0][0]}: make them 2 * label - 1{_OFF}"
        )


def _way_out_of_range(labels: NumPyArray, highest: int) -> str:
    """Return what to do about labels that are no classes from 0 to `highest`."""
    if np.isnan(labels).any():
        return "correct it"
    if not (labels == np.floor(labels)).all():
        return "labels that are probabilities need SoftmaxCELoss(sparse_label=False)"
    if labels.min() < 0:
        return "a label that is to be left out needs the sample weight 0"
    if labels.min() == 1 and labels.max() == highest + 1:
        return "count the classes from 0, label - 1"
    return f"give the last layer {labels.max() + 1:.0f} outputs, or correct the labels"


def _aligned(weight: NumPyArray, ndim: int) -> NumPyArray:
    """Return weights with as many axes as the labels."""
    if weight.ndim > ndim and weight.shape[-1] == 1:
        weight = weight[..., 0]
    return weight.reshape(weight.shape + (1,) * (ndim - weight.ndim))


def _check_whole_labels(
    estimator: Run, loss: gluon.loss.Loss, data: TrainingData, pred: object
) -> None:
    """Check the labels of all samples, if they are in memory."""
    whole = data.whole_labels()
    if whole is None or not isinstance(whole[0], (NDArray, np.ndarray)):
        return
    label, weight = whole
    # A file with a label per pixel would be read whole.
    if isinstance(label, np.memmap) and label.size > len(label):
        return
    values = as_numpy(label)
    if not _leaves_nan(estimator):
        _check_all_finite("label", values, data.name)
        if isinstance(weight, (NDArray, np.ndarray)):
            _check_all_finite("weight", as_numpy(weight), data.name)
    if weight is None or isinstance(weight, (NDArray, np.ndarray)):
        _check_labels(loss, values, weight, pred, f"the labels of {data.name}")


def _check_all_finite(what: str, values: NumPyArray, data: str) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        place = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"the {what} of sample {place[0]} of {data} is {values[tuple(place)]:g}: correct it, "
            f"or give a NaNGuardHandler, which watches the whole run{_OFF}"
        )


def _leaves_nan(estimator: Run) -> bool:
    """Return whether a NaNGuardHandler decides about NaN."""
    return any(isinstance(handler, NaNGuardHandler) for handler in estimator.handlers)


def _check_outputs(net: gluon.Block, loss: gluon.loss.Loss, parts: BatchParts, pred: Any) -> None:
    """Check that softmax, sigmoid and logarithm are applied once: by the network or the loss."""
    expected = expected_output(loss)
    if expected is None or not isinstance(pred, NDArray) or not pred.size:
        return
    name, outputs = type(loss).__name__, to_nd(pred)
    low, high = (float(f(outputs).asscalar()) for f in (mx.nd.min, mx.nd.max))
    between = f"the outputs of the network are from {low:.3g} to {high:.3g}"
    way_out = ""
    if expected.kind == "score":
        if low >= 0 and high <= 1 and (last := _squashing_operator(net, parts)):
            between = f"the network ends in {last}"
            way_out = f"applies sigmoid itself: leave {last} out of the network"
            if isinstance(loss, gluon.loss.SigmoidBCELoss):
                way_out += ", or give from_sigmoid=True"
    elif expected.kind == "probability":
        if low < 0 or high > 1:
            way_out = "takes probabilities: end the network in sigmoid, or leave from_sigmoid out"
    elif _are_probabilities(outputs, low, high, expected.axis) and (
        # Equal outputs may be those of weights that are 0.
        low < high or _squashing_operator(net, parts) == "softmax"
    ):
        between = "the outputs of the network are probabilities, in [0, 1] with the sum 1"
        way_out = (
            "applies softmax itself: leave softmax out of the network"
            if expected.kind == "scores"
            else "takes their logarithms: end the network in log_softmax"
        )
    elif expected.kind == "log-probabilities" and high > _ROUNDING:
        get_logger().warning(
            "%s, and %s takes logarithms of probabilities, which are at most 0: give "
            "from_logits=False, or end the network in log_softmax",
            between,
            name,
        )
    if way_out:
        raise ValueError(f"{between}, and {name} {way_out}{_OFF}")


def _are_probabilities(outputs: NDArray, low: float, high: float, axis: int) -> bool:
    """Return whether outputs are in [0, 1] and sum to 1, and are not all 0 or 1."""
    if low < 0 or high > 1 + _ROUNDING or outputs.shape[axis] < 2:
        return False
    is_half = outputs.dtype == np.float16
    outputs = outputs.astype("float32") if is_half else outputs
    error = mx.nd.max(mx.nd.abs(mx.nd.sum(outputs, axis=axis) - 1)).asscalar()
    are_soft = mx.nd.max(outputs * (1 - outputs)).asscalar() > 0
    return bool(error <= (_ROUNDING_OF_HALF if is_half else _ROUNDING) and are_soft)


def _squashing_operator(net: gluon.Block, parts: BatchParts) -> str:
    """Return 'sigmoid' or 'softmax' if the network ends in it, else ''."""
    try:
        with forgotten_forward(net), autograd.record(train_mode=False):
            node = last_operator(call_network(net, parts.data))
    except Exception:  # a part that MXNet does not record, such as an autograd.Function
        return ""
    name = node["op"].lower() + node.get("attrs", {}).get("act_type", "")
    return next((what for what in ("sigmoid", "softmax") if name.endswith(what)), "")


def _warn_of_scale(estimator: Run, loss: gluon.loss.Loss, parts: BatchParts, first: float) -> None:
    """Warn if the first loss is far above that of a network that knows nothing of the classes."""
    if type(loss) is not gluon.loss.SoftmaxCELoss or not isinstance(parts.data, NDArray):
        return
    if first > _MOST_FIRST_LOSS and parts.data.stype == "default":
        data = to_nd(parts.data)
        estimator.logger.warning(
            "the loss of the first batch is %.3g: the data, from %.3g to %.3g, are probably not "
            "scaled; divide by the largest value, or normalize to mean 0 and deviation 1",
            first,
            mx.nd.min(data).asscalar(),
            mx.nd.max(data).asscalar(),
        )


def _look_at_training(estimator: Run, batch: object) -> None:
    """Check a training batch, and all labels."""
    for leaf in tree_leaves(batch):
        check_batch(0, leaf)
    if _has_three_items(batch):
        estimator.logger.info("the third item of a batch is taken as %s", _WEIGHTS)
    net, loss = estimator.net, estimator.loss
    parts, pred, losses = _look_at(estimator, net, loss, batch, "the first batch")
    _check_whole_labels(estimator, loss, estimator.data, pred)
    first = float(mx.nd.mean(to_nd(losses)).asscalar())
    _warn_of_scale(estimator, loss, parts, first)


def _look_at(
    estimator: Run, net: gluon.Block, loss: gluon.loss.Loss, batch: object, what: str
) -> tuple[BatchParts, Any, NDArray]:
    """Check a batch; return its parts, the output and the losses."""
    parts = _share(estimator, batch, net)
    if not _leaves_nan(estimator):
        _check_finite(parts, what)
    pred, losses = _computed(net, loss, parts, what, batch)
    if isinstance(parts.label, NDArray) and parts.label.stype == "default":
        weight = parts.weight if isinstance(parts.weight, NDArray) else None
        _check_labels(loss, parts.label.asnumpy(), weight, pred, f"the labels of {what}")
    _check_outputs(net, loss, parts, pred)
    return parts, pred, losses


def _look_at_validation(estimator: Run, data: TrainingData, batch: object) -> None:
    name = "the first batch of the validation"
    net, loss = estimator.val_net, estimator.val_loss
    parts, pred, losses = _look_at(estimator, net, loss, batch, name)
    _check_whole_labels(estimator, loss, data, pred)
    outputs = outputs_of([parts.label], [pred], [losses], parts.weight, estimator.batch_axis)
    for metric in (part for each in estimator.val_metrics for part in flatten_metrics(each)):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # about values that say nothing yet
                try_metric(metric, outputs, loss, estimator.batch_axis)
        except _ERRORS as error:
            raise ValueError(
                f"metric {metric.name!r} cannot take {name}: label {_kinds(parts.label)}, output "
                f"{_kinds(pred)} ({reason_of(error)}): choose one that suits the output, or "
                "for another axis of classes than the last Accuracy(axis=...)"
            ) from error
