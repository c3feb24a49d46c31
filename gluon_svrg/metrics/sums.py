"""MXNet's metrics as sums over samples.

A *total* is an array that summarises some samples. The totals of batches, contexts and workers are
merged into one total of all samples, and the figure is computed from that one. So the figure does
not depend on how the samples were batched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.block import axis_of_classes, expected_output, labels_are_signed
from gluon_svrg._mxnet.metric import binary_counts, set_correlation
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.nested import as_numpy
from mxnet.metric import EvalMetric
from mxnet.ndarray import NDArray

_ROUNDING = 1e-3  # of the sum of a sample's soft labels: float16 has three digits


class Task(NamedTuple):
    """What the loss tells about outputs and labels.

    Attributes
    ----------
    threshold : float or None
        A single output above it means the second class; None if the loss does not define one.
    has_soft_labels : bool
        Whether labels are probabilities of classes.
    has_classes : bool
        Whether labels are numbers of classes.
    """

    threshold: float | None = None
    has_soft_labels: bool = False
    has_classes: bool = False

    @classmethod
    def of(cls, loss: mx.gluon.Block | None) -> Task:
        """Return the task of a loss."""
        if loss is None:
            return cls()
        expected, has_classes = expected_output(loss), axis_of_classes(loss) is not None
        kind = None if expected is None else expected.kind
        threshold = {"score": 0.0, "probability": 0.5}.get(kind or "")
        if labels_are_signed(loss):
            threshold = 0.0
        has_soft_labels = kind in ("scores", "log-probabilities") and not has_classes
        return cls(threshold, has_soft_labels, has_classes)


class Rows(NamedTuple):
    """Labels and outputs, one row for each value that counts.

    Attributes
    ----------
    label, pred : NumPyArray
        Arrays with one or two axes.
    shape : tuple of int
        The shape of the values; the rows are in its order.
    """

    label: NumPyArray
    pred: NumPyArray
    shape: tuple[int, ...]


RowsOf = Callable[[Any, NDArray, NDArray, Task, bool], Rows]


class Sums:
    """How a metric is computed: a mean over rows.

    Parameters
    ----------
    rows : callable
        Takes the metric, label, output, :class:`Task`, and whether there is one weight per element;
        returns the :class:`Rows`.
    values : callable
        Takes the metric, the labels and the outputs of rows; returns arrays of one value per row,
        or one array.
    finish : callable
        Turns the mean into the figure.
    """

    def __init__(
        self,
        rows: RowsOf,
        values: Callable[[Any, NumPyArray, NumPyArray], Any],
        finish: Callable[[float], float] = float,
    ) -> None:
        self.rows, self._values, self._finish = rows, values, finish

    def columns(self, metric: Any, label: NumPyArray, pred: NumPyArray) -> Sequence[NumPyArray]:
        """Return the values that are multiplied by the weights and added up over rows."""
        values = self._values(metric, label, pred)
        return [values, np.ones(len(values))]

    def total(self, columns: NumPyArray, weight: NumPyArray | None) -> NumPyArray:
        """Return the total of some rows."""
        total: NumPyArray = (columns if weight is None else columns * weight).sum(axis=1)
        return total

    def merge(self, total: NumPyArray, other: NumPyArray) -> NumPyArray:
        """Return the total of both."""
        return total + other

    def figure(self, total: NumPyArray) -> tuple[float, float]:
        """Return the figure, and the sum of the weights that it is computed from."""
        return self._finish(total[0] / total[1]) if total[1] else math.nan, float(total[1])

    def show(self, metric: Any, total: NumPyArray) -> None:
        """Give the metric the figure."""
        figure, count = self.figure(total)
        set_sums(metric, figure * count if count else 0.0, count)


class MeanSums(Sums):
    """A mean that the metric itself turns into the figure."""

    def show(self, metric: Any, total: NumPyArray) -> None:
        """Give the metric the sums."""
        set_sums(metric, float(total[0]), float(total[1]))


class Hits(MeanSums):
    """The share of rows whose class is right.

    Labels that have the outputs' shape may have several meanings. If neither shapes nor the loss
    decide, the labels and outputs of all samples do: soft labels add up to 1, integer outputs with
    classes beyond 0 and 1 are classes, and all others are scores, with the second class above 0.
    The total has the sums for all three meanings.
    """

    def columns(self, metric: Any, label: NumPyArray, pred: NumPyArray) -> Sequence[NumPyArray]:
        """Return hits and ones; for undecided rows those of each meaning, and counterexamples."""
        if pred.ndim == 1:
            return [label == pred, np.ones(len(label))]
        is_whole = (np.floor(pred) == pred) & (np.floor(label) == label)
        is_soft = (label >= 0).all(axis=1) & (abs(label.sum(axis=1) - 1) <= _ROUNDING)
        return [
            label.argmax(axis=1) == pred.argmax(axis=1),
            np.ones(len(label)),
            ((label > 0.5) == (pred > 0)).sum(axis=1),
            (label == pred).sum(axis=1),
            np.full(len(label), label.shape[1]),
            ~is_soft | (label.shape[1] == 1),
            ~is_whole.all(axis=1),
            ((label != 0) & (label != 1)).any(axis=1),
        ]

    def figure(self, total: NumPyArray) -> tuple[float, float]:
        """Return the share, and the sum of the weights."""
        return super().figure(self._decided(total))

    def show(self, metric: Any, total: NumPyArray) -> None:
        """Give the metric the sums."""
        super().show(metric, self._decided(total))

    def _decided(self, total: NumPyArray) -> NumPyArray:
        if len(total) == 2:
            return total
        of_soft, rows, of_scores, of_classes, elements, not_soft, not_whole, not_binary = total
        if not not_soft:
            return np.array([of_soft, rows])
        are_classes = not not_whole and not_binary
        return np.array([of_classes if are_classes else of_scores, elements])


class Confusion(Sums):
    """A metric computed from the true and false positives and negatives."""

    def __init__(self, finish: Callable[[NumPyArray], float]) -> None:
        super().__init__(_binary_rows, lambda *_: None)
        self._score = finish

    def columns(self, metric: Any, label: NumPyArray, pred: NumPyArray) -> Sequence[NumPyArray]:
        """Return whether a row is a true positive, a false one, a false negative or a true one."""
        wrong = (label != 0) & (label != 1)
        if wrong.any():
            raise ValueError(
                f"{type(metric).__name__} needs classes 0 and 1, got a label {label[wrong][0]:g}"
            )
        is_true, is_found = label == 1, pred == 1
        return [is_true & is_found, ~is_true & is_found, is_true & ~is_found, ~(is_true | is_found)]

    def figure(self, total: NumPyArray) -> tuple[float, float]:
        """Return the figure, and the sum of the weights."""
        count = float(total.sum())
        return self._score(total) if count else math.nan, count

    def show(self, metric: Any, total: NumPyArray) -> None:
        """Give the metric the figure and the counts."""
        super().show(metric, total)
        counts = binary_counts(metric)
        names = ("true_positives", "false_positives", "false_negatives", "true_negatives")
        for name, value in zip(names, total, strict=True):
            setattr(counts, name, _plain(value))
            setattr(counts, f"global_{name}", _plain(value))


class Moments(Sums):
    """The correlation of labels and outputs, by their weight, means and sums of squares."""

    def __init__(self) -> None:
        super().__init__(_of_pair(_number_rows), lambda *_: None)

    def columns(self, metric: Any, label: NumPyArray, pred: NumPyArray) -> Sequence[NumPyArray]:
        """Return the labels and outputs themselves."""
        return [label, pred]

    def total(self, columns: NumPyArray, weight: NumPyArray | None) -> NumPyArray:
        """Return weight, both means, both sums of squares and that of products."""
        weight = np.ones(columns.shape[1]) if weight is None else weight
        count = weight.sum()
        if not count:
            return np.zeros(6)
        label, pred = means = (columns * weight).sum(axis=1) / count
        x, y = columns - means[:, None]
        squares = [(weight * product).sum() for product in (x * x, y * y, x * y)]
        return np.array([count, label, pred, *squares])

    def merge(self, total: NumPyArray, other: NumPyArray) -> NumPyArray:
        """Return the moments of both, by the formula of Chan, Golub and LeVeque (1983)."""
        count = total[0] + other[0]
        if not count:
            return total
        x, y = other[1:3] - total[1:3]
        share = other[0] / count
        means = total[1:3] + np.array([x, y]) * share
        spread = np.array([x * x, y * y, x * y]) * total[0] * share
        return np.concatenate([[count], means, total[3:] + other[3:] + spread])

    def figure(self, total: NumPyArray) -> tuple[float, float]:
        """Return the correlation; NaN if labels or outputs are all equal."""
        root = math.sqrt(total[3]) * math.sqrt(total[4])
        return total[5] / root if root else math.nan, float(total[0])

    def show(self, metric: Any, total: NumPyArray) -> None:
        """Give the metric the figure, also one of average='micro'."""
        super().show(metric, total)
        if metric.average == "micro":
            set_correlation(metric, self.figure(total)[0])


class ClassCounts(Sums):
    """The correlation for several classes, from the confusion matrix."""

    def __init__(self) -> None:
        super().__init__(_class_rows, lambda *_: None)

    def columns(self, metric: Any, label: NumPyArray, pred: NumPyArray) -> Sequence[NumPyArray]:
        """Return labels, outputs and ones."""
        if pred.ndim == 2:  # undecided: soft labels, or scores
            several = pred.shape[1] > 1
            label = label.argmax(axis=1) if several else label[:, 0] > 0.5
            pred = pred.argmax(axis=1) if several else pred[:, 0] > 0
        return [label, pred, np.ones(len(label))]

    def total(self, columns: NumPyArray, weight: NumPyArray | None) -> NumPyArray:
        """Return the matrix of counts: a row for each output, a column for each label."""
        label, pred = columns[:2].astype("int64")
        number = max(2, int(columns[:2].max(initial=0)) + 1)
        total = np.zeros((number, number))
        np.add.at(total, (pred, label), 1 if weight is None else weight)
        return total

    def merge(self, total: NumPyArray, other: NumPyArray) -> NumPyArray:
        """Return the counts of both, for the classes that either has."""
        number = max(len(total), len(other))
        merged = np.zeros((number, number))
        for part in (total, other):
            merged[: len(part), : len(part)] += part
        return merged

    def show(self, metric: Any, total: NumPyArray) -> None:
        """Give the metric the counts."""
        metric.k, metric.lcm, metric.gcm = len(total), total.copy(), total.copy()
        metric.num_inst = metric.global_num_inst = _plain(total.sum())


def set_sums(metric: EvalMetric, total: float, count: float) -> None:
    """Let ``metric.get()`` give ``total / count``."""
    metric.sum_metric = metric.global_sum_metric = _plain(total)
    metric.num_inst = metric.global_num_inst = _plain(count)


def _plain(value: float) -> float:
    """Return a whole number as an int."""
    return int(value) if float(value).is_integer() else float(value)


def _class_rows(metric: Any, label: NDArray, pred: NDArray, task: Task, by_element: bool) -> Rows:
    """Return the classes of labels and outputs; undecided ones as they are, one row per sample."""
    axis = getattr(metric, "axis", 1)
    axis = axis if -pred.ndim <= axis < pred.ndim else -1
    rest = tuple(n for i, n in enumerate(pred.shape) if i != axis % pred.ndim)
    is_of_classes = label.shape == rest or (
        label.ndim == pred.ndim and label.size * pred.shape[axis] == pred.size
    )
    if is_of_classes and (pred.shape[axis] > 1 or task.has_classes):
        classes = as_numpy(label).reshape(rest)
        return Rows(np.floor(_flat(classes)), _flat(_argmax(pred, axis)), rest)
    if label.size != pred.size:
        raise ValueError(f"labels of shape {label.shape} do not fit outputs of shape {pred.shape}")
    if task.threshold is not None:
        is_true, is_found = as_numpy(label) > 0.5, as_numpy(pred) > task.threshold
        return Rows(_flat(is_true), _flat(is_found), pred.shape)
    if task.has_soft_labels and pred.shape[axis] > 1:
        return Rows(_flat(_argmax(label, axis)), _flat(_argmax(pred, axis)), rest)
    if np.dtype(pred.dtype).kind in "iu":
        return Rows(_flat(label), _flat(pred), pred.shape)
    shape = pred.shape if by_element or pred.ndim != 2 else pred.shape[:1]
    rows = int(np.prod(shape))
    return Rows(_flat(label).reshape(rows, -1), _flat(pred).reshape(rows, -1), shape)


def _binary_rows(metric: Any, label: NDArray, pred: NDArray, task: Task, by_element: bool) -> Rows:
    """Return the classes 0 and 1 of labels and outputs."""
    if task.threshold is None and label.size == pred.size:
        is_soft = pred.ndim > 1 and pred.shape[1] > 1 and task.has_soft_labels
        task = Task(has_soft_labels=True) if is_soft or pred.shape[1:] == (2,) else Task(0.0)
    return _class_rows(metric, label, pred, task, by_element)


def _ranked_rows(label: NDArray, pred: NDArray) -> Rows:
    """Return the numbers of classes, and the outputs of all classes, on the last axis."""
    number = pred.shape[-1] if pred.ndim > 1 else 1
    if pred.ndim < 2 or label.size * number != pred.size:
        raise ValueError(f"labels of shape {label.shape} do not fit outputs of shape {pred.shape}")
    return Rows(_flat(label), as_numpy(pred).reshape(-1, number), pred.shape[:-1])


def _top_rows(label: NDArray, pred: NDArray) -> Rows:
    """Return the same; for soft labels the most probable class."""
    if label.shape == pred.shape and pred.ndim > 1:
        label = mx.nd.array(_argmax(label, -1), dtype="float64")
    return _ranked_rows(label, pred)


def _picked_rows(metric: Any, label: NDArray, pred: NDArray) -> Rows:
    """Return the numbers of classes, and the probabilities of all classes, by the metric's axis."""
    axis = getattr(metric, "axis", -1) % pred.ndim
    if axis != pred.ndim - 1:
        pred = mx.nd.moveaxis(pred, axis, pred.ndim - 1)
    return _ranked_rows(label, pred)


