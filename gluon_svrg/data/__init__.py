"""Data sets read without a download, a loader for arrays, transforms that can be locked."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy
from gluon_svrg.arrays.batch import Batch
from gluon_svrg.data import transforms
from gluon_svrg.data.datasets import load_fashion_mnist
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.data.training_data import first_batches, shard
from gluon_svrg.data.worker_sampler import WorkerBatchSampler

__all__ = [
    "ArrayLoader",
    "Batch",
    "WorkerBatchSampler",
    "first_batches",
    "load_fashion_mnist",
    "shard",
    "transforms",
]

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__)
