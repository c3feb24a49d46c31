"""EpochMetric: a function of all samples of an epoch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray
from mxnet.ndarray import NDArray

Collected: TypeAlias = "tuple[NumPyArray, NumPyArray, NumPyArray | None]"
"""Labels, outputs and weights (None: each counts once) of some samples."""


class EpochMetric(mx.metric.EvalMetric):
    """A function that is called once, with the labels and outputs of all samples.

    Use it for metrics that are not means over samples, such as the area under the ROC curve or R².
    The labels and outputs of an epoch stay in memory until it ends. A checkpoint in the middle of
    an epoch holds those collected so far. Until the end of the epoch the figure is NaN.

    Parameters
    ----------
    function : callable
        Called as ``function(label, pred)`` with NumPy arrays; returns a number. If it has a
        parameter `sample_weight`, as functions of ``sklearn.metrics`` have, and the batches have
        weights, it gets them.
    name : str, optional
        By default the function's name.
    output_names, label_names : list of str, optional
        The outputs and labels to use, if there are several.

    Examples
    --------
    >>> from sklearn.metrics import roc_auc_score
    >>> auc = gluon_svrg.EpochMetric(roc_auc_score, name="auc")
    >>> estimator = gluon_svrg.Estimator(net, loss, train_metrics=["acc", auc])
    """

    def __init__(
        self,
        function: Callable[..., float],
        name: str | None = None,
        output_names: list[str] | None = None,
        label_names: list[str] | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(
                f"function must be callable, got {function!r}: give a function of label and output"
            )
        self.function = function
        self._collected: list[Collected] = []
        self._figure: float | None = None  # the value for what was collected, if it was read
        name = name or str(getattr(function, "__name__", type(function).__name__))
        super().__init__(name, output_names=output_names, label_names=label_names)

    def update(self, labels: Iterable[NDArray], preds: Iterable[NDArray]) -> None:
        """Collect labels and outputs."""
        for label, pred in zip(labels, preds, strict=True):
            self.collect([(label.asnumpy(), pred.asnumpy(), None)])

    def collect(self, samples: Iterable[Collected]) -> None:
        """Collect labels, outputs and weights."""
        self._collected += samples
        self._figure = None
        self.num_inst = sum(len(label) for label, *_ in self._collected)

    def reset(self) -> None:
        """Discard what was collected."""
        super().reset()
        self._collected, self._figure = [], None

    def get(self) -> tuple[str, float]:
        """Return the name, and the function's value for all samples that were collected."""
        if not self.num_inst:
            return self.name, math.nan
        if self._figure is None:
            labels, preds, _ = zip(*self._collected, strict=True)
            label, pred = np.concatenate(labels), np.concatenate(preds)
            self._figure = float(self.function(label, pred, **self._weights()))
        return self.name, self._figure

    def get_config(self) -> dict[str, Any]:
        """Raise NotImplementedError: a function cannot be serialized."""
        raise NotImplementedError("EpochMetric cannot be serialized")

    def _weights(self) -> dict[str, NumPyArray]:
        if all(weight is None for *_, weight in self._collected) or not _takes_weights(
            self.function
        ):
            return {}
        weights = [
            np.ones(len(label)) if weight is None else weight
            for label, _, weight in self._collected
        ]
        return {"sample_weight": np.concatenate(weights)}


def _takes_weights(function: Callable[..., float]) -> bool:
    try:
        return "sample_weight" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function written in C, without a signature
        return False