def _number_rows(label: NDArray, pred: NDArray) -> Rows:
    """Return the numbers of labels and outputs, in pairs."""
    y, x = as_numpy(label).astype("float64"), as_numpy(pred).astype("float64")
    if y.size == x.size:
        y = y.reshape(x.shape)
    else:  # as in MXNet, an array with one axis has one number per sample
        y, x = (a[:, None] if a.ndim == 1 else a for a in (y, x))
        y, x = np.broadcast_arrays(y, x)
    return Rows(y.ravel(), x.ravel(), x.shape)


def _of_pair(rows: Callable[[NDArray, NDArray], Rows]) -> RowsOf:
    """Return `rows`, which needs neither metric nor task, with the arguments of :class:`Sums`."""
    return lambda _metric, label, pred, _task, _by_element: rows(label, pred)


def _argmax(array: NDArray, axis: int) -> NumPyArray:
    """Return the numbers of the largest on an axis, computed where the array is."""
    if array.dtype == np.float16:  # float16 cannot represent every integer above 2048
        array = array.astype("float32")
    return as_numpy(mx.nd.argmax(array, axis=axis))


def _flat(array: Any) -> NumPyArray:
    return as_numpy(array).astype("float64").ravel()


def _squares(_metric: Any, label: NumPyArray, pred: NumPyArray) -> NumPyArray:
    return (label - pred) ** 2


