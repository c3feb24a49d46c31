"""What a DataLoader was made with, which it keeps in private attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
from mxnet.gluon.data import ArrayDataset, BatchSampler, RandomSampler, SequentialSampler
from mxnet.gluon.data.dataloader import default_batchify_fn, default_mp_batchify_fn
from mxnet.gluon.data.dataset import _LazyTransformDataset, _TransformFirstClosure


def dataset_of(loader: mx.gluon.data.DataLoader) -> Any:
    """Return the data set of a DataLoader."""
    return loader._dataset


def arrays_in_order(loader: mx.gluon.data.DataLoader) -> list[Any] | None:
    """Return the arrays of an ArrayDataset of which a DataLoader reads each sample, else None.

    `transform_first` may change the first of them.
    """
    dataset, batches = loader._dataset, loader._batch_sampler
    if isinstance(dataset, _LazyTransformDataset) and isinstance(
        dataset._fn, _TransformFirstClosure
    ):
        dataset = dataset._data
    if type(dataset) is not ArrayDataset or not isinstance(batches, BatchSampler):
        return None
    order = batches._sampler
    is_whole = type(order) in (RandomSampler, SequentialSampler) and len(order) == len(dataset)
    return dataset._data if is_whole else None


def batch_sampler_of(loader: mx.gluon.data.DataLoader) -> Any:
    """Return what yields the indices of each batch of a DataLoader."""
    return loader._batch_sampler


def batchify_of(loader: mx.gluon.data.DataLoader) -> Callable[[list[Any]], Any]:
    """Return the function that makes a batch of samples."""
    return loader._batchify_fn


def has_workers(loader: mx.gluon.data.DataLoader) -> bool:
    """Return whether a DataLoader has processes or threads that make its batches ahead."""
    return bool(loader._num_workers)


def load_in_this_process(loader: mx.gluon.data.DataLoader) -> None:
    """Let a DataLoader make its batches in this process, without what its workers have ahead."""
    loader._num_workers, loader._iter = 0, None
    if loader._batchify_fn is default_mp_batchify_fn:  # into memory that processes share
        loader._batchify_fn = default_batchify_fn


def carries_samples_over(loader: mx.gluon.data.DataLoader) -> bool:
    """Return whether samples that are left over go into the next epoch: ``'rollover'``."""
    sampler = loader._batch_sampler
    return isinstance(sampler, mx.gluon.data.BatchSampler) and sampler._last_batch == "rollover"
