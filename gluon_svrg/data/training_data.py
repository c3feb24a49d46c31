"""Make the TrainingData of the object that the user gives, for `fit` or a hand-written loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.dataloader import batch_sampler_of
from gluon_svrg.arguments import check_integer
from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.arrays.nested import describe_value
from gluon_svrg.data.adapters import (
    ArrayLoaderData,
    DataLoaderData,
    ListData,
    WorkerLoaderData,
)
from gluon_svrg.data.base import TrainingData, length_of
from gluon_svrg.data.data_iter import CxxIterData, DataIterData, NDArrayIterData
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.data.worker_sampler import WorkerBatchSampler
from gluon_svrg.workers import SingleProcess, Workers, current
from mxnet import gluon

__all__ = [
    "ShardedBatches",
    "TrainingData",
    "batches_of",
    "check_data",
    "check_is_no_data_iter",
    "first_batches",
    "length_of",
    "reason_not_lockable",
    "shard",
    "training_data",
]


class ShardedBatches:
    """The batches of a hand-written loop, as :func:`shard` returns them.

    Parameters
    ----------
    data : TrainingData
        This worker's rows of each batch.
    """

    def __init__(self, data: TrainingData) -> None:
        self.data = data

    def __len__(self) -> int:
        """Return the number of batches."""
        if self.data.num_batches is None:
            raise TypeError("the number of batches is not known before they are counted")
        return self.data.num_batches

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over this worker's rows of the batches, in the order of the data."""
        for position, batch in enumerate(self.data.iterate_once()):
            if is_empty(batch):
                raise ValueError(
                    f"this worker has no sample of batch {position} (the first is 0) of "
                    f"{self.data.name}: a hand-written loop needs batches of at least as many "
                    "samples as there are workers; give a larger batch_size, or "
                    "last_batch='discard' if it is the last batch"
                )
            yield batch


def shard(data: Iterable[Any], batch_axis: int = 0) -> ShardedBatches:
    """Divide the batches of a hand-written loop between the workers.

    ::

        trainer.synchronize(net)
        for batch in gs.data.shard(train_data):
            with autograd.record():
                loss = loss_function(net(batch[0]), batch[1])
            loss.backward()
            trainer.step(len(loss))

    Each worker gets its rows of each batch, as in `Estimator.fit`, and :meth:`SVRGTrainer.step`
    divides the sum of all gradients by the samples of all workers. So the loop computes what it
    computes in one process, with the same batch size and the same learning rate.

    Call it once, before the loop: each ``for`` over the result is one pass. A single process gets
    whole batches. The batches of an ``mx.io.DataIter`` are pairs (data, label), without padding,
    and each pass resets it.

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
        This worker's rows of each batch.

    Raises
    ------
    ValueError
        If `data` cannot be iterated once an epoch, or if the workers have different data; in the
        loop, if a batch has fewer samples than there are workers.
    """
    return ShardedBatches(training_data(data, "data").sharded(current(), batch_axis))


def training_data(obj: object, name: str = "train_data") -> TrainingData:
    """Return the user's data as a :class:`TrainingData`.

    Parameters
    ----------
    obj : iterable
        A list of batches, an ArrayLoader, a DataLoader, a DataIter, or anything else that can be
        iterated once an epoch.
    name : str
        What the caller calls it, for messages.

    Raises
    ------
    ValueError
        If it cannot be iterated once an epoch, or is empty.
    """
    if isinstance(obj, TrainingData):  # made here already
        return obj
    check_data(obj, name)
    return _wrap(obj, name)


def batches_of(
    obj: object, name: str, workers: Workers | None = None, batch_axis: int = 0
) -> Iterator[Any]:
    """Iterate once over all batches of validation data.

    Parameters
    ----------
    obj, name
        As for :func:`training_data`.
    workers, batch_axis : Workers, int, optional
        All workers; the batches then hold the rows of this one.

    Raises
    ------
    ValueError
        If `obj` cannot be iterated, or is empty.
    """
    check_data(obj, name)
    return _wrap(obj, name).sharded(workers or SingleProcess(), batch_axis).iterate_once()


