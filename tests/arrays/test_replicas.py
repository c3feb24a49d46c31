"""Values are written into arrays, whatever layout MXNet keeps them in."""

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.arrays.replicas import write_replicas
from mxnet import autograd, gluon


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_of_a_convolution_that_has_been_used(dtype):
    """oneDNN keeps them in blocks of channels after a step."""
    net = gluon.nn.Conv2D(16, 3, in_channels=16)
    net.initialize()
    net.cast(dtype)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
    for _ in range(2):
        with autograd.record():
            loss = net(mx.nd.ones((2, 16, 8, 8), dtype=dtype)).mean()
        loss.backward()
        trainer.step(1)
        net(mx.nd.ones((2, 16, 8, 8), dtype=dtype)).wait_to_read()
    array = net.weight.data()
    values = np.random.default_rng(0).normal(size=array.shape).astype(dtype)
    write_replicas([values], [array])
    np.testing.assert_array_equal(array.asnumpy(), values)