def _is_among_first(metric: Any, label: NumPyArray, pred: NumPyArray) -> NumPyArray:
    """Return whether fewer than k classes have greater outputs; ties count in class order."""
    index = label.astype("int64")[:, None]
    is_class = (index >= 0) & (index < pred.shape[1])
    own = np.take_along_axis(pred, index.clip(0, pred.shape[1] - 1), axis=1)
    is_before = (pred > own) | ((pred == own) & (np.arange(pred.shape[1]) < index))
    found: NumPyArray = (is_before.sum(axis=1) < metric.top_k) & is_class[:, 0]
    return found


def _probability(label: NumPyArray, pred: NumPyArray) -> NumPyArray:
    index = label.astype("int64")[:, None]
    if ((index < 0) | (index >= pred.shape[1])).any():
        raise ValueError(
            f"labels are from {label.min():g} to {label.max():g}, but there are {pred.shape[1]} "
            "classes"
        )
    return np.take_along_axis(pred.astype("float64"), index, axis=1)[:, 0]


def _surprise(metric: Any, label: NumPyArray, pred: NumPyArray) -> NumPyArray:
    surprise: NumPyArray = -np.log(_probability(label, pred) + metric.eps)
    return surprise


class _Perplexity(MeanSums):
    """The mean negative log-likelihood of the labels that are not ignored.

    The metric takes its exponential.
    """

    def columns(self, metric: Any, label: NumPyArray, pred: NumPyArray) -> Sequence[NumPyArray]:
        """Return the negative log-likelihood of the rows that count, and which these are."""
        counts = (
            np.ones(len(label), bool)
            if metric.ignore_label is None
            else (label != metric.ignore_label)
        )
        surprise = np.zeros(len(label))
        found = _probability(label[counts], pred[counts])
        surprise[counts] = -np.log(np.maximum(1e-10, found))
        return [surprise, counts]


