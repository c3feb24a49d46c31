"""The Estimator: train, evaluate and predict."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import mxnet as mx
from gluon_svrg._mxnet.array_mode import check_mode
from gluon_svrg._mxnet.block import has_data, has_shape
from gluon_svrg._mxnet.trainer import trained_parameters
from gluon_svrg._typing import Verbose
from gluon_svrg.arguments import check_integer, explains_unknown
from gluon_svrg.batch.prediction import batches_to_predict, predict
from gluon_svrg.batch.processor import BatchProcessor
from gluon_svrg.checkpoint.handler import checkpoint_directories
from gluon_svrg.checkpoint.resume import find_checkpoint
from gluon_svrg.consistency import (
    abort_on_error,
    broadcast_rng,
    broadcast_weights,
    check_handlers_for_workers,
    check_same_setup,
)
from gluon_svrg.cpu_tuning import tune_for_cpu
from gluon_svrg.data.base import TrainingData
from gluon_svrg.data.training_data import check_data, training_data
from gluon_svrg.evaluation.evaluate import check_initialized, evaluate
from gluon_svrg.evaluation.handler import VALIDATION
from gluon_svrg.events import EventHandler, EventHandlers, HandlerList
from gluon_svrg.handlers.defaults import fit_handlers
from gluon_svrg.handlers.schedule import warn_of_leftover_value
from gluon_svrg.loop import FitLoop
from gluon_svrg.metrics.setup import copies_for, figures_of, make_metrics
from gluon_svrg.reporting.history import History
from gluon_svrg.reporting.logger import get_logger, suppress_info
from gluon_svrg.reporting.profiler import ProfilerHandler
from gluon_svrg.reporting.result import FitResult
from gluon_svrg.reporting.text_table import PrintedText
from gluon_svrg.reporting.verbosity import check_verbose
from gluon_svrg.run import Run, RunState, Value
from gluon_svrg.settings import TRAINING, Settings, describe
from gluon_svrg.stops import StopRequests
from gluon_svrg.svrg.trainer import SVRGTrainer
from gluon_svrg.workers import current
from gluon_svrg.workers.process import is_restart
from mxnet.gluon.contrib import estimator as mx_estimator

_Resume: TypeAlias = str | PathLike[str] | None

# For arguments of other libraries' `fit` and `evaluate`.
_OF_THE_DATA = "give it to gluon_svrg.data.ArrayLoader(x, y, batch_size=32, shuffle=True)"


class MissingContextError(ValueError, AssertionError):
    """The machine has no such device; MXNet's Estimator raises an AssertionError."""


