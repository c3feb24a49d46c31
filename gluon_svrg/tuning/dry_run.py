"""Training steps that leave no trace: afterwards everything is as it was before them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import mxnet as mx
from gluon_svrg import _mxnet
from gluon_svrg.batch.backward import from_plain, needs_epoch_begin, to_plain
from gluon_svrg.batch.processor import fit_batch
from gluon_svrg.batch.processor_state import BatchProcessorStateHandler
from gluon_svrg.checkpoint.parts import LossScalePart, NetworkPart
from gluon_svrg.data.determinism import isolate_rng
from gluon_svrg.data.training_data import check_data, training_data
from gluon_svrg.events import EventHandlers, Run, handlers_in
from gluon_svrg.handlers.gradient_update import GradientUpdateHandler
from gluon_svrg.optimizer.states import TrainerStates, load_states, trainer_states
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

_Result = TypeVar("_Result")


class DryRun:
    """Takes training steps with a run's network, loss, batch processor and trainer.

    :func:`without_trace` makes it. The run's metrics, history and position take no part.

    Parameters
    ----------
    run : Run
        Whose they are.
    step : GradientUpdateHandler
        Takes the steps.
    iterate_epoch : callable
        Returns the batches of the epoch of a number.
    was_told_to_end : callable
        Whether whoever waits for the steps wants them no longer.
    """

    def __init__(
        self,
        run: Run,
        step: GradientUpdateHandler,
        iterate_epoch: Callable[[int], Iterator[object]],
        was_told_to_end: Callable[[], bool],
    ) -> None:
        self._run = run
        self._step = step
        self._iterate_epoch = iterate_epoch
        self._was_told_to_end = was_told_to_end
        self._carried = (
            BatchProcessorStateHandler() if needs_epoch_begin(run.batch_processor) else None
        )

    def batches(self, number: int) -> Iterator[object]:
        """Yield that many batches, epoch after epoch; none once Ctrl-C was pressed.

        Raises
        ------
        ValueError
            If an epoch has no batch.
        """
        done = epoch = 0
        while done < number:
            if self._carried is not None:
                self._carried.epoch_begin(self._run)
            before = done
            for batch in self._iterate_epoch(epoch):
                if self._was_told_to_end():
                    return
                yield batch
                done += 1
                if done == number:
                    return
            if done == before:
                raise ValueError(
                    "data gave no batch: it is empty, or it can be iterated only once; give a "
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
    """Raise ValueError, with the way out, if steps cannot be tried; warn of data that they move.

    Parameters
    ----------
    estimator : Estimator
        Whose steps they are.
    data : iterable
        The training data.
    what : str
        What tries them.
    """
    if not isinstance(estimator, Run):
        raise ValueError(
            f"{what} needs a gluon_svrg.Estimator, got {type(estimator).__name__}: it takes the "
            "same arguments as MXNet's"
        )
    check_data(data, "data")
    _mxnet.check_kind(estimator.net)
    if estimator.workers.is_distributed:
        raise ValueError(
            f"{what} tries its steps in one process, and there are {estimator.workers.size} "
            "workers: call it in a script of its own, without mpiexec, and set what it finds"
        )
    if not _mxnet.trained_parameters(estimator.trainer):
        raise ValueError(
            "no parameter is trained: the trainer has none whose grad_req is not 'null'; let a "
            "layer train, layer.collect_params().setattr('grad_req', 'write')"
        )
    if not training_data(data, "data").is_restorable:
        estimator.logger.warning(
            "%s reads from the data, a %s, whose place cannot be put back: the order of the epochs "
            "of a later run may be another one; make it anew for the run",
            what,
            type(data).__name__,
        )


def step_handler(event_handlers: EventHandlers) -> GradientUpdateHandler:
    """Return what takes the steps: the GradientUpdateHandler among the handlers, or a new one."""
    own = [h for h in handlers_in(event_handlers) if isinstance(h, GradientUpdateHandler)]
    return own[0] if own else GradientUpdateHandler()


def without_trace(
    estimator: Run,
    data: object,
    event_handlers: EventHandlers,
    batch_axis: int,
    steps: Callable[[DryRun], _Result],
) -> _Result:
    """Return ``steps(dry_run)``, after everything was put back that it has changed.

    That is: weights, running statistics and gradients, parameters that wait for their shape, the
    optimizer's states, counts and learning rate, the kvstore, AMP's loss scale, what the batch
    processor carries, cached graphs, the random numbers of MXNet, NumPy and Python, and the place
    of the data.

    The steps run in another thread. MXNet has random number generators for each thread and no way
    to read them, so those of this thread stay as they are.
    """
    is_over = threading.Event()
    take_mode, context = _mxnet.mode_of_thread(), mx.Context(mx.current_context())

    def in_thread() -> _Result:
        take_mode()
        with context, isolate_rng():
            # Each time the same: what is found is to repeat.
            mx.random.seed(0)
            with (
                _all_put_back(estimator, batch_axis),
                training_data(data, "data").without_trace() as iterate_epoch,
                _stepping(estimator, step_handler(event_handlers)) as step,
            ):
                return steps(DryRun(estimator, step, iterate_epoch, is_over.is_set))

    thread = _thread(process=os.getpid())
    try:
        return thread.submit(in_thread).result()
    finally:
        is_over.set()
        _wait_until_idle(thread)  # after Ctrl-C it still puts everything back


@cache
def _thread(process: int) -> ThreadPoolExecutor:  # noqa: ARG001, a forked one has no thread yet
    """Return the thread of a process for all trial steps.

    MXNet keeps about 5 MB for each thread that has drawn random numbers, until the process ends.
    """
    return ThreadPoolExecutor(1, "gluon_svrg.finders")


def _wait_until_idle(thread: ThreadPoolExecutor) -> None:
    """Wait until a pool of one thread has done all it was given; raise an interruption afterwards.

    However often Ctrl-C is pressed: if the caller had control again before, the thread would write
    into what the caller has trained meanwhile.
    """
    interruption: BaseException | None = None
    is_idle = False
    while not is_idle:
        try:
            thread.submit(bool).result()
            is_idle = True
        except RuntimeError:  # no thread can be started, so that none is at work
            raise
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption


@contextmanager
def _stepping(run: Run, step: GradientUpdateHandler) -> Iterator[GradientUpdateHandler]:
    """Let a handler take steps inside the block; its own state stays as it is."""
    attributes, before = vars(step), dict(vars(step))
    step.train_begin(run)
    try:
        yield step
    finally:
        step.train_end(run)
        attributes.clear()
        attributes.update(before)


@contextmanager
def _all_put_back(run: Run, batch_axis: int) -> Iterator[None]:
    """Put back what belongs to the run: see :func:`without_trace`."""
    mx.nd.waitall()
    undo = [_axis(run), _batch_processor(run), LossScalePart(run).undo(), _trainer(run)]
    undo += [_gradients(run), NetworkPart(run).undo()]
    run.batch_axis = batch_axis
    try:
        with _mxnet.own_graphs(run.net, run.loss):
            yield
    finally:
        mx.nd.waitall()
        # The weights come before the trainer, whose kvstore takes them.
        for put_back in reversed(undo):
            put_back()
        mx.nd.waitall()


def _axis(run: Run) -> Callable[[], None]:
    axis = run.batch_axis

    def put_back() -> None:
        run.batch_axis = axis

    return put_back


def _batch_processor(run: Run) -> Callable[[], None]:
    """Return what puts back the attributes of the batch processor, and the state that it carries.

    The state is a copy, since it may be changed in place.
    """
    processor: Any = run.batch_processor
    attributes, before = vars(processor), dict(vars(processor))
    carried = to_plain(processor.state_dict()) if hasattr(processor, "state_dict") else None

    def put_back() -> None:
        attributes.clear()
        attributes.update(before)
        if carried is not None and carried["state"] is not None:
            processor.load_state_dict(from_plain(carried, run.context))

    return put_back


def _trainer(run: Run) -> Callable[[], None]:
    """Return what puts back the optimizer and its states, and whether there is a kvstore yet."""
    trainer, optimizer = run.trainer, _mxnet.optimizer_of(run.trainer)
    names = set(vars(optimizer))
    is_begun = _mxnet.has_kvstore(trainer)
    params = _mxnet.parameters_of(trainer)
    waits = not all(_mxnet.has_shape(param) for param in params)
    # A parameter that waits for its shape has no state, and MXNet makes no kvstore before that.
    states = TrainerStates.of(optimizer, {}, ()) if waits else trainer_states(trainer)
    if not is_begun:
        _mxnet.forget_kvstore(trainer)

    def put_back() -> None:
        if waits:
            states.apply(optimizer, _mxnet.contexts_of(trainer))
            _mxnet.forget_states(trainer)
        else:
            load_states(trainer, states)
        for name in set(vars(optimizer)) - names:
            del vars(optimizer)[name]
        if not is_begun:
            _mxnet.forget_kvstore(trainer)

    return put_back


def _gradients(run: Run) -> Callable[[], None]:
    """Return what puts back the gradients: a user may be about to accumulate them."""
    params: dict[int, Parameter] = {}
    for param in [*run.net.collect_params().values(), *_mxnet.parameters_of(run.trainer)]:
        if _mxnet.has_data(param) and _mxnet.has_gradient(param):
            params[id(param)] = param
    copies = [
        (
            param,
            [grad.copy() for grad in param.list_grad()],
            [_mxnet.is_fresh(data) for data in _mxnet.list_data(param)],
        )
        for param in params.values()
    ]

    def put_back() -> None:
        for param, grads, are_fresh in copies:
            # Those of now: a change of grad_req makes new ones.
            for grad, copy in zip(param.list_grad(), grads, strict=True):
                copy.copyto(grad)
            for data, fresh in zip(_mxnet.list_data(param), are_fresh, strict=True):
                _mxnet.mark_fresh(data, fresh)

    return put_back
