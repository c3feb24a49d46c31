"""MLflowHandler: the parameters, figures and files of a run in MLflow."""

from __future__ import annotations

import math
import numbers
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gluon_svrg._compat import version
from gluon_svrg.arguments import require
from gluon_svrg.checkpoint import storage
from gluon_svrg.checkpoint.handler import checkpoint_directories
from gluon_svrg.deploy.export import export
from gluon_svrg.events import (
    EpochEnd,
    ExceptionRaised,
    Order,
    RequiresRun,
    Run,
    SafePoint,
    State,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.reporting.history import MEASURED
from gluon_svrg.stops import StopReason

# MLflow takes no other characters in names, and no longer values.
_NOT_IN_NAMES = re.compile(r"[^-/\w. :]")
_LONGEST_VALUE = 500
_MOST_AT_ONCE = 100  # parameters of one request


class MLflowHandler(
    TrainBegin, SafePoint, EpochEnd, TrainEnd, ExceptionRaised, Stateful, RequiresRun
):
    """Writes a run into MLflow: parameters, figures, manifests of checkpoints, the model.

    The first worker does. MLflow gets

    - ``estimator.settings`` as parameters: ``optimizer.lr``, ``SVRGHandler.update_freq``, ...
    - each number in the row of an epoch as a metric, with the number of the epoch (from 0) as its
      step;
    - at the end the reason why the run ended as a tag ``stop_reason``, its status, the manifests of
      the checkpoints in the CheckpointHandler's directory as artifacts ``checkpoints/NAME``, and
      with `export_sample` the exported model as artifacts ``model``, which a
      :class:`gluon_svrg.deploy.Predictor` reads.

    A run that continues from a checkpoint continues the same run of MLflow, whose number is in the
    checkpoint: epochs that were trained twice are there once. A parameter that has changed is there
    a second time, as ``NAME from epoch 3``. After a roll-back an epoch has a second value.

    If MLflow cannot be reached during the run, the training continues with a warning in the log,
    and the next epoch tries again.

    Parameters
    ----------
    experiment : str
        The name of the experiment; made if there is none.
    run_name : str, optional
        The name of the run; by default one that MLflow makes up.
    tracking_uri : str, optional
        Where MLflow keeps it, as ``'sqlite:///mlflow.db'`` or ``'http://host:5000'``; by default
        what MLflow is set to, by ``MLFLOW_TRACKING_URI`` for example.
    export_sample : NDArray, numpy.ndarray, or sequence of them, optional
        A batch of data, with which :func:`gluon_svrg.deploy.export` writes the model at the end,
        with the weights that are evaluated. By default the model is not exported.
    tags : dict of str to str, optional
        Of a new run.
    priority : float
        Last, so that every figure is there.

    Attributes
    ----------
    run_id : str or None
        The number of MLflow's run; None before the run, and on other workers than the first.

    Raises
    ------
    ImportError
        If MLflow is not installed.
    mlflow.exceptions.MlflowException
        At *train begin*, if MLflow cannot be reached, or the experiment was deleted.
    """

    state_key = "mlflow"
    may_request = False

    def __init__(
        self,
        experiment: str = "gluon_svrg",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        export_sample: Any = None,
        *,
        tags: Mapping[str, str] | None = None,
        priority: float = Order.LAST,
    ) -> None:
        self._mlflow: Any = require("mlflow", "mlflow", type(self).__name__)
        self.experiment = experiment
        self.run_name = run_name
        self.tracking_uri = tracking_uri
        self.export_sample = export_sample
        self.tags = dict(tags or {})
        self.priority = float(priority)
        self.run_id: str | None = None
        self._client: Any = None
        self._rows = 0  # of the history that are written
        self._history: object = None  # the one that they are of
        # The values that another process has written, by metric and step.
        self._there: dict[tuple[str, int], float] = {}

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Begin a run of MLflow, unless one is to be continued."""
        self.run_id, self._client, self._rows, self._there = None, None, 0, {}
        self._history = None
        if estimator.workers.is_first:
            self._client = self._mlflow.MlflowClient(self.tracking_uri)
            if estimator.resumed_from is None:
                self._begin(estimator)
            else:
                self._experiment_id()  # raises here, and not in the first epoch

    def safe_point(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Begin a run, if the checkpoint has told none; forget rows that a roll-back took back."""
        if self._client is None:
            return
        if self.run_id is None:
            self._begin(estimator)
        if estimator.history is not self._history:
            is_new = self._history is None
            self._history = estimator.history
            self._rows = 0 if is_new else min(self._rows, len(estimator.history))

    def epoch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write the figures of the epoch, and of those that could not be written before."""
        self._write_rows(estimator)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write the manifests, the model, and why the run has ended."""
        if self._client is None:
            return
        self._write_rows(estimator)
        self._try(estimator, "the manifests of the checkpoints", self._write_manifests)
        if self.export_sample is not None:
            self._try(estimator, "the model", self._write_model)
        reason = estimator.stop_reason
        status = "KILLED" if reason is StopReason.SIGNAL else "FINISHED"
        self._end(estimator, status, "" if reason is None else reason.value)

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Note that the run has failed."""
        if self.run_id is not None:
            exception = kwargs.get("exception")
            status = "KILLED" if isinstance(exception, KeyboardInterrupt) else "FAILED"
            self._end(estimator, status, f"{type(exception).__name__}: {exception}")

    def state_dict(self, estimator: Run) -> State:
        """Return the number of MLflow's run."""
        return {"run_id": self.run_id}

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue that run of MLflow; a new one, if it is there no longer."""
        if self._client is None or state["run_id"] in (None, self.run_id):
            return
        try:
            run = self._client.get_run(state["run_id"])
            self._client.update_run(state["run_id"], status="RUNNING")
        except self._mlflow.exceptions.MlflowException as e:
            estimator.logger.warning(
                "MLflow's run %s, which the checkpoint names, cannot be continued (%s): a new one "
                "begins",
                state["run_id"],
                e,
            )
            return
        self.run_id = state["run_id"]
        self._there = {
            (name, metric.step): metric.value
            for name in run.data.metrics
            for metric in self._client.get_metric_history(self.run_id, name)
        }
        self._write_params(estimator, run.data.params, estimator.position.epoch)

    def _begin(self, estimator: Run) -> None:
        tags = {**self.tags, "gluon_svrg.version": version()}
        run = self._client.create_run(self._experiment_id(), tags=tags, run_name=self.run_name)
        self.run_id = run.info.run_id
        self._write_params(estimator, {}, 0)

    def _experiment_id(self) -> str:
        experiment = self._client.get_experiment_by_name(self.experiment)
        if experiment is not None:
            return str(experiment.experiment_id)
        try:
            return str(self._client.create_experiment(self.experiment))
        except self._mlflow.exceptions.MlflowException:
            # Another process may have made it meanwhile.
            experiment = self._client.get_experiment_by_name(self.experiment)
            if experiment is None:
                raise
            return str(experiment.experiment_id)

    def _write_params(self, estimator: Run, there: Mapping[str, str], epoch: int) -> None:
        """Write the settings of the run, but for those that are there."""
        kind = self._mlflow.entities.Param
        params = []
        for owner, values in estimator.settings.items():
            for name, value in values.items():
                key, text = _name(f"{owner}.{name}"), str(value)[:_LONGEST_VALUE]
                if name == "priority" or there.get(key) == text:
                    continue
                if key in there:  # MLflow changes no parameter
                    key = f"{key} from epoch {epoch}"
                if key not in there:
                    params.append(kind(key, text))
        for begin in range(0, len(params), _MOST_AT_ONCE):
            part = params[begin : begin + _MOST_AT_ONCE]
            self._client.log_batch(self.run_id, params=part)

    def _write_rows(self, estimator: Run) -> None:
        if self._client is None:
            return
        if self.run_id is None:  # the safe point of the epoch's begin has not come
            self._begin(estimator)
        if estimator.history is not self._history:
            self._history = estimator.history
            self._rows = min(self._rows, len(estimator.history))

        def write(_run: Run) -> None:
            for row in estimator.history[self._rows :]:
                metrics = self._figures_of(row)
                if metrics:
                    self._client.log_batch(self.run_id, metrics=metrics)
                self._rows += 1

        self._try(estimator, "the figures", write)

    def _figures_of(self, row: Mapping[str, Any]) -> list[Any]:
        """Return the figures of a row as MLflow's, but for those that are there."""
        step, now = int(row["epoch"]), int(1000 * time.time())
        metrics = []
        for name, value in row.items():
            if name == "epoch" or isinstance(value, bool) or not isinstance(value, numbers.Real):
                continue
            key, number = _name(name), float(value)
            before = self._there.get((key, step))
            if before is None or not (name in MEASURED or _is_same(before, number)):
                metrics.append(self._mlflow.entities.Metric(key, number, now, step))
        return metrics

    def _write_manifests(self, estimator: Run) -> None:
        for folder in checkpoint_directories(estimator.handlers):
            for path in storage.list_checkpoints(folder).values():
                self._client.log_artifact(
                    self.run_id, str(path / storage.MANIFEST), f"checkpoints/{path.name}"
                )

    def _write_model(self, estimator: Run) -> None:
        net: Any = estimator.net  # of a Block that is no HybridBlock, `export` says so
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            with estimator.evaluation_weights():
                export(net, path, self.export_sample)
            self._client.log_artifacts(self.run_id, str(path), "model")

    def _end(self, estimator: Run, status: str, reason: str) -> None:
        def end(_run: Run) -> None:
            self._client.set_tag(self.run_id, "stop_reason", reason)
            self._client.set_terminated(self.run_id, status)

        self._try(estimator, "the end of the run", end)

    def _try(self, estimator: Run, what: str, write: Callable[[Run], None]) -> None:
        try:
            write(estimator)
        # What a server, a database or a disk may answer; and what `export` says of the network.
        except Exception as e:
            estimator.logger.warning(
                "%s cannot be written into MLflow (%s: %s): the run continues",
                what,
                type(e).__name__,
                e,
            )


def _name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)


def _is_same(before: float, now: float) -> bool:
    # NaN is the same as NaN. A database may have the greatest number in place of infinity.
    return before == now or (before != before and now != now) or math.isinf(now)