class Estimator(mx_estimator.Estimator, Run):
    """MXNet's Estimator, with any iterable as data, exact events and a result.

    The constructor, `fit` and `evaluate` take what those of
    `mxnet.gluon.contrib.estimator.Estimator` take, and handlers written for that class run here
    unchanged. :mod:`gluon_svrg.events` describes the events and what each way to stop does;
    the loop itself is in `loop.py`.

    Parameters
    ----------
    net : gluon.Block
        The network to train.
    loss : gluon.loss.Loss or Block
        Called with output and label, returns one loss per sample. A Block with other arguments,
        such as GluonCV's ``SSDMultiBoxLoss``, needs a `batch_processor`.
    train_metrics, val_metrics : EvalMetric, str, callable, or list of them, optional
        Metrics, names of MXNet's metrics (``'acc'``), or functions of label and output (NumPy
        arrays), which have to be means over samples: for others, such as the AUC, see
        :class:`gluon_svrg.EpochMetric`. A figure is that of all samples of an epoch, whatever the
        batches. Each needs a name of its own, which gets the prefix ``training`` or
        ``validation``. By default one that suits the loss. The loss is added (``training loss``)
        unless there is an ``mx.metric.Loss``.
    initializer : Initializer, optional
        For a network that is not initialised yet.
    trainer : gluon.Trainer, optional
        By default SGD with a learning rate of 0.001. Several workers need an SVRGTrainer.
    context : Context or list of Context, optional
        By default the contexts of the network's parameters or, if it is not initialised, the
        first GPU or else the CPU.
    val_net : gluon.Block, optional
        The network to evaluate, by default `net`.
    val_loss : gluon.loss.Loss, optional
        By default `loss`.
    batch_processor : BatchProcessor, optional
        An object with ``fit_batch`` and ``evaluate_batch``, for other kinds of batches or forward
        passes.
    cpu_tuning : bool
        Whether to apply :func:`gluon_svrg.tune_for_cpu` to `net` if all contexts are CPUs:
        the same outputs and gradients, faster.

    Attributes
    ----------
    history : History
        One row for each epoch of the last call of `fit`, those before a resume included.
    figures : dict of str to number
        What handlers add to the history's row of the current epoch, as `self.log` does in
        Lightning.
    last_evaluation : dict of str to float
        The last result of :meth:`evaluate`, until the history has it.
    evaluation_seconds : float
        The total time of all evaluations.
    train_data, val_data : iterable
        The data that `fit` got, while it runs.
    data : TrainingData
        The interface to `train_data`, while `fit` runs.
    position : Position
        How far the run is.
    max_epoch, max_batch, batch_axis
        The arguments `epochs`, `batches` and `batch_axis` of the last `fit`.
    logger : logging.Logger
        The logger of all Estimators; you may set another one.
    stop_reason : StopReason or None
        Why the run is to end, or None if it is to continue.
    settings : dict
        The arguments of optimizer, schedule, loss and handlers, as plain data or text: a schedule
        as the call that makes it, ``'cosine(start=0.1, end=0.0)'``.
    frozen_at_start : frozenset of str
        The parameters without a gradient when `fit` began, by their places in the network.
    handlers : HandlerList
        The handlers of the last call of `fit`, in their order.
    resumed_from : Checkpoint or None
        The checkpoint from which the run continues.
    workers : Workers
        The processes that train together: those of the trainer.
    evaluation_weights : callable
        Returns a context manager inside which the network has the weights to evaluate: its own,
        or an average that a handler keeps.
    on_non_finite : callable or None
        Called with the estimator and a message if something raises FloatingPointError in an epoch.
        It stops the run, rolls it back or raises :class:`gluon_svrg.events.NotFiniteError`. If it
        is None, the error ends the run. A handler sets it at *train begin*.
    """

    _loop: FitLoop | None = None
    history = Value[History]()
    handlers = Value[HandlerList]()

    @explains_unknown(
        model="net",
        loss_fn="loss",
        criterion="loss",
        metrics="train_metrics",
        ctx="context",
        device="context",
        callbacks="give event_handlers to fit",
        event_handlers="give it to fit",
        optimizer="give trainer=gluon_svrg.SVRGTrainer(net.collect_params(), 'sgd', "
        "{'learning_rate': 0.1})",
    )
    def __init__(
        self,
        net: mx.gluon.Block,
        loss: mx.gluon.loss.Loss,
        train_metrics: Any = None,
        val_metrics: Any = None,
        initializer: Any = None,
        trainer: mx.gluon.Trainer | None = None,
        context: Any = None,
        val_net: mx.gluon.Block | None = None,
        val_loss: mx.gluon.loss.Loss | None = None,
        batch_processor: Any = None,
        cpu_tuning: bool = True,
    ) -> None:
        if not isinstance(net, mx.gluon.Block):
            raise TypeError(f"net must be a gluon.Block, got {net!r}: give the network itself")
        if trainer is not None and not isinstance(trainer, mx.gluon.Trainer):
            raise ValueError(
                f"trainer must be a gluon.Trainer, got {trainer!r}: give gluon_svrg.SVRGTrainer("
                "net.collect_params(), 'sgd', {'learning_rate': 0.1})"
            )
        self.state = RunState(history=History(), handlers=HandlerList([]))
        super().__init__(
            net,
            loss,
            *make_metrics(loss, train_metrics, val_metrics),
            initializer,
            trainer,
            context or _contexts_of(net),
            val_net,
            val_loss,
            batch_processor or BatchProcessor(),
        )
        self.logger = get_logger()
        self.evaluation_weights: Callable[[], AbstractContextManager[None]] = nullcontext
        if trainer is None and current().is_distributed:
            self.trainer = SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.001})
        self.workers = self.trainer.workers if isinstance(self.trainer, SVRGTrainer) else current()
        if cpu_tuning and all(ctx.device_type.startswith("cpu") for ctx in self.context):
            tune_for_cpu(net)

    @abort_on_error
    @explains_unknown(
        callbacks="event_handlers",
        handlers="event_handlers",
        validation_data="val_data",
        valid_data="val_data",
        eval_data="val_data",
        val_dataloaders="val_data",
        train_dataloaders="train_data",
        num_epoch="epochs",
        num_epochs="epochs",
        max_epochs="epochs",
        max_steps="batches",
        steps_per_epoch="give epochs alone, and the first batches of the data: "
        "gluon_svrg.data.first_batches(train_data, 100)",
        ckpt_path="resume",
        batch_size=_OF_THE_DATA,
        shuffle=_OF_THE_DATA,
        x=_OF_THE_DATA,
        y=_OF_THE_DATA,
        sample_weight="let the batches be (data, label, sample_weight)",
        class_weight="let the batches be (data, label, sample_weight)",
        validation_split="give the other part of the data as val_data",
        validation_freq="give event_handlers=[gluon_svrg.ValidationHandler(val_data, "
        "every_n_epochs=2)] in place of val_data",
    )
    def fit(
        self,
        train_data: Iterable[object],
        val_data: Iterable[object] | None = None,
        epochs: int | None = None,
        event_handlers: EventHandlers = None,
        batches: int | None = None,
        batch_axis: int = 0,
        resume: str | PathLike[str] | None = None,
        *,
        verbose: Verbose = "auto",
        sanity_check: bool = True,
        initial_epoch: int = 0,
    ) -> FitResult:
        """Train for a number of epochs or of batches.

        Parameters
        ----------
        train_data : iterable of (data, label)
            Iterated once per epoch: a DataLoader, an ArrayLoader, a list of batches, an
            ``mx.io.DataIter``, any object with ``__iter__``. The order of an ArrayLoader depends on
            the number of the epoch, from `initial_epoch` on. A stream without an end needs
            `batches`, and SVRG refuses it: it has no full gradient.
        val_data : iterable of (data, label), optional
            Evaluated at the end of each epoch, to its end: of a stream give
            ``gluon_svrg.data.first_batches(stream, 20)``.
        epochs, batches : int
            How long to train; exactly one of them.
        event_handlers : EventHandler or list of EventHandler, optional
            In addition to the defaults: one that stops after `epochs` or `batches`, and, unless
            one of their class is given, GradientUpdateHandler, MetricHandler, ValidationHandler,
            HistoryHandler, SanityCheckHandler and ProgressHandler (which also a LoggingHandler
            replaces); with a CheckpointHandler or `resume`, SignalHandler and RandomStateHandler.
        batch_axis : int
            The axis of the samples.
        resume : None, 'auto' or path
            Continue from a checkpoint: 'auto' takes the newest in the folder of the
            CheckpointHandler among `event_handlers`, and starts from scratch if there is none; a
            path is that of a checkpoint or of a folder of checkpoints. If the launcher restarts the
            job after a failure, it resumes by itself. `epochs` and `batches` count from the first
            epoch of the run.
        verbose : 'auto', 0, 1 or 2
            0: only warnings; 1: progress bars and a line per epoch; 2: only the lines. 'auto': bars
            only on a terminal and in a notebook.
        sanity_check : bool
            Whether to check the first batch before the training: see
            :class:`gluon_svrg.SanityCheckHandler`.
        initial_epoch : int
            The number of the first epoch, as in Keras: ``fit(data, epochs=20, initial_epoch=10)``
            trains 10 more epochs. Schedules, the order of the data and the history continue;
            handlers with counts of their own (EarlyStoppingHandler, EMAHandler) start from zero.

        Returns
        -------
        FitResult
            Has `stop_reason`, `epochs_run` and `history`; its ``report(path)`` writes an HTML page.

        Raises
        ------
        ValueError
            If the data cannot be used or an epoch has no batch; if the network is on other contexts
            than the Estimator, or was initialised in the other of MXNet's two modes; unless exactly
            one of `epochs` and `batches` is given, a positive integer; if `initial_epoch` is not
            below `epochs`, or is given with `resume`; if no parameter is trained; if the checkpoint
            is of another network, trainer or data; if two handlers have the same task, such as the
            optimizer's step, a file or a hyper-parameter.
        RuntimeError
            If a `fit` of this Estimator, or one with the same handler, has not ended yet.
        FileNotFoundError
            If there is no checkpoint at the path `resume`.
        """
        began, clock = datetime.now().astimezone(), time.perf_counter()
        if self._loop is not None:
            raise RuntimeError(
                "a fit of this Estimator has not ended yet: make another Estimator for this one"
            )
        data = training_data(train_data, "train_data")
        if val_data is not None:
            check_data(val_data, "val_data")
        _check_duration(epochs, batches)
        _check_initial_epoch(initial_epoch, epochs, resume)
        check_mode(self.net)
        for block in {
            id(b): b for b in (self.net, self.loss, self.val_net, self.val_loss)
        }.values():
            check_initialized(block)
        params = list(self.net.collect_params().values())
        _check_contexts(params, self.context)
        verbose = check_verbose(verbose) if self.workers.is_first else 0
        _check_that_it_trains(self, params)
        self.state = RunState(
            self.position,
            self.history,
            max_epoch=epochs,
            max_batch=batches,
            batch_axis=batch_axis,
        )
        handlers = fit_handlers(self, val_data, event_handlers, resume is not None, sanity_check)
        self.handlers = handlers
        self.settings = describe(self)
        handlers.begin_run()
        try:
            with suppress_info(self.logger, verbose):
                data = self._prepare(data, val_data, resume)
            self.train_data, self.val_data, self.data = train_data, val_data, data
            self.verbose = verbose
            self.history = self.history.before(initial_epoch)
            self.position = self.position.at_epoch(initial_epoch, data.num_batches)
            self.state.stops = StopRequests(self.workers)
            self._loop = FitLoop(self, self.state.stops, handlers)
            with suppress_info(self.logger, verbose):
                not_finite = self._loop.run()
            assert self.stop_reason is not None  # or the loop would not have ended
            return FitResult(
                self.stop_reason,
                self.position.epoch + (self.position.batch_in_epoch > 0),
                self.history,
                not_finite=not_finite,
                settings=_reported_settings(self),
                began=began,
                seconds=time.perf_counter() - clock,
                resumed_from=str(self.resumed_from.path) if self.resumed_from else "",
                profile=_profile_of(self.handlers),
            )
        except BaseException as exception:
            if self._loop is not None:  # else no handler has got an event of the run
                self.handlers.notify_safely("exception_raised", self, exception=exception)
            raise
        finally:
            self.handlers.end_run()
            # References to the data or back to this Estimator would keep memory until the next gc.
            self.state.train_data = self.state.val_data = self.state.data = None
            self.state.stops = self._loop = None
            self.verbose = "auto"

    @abort_on_error
    @explains_unknown(
        data="val_data",
        test_data="val_data",
        eval_data="val_data",
        dataloaders="val_data",
        callbacks="event_handlers",
        metrics="give val_metrics to the Estimator",
        batch_size=_OF_THE_DATA,
        x=_OF_THE_DATA,
        y=_OF_THE_DATA,
    )
    def evaluate(
        self,
        val_data: Iterable[object] | None,
        batch_axis: int = 0,
        event_handlers: EventHandlers = None,
        *,
        verbose: Verbose | None = None,
    ) -> dict[str, float]:
        """Compute the validation metrics on `val_data`.

        Outside of `fit` the metrics in ``val_metrics`` have the values afterwards. A call inside
        `fit`, by a handler, changes nothing of the run: its history, handlers and metrics have the
        figures of a :class:`ValidationHandler` alone.

        Parameters
        ----------
        val_data : iterable of (data, label)
            The batches.
        batch_axis : int
            The axis of the samples.
        event_handlers : EventHandler or list of EventHandler, optional
            In addition to a MetricHandler, unless one is given.
        verbose : 'auto', 0, 1 or 2, optional
            Whether to show a bar, as for :meth:`fit`; by default as in the current `fit`.

        Returns
        -------
        dict of str to float
            The value of each validation metric, by its name.

        Raises
        ------
        ValueError
            If the data cannot be used or has no batch.
        """
        publishes, self.state.publishes = self.state.publishes, False
        if self._loop is not None and publishes:
            return self._loop.evaluations.compute(val_data, batch_axis, event_handlers)
        # Inside fit the metrics of the run stay as they are.
        metrics = self.val_metrics if self._loop is None else copies_for(self.val_metrics, None)
        shown = self.verbose if verbose is None else check_verbose(verbose)
        shown = shown if self.workers.is_first else 0
        return evaluate(self, val_data, metrics, batch_axis, event_handlers, shown)

    @explains_unknown(x="data", val_data="data", dataloaders="data")
    def predict(self, data: object, batch_size: int | None = None, batch_axis: int = 0) -> Any:
        """Return the network's outputs for all samples, in their order, on the CPU.

        It runs in prediction mode, with the :attr:`evaluation_weights`.

        Parameters
        ----------
        data : iterable of batches, NDArray, numpy.ndarray or dict of arrays
            Batches as for :meth:`evaluate` (labels are ignored) or without labels (an array, a
            tuple of one item, a dict without a label); or whole arrays.
        batch_size : int, optional
            For whole arrays; by default 128.
        batch_axis : int
            The axis of the samples in data and outputs.

        Returns
        -------
        NDArray, or tuple, list or dict of them as the network returns them

        Raises
        ------
        ValueError
            If the data cannot be used, have no batch, or give outputs that cannot be joined.
        """
        check_mode(self.val_net)
        check_initialized(self.val_net)
        return predict(self, batches_to_predict(data, batch_size), batch_axis)

    def describe(
        self, val_data: Iterable[object] | None = None, event_handlers: EventHandlers = None
    ) -> str:
        """Print and return the loop: each event with the handlers that `fit` would call, in order.

        Of several workers the first one prints.

        Parameters
        ----------
        val_data, event_handlers
            As for :meth:`fit`.

        Returns
        -------
        str
            What it prints.
        """
        text = fit_handlers(self, val_data, event_handlers, resumes=False).describe()
        if self.workers.is_first:
            print(text)
        return PrintedText(text)

    def _prepare(
        self, data: TrainingData, val_data: Iterable[object] | None, resume: _Resume
    ) -> TrainingData:
        """Synchronize the workers, and find the checkpoint; return this worker's data."""
        if self.workers.is_distributed:
            data = self._synchronize_start(data, val_data)
        folders = checkpoint_directories(self.handlers)
        resume = self._resolve_resume(resume, folders)
        self.resumed_from = find_checkpoint(resume, folders, self.logger, self.workers)
        if self.resumed_from is None:
            warn_of_leftover_value(self, self.handlers)
        elif self.workers.is_distributed:
            broadcast_weights(self, data.first_batches(1)[0])
        return data

    def _synchronize_start(
        self, data: TrainingData, val_data: Iterable[object] | None
    ) -> TrainingData:
        """Check that all workers train the same, and synchronize them; return this worker's data.

        Raises
        ------
        ValueError
            If the trainer is not an SVRGTrainer, or the workers' settings differ.
        """
        workers, trainer = self.workers, self.trainer
        if not isinstance(trainer, SVRGTrainer):
            raise ValueError(
                f"{type(trainer).__name__} does not average gradients over {workers.size} workers: "
                "give the Estimator a gluon_svrg.SVRGTrainer, which takes the same arguments"
            )
        check_handlers_for_workers(self.handlers)
        settings: dict[str, object] = {
            "number of epochs": self.max_epoch,
            "number of batches": self.max_batch,
            "batch_axis": self.batch_axis,
        }
        for name, given in (("train_data", data), ("val_data", val_data)):
            kind = None if given is None else training_data(given, name)
            settings[f"kind of {name}"] = kind and kind.kind
            described = kind.description() if kind else {}
            # A seed that was not given is random: all workers will get the first one's.
            settings |= {f"{key} of {name}": v for key, v in described.items() if key != "seed"}
        check_same_setup(self, settings)
        broadcast_rng(workers)
        self.data = data = data.sharded(workers, self.batch_axis)
        trainer.synchronize(self.net, recheck=True)
        self.logger.info(
            "%s; batch_size is the total of all workers", data.describe_sharding(workers)
        )
        batch_size = settings.get("batch_size of train_data")
        if isinstance(batch_size, int) and batch_size < workers.size:
            self.logger.warning(
                "batch_size=%d is smaller than the number of workers, %d: some have nothing to "
                "compute; start fewer workers, or give larger batches",
                batch_size,
                workers.size,
            )
        return data

    def _resolve_resume(self, resume: _Resume, folders: Sequence[Path]) -> _Resume:
        """Return `resume`, or 'auto' if the launcher has restarted the job."""
        if resume is not None or not folders or not is_restart():
            return resume
        self.logger.info("restart detected: resuming from the newest checkpoint")
        return "auto"

    def _check_context(self, context: Any) -> list[mx.Context]:
        try:
            return super()._check_context(context)
        except AssertionError as error:
            raise MissingContextError(
                f"context={context!r} is not there: this machine has no such device, or this build "
                "of MXNet is without CUDA (mx.runtime.Features() tells); use mx.cpu(), or install "
                "a build with CUDA, such as mxnet-cu117"
            ) from error

    def _check_loss(self, loss: object) -> mx.gluon.Block:
        # MXNet's own accepts only a gluon.loss.Loss; a batch processor may call any Block.
        if not isinstance(loss, mx.gluon.Block):
            raise ValueError(
                f"loss must be a gluon.loss.Loss, or another Block, got {loss!r}: give "
                "gluon.loss.SoftmaxCELoss(), for example"
            )
        return loss

    def metric_names(self) -> list[str]:
        """Return the names of the metrics in the history of this run."""
        training = [name for metric in self.train_metrics for name, _ in figures_of(metric)]
        evaluated = [name for metric in self.val_metrics for name, _ in figures_of(metric)]
        splits = [getattr(handler, "name", VALIDATION) for handler in self.handlers.validations]
        return training + [
            f"{split} {name.partition(' ')[2]}" for split in splits for name in evaluated
        ]


