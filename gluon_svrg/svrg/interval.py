"""Interval: a snapshot of one network and everything that is kept until the next."""

from __future__ import annotations

import logging
import numbers
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from gluon_svrg._mxnet.block import is_fresh, list_data
from gluon_svrg._mxnet.trainer import parameters_of
from gluon_svrg.arrays.batch import Batch, is_empty
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.arrays.replicas import distinct_replicas
from gluon_svrg.arrays.row_sparse import are_close, max_abs_values
from gluon_svrg.batch import backward as run_backward
from gluon_svrg.batch.backward import as_backward, backward_of, shape_inference_of
from gluon_svrg.data.training_data import (
    TrainingData,
    check_is_no_data_iter,
    training_data,
)
from gluon_svrg.events import Interrupted, State
from gluon_svrg.rng import collect_rng_states, set_rng_states
from gluon_svrg.run import Run
from gluon_svrg.svrg.collective import infer_shapes_together
from gluon_svrg.svrg.full_pass import FullPass, IndexedBatch
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.locks import AugmentationLock, MaskLock
from gluon_svrg.svrg.row_correction import check_sparse_correction
from gluon_svrg.svrg.snapshot import BackwardFunction, Snapshot
from gluon_svrg.svrg.table import GradientTable, TablePolicy
from gluon_svrg.svrg.trainer import SVRGTrainer, require_svrg_trainer
from gluon_svrg.workers import Workers, current
from mxnet import gluon


