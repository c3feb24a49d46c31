"""Batch: the arrays of a batch, with its index."""

from gluon_svrg.arrays.batch import Batch, is_empty

__all__ = ["Batch", "is_empty"]
