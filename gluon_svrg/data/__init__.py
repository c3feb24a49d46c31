"""Data sets that are really there, read without a download, and a loader for arrays."""

from gluon_svrg.data.datasets import load_fashion_mnist
from gluon_svrg.data.limit import first_batches
from gluon_svrg.data.loader import ArrayLoader, Batch

__all__ = ["ArrayLoader", "Batch", "first_batches", "load_fashion_mnist"]