def _contexts_of(net: mx.gluon.Block) -> list[mx.Context] | None:
    for param in net.collect_params().values():
        if has_data(param) or not has_shape(param):
            return param.list_ctx()
    return None


def _check_contexts(params: Iterable[mx.gluon.Parameter], contexts: list[mx.Context]) -> None:
    for param in params:
        if set(param.list_ctx()) != set(contexts):
            raise ValueError(
                f"parameter {param.name!r} is on {param.list_ctx()} but the Estimator trains on "
                f"{contexts}: initialise the network there (net.initialize(ctx=...), or "
                "net.collect_params().reset_ctx(...)), or give the Estimator that context"
            )


def _reported_settings(estimator: Estimator) -> Settings:
    """Return the settings, with the network's size, the devices, the workers and the data."""
    settings = dict(estimator.settings)
    params = estimator.net.collect_params().values()
    # A symbol may have a label, which has no shape.
    known = (param for param in params if param.shape is not None and has_shape(param))
    training = {
        **settings.pop(TRAINING),
        "parameters": f"{sum(math.prod(param.shape) for param in known):,}",
        "contexts": ", ".join(map(str, estimator.context)),
        "workers": estimator.workers.size,
    }
    data = {"kind": estimator.data.kind, **estimator.data.description()}
    return {TRAINING: training, "training data": data, **settings}


