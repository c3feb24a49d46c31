"""EvaluationPhase: the evaluations of a run, which alone give figures to its history."""

from __future__ import annotations

from typing import Any

from gluon_svrg.evaluation.evaluate import Figures, evaluate
from gluon_svrg.evaluation.handler import VALIDATION, ValidationHandler
from gluon_svrg.events import EvaluationEnd, EventHandler, HandlerList
from gluon_svrg.metrics.setup import copies_for, figures_of
from gluon_svrg.rng import restoring_rng_on
from gluon_svrg.run import Phase, Run
from gluon_svrg.stops import Interrupted
from mxnet.metric import EvalMetric


class EvaluationPhase(EventHandler):
    """The phase of the loop in which a run evaluates.

    Parameters
    ----------
    run : Run
        The run.
    handlers : HandlerList
        Its handlers. Its ValidationHandlers say when to evaluate, on which data, under which name.
        MXNet's own ValidationHandlers evaluate by themselves, as in MXNet's Estimator, but in this
        phase.

    Attributes
    ----------
    metrics : dict of str to list of EvalMetric
        The metrics of each name: the run's `val_metrics`, and copies of them for other data.
    """

    def __init__(self, run: Run, handlers: HandlerList) -> None:
        self._run = run
        self._handlers = handlers
        self._own = [h for h in handlers.validations if isinstance(h, ValidationHandler)]
        self._mxnets = [h for h in handlers.validations if not isinstance(h, ValidationHandler)]
        names = [handler.name for handler in self._own] + [VALIDATION] * bool(self._mxnets)
        self.metrics: dict[str, list[EvalMetric]] = {
            name: run.val_metrics if name == VALIDATION else copies_for(run.val_metrics, name)
            for name in names
        }
        self._listeners = [handler for handler in handlers if isinstance(handler, EvaluationEnd)]

    def after_batch(self, **details: Any) -> bool:
        """Run the evaluations that are due after a batch; return whether any was due.

        If a stop interrupts them, the phase stays EVALUATING.

        Parameters
        ----------
        **details
            The other arguments of *batch end*.
        """
        position = self._run.position
        due = self._due_at("safe_point")  # the next event: the batch is already counted
        if not due and not self._mxnets:
            position.phase = Phase.TRAINING  # a resume may have no handler that is due
            return False
        position.phase = Phase.EVALUATING
        if self._evaluate_all(due, is_logged=True):
            self._call_mxnets("batch_end", details)
            position.phase = Phase.TRAINING
        return True

    def is_interrupted_after_batch(self) -> bool:
        """Return whether a stop has interrupted, or prevented, what is due after this batch."""
        run = self._run
        return run.position.phase is Phase.EVALUATING and (
            not run.position.is_trained
            # Not by the weights: a step may be due at the end of the epoch.
            or any(
                run.state.evaluated_at.get(handler.name, [None])[0] != run.position.batch
                for handler in self._due_at("safe_point")
            )
        )

    def after_epoch(self) -> None:
        """Run the evaluations that are due at the end of an epoch; see :meth:`after_batch`."""
        position = self._run.position
        due = self._due_at("epoch_end")
        position.phase = Phase.EVALUATING
        if self._evaluate_all(due, is_logged=False):
            self._call_mxnets("epoch_end", {})
            position.phase = Phase.BETWEEN

    def _due_at(self, event: str) -> list[ValidationHandler]:
        position = self._run.position
        return [h for h in self._own if position.is_due(event, h.every_n_epochs, h.every_n_batches)]

    def _evaluate_all(self, due: list[ValidationHandler], is_logged: bool) -> bool:
        """Evaluate for these handlers; return False if a stop has interrupted an evaluation."""
        run = self._run
        for handler in due:
            if run.has_evaluated(handler.name):
                continue
            try:
                self._handlers.notify("evaluate", run, only=[self], request=handler)
            except Interrupted:
                return False
            if is_logged:
                self._log(handler.name)
        return True

    def _call_mxnets(self, event: str, details: dict[str, Any]) -> None:
        state = self._run.state
        for handler in self._mxnets:
            state.publishes = True  # for the call of `evaluate` that the handler may make now
            try:
                self._handlers.notify(event, self._run, only=[handler], **details)
            finally:
                state.publishes = False

    def evaluate(self, estimator: Run, request: ValidationHandler) -> None:
        """Evaluate for a handler; if a stop interrupts it, restore the random generators."""
        with restoring_rng_on(Interrupted):
            self.compute(
                request.val_data,
                estimator.batch_axis,
                request.event_handlers,
                request.name,
                is_to_abort=estimator.stop_check("the evaluation"),
            )

    def compute(
        self,
        val_data: object,
        batch_axis: int,
        event_handlers: Any,
        name: str = VALIDATION,
        **options: Any,
    ) -> Figures:
        """Evaluate, and store the figures in the run under that name."""
        run = self._run

        def publish(figures: Figures) -> None:
            run.last_evaluation = {**run.last_evaluation, **figures}
            run.state.evaluated_at[name] = run.weights_key()
            run.state.evaluated_at_batch = run.position.batch_in_epoch
            for listener in self._listeners:
                listener.evaluation_end(run)

        verbose = run.verbose if run.workers.is_first else 0
        return evaluate(
            run,
            val_data,
            self.metrics[name],
            batch_axis,
            event_handlers,
            verbose,
            publish=publish,
            **options,
        )

    def _log(self, name: str) -> None:
        run = self._run
        names = {key for metric in self.metrics[name] for key, _ in figures_of(metric)}
        figures = {key: value for key, value in run.last_evaluation.items() if key in names}
        run.logger.info(
            "epoch %d, after %d batches: %s",
            run.position.epoch,
            run.position.batch_in_epoch,
            ", ".join(f"{key} {value:.4g}" for key, value in figures.items()),
        )
