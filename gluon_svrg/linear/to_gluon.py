"""From coefficients to a layer of Gluon. The one module here that imports MXNet."""

from __future__ import annotations

import mxnet as mx
from gluon_svrg._typing import NumPyArray
from mxnet.gluon import nn


def dense(coef: NumPyArray, intercept: NumPyArray, dtype: str) -> nn.Dense:
    """Return a fully connected layer with these numbers, on the CPU.

    Parameters
    ----------
    coef : numpy.ndarray of shape (K, p)
        The weights.
    intercept : numpy.ndarray of shape (K,)
        The biases.
    dtype : str
        Of the parameters: 'float32', 'float64' or 'float16'.
    """
    units, in_units = coef.shape
    layer = nn.Dense(units, in_units=in_units, dtype=dtype, prefix="linear_")
    layer.initialize(mx.init.Zero(), ctx=mx.cpu())
    layer.weight.set_data(mx.nd.array(coef, dtype=dtype))
    layer.bias.set_data(mx.nd.array(intercept, dtype=dtype))
    return layer
