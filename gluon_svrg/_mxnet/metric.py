"""What metrics keep to themselves: counts, moments, the function of a CustomMetric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mxnet.metric import MCC, CustomMetric, EvalMetric, PearsonCorrelation


def binary_counts(metric: EvalMetric) -> Any:
    """Return the counts of true and false positives and negatives of an F1 or MCC.

    They are public in F1 and private in MCC. Both show them to users, who may read them after a
    run, so they have to fit the figure.
    """
    return metric._metrics if isinstance(metric, MCC) else vars(metric)["metrics"]


def set_correlation(metric: PearsonCorrelation, figure: float) -> None:
    """Let a PearsonCorrelation of ``average='micro'`` give `figure`.

    It ignores the sums of an EvalMetric, and computes the correlation from private moments: here
    those of two samples with a variance of 1.
    """
    metric._conv, metric._sse_p, metric._sse_l = figure, 1.0, 1.0
    metric._pred_nums = metric._label_nums = 2


def function_of(metric: CustomMetric) -> Callable[[Any, Any], Any]:
    """Return the function, to call it here, with labels and outputs of chosen samples.

    ``metric.update`` would count each batch as one sample.
    """
    return metric._feval


def takes_extra_outputs(metric: EvalMetric) -> bool:
    """Return whether a metric ignores the outputs for which there is no label."""
    return bool(getattr(metric, "_allow_extra_outputs", False))