def _f1(total: NumPyArray) -> float:
    hits, false_positives, misses, _ = total
    among = 2 * hits + false_positives + misses
    return float(2 * hits / among) if among else 0.0


def _mcc(total: NumPyArray) -> float:
    """Return Matthews' correlation; 0 if a row or column of counts is empty, as in MXNet."""
    hits, false_positives, misses, rest = map(float, total)
    product = math.prod(
        part or 1.0
        for part in (
            hits + false_positives,
            hits + misses,
            rest + false_positives,
            rest + misses,
        )
    )
    return (hits * rest - false_positives * misses) / math.sqrt(product)


KNOWN: dict[type[EvalMetric], Sums] = {
    mx.metric.Accuracy: Hits(_class_rows, lambda *_: None),
    mx.metric.TopKAccuracy: MeanSums(_of_pair(_top_rows), _is_among_first),
    mx.metric.F1: Confusion(_f1),
    mx.metric.MCC: Confusion(_mcc),
    mx.metric.PCC: ClassCounts(),
    mx.metric.MAE: MeanSums(_of_pair(_number_rows), lambda _, label, pred: abs(label - pred)),
    mx.metric.MSE: MeanSums(_of_pair(_number_rows), _squares),
    mx.metric.RMSE: Sums(
        _of_pair(_number_rows), lambda _, label, pred: (label - pred) ** 2, math.sqrt
    ),
    mx.metric.CrossEntropy: MeanSums(_of_pair(_ranked_rows), _surprise),
    mx.metric.NegativeLogLikelihood: MeanSums(_of_pair(_ranked_rows), _surprise),
    mx.metric.Perplexity: _Perplexity(
        lambda metric, label, pred, _task, _by_element: _picked_rows(metric, label, pred),
        lambda *_: None,
    ),
    mx.metric.PearsonCorrelation: Moments(),
}
"""How each of MXNet's metrics of labels and outputs is computed, by its exact class."""
