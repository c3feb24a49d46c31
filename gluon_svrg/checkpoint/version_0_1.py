"""From the formats of version 0.1 to those of today.

Version 0.1 filed each state under the module and the name of its class, at which this package's
classes then were. The table is fixed: it is not to follow a class that moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gluon_svrg.checkpoint.state_keys import RANDOM_STATE, class_path, state_key
from gluon_svrg.events import EventHandler, State

HANDLERS = {
    "gluon_svrg.handlers.ema.EMAHandler": "average",
    "gluon_svrg.handlers.guard.NaNGuardHandler": "nan_guard",
    "gluon_svrg.reporting.history_handler.HistoryHandler": "history",
    "gluon_svrg.metrics.handler.MetricHandler": "metrics",
    "gluon_svrg.reporting.progress.ProgressHandler": "progress",
    "gluon_svrg.checkpoint.random_state_handler.RandomStateHandler": RANDOM_STATE,
    "gluon_svrg.handlers.schedule.PlateauHandler": "plateau",
    "gluon_svrg.handlers.stopping.EarlyStoppingHandler": "early_stopping",
    "gluon_svrg.svrg.handler.SVRGHandler": "svrg",
    "gluon_svrg.handlers.update.GradientUpdateHandler": "accumulation",
    "gluon_svrg.evaluation.handler.ValidationHandler": "gluon_svrg.ValidationHandler",
    "gluon_svrg.svrg.variance_handler.VarianceHandler": "variance",
    **{
        f"mxnet.gluon.contrib.estimator.event_handler.{name}": f"mxnet.{name}"
        for name in (
            "CheckpointHandler",
            "EarlyStoppingHandler",
            "LoggingHandler",
            "StoppingHandler",
            "ValidationHandler",
        )
    },
}
"""The key of each handler that has a state, by its name in a checkpoint of version 0.1."""

OPTIMIZERS = {
    "gluon_svrg.optimizer.lars.LARS": "gluon_svrg.LARS",
    "gluon_svrg.optimizer.optimizer.Optimizer": "gluon_svrg.Optimizer",
    "gluon_svrg.optimizer.signum.Signum": "gluon_svrg.Signum",
}
"""The key of each optimizer of this package, by its name in the states of version 0.1."""

_HISTORY_HANDLER = "gluon_svrg.reporting.history_handler.HistoryHandler"

RUN_FORMAT = 1
STATES_FORMAT = "gluon_svrg.states/1"


def run_states(saved: State, handlers: Iterable[EventHandler]) -> dict[str, Any]:
    """Return what a ``run.npz`` of format 1 holds, by part.

    Parameters
    ----------
    saved : dict
        The content of the file.
    handlers : iterable of EventHandler
        Those of the run that is to continue. A class of a user's own that has declared a key since
        is found by its name.
    """
    keys = HANDLERS | {class_path(handler): state_key(handler) for handler in handlers}
    filed: dict[str, list[list[Any]]] = {}
    for name, state in saved["handlers"]:
        key = keys.get(name, name)
        filed.setdefault(key, []).append([name.rpartition(".")[2], state])
    for key, convert in _CONVERT.items():
        if key in filed:
            filed[key] = [[name, convert(state)] for name, state in filed[key]]
    random_state = {key: filed.pop(key) for key in [RANDOM_STATE] if key in filed}
    return {
        "net": {name: saved[name] for name in ("contexts", "replicas", "outside")},
        "trainer": {"places": saved["trained"]},
        "loss_scale": saved["loss_scaler"],
        "position": saved["position"],
        "history": {
            "history": saved["history"],
            "figures": _figures(saved),
            "last_evaluation": saved["last_evaluation"],
        },
        "metrics": saved["metrics"],
        "data": saved["data"],
        "handlers": filed,
        "random_state": random_state,
    }


def states_meta(saved: State) -> dict[str, Any]:
    """Return the text of a trainer's states of format 1 as it would be written today."""
    name = str(saved.get("optimizer"))
    return {**saved, "optimizer": OPTIMIZERS.get(name, name)}


def _figures(saved: State) -> dict[str, Any]:
    """Return the figures of the epoch under way, with the coefficient that HistoryHandler kept."""
    kept = (state["coefficient"] for name, state in saved["handlers"] if name == _HISTORY_HANDLER)
    coefficient = next(kept, None)
    figures: dict[str, Any] = saved["figures"]
    return figures if coefficient is None else {**figures, "coefficient": coefficient}


def _history_state(saved: State) -> dict[str, Any]:
    return {name: value for name, value in saved.items() if name != "coefficient"}


def _svrg_state(saved: State) -> dict[str, Any]:
    """Return the state of an SVRGHandler: what was beside the interval's state is in it."""
    interval = ("is_at_snapshot", "gradient_evaluations")
    # The position of the run says it.
    dropped = ("epoch", "batch", "total_batches", "is_loader")
    return {
        **{name: value for name, value in saved.items() if name not in (*interval, *dropped)},
        "pass": {**saved["pass"], **{name: saved[name] for name in interval}},
    }


_CONVERT: dict[str, Callable[[State], State]] = {
    "history": _history_state,
    "svrg": _svrg_state,
}