class Interval:
    """A snapshot, its full gradient, and the gradient of each batch at it, until the next one.

    SVRG needs the same samples with the same random numbers at the weights and at the snapshot. So
    this also holds the dropout masks of each batch, the lock on the data's augmentation and, if
    batches repeat, a table of the full pass's gradients. A loop by hand::

        interval = gs.svrg.Interval(net, backward)
        batches = gs.data.shard(train_data)
        trainer.synchronize(net)
        for epoch in range(10):
            trainer.set_control_variate(interval.begin(batches))
            for index, batch in enumerate(batches):
                interval.before(batch, index)
                loss = backward(batch)
                trainer.correct(interval.gradient(batch, index))
                trainer.step(len(loss))
            interval.check()

    `index` is the batch's number in the epoch; batches of an ArrayLoader have an index themselves.
    Layers without a shape infer it from the first batch. With an ``mx.io.DataIter``,
    :func:`gluon_svrg.data.shard` makes pairs (data, label) of the batches, for the full pass and
    the loop. After :meth:`end` the data may shuffle and augment again.

    Parameters
    ----------
    net, params
        As for :class:`Snapshot`.
    backward : callable
        As for :meth:`Snapshot.gradient`.
    gradient_table : bool or 'auto'
        Whether the gradients of the full pass are kept; 'auto': if batches repeat, and they fit.
    table_memory : float
        What 'auto' may keep, in bytes, on all devices together.
    lock : 'auto', 'require' or 'off'
        Whether a sample has the same augmentation, and a batch the same dropout masks, from one
        full pass to the next. If the data cannot be locked (an ArrayLoader with transforms of
        :mod:`gluon_svrg.data.transforms` can), 'auto' warns and 'require' is an error.
    loss_scaler : SVRGTrainer, optional
        For a `backward` that multiplies its losses by its ``loss_scale``.
    infer_shapes : callable, optional
        Runs a forward pass of a batch outside of training, for layers that infer their shapes; by
        default `backward` does, once.
    progress_bar : bool
        Whether the full pass shows a bar, on a terminal.
    is_cancelled : callable, optional
        All workers call it before each batch of a full pass; if it returns True, they abandon the
        pass.
    workers : Workers, optional
        The processes that share the batches; by default those that this process belongs to.
    max_batches : int, optional
        How many batches data without a known end may have. With more, :meth:`begin` raises
        ValueError: a full pass over a stream without an end would never be over.
    logger : logging.Logger, optional
        Logs what was decided about table and lock.

    Attributes
    ----------
    snapshot, masks : Snapshot, MaskLock
        The weights and the gradients at them; the random numbers of each batch.
    table : GradientTable or None
        The table in use; None if gradients at the snapshot are recomputed.
    gradient_evaluations, epoch : int
        How many gradients (one per sample) all workers had computed at the last :meth:`check`; the
        epoch of the snapshot.
    """

    def __init__(
        self,
        net: gluon.Block,
        backward: BackwardFunction,
        params: Iterable[str] | None = None,
        *,
        gradient_table: str | bool = "auto",
        table_memory: float = 2**30,
        lock: str = "auto",
        loss_scaler: SVRGTrainer | None = None,
        infer_shapes: Callable[[object], None] | None = None,
        progress_bar: bool = True,
        is_cancelled: Callable[[], bool] | None = None,
        workers: Workers | None = None,
        max_batches: int | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        if not isinstance(net, gluon.Block):
            raise TypeError(
                f"Interval needs a network, got {type(net).__name__}: Interval(net, backward)"
            )
        self._workers = current() if workers is None else workers
        self.snapshot = Snapshot(net, params)
        self.masks = MaskLock(is_on=lock != "off", workers=self._workers)
        self.table: GradientTable | None = None
        self.gradient_evaluations = 0
        self._local_evaluations = 0  # of this worker, since the last count
        self.epoch = 0
        self._net = net
        self._backward = as_backward(net, backward)
        self._pass = FullPass(
            self.snapshot,
            self.masks,
            self._backward,
            loss_scaler,
            progress_bar,
            is_cancelled or (lambda: False),
            self._workers,
            max_batches,
        )
        self._infer_shapes = infer_shapes or partial(run_backward.infer_shapes, net, backward)
        self._logger = logger or logging.getLogger(__name__)
        check_interval_options(gradient_table, table_memory, lock)
        self._augmentation_lock = AugmentationLock(lock, self._logger)
        self._table_policy = TablePolicy(gradient_table, table_memory, lock != "off", self._logger)
        self._source: object = None
        self._data: TrainingData | None = None
        self._has_batch_index = False
        self._is_at_snapshot = False
        self._prepared: int | None = None  # the batch for which `before` was called last
        self._awaits_batch = False  # whether no gradient was asked for since begin() or check()

    @classmethod
    def of(
        cls,
        run: Run,
        *,
        gradient_table: str | bool = "auto",
        table_memory: float = 2**30,
        lock: str = "auto",
        progress_bar: bool = True,
    ) -> Interval:
        """Return the interval of a run, for a handler: call it at *train begin*.

        It has the network, the batch processor, the loss scale, the workers and the logger of the
        run, and a stop of the run interrupts its full passes.

        Parameters
        ----------
        run : Estimator
            The run, with an :class:`gluon_svrg.SVRGTrainer`.
        gradient_table, table_memory, lock, progress_bar
            As for the class.
        """
        return cls(
            run.net,
            backward_of(run),
            [param.name for param in parameters_of(run.trainer)],
            gradient_table=gradient_table,
            table_memory=table_memory,
            lock=lock,
            loss_scaler=require_svrg_trainer(run),
            infer_shapes=shape_inference_of(run),
            progress_bar=progress_bar and run.verbose not in (0, 2),
            is_cancelled=run.stop_check("the full pass", includes_earlier=True),
            workers=run.workers,
            max_batches=run.max_batch,
            logger=run.logger,
        )

    def begin(self, data: object, epoch: int = 0) -> FullGradient:
        """Take the snapshot, and return the full gradient over `data`.

        Parameters
        ----------
        data, epoch : TrainingData or what :func:`gluon_svrg.data.training_data` takes, int
            All batches; the epoch that begins, which becomes :attr:`epoch`.

        Raises
        ------
        ValueError
            If there is no batch, or more than `max_batches`; if ``lock='require'`` or
            ``gradient_table=True`` cannot be met; or as :meth:`check`, if the last epoch was not
            checked.
        FloatingPointError
            If a gradient is NaN or infinite, at any loss scale.
        Interrupted
            If `is_cancelled` returned True: repeat the pass before the next batch is corrected.
            The random numbers are as if it had not begun.
        """
        if self.table is not None:
            self.table.check()
        batches_of_run = self._training_data(data)
        self._augmentation_lock.lock(batches_of_run, self.masks.snapshot + 1)
        batches = enumerate(batches_of_run.in_order())
        first = next(batches, None)
        if first is None:
            raise ValueError(
                "the full gradient needs at least one batch, got none: train_data is empty, or "
                "can be iterated only once"
            )
        infer_shapes_together(self._net, self._infer_shapes, first[1], self._workers)
        self.snapshot.take()
        before, rng_states = self.masks.state_dict(), collect_rng_states()
        self.masks.next_snapshot()
        try:
            full_gradient = self._full_gradient(batches_of_run, _chain(first, batches))
        except Interrupted:
            # The data stay locked: the next batch is to have the augmentation of the next pass.
            self.table = None
            self.masks.go_back_to(before)
            set_rng_states(rng_states)
            raise
        self.masks.release()
        self._augmentation_lock.unlock_after_pass(batches_of_run)
        self.gradient_evaluations += full_gradient.samples
        self.table = self._table_policy.keep_or_drop(self.table)
        self._prepared = None
        self._is_at_snapshot = self._awaits_batch = True
        self.epoch = epoch
        return full_gradient

    def lock_data(self, data: object) -> None:
        """Lock the data now, for a snapshot that :meth:`begin` will take later in this epoch."""
        self._augmentation_lock.lock_before_pass(self._training_data(data), self.masks.snapshot + 1)

    def before(self, batch: object, index: int | None = None) -> None:
        """Seed MXNet so that the network draws the same numbers for `batch` as in the full pass.

        Raises
        ------
        RuntimeError
            If :meth:`begin` was not called.
        ValueError
            If the batch has no index.
        """
        self._check_has_begun()
        self._prepared = _index_of(batch, index, self._has_batch_index)
        self.masks.lock(self._prepared)

    def gradient(self, batch: object, index: int | None = None) -> BatchGradient:
        """Return the gradient at the snapshot of the batch that has just been trained on.

        Parameters
        ----------
        batch, index : object, int, optional
            The batch; its number in the epoch, unless the batch has an index itself.

        Raises
        ------
        RuntimeError
            If :meth:`begin` was not called, or :meth:`before` was called for another batch, or not
            at all and the network draws random numbers.
        ValueError
            If the table does not hold the batch, or holds another gradient than the network's own
            at the first step after the snapshot, when the two are the same.
        """
        index = _index_of(batch, index, self._has_batch_index)
        self._check_is_prepared(index)
        gradient = self.gradient_at(batch, index)
        # At the first step of an epoch only batch 0 has the same state as in the full pass.
        has_same_state = index == 0 or not self._backward.is_stateful
        is_comparable = has_same_state and not is_empty(batch)
        if self.table is not None and self._is_at_snapshot and is_comparable:
            _check_against_network(gradient, self._net, index)
        self._is_at_snapshot = False
        self.masks.release()
        return gradient

    def gradient_at(self, batch: object, index: int | None = None) -> BatchGradient:
        """Return the gradient at the snapshot of any batch, for measurements between two batches.

        Its :attr:`BatchGradient.lock` lets another pass over this batch draw the same dropout
        masks, as :meth:`VarianceMeter.measure` does.
        """
        self._check_has_begun()
        index = _index_of(batch, index, self._has_batch_index)
        self._awaits_batch = False
        if self.table is not None:
            return self.table.gradient(index, tree_leaves(batch))
        gradient = self.snapshot.gradient(self.backward_at(index), batch)
        self._local_evaluations += sum(gradient.samples)
        if not self._workers.is_distributed:
            self._count_evaluations()
        lock = partial(self.masks.lock, index)
        return gradient._replace(loss_scale=self._pass.loss_scale(), lock=lock)

    def backward_at(self, index: int) -> BackwardFunction:
        """Return the pass of the batch of this index, with its masks and its saved state."""
        self.masks.lock(index)
        return self._backward.at(index)

    def check(self) -> None:
        """Check an epoch that is over, in a loop by hand.

        Raises
        ------
        ValueError
            If a batch since the last call differs from that of the full pass; if there was none
            since the last call or :meth:`begin`.
        """
        if self._awaits_batch:
            raise ValueError(
                "no batch came since begin() or the last check(), so this epoch has trained "
                "nothing: give data that can be iterated again, and call check() once after each "
                "epoch"
            )
        self._awaits_batch = bool(self.snapshot.weights)
        self.check_batches()

    def check_batches(self) -> None:
        """Raise ValueError if a batch since the last call differs from that of the full pass."""
        if self.table is not None:
            self.table.check()
        self._count_evaluations()

    def end(self) -> None:
        """Unlock the data: each epoch draws a new augmentation again."""
        self._awaits_batch = False
        if self._data is not None:
            self._data.unlock()

    def break_off(self) -> None:
        """End in the middle of an epoch: drop the table, but keep the data locked."""
        self.check_batches()
        self.table = None

    def release(self) -> None:
        """Free all arrays at the end of the run; the counts stay, the table's too."""
        self.snapshot.release()
        if self.table is not None:
            self.table.free()
        for name in ("_backward", "_infer_shapes", "_source", "_data"):
            setattr(self, name, None)
        for name in ("_logger", "_augmentation_lock", "_table_policy", "_pass"):
            delattr(self, name)

    def state_dict(self) -> State:
        """Return the state: the snapshot, and all that is needed to recompute the table."""
        return {
            # By order: a network that is created again may have other names.
            "weights": [distinct_replicas(arrays) for arrays in self.snapshot.weights.values()],
            "grad_reqs": [self.snapshot.grad_reqs.get(name) for name in self.snapshot.weights],
            "lock": self.masks.state_dict(),
            "draw": None if self._data is None else self._data.locked_draw,
            "has_table": self.table is not None,
            "decision": self._table_policy.is_on,
            "is_at_snapshot": self._is_at_snapshot,
            "gradient_evaluations": self._workers.reduction(
                self._local_evaluations, self._add_evaluations
            ),
            **self._backward.state_dict(),
        }

    def load_state_dict(
        self,
        state: State,
        data: TrainingData,
        full_gradient: FullGradient | None,
        is_used: bool = True,
    ) -> None:
        """Continue from `state`.

        Parameters
        ----------
        state, data : dict, TrainingData
            What :meth:`state_dict` returned; the training data.
        full_gradient : FullGradient or None
            The full gradient at the snapshot; None if SVRG is off.
        is_used : bool
            Whether a batch is still to come that needs its gradient at the snapshot.

        Raises
        ------
        ValueError
            If `data` gives another full gradient.
        """
        self.table = None
        self._table_policy.is_on = state["decision"]
        self._training_data(data).unlock()
        if state["draw"] is not None:
            data.lock(state["draw"])
        if full_gradient is not None:
            names = self._net.collect_params().keys()
            # Up to version 0.8 a checkpoint has none: those of now are taken.
            known = zip(names, state.get("grad_reqs", []), strict=False)
            grad_reqs = {name: grad_req for name, grad_req in known if grad_req is not None}
            self.snapshot.load(dict(zip(names, state["weights"], strict=True)), grad_reqs or None)
        self.masks.load_state_dict(state["lock"])
        self._backward.begin_pass(state.get("carried"))
        if full_gradient is not None and is_used and (state["has_table"] or "carried" in state):
            try:
                self._rebuild_table(data, full_gradient)
            except Interrupted:  # no batch is to come that needs it
                self.table = None
            self.masks.load_state_dict(state["lock"])
        self._is_at_snapshot = state["is_at_snapshot"]
        self.gradient_evaluations = state["gradient_evaluations"]
        self._local_evaluations = 0

    def _check_has_begun(self) -> None:
        if not self.snapshot.weights:
            raise RuntimeError(
                "there is no snapshot yet: call begin(train_data) before the first batch, and give "
                "what it returns to trainer.set_control_variate()"
            )

    def _check_is_prepared(self, index: int) -> None:
        """Raise RuntimeError if another batch was trained on, or with other masks."""
        if self._prepared == index:
            return
        last = f"that was {self._prepared}, so"
        if self.masks.is_needed:
            last = last if self._prepared is not None else "it was not called, so"
            wrong = "the network has drawn other random numbers (dropout) than at the snapshot"
        elif self._prepared is None:  # which does nothing then
            return
        else:
            wrong = "this may not be the batch that was trained on"
        raise RuntimeError(
            f"gradient() of batch {index} (the first is 0) needs before() of the same batch: "
            f"{last} {wrong}; call interval.before(batch, index) ahead of the forward pass of each "
            "batch"
        )

    def _training_data(self, data: object) -> TrainingData:
        if self._data is None or data is not self._source:
            if self._data is not None:
                self._data.unlock()  # the former ones
            check_is_no_data_iter(data)
            self._source = data
            self._data = training_data(data)
            self._has_batch_index = self._data.has_batch_index
        return self._data

    def _full_gradient(self, data: TrainingData, batches: Iterator[IndexedBatch]) -> FullGradient:
        """Run the full pass; after an overflow run it again with a smaller loss scale."""
        while True:
            self.table = self._table_policy.make_table(data, self.snapshot)
            self._backward.begin_pass()
            try:
                return self._pass.run(data, batches, self.table)
            except FloatingPointError:
                if not self._pass.lower_loss_scale():
                    raise
            batches = enumerate(data.in_order())

    def _count_evaluations(self) -> None:
        """Add up the gradients that all workers have computed since the last call, together."""
        self._add_evaluations(
            self._workers.all_gather_object(self._local_evaluations, "gradient evaluations")
        )

    def _add_evaluations(self, counts: list[int]) -> int:
        """Add the counts of all workers; return the sum of all so far."""
        self.gradient_evaluations += sum(counts)
        self._local_evaluations = 0
        return self.gradient_evaluations

    def _rebuild_table(self, data: TrainingData, known: FullGradient) -> None:
        """Repeat the full pass over the same batches, with the same random numbers."""
        self._logger.info("resume: one pass over the data to rebuild SVRG's gradient table")
        table = self._table_policy.make_table(data, self.snapshot)
        batches = enumerate(data.in_order())
        _check_is_same(self._pass.run(data, batches, table, detect_randomness=False), known)
        self.table = self._table_policy.keep_or_drop(table)


def check_interval_options(
    gradient_table: object, table_memory: object, lock: object, sparse_correction: object = "exact"
) -> None:
    """Raise TypeError or ValueError if one of these arguments is invalid."""
    check_sparse_correction(sparse_correction)
    if gradient_table not in ("auto", False, True):
        raise ValueError(f"gradient_table must be 'auto' or a bool, got {gradient_table!r}")
    message = (
        f"table_memory must be a number of bytes, got {table_memory!r}: the largest gradient table "
        "that 'auto' makes"
    )
    if isinstance(table_memory, bool) or not isinstance(table_memory, numbers.Real):
        raise TypeError(message)
    if not float(table_memory) >= 0:
        raise ValueError(message)
    if lock not in ("auto", "require", "off"):
        raise ValueError(f"lock must be 'auto', 'require' or 'off', got {lock!r}")


def _index_of(batch: object, index: int | None, is_own: bool) -> int:
    """Return the batch's own index, or the one that is given."""
    if is_own and isinstance(batch, Batch):
        return batch.index
    if is_own or index is None:
        raise ValueError(
            "the batch has no index of its own: give its number in the epoch, as in `for index, "
            "batch in enumerate(train_data)`, and of an ArrayLoader the batch as it came"
        )
    return index


def _chain(first: IndexedBatch, rest: Iterator[IndexedBatch]) -> Iterator[IndexedBatch]:
    yield first
    yield from rest


def _check_against_network(gradient: BatchGradient, net: gluon.Block, index: int) -> None:
    """Raise ValueError if the first step's gradient is not the one in the table.

    The weights are still the snapshot's there, so the two are the same, but for the rounding of
    kernels whose order of addition is free, unless the batches do not repeat.
    """
    params = net.collect_params()
    difference = scale = 0.0
    for name, grads in gradient.sums.items():
        own = params[name]
        if own.grad_req != "write":  # it may hold other batches' too
            continue
        for kept, grad, data in zip(grads, own.list_grad(), list_data(own), strict=True):
            if is_fresh(data):
                largest, apart = max_abs_values(kept, grad)
                scale, difference = max(scale, largest), max(difference, apart)
    if difference > 0.01 * scale:
        raise ValueError(
            f"the gradient of batch {index} is not the one that the table holds, though the "
            f"weights are the same (largest difference {difference:.2g}, largest value "
            f"{scale:.2g}): the batches do not repeat, because of random augmentation, arrays "
            "that were changed in place, or a state that is carried from batch to batch (a batch "
            "processor has state_dict() and load_state_dict() for that); give batches that do, or "
            "gradient_table=False if they are augmented"
        )


def _check_is_same(full_gradient: FullGradient, known: FullGradient) -> None:
    """Raise ValueError unless the full gradient is equal to the one before the resume."""
    scale = full_gradient.loss_scale or 1.0
    for name, mean in full_gradient.means.items():
        # Kernels may add up in another order, above all on another machine.
        if not are_close(mean / scale, known.means[name], 1e-3):
            raise ValueError(
                f"the full gradient of parameter {name!r} at the snapshot is not the one that "
                "the checkpoint holds: train_data has other samples than it had; resume with "
                "the data that the checkpoint was written with"
            )
