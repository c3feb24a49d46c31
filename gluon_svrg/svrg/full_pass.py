"""FullPass: the pass over all batches at the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import mxnet as mx
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.arrays.sync import wait_for
from gluon_svrg.batch.backward import TrainingBackward, UserBackward
from gluon_svrg.data.array_sources import check_batch
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.events import Interrupted
from gluon_svrg.svrg.collective import mean_over_workers, raise_on_all
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.locks import MaskLock
from gluon_svrg.svrg.snapshot import Snapshot
from gluon_svrg.svrg.table import GradientTable
from gluon_svrg.svrg.trainer import SVRGTrainer
from gluon_svrg.workers import Workers
from tqdm.auto import tqdm

IndexedBatch = tuple[int, object]
"""A batch with its index."""


class FullPass(NamedTuple):
    """The pass over all batches that computes the full gradient.

    Attributes
    ----------
    snapshot, masks : Snapshot, MaskLock
        The weights at which gradients are computed; the random numbers of each batch.
    backward : TrainingBackward or UserBackward
        Runs the forward and the backward pass of a batch.
    loss_scaler : SVRGTrainer or None
        Knows AMP's loss scale.
    has_bar : bool
        Whether it shows a progress bar, if the output is a terminal.
    is_cancelled : callable
        Called before each batch; if it returns True, the pass is abandoned. It returns the same on
        all workers.
    workers : Workers
        The processes that share the pass: each takes its samples of every batch.
    max_batches : int or None
        How many batches data may have that are not known to end.
    """

    snapshot: Snapshot
    masks: MaskLock
    backward: TrainingBackward | UserBackward
    loss_scaler: SVRGTrainer | None
    has_bar: bool
    is_cancelled: Callable[[], bool]
    workers: Workers
    max_batches: int | None

    def loss_scale(self) -> float | None:
        """Return the present loss scale; None without a loss scaler."""
        return None if self.loss_scaler is None else self.loss_scaler.loss_scale

    def lower_loss_scale(self) -> bool:
        """Halve the loss scale after an overflow; return whether there is one to halve."""
        return self.loss_scaler is not None and self.loss_scaler.lower_loss_scale()

    def run(
        self,
        data: TrainingData,
        batches: Iterator[IndexedBatch],
        table: GradientTable | None,
        detect_randomness: bool = True,
    ) -> FullGradient:
        """Return the full gradient over all workers; fill the table if there is one.

        Parameters
        ----------
        data : TrainingData
            Says how many batches there are, for the bar.
        batches : iterator of IndexedBatch
            All batches, in the order of their index.
        table : GradientTable or None
            Keeps the gradients.
        detect_randomness : bool
            Whether to find out with the first batch if the network draws random numbers.

        Raises
        ------
        Interrupted
            If `is_cancelled` says so.
        ValueError
            If the data have no length, and more than `max_batches` batches.
        FloatingPointError
            If the gradient of a batch is NaN or infinite, on any worker.
        """
        full_gradient, failure = None, None
        try:
            full_gradient = self._local_gradient(data, batches, table, detect_randomness)
        except FloatingPointError as error:
            failure = error
        raise_on_all(failure, self.workers)
        assert full_gradient is not None  # or it has failed
        return mean_over_workers(full_gradient, self.workers)

    def _local_gradient(
        self,
        data: TrainingData,
        batches: Iterator[IndexedBatch],
        table: GradientTable | None,
        detect_randomness: bool,
    ) -> FullGradient:
        """Return the full gradient of this worker's samples."""
        scale = self.loss_scale()
        last: object = None
        index = 0

        def masked(numbered: IndexedBatch) -> object:
            nonlocal last, index
            index, batch = numbered
            for leaf in tree_leaves(batch):
                check_batch(index, leaf)
            backward = self.backward.at(index)
            if index == 0 and detect_randomness:
                return self.masks.watch(lambda: backward(batch), self.snapshot.contexts)
            self.masks.lock(index)
            losses = backward(batch)
            # Without this wait all batches would be in memory before the first is computed.
            wait_for(last)
            last = losses
            return losses

        def keep(numbered: IndexedBatch, gradient: BatchGradient) -> None:
            if table is not None:
                index, batch = numbered
                lock = partial(self.masks.lock, index)
                table.append(gradient._replace(loss_scale=scale, lock=lock), tree_leaves(batch))

        with tqdm(
            self._unless_cancelled(batches, data),
            total=data.num_batches,
            desc="full gradient",
            unit="batch",
            leave=False,
            disable=None if self.has_bar else True,  # None: unless on a terminal
        ) as shown:
            try:
                full_gradient = self.snapshot.full_gradient(masked, shown, keep)
            except mx.base.MXNetError as error:
                if "out of bound" not in str(error):
                    raise
                raise ValueError(
                    f"batch {index} (the first is 0), or the one before, has an index that its "
                    "Embedding does not have: indices are from 0 to input_dim - 1"
                ) from error
        return full_gradient._replace(loss_scale=scale)

    def _unless_cancelled(
        self, batches: Iterator[IndexedBatch], data: TrainingData
    ) -> Iterator[IndexedBatch]:
        limit = None if data.has_end else self.max_batches
        for batch in batches:
            if self.is_cancelled():
                raise Interrupted
            if batch[0] == limit:
                raise ValueError(
                    f"SVRG's full pass over {data.name} is not over after {limit} batches, which "
                    f"is all that the run trains on, and {data.kind} has no length: if it has no "
                    f"end, give a list of batches, gluon_svrg.data.first_batches({data.name}, "
                    f"{limit}); if it has one, give it a __len__, or train for epochs"
                )
            yield batch
