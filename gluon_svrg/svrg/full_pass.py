"""FullPass: once over all batches at the snapshot, and what can break it off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import mxnet as mx
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.arrays.sync import wait_for
from gluon_svrg.data.array_sources import check_batch
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.events import Interrupted
from gluon_svrg.run.backward import at_batch
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.locks import MaskLock
from gluon_svrg.svrg.over_workers import fail_together, mean_over_workers
from gluon_svrg.svrg.snapshot import Backward, Snapshot
from gluon_svrg.svrg.table import GradientTable
from gluon_svrg.workers import Workers
from tqdm.auto import tqdm

if TYPE_CHECKING:
    from gluon_svrg.trainer import SVRGTrainer

Numbered = tuple[int, object]
"""A batch with its index."""


class FullPass(NamedTuple):
    """The pass over all batches that gives the full gradient.

    Attributes
    ----------
    snapshot, masks : Snapshot, MaskLock
        Where the gradients are taken, and the random numbers of each batch.
    backward : callable
        As for :meth:`Snapshot.gradient`.
    loss_scaler : SVRGTrainer or None
        Knows what the losses are multiplied by.
    has_bar : bool
        Whether it shows a bar; only ever on a terminal.
    is_cancelled : callable
        Is asked before each batch: whether to break the pass off. All workers answer alike.
    workers : Workers
        Who make the pass together, each over its samples of every batch.
    """

    snapshot: Snapshot
    masks: MaskLock
    backward: Backward
    loss_scaler: SVRGTrainer | None
    has_bar: bool
    is_cancelled: Callable[[], bool]
    workers: Workers

    def loss_scale(self) -> float | None:
        """Return what the losses are multiplied by at the moment; None if nobody says it."""
        return None if self.loss_scaler is None else self.loss_scaler.loss_scale

    def lower_loss_scale(self) -> bool:
        """Halve it, after an overflow; return whether there is one to halve."""
        return self.loss_scaler is not None and self.loss_scaler.lower_loss_scale()

    def over(
        self,
        data: TrainingData,
        batches: Iterator[Numbered],
        table: GradientTable | None,
        watches: bool = True,
    ) -> FullGradient:
        """Return the full gradient over all workers; fill the table if there is one.

        Parameters
        ----------
        data
            The batches, for their number.
        batches
            All of them, in the order of their index.
        table
            What keeps the gradients.
        watches
            Whether to find out with the first batch if the network draws random numbers.

        Raises
        ------
        Interrupted
            If `is_cancelled` says so.
        FloatingPointError
            If the gradient of a batch is NaN or infinite, on any worker.
        """
        full_gradient, failure = None, None
        try:
            full_gradient = self._own(data, batches, table, watches)
        except FloatingPointError as error:
            failure = error
        fail_together(failure, self.workers)
        assert full_gradient is not None  # or it has failed
        return mean_over_workers(full_gradient, self.workers)

    def _own(
        self,
        data: TrainingData,
        batches: Iterator[Numbered],
        table: GradientTable | None,
        watches: bool,
    ) -> FullGradient:
        """Return the full gradient of the samples of this worker."""
        scale = self.loss_scale()
        last: object = None
        index = 0

        def masked(numbered: Numbered) -> object:
            nonlocal last, index
            index, batch = numbered
            for leaf in tree_leaves(batch):
                check_batch(index, leaf)
            backward = at_batch(self.backward, index)
            if index == 0 and watches:
                return self.masks.watch(lambda: backward(batch), self.snapshot.contexts)
            self.masks.lock(index)
            losses = backward(batch)
            # Else all batches are under way before the first is computed.
            wait_for(last)
            last = losses
            return losses

        def keep(numbered: Numbered, gradient: BatchGradient) -> None:
            if table is not None:
                table.append(gradient._replace(loss_scale=scale), tree_leaves(numbered[1]))

        with tqdm(
            self._unless_cancelled(batches),
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

    def _unless_cancelled(self, batches: Iterator[Numbered]) -> Iterator[Numbered]:
        for batch in batches:
            if self.is_cancelled():
                raise Interrupted
            yield batch
