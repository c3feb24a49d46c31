"""Training steps that are rolled back: afterwards everything is as it was before them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import mxnet as mx
from gluon_svrg._mxnet.array_mode import check_mode, mode_of_thread
from gluon_svrg._mxnet.block import (
    has_data,
    has_gradient,
    has_shape,
    is_fresh,
    list_data,
    mark_fresh,
    own_graphs,
)
from gluon_svrg._mxnet.trainer import (
    contexts_of,
    forget_kvstore,
    forget_states,
    has_kvstore,
    optimizer_of,
    parameters_of,
    trained_parameters,
)
from gluon_svrg.batch.backward import from_plain, needs_epoch_begin, to_plain
from gluon_svrg.batch.processor import fit_batch
from gluon_svrg.batch.processor_state import BatchProcessorStateHandler
from gluon_svrg.checkpoint.network_state import remember_network
from gluon_svrg.checkpoint.parts import remember_loss_scale
from gluon_svrg.data.restore import isolate_rng
from gluon_svrg.data.training_data import check_data, training_data
from gluon_svrg.events import EventHandlers, Run, handlers_in
from gluon_svrg.handlers.gradient_update import GradientUpdateHandler
from gluon_svrg.optimizer.states import TrainerStates, load_states, trainer_states
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

_Result = TypeVar("_Result")


class DryRun:
    """Takes training steps with the network, loss, batch processor and trainer of a run.

    :func:`rolled_back` creates it. Metrics, history and position of the run are not used.

    Parameters
    ----------
    run : Run
        The run.
    step : GradientUpdateHandler
        Takes the steps.
    iterate_epoch : callable
        Takes the number of an epoch and returns its batches.
    is_cancelled : callable
        Returns whether the caller has stopped waiting for the steps.
    """

    def __init__(
        self,
        run: Run,
        step: GradientUpdateHandler,
        iterate_epoch: Callable[[int], Iterator[object]],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._run = run
        self._step = step
        self._iterate_epoch = iterate_epoch
        self._is_cancelled = is_cancelled
        self._state_handler = (
            BatchProcessorStateHandler() if needs_epoch_begin(run.batch_processor) else None
        )

    def batches(self, number: int) -> Iterator[object]:
        """Yield `number` batches, from several epochs if needed; stop early if cancelled.

        Raises
        ------
        ValueError
            If an epoch has no batches.
        """
        done = epoch = 0
        while done < number:
            if self._state_handler is not None:
                self._state_handler.epoch_begin(self._run)
            before = done
            for batch in self._iterate_epoch(epoch):
                if self._is_cancelled():
                    return
                yield batch
                done += 1
                if done == number:
                    return
            if done == before:
                raise ValueError(
                    "data gave no batch: it is empty, or can be iterated only once; pass a "
                    "DataLoader or a list of batches"
                )
            epoch += 1

    def backward(self, batch: object) -> list[NDArray]:
        """Run the forward and the backward pass of a batch; return the losses of its samples."""
        loss = fit_batch(self._run, batch)[3]
        return list(loss) if isinstance(loss, (list, tuple)) else [loss]

    def step(self, loss: list[NDArray]) -> None:
        """Take the optimizer's step, after :meth:`backward`."""
        self._step.batch_end(self._run, loss=loss)


def check_arguments(estimator: Run, data: object, what: str) -> None:
    """Raise ValueError if dry runs are not possible; warn if they change the data's position.

    Parameters
    ----------
    estimator : Estimator
        The Estimator.
    data : iterable
        The training data.
    what : str
        The name of the caller.
    """
    if not isinstance(estimator, Run):
        raise ValueError(
            f"{what} needs a gluon_svrg.Estimator, got {type(estimator).__name__}: it takes the "
            "same arguments as MXNet's"
        )
    check_data(data, "data")
    check_mode(estimator.net)
    if estimator.workers.is_distributed:
        raise ValueError(
            f"{what} works in one process, but there are {estimator.workers.size} workers: call it "
            "in another script, without mpiexec, and use its result here"
        )
    if not trained_parameters(estimator.trainer):
        raise ValueError(
            "no parameter is trained: the trainer has none whose grad_req is not 'null'; let a "
            "layer train, layer.collect_params().setattr('grad_req', 'write')"
        )
    if not training_data(data, "data").is_restorable:
        estimator.logger.warning(
            "%s reads from the data, a %s, whose position cannot be restored: a later run may have "
            "another order of its epochs; create the data again for that run",
            what,
            type(data).__name__,
        )


def step_handler(event_handlers: EventHandlers) -> GradientUpdateHandler:
    """Return the GradientUpdateHandler among the handlers, or a new one."""
    own = [h for h in handlers_in(event_handlers) if isinstance(h, GradientUpdateHandler)]
    return own[0] if own else GradientUpdateHandler()


