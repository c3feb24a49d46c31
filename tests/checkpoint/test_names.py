"""A network that is created again in one process has other names, in another sorted order."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.events import BatchEnd
from mxnet.gluon import nn


class Stop(BatchEnd):
    def __init__(self, batch):
        self.batch = batch

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.batch:
            estimator.stop()


def estimator_with_names_from(number, seed):
    """Layers of one shape, named dense<number>, dense<number + 1>, ...

    What is swapped among them has the right shape, and is wrong.
    """
    layers = [nn.Dense(4, in_units=4, prefix=f"dense{number + i}_") for i in range(4)]
    block = nn.HybridSequential()
    block.add(*layers)
    block.cast("float64")
    mx.random.seed(seed)
    block.initialize(mx.init.Normal(0.5))
    return runs.estimator_of(block, mx.gluon.loss.L2Loss(), optimizer="adam", lr=0.02)


def data():
    rng = np.random.default_rng(0)
    return [
        tuple(mx.nd.array(rng.normal(size=(8, 4)), dtype="float64") for _ in range(2))
        for _ in range(5)
    ]


def handlers(folder):
    return [
        gs.SVRGHandler(update_freq=2, gradient_table=False),
        gs.GradientUpdateHandler(accumulate=2),
        gs.EMAHandler(0.9, keep=True),
        gs.CheckpointHandler(folder),
    ]


def weights(estimator):
    return [param.data().asnumpy() for param in estimator.net.collect_params().values()]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [5, 8, 9])
def test_dense10_comes_before_dense9(batch, tmp_path):
    names = [p.name for p in estimator_with_names_from(8, 0).trainer._params]
    assert names[0] == "dense10_bias"  # a trainer sorts by name
    whole = estimator_with_names_from(0, 0)
    whole.fit(data(), epochs=4, event_handlers=handlers(tmp_path / "whole"))
    first = estimator_with_names_from(0, 0)
    first.fit(data(), epochs=4, event_handlers=[*handlers(tmp_path / "cut"), Stop(batch)])
    second = estimator_with_names_from(8, 1)
    second.fit(data(), epochs=4, event_handlers=handlers(tmp_path / "cut"), resume="auto")
    assert problems.same(weights(second), weights(whole))