def _profile_of(handlers: Iterable[EventHandler]) -> History:
    """Return the profile of the run's ProfilerHandler; an empty one without it."""
    found = (handler.profile for handler in handlers if isinstance(handler, ProfilerHandler))
    return next(found, History())


def _check_duration(epochs: object, batches: object) -> None:
    if (epochs is None) == (batches is None):
        raise ValueError(
            f"give exactly one of epochs and batches, got epochs={epochs!r} and batches={batches!r}"
        )
    name, value = ("epochs", epochs) if batches is None else ("batches", batches)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


def _check_initial_epoch(initial_epoch: int, epochs: int | None, resume: object) -> None:
    check_integer("initial_epoch", initial_epoch, 0, "the number of the first epoch")
    if initial_epoch and resume is not None:
        raise ValueError(
            f"give initial_epoch or resume, got initial_epoch={initial_epoch!r} and "
            f"resume={resume!r}: a checkpoint knows its epoch"
        )
    if initial_epoch and (epochs is None or initial_epoch >= epochs):
        raise ValueError(
            f"initial_epoch={initial_epoch!r} needs epochs above it, got epochs={epochs!r}: epochs "
            "counts those before initial_epoch, too"
        )


def _check_that_it_trains(estimator: Estimator, params: Iterable[mx.gluon.Parameter]) -> None:
    trained = trained_parameters(estimator.trainer)
    if not trained:
        raise ValueError(
            "no parameter is trained: the trainer has none whose grad_req is not 'null'; let a "
            "layer train, layer.collect_params().setattr('grad_req', 'write'), or evaluate() only"
        )
    if type(estimator.batch_processor).fit_batch is not BatchProcessor.fit_batch:
        return  # it may train another network
    own = {id(param) for param in (*params, *estimator.loss.collect_params().values())}
    if not any(id(param) in own for param in trained):
        raise ValueError(
            f"the trainer has no parameter of the network, which would stay as it is: it has "
            f"{trained[0].name!r}, for example; make it with net.collect_params() of the "
            "Estimator's network"
        )
