"""The state of a metric of the user's own: its plain attributes, and those of its parts."""

from __future__ import annotations

from typing import Any

from gluon_svrg.arrays.encoding import is_data
from gluon_svrg.events import Run, State
from gluon_svrg.metrics.setup import flatten_metrics
from gluon_svrg.metrics.totals import is_known
from mxnet.metric import EvalMetric


def metric_state(metric: EvalMetric) -> dict[str, Any]:
    """Return the plain attributes of a metric, and those of the metrics that it contains."""
    state: State = {"plain": {}, "parts": {}}
    for name, value in vars(metric).items():
        parts = _parts_of(value)
        if parts:
            state["parts"][name] = [metric_state(child) for child in parts]
        elif is_data(value):
            state["plain"][name] = value
    return state


def set_metric_state(metric: EvalMetric, state: State) -> None:
    """Restore what :func:`metric_state` returned, in place."""
    for name, value in state["plain"].items():
        if name == "name":
            continue
        current = vars(metric).get(name)
        if isinstance(current, dict) and isinstance(value, dict):  # a defaultdict stays one
            current.clear()
            current.update(value)
        else:
            vars(metric)[name] = value
    for name, parts in state["parts"].items():
        for child, saved in zip(_parts_of(vars(metric)[name]), parts, strict=True):
            set_metric_state(child, saved)


def warn_unsaved_attributes(estimator: Run) -> None:
    """Log the attributes of a user's own metrics that cannot be saved in a checkpoint."""
    parts = [part for metric in estimator.train_metrics for part in flatten_metrics(metric)]
    for metric in (part for part in parts if not is_known(part)):
        for name, value in vars(metric).items():
            # MXNet keeps the arguments of the constructor, a function among them, in a dict.
            items = value.values() if isinstance(value, dict) else [value]
            if not (all(is_data(i) or callable(i) for i in items) or _parts_of(value)):
                estimator.logger.warning(
                    "%s.%s, a %s, is not part of a checkpoint: after a resume the metric may have "
                    "other values",
                    type(metric).__name__,
                    name,
                    type(value).__name__,
                )


def _parts_of(value: object) -> list[Any]:
    """Return the objects of MXNet's metrics in an attribute: CompositeEvalMetric, F1, MCC."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if type(item).__module__ == "mxnet.metric"]