def rolled_back(
    estimator: Run,
    data: object,
    event_handlers: EventHandlers,
    batch_axis: int,
    steps: Callable[[DryRun], _Result],
) -> _Result:
    """Return ``steps(dry_run)``, and restore everything that the steps have changed.

    This restores weights, running statistics and gradients, parameters without a
    shape, the optimizer's states, counts and learning rate, the kvstore, AMP's loss scale, the
    state of the batch processor, cached graphs, the random numbers of MXNet, NumPy and Python, and
    the position of the data.

    The steps run in another thread, because MXNet has random number generators for each thread,
    whose states cannot be read. So those of this thread do not change.
    """
    cancelled = threading.Event()
    take_mode, context = mode_of_thread(), mx.Context(mx.current_context())

    def in_thread() -> _Result:
        take_mode()
        with context, isolate_rng():
            # The same seed each time, so that the result is the same.
            mx.random.seed(0)
            with (
                _restored(estimator, batch_axis),
                training_data(data, "data").restored() as iterate_epoch,
                _stepping(estimator, step_handler(event_handlers)) as step,
            ):
                return steps(DryRun(estimator, step, iterate_epoch, cancelled.is_set))

    thread = _thread(process=os.getpid())
    try:
        return thread.submit(in_thread).result()
    finally:
        cancelled.set()
        _wait_until_idle(thread)  # after Ctrl-C it still restores everything


@cache
def _thread(process: int) -> ThreadPoolExecutor:  # noqa: ARG001, a forked process has no thread yet
    """Return the thread of a process in which all dry runs take place.

    MXNet keeps about 5 MB for each thread that has drawn random numbers, until the process ends.
    """
    return ThreadPoolExecutor(1, "gluon_svrg.tuning")


def _wait_until_idle(thread: ThreadPoolExecutor) -> None:
    """Wait until a pool of one thread is idle, even after Ctrl-C; then raise the interruption.

    If the caller got control back earlier, the thread could overwrite weights that the caller has
    trained meanwhile.
    """
    interruption: BaseException | None = None
    is_idle = False
    while not is_idle:
        try:
            thread.submit(bool).result()
            is_idle = True
        except RuntimeError:  # no thread can be started, so none is running
            raise
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption


@contextmanager
def _stepping(run: Run, step: GradientUpdateHandler) -> Iterator[GradientUpdateHandler]:
    """Prepare a handler to take steps inside the block; restore its state afterwards."""
    attributes, before = vars(step), dict(vars(step))
    step.train_begin(run)
    try:
        yield step
    finally:
        step.train_end(run)
        attributes.clear()
        attributes.update(before)


@contextmanager
def _restored(run: Run, batch_axis: int) -> Iterator[None]:
    """Restore what belongs to the run: see :func:`rolled_back`."""
    mx.nd.waitall()
    undo = [_axis(run), _batch_processor(run), remember_loss_scale(run), _trainer(run)]
    undo += [_gradients(run), remember_network(run)]
    run.batch_axis = batch_axis
    try:
        with own_graphs(run.net, run.loss):
            yield
    finally:
        mx.nd.waitall()
        # The weights are restored before the trainer, whose kvstore copies them.
        for restore in reversed(undo):
            restore()
        mx.nd.waitall()


def _axis(run: Run) -> Callable[[], None]:
    axis = run.batch_axis

    def restore() -> None:
        run.batch_axis = axis

    return restore


def _batch_processor(run: Run) -> Callable[[], None]:
    """Return a function that restores the attributes and the state of the batch processor.

    The state is a copy, since it may be changed in place.
    """
    processor: Any = run.batch_processor
    attributes, before = vars(processor), dict(vars(processor))
    state = to_plain(processor.state_dict()) if hasattr(processor, "state_dict") else None

    def restore() -> None:
        attributes.clear()
        attributes.update(before)
        if state is not None and state["state"] is not None:
            processor.load_state_dict(from_plain(state, run.context))

    return restore


def _trainer(run: Run) -> Callable[[], None]:
    """Return a function that restores the optimizer, its states, and whether a kvstore exists."""
    trainer, optimizer = run.trainer, optimizer_of(run.trainer)
    names = set(vars(optimizer))
    had_kvstore = has_kvstore(trainer)
    params = parameters_of(trainer)
    has_deferred = not all(has_shape(param) for param in params)
    # A parameter without a shape has no state, and MXNet creates no kvstore before it has one.
    states = TrainerStates.of(optimizer, {}, ()) if has_deferred else trainer_states(trainer)
    if not had_kvstore:
        forget_kvstore(trainer)

    def restore() -> None:
        if has_deferred:
            states.apply(optimizer, contexts_of(trainer))
            forget_states(trainer)
        else:
            load_states(trainer, states)
        for name in set(vars(optimizer)) - names:
            del vars(optimizer)[name]
        if not had_kvstore:
            forget_kvstore(trainer)

    return restore


def _gradients(run: Run) -> Callable[[], None]:
    """Return a function that restores the gradients: a user may be about to accumulate them."""
    params: dict[int, Parameter] = {}
    for param in [*run.net.collect_params().values(), *parameters_of(run.trainer)]:
        if has_data(param) and has_gradient(param):
            params[id(param)] = param
    copies = [
        (
            param,
            [grad.copy() for grad in param.list_grad()],
            [is_fresh(data) for data in list_data(param)],
        )
        for param in params.values()
    ]

    def restore() -> None:
        for param, grads, are_fresh in copies:
            # The current arrays: a change of grad_req creates new ones.
            for grad, copy in zip(param.list_grad(), grads, strict=True):
                copy.copyto(grad)
            for data, fresh in zip(list_data(param), are_fresh, strict=True):
                mark_fresh(data, fresh)

    return restore
