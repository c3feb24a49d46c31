"""Scores of an estimator on rows in other processes: sums over the parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from provenglm.api.validation import check_numbers, check_scored_labels, check_total, check_weights
from provenglm.rows.far_parts import Part, Source
from provenglm.types import NumPyArray


def far_accuracy(estimator: Any, source: Source) -> float:
    """Return the accuracy of a classifier.

    Parameters
    ----------
    estimator : GLMClassifier
    source : Source

    Raises
    ------
    TypeError, ValueError
        As for rows of this process; the message names the part.
    """
    n, total, right = np.sum(source.call(_right, estimator), axis=0)
    return float(right) / check_total(float(total), int(n))


def far_deviance(estimator: Any, source: Source) -> float:
    """Return R^2 of a regressor, or D^2 for a loss with a logarithmic link; see `far_accuracy`."""
    name = type(estimator).__name__
    n, total, weighted = np.sum(source.call(_sums, name, reads=False), axis=0)
    mean = float(weighted) / check_total(float(total), int(n))
    left, null, size = np.sum(source.call(_deviances, estimator, mean), axis=0)
    # Rounding may leave a positive deviance for equal targets.
    nothing = 1e-14 * size
    if null <= nothing:
        return 1.0 if left <= nothing else 0.0
    return float(1 - left / null)


def _right(part: Part, estimator: Any) -> NumPyArray:
    """Return the number of rows, the sum of their weights, and that of rows predicted right."""
    from sklearn.metrics import accuracy_score

    n = len(part.target)
    weight = check_weights(part.weight, n)
    total = float(n) if weight is None else float(weight.sum())
    if total == 0:
        return np.array([n, 0, 0])
    true = check_scored_labels(type(estimator).__name__, part.target, n)
    predicted = estimator.predict(part.features, part.offset)
    return np.array([n, total, total * accuracy_score(true, predicted, sample_weight=weight)])


def _sums(part: Part, name: str) -> NumPyArray:
    """Return the number of rows, and the sums of the weights and of the weighted targets."""
    target, weight = _target(part, name)
    return np.array([len(target), weight.sum(), weight @ target])


def _deviances(part: Part, estimator: Any, mean: float) -> NumPyArray:
    """Return the deviances of the predictions and of the mean, and the size of their terms."""
    target, weight = _target(part, type(estimator).__name__)
    counts = weight > 0  # the deviance of a row with weight 0 may be infinite
    if not counts.any():
        return np.zeros(3)
    loss = estimator._loss()
    scores = estimator._with_offset(part.features, part.offset, "score")[counts, 0]
    target, weight = target[counts], weight[counts]
    if not loss.has_logarithm:
        each = np.square(target - loss.prediction(scores)), np.square(target - mean)
        return np.array([*(weight @ one for one in each), weight @ np.square(target)])
    loss.check_target(np.append(target, 1.0), None)
    null = np.full(len(target), np.log(mean))
    size = np.abs(loss.value_at(null, target)) + loss.fisher(null)
    each = loss.deviance(scores, target), loss.deviance(null, target)
    return np.array([*(max(float(weight @ one), 0.0) for one in each), weight @ size])


def _target(part: Part, name: str) -> tuple[NumPyArray, NumPyArray]:
    """Return the targets and weights of a part, (n,)."""
    n = len(part.target)
    weight = check_weights(part.weight, n)
    target = check_numbers(name, part.target, n) if n else np.zeros(0)
    return target, np.ones(n) if weight is None else weight
