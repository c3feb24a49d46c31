"""share(): each of several workers gets its part of every batch, in a loop of your own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gluon_svrg.data.sharding import shard
from gluon_svrg.data.shared_batches import SharedBatches
from gluon_svrg.data.training_data import check_data, training_data
from gluon_svrg.workers import current


def share(data: Iterable[Any], batch_axis: int = 0) -> Iterable[Any]:
    """Divide the batches of a hand-written loop between the workers.

    ::

        for batch in gs.data.share(train_data):
            with autograd.record():
                loss = loss_function(net(batch[0]), batch[1])
            loss.backward()
            trainer.step(len(loss))

    Every worker gets its rows of each batch, as in `Estimator.fit`, and `SVRGTrainer.step` divides
    the sum of all gradients by the samples of the whole batch. So the loop computes what it
    computes in one process, with the same batch size and the same learning rate. In one process
    it returns `data`.

    Call it once, before the loop: each ``for`` over it is one pass. Weights that are initialised
    become the first worker's when a pass begins. A worker that has no row of a batch, because the
    batch has fewer rows than there are workers, gets a row of another batch in its place, and
    `SVRGTrainer` does not count its gradient.

    Parameters
    ----------
    data : iterable
        What `Estimator.fit` takes: a DataLoader, an ArrayLoader, a list of batches, a DataIter. The
        same on all workers, with the whole batches; or a DataLoader with a
        :class:`WorkerBatchSampler`, which loads this worker's samples only.
    batch_axis : int
        The axis that counts the samples.

    Returns
    -------
    iterable
        Of this worker's parts, as many as there are batches.

    Raises
    ------
    ValueError
        If `data` cannot be iterated once an epoch, or if the workers have different data.
    """
    workers = current()
    if isinstance(data, SharedBatches):
        return data
    check_data(data, "data")
    if not workers.is_distributed:
        return data
    whole = training_data(data, "data")
    return SharedBatches(whole, shard(whole, workers, batch_axis), workers, batch_axis)
