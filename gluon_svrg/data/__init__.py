"""Data sets that are really there, read without a download."""

from gluon_svrg.data.datasets import load_fashion_mnist

__all__ = ["load_fashion_mnist"]
