"""Monitor: one figure of a run, and whether a smaller or a greater value is better."""

from __future__ import annotations

import difflib
import logging
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import mxnet as mx
from gluon_svrg.metrics.setup import SPLITS, figures_of, flatten_metrics
from gluon_svrg.run import Run

_Key = TypeVar("_Key")

_SMALLER = (
    mx.metric.Loss,
    mx.metric.MAE,
    mx.metric.MSE,
    mx.metric.RMSE,
    mx.metric.CrossEntropy,
    mx.metric.NegativeLogLikelihood,
    mx.metric.Perplexity,
)
_GREATER = (
    mx.metric.Accuracy,
    mx.metric.TopKAccuracy,
    mx.metric.F1,
    mx.metric.MCC,
    mx.metric.PCC,
    mx.metric.PearsonCorrelation,
)
# Words in a metric's name; the first ones also as a part: 'softmaxcrossentropyloss' has 'loss'.
_SMALLER_IS_BETTER = r"loss|error|entropy|perplexity|nll|deviance|\b(?:mse|mae|rmse|mape)\b"
_GREATER_IS_BETTER = (
    r"accuracy|pearson|precision|recall|\b(?:acc|f1|mcc|pcc|auc|r2|iou|map|top\d)\b"
)


class Monitor:
    """Reads a figure by its name, and compares two values of it.

    Parameters
    ----------
    name : str or EvalMetric
        A metric's name, as in the history (``'validation accuracy'``), or the metric itself.
    mode : 'auto', 'min' or 'max'
        Which value is better. 'auto' knows this for MXNet's metrics by their class, whatever their
        name. For a function, an EpochMetric or your own metric it infers this from the name: a
        smaller loss or error is better, and a greater accuracy or AUC. If the name says neither,
        give 'min' or 'max'.

    Attributes
    ----------
    mode : 'min', 'max' or 'auto'
        Which value is better. Before :meth:`check`, which reads the run's metrics, it is inferred
        from the name; 'auto' if the name does not say it.

    Raises
    ------
    TypeError
        If `name` is neither a str nor an EvalMetric.
    ValueError
        If `mode` is another value.
    """

    def __init__(self, name: str | mx.metric.EvalMetric, mode: str = "auto") -> None:
        if isinstance(name, mx.metric.CompositeEvalMetric):
            raise ValueError(
                f"monitor must be one figure, got {name}: give one of the metrics in it, or its "
                "name"
            )
        if not isinstance(name, str | mx.metric.EvalMetric):
            raise TypeError(
                f"monitor must be the name of a metric or an EvalMetric, got {name!r}: give a "
                "name as in the history, for example 'validation accuracy'"
            )
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"mode must be 'auto', 'min' or 'max', got {mode!r}")
        self._name = name
        self._is_given = mode != "auto"
        self.mode = mode
        if not self._is_given:
            self.mode = _mode_of_class(name) or _mode_of_name(self.name)

    @property
    def name(self) -> str:
        """The name in the history, in which the Estimator's metrics have a prefix."""
        return self._name if isinstance(self._name, str) else self._name.name

    def check(self, estimator: Run) -> None:
        """Check that the run has such a metric, and that `mode` is known.

        Raises
        ------
        ValueError
            If the run has no metric of that name, or if the name does not say which value is
            better.
        """
        names = estimator.metric_names()
        if self.name not in names:
            # Suggest no training metric for a validation metric that is missing for another reason.
            split = self.name.partition(" ")[0]
            alike = [n for n in names if split not in SPLITS or n.startswith(split)]
            near = difflib.get_close_matches(self.name, alike, n=1)
            if near:
                way_out = f"did you mean {near[0]!r}?"
            elif split == "validation":
                way_out = "give one of them, or fit(train_data, val_data)"
            else:
                way_out = "give one of them, or add the metric to the Estimator"
            raise ValueError(
                f"monitor={self.name!r} is no metric of this run, which has "
                f"{', '.join(map(repr, names))}"
                + ("" if estimator.val_data is not None else " (and no val_data)")
                + f": {way_out}"
            )
        if not self._is_given:
            self.mode = _mode_in(estimator, self.name) or self.mode
        if self.mode == "auto":
            raise ValueError(
                f"mode='auto' cannot tell from the name {self.name!r} whether a smaller or a "
                "greater value is better: give mode='min' or mode='max'"
            )

    def read(self, estimator: Run) -> float | None:
        """Return the figure of the current epoch or, between two epochs, of the last one.

        It may be NaN or infinite. None if there is no figure, for example before an evaluation.
        """
        if not estimator.position.is_in_epoch or self.name in _row_of_this_epoch(estimator):
            value = estimator.history[-1].get(self.name) if estimator.history else None
        elif self.name in estimator.last_evaluation:
            value = estimator.last_evaluation[self.name]
        else:
            known = dict(pair for metric in estimator.train_metrics for pair in figures_of(metric))
            value = known.get(self.name)
        return None if value is None else float(value)

    def is_better(self, value: float, than: float | None, min_delta: float = 0.0) -> bool:
        """Return whether `value` is better than `than` by more than `min_delta`.

        If `than` is None, every value is better except NaN and the worst infinity.
        """
        if than is None:
            than = math.inf if self.mode == "min" else -math.inf
        difference = than - value if self.mode == "min" else value - than
        return difference > min_delta

    def state_dict(self) -> dict[str, str]:
        """Return name and mode of the figure, which a checkpoint saves with its best value."""
        return {"monitor": self.name, "mode": self.mode}

    def is_of(self, state: Mapping[str, Any], handler: object, logger: logging.Logger) -> bool:
        """Return whether the best value in a saved state is of this figure; if not, warn."""
        saved = {"monitor": self.name, "mode": self.mode, **state}  # not saved up to 0.8
        if saved["monitor"] == self.name and saved["mode"] == self.mode:
            return True
        logger.warning(
            "resume: the best value so far is the %s of %r, and %s watches the %s of %r now: it "
            "starts fresh",
            saved["mode"],
            saved["monitor"],
            type(handler).__name__,
            self.mode,
            self.name,
        )
        return False

    def best_first(self, values: dict[_Key, float]) -> list[_Key]:
        """Return the keys of `values`, sorted from the best value to the worst; NaN is last."""
        sign = 1 if self.mode == "min" else -1
        return sorted(values, key=lambda key: (math.isnan(values[key]), sign * values[key]))


def _row_of_this_epoch(estimator: Run) -> dict[str, Any]:
    """Return the row of the current epoch, if *epoch end* has already appended it."""
    if estimator.history and estimator.history[-1]["epoch"] == estimator.position.epoch:
        return estimator.history[-1]
    return {}


def _mode_in(estimator: Run, name: str) -> str | None:
    """Return the mode of the run's metric of that name, if its class says it."""
    for metric in (*estimator.train_metrics, *estimator.val_metrics):
        split = metric.name.partition(" ")[0]
        for part in flatten_metrics(metric):
            if name in (part.name, f"{split} {part.name}"):
                return _mode_of_class(part)
    return None


def _mode_of_class(metric: object) -> str | None:
    if isinstance(metric, _SMALLER):
        return "min"
    return "max" if isinstance(metric, _GREATER) else None


def _mode_of_name(name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", " ", name.lower())
    smaller, greater = re.search(_SMALLER_IS_BETTER, words), re.search(_GREATER_IS_BETTER, words)
    if bool(smaller) == bool(greater):
        return "auto"
    return "min" if smaller else "max"