def first_batches(data: Iterable[object], number: int) -> list[Any]:
    """Return the first batches as a list: for a dry run, or to see if a net can overfit them.

    ::

        estimator.fit(first_batches(train_data, 3), first_batches(val_data, 3), epochs=1)
        estimator.fit(first_batches(train_data, 1), epochs=200)

    Parameters
    ----------
    data : iterable
        Training or validation data. Of an ArrayLoader, the first batches of its epoch 0, with the
        augmentation of that epoch, or of the draw that the loader is locked to.
    number : int
        How many batches; if there are fewer, all of them.

    Raises
    ------
    TypeError, ValueError
        If `number` is no positive integer.
    """
    check_integer("number", number, 1, "that many batches are taken")
    return _wrap(data, "data").take(number)


def reason_not_lockable(data: object) -> str:
    """Return why the samples of `data` may change from one pass to the next; '' if they do not.

    As :meth:`TrainingData.reason_not_lockable`, for any iterable: a clause for a message.
    """
    return _wrap(data, "data").reason_not_lockable()


def check_data(data: object, name: str) -> None:
    """Raise ValueError, with the way out, if `data` cannot be iterated once an epoch.

    Parameters
    ----------
    data : object
        Training or validation data.
    name : str
        What the caller calls it.
    """
    if isinstance(data, Iterator) and not isinstance(data, mx.io.DataIter):
        raise ValueError(
            f"{name} must be iterable again each epoch, got {data!r}, which is gone after one "
            "pass: give a DataLoader, or make a list of it"
        )
    if hasattr(data, "to_numpy"):  # of pandas or Polars, whose items are columns
        raise ValueError(
            f"{name} must be an iterable of (data, label) batches, got a {type(data).__name__}: "
            "give gluon_svrg.data.ArrayLoader(data.to_numpy(), label, batch_size=32)"
        )
    if not isinstance(data, Iterable):
        value = describe_value(data) if isinstance(data, mx.nd.NDArray) else repr(data)
        raise ValueError(
            f"{name} must be an iterable of (data, label) batches, got {value}: give a "
            "DataLoader, a list of batches, or gluon_svrg.data.ArrayLoader(data, label, "
            "batch_size=32) of whole arrays"
        )
    if _wrap(data, name).num_batches == 0:
        raise ValueError(f"{name} is empty: give at least one batch")


def check_is_no_data_iter(data: object) -> None:
    """Raise ValueError if a hand-written loop gives a DataIter as it is."""
    if isinstance(data, mx.io.DataIter):
        raise ValueError(
            f"a hand-written loop needs pairs (data, label) without padding, and a "
            f"{type(data).__name__} yields DataBatches: make batches = gluon_svrg.data.shard("
            "train_data), and use these batches in begin() and in the loop"
        )


def _wrap(obj: Any, name: str) -> TrainingData:
    """Return the TrainingData for the class of `obj`: the only place that asks for the class."""
    if isinstance(obj, ShardedBatches):
        return obj.data
    if isinstance(obj, ArrayLoader):
        return ArrayLoaderData(obj, name)
    if isinstance(obj, (list, tuple)):
        return ListData(obj, name)
    if isinstance(obj, gluon.data.DataLoader):
        is_own = isinstance(batch_sampler_of(obj), WorkerBatchSampler)
        return WorkerLoaderData(obj, name) if is_own else DataLoaderData(obj, name)
    if isinstance(obj, mx.io.MXDataIter):
        return CxxIterData(obj, name)
    # A class of the user's own on top of it may do anything.
    if type(obj) is mx.io.NDArrayIter:
        return NDArrayIterData(obj, name)
    if isinstance(obj, mx.io.DataIter):
        return DataIterData(obj, name)
    return TrainingData(obj, name)
