"""Runs on MXNet's DataIter: with SVRG and its table, stopped in mid-epoch and resumed."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.events import BatchEnd
from mxnet import gluon
from mxnet.gluon import nn

SAMPLES, BATCH, EPOCHS = 21, 4, 3  # the last batch is padded by three samples


class StopAfter(BatchEnd):
    def __init__(self, batches):
        self.batches = batches

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.batches:
            estimator.stop()


def run(folder, *handlers, shuffle=False, resume=None):
    gs.seed_everything(1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(SAMPLES, 5)), rng.integers(0, 3, SAMPLES)
    data = mx.io.NDArrayIter(x.astype("float32"), y.astype("float32"), BATCH, shuffle)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(6, in_units=5), nn.Dropout(0.5), nn.Dense(3, in_units=6))
    net.initialize(mx.init.Normal(0.5))
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.5})
    svrg = gs.SVRGHandler(update_freq=2)
    gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer).fit(
        data,
        epochs=EPOCHS,
        event_handlers=[svrg, gs.CheckpointHandler(folder), *handlers],
        resume=resume,
    )
    return problems.weights_of(net), svrg


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 6, 8, 13])
def test_it_resumes_to_the_bit(stop, tmp_path):
    whole, svrg = run(tmp_path / "whole")
    assert len(svrg.table) == 6
    assert svrg.gradient_evaluations == 2 * SAMPLES  # two full passes, without the padding
    run(tmp_path / "parts", StopAfter(stop))
    resumed, _ = run(tmp_path / "parts", resume="auto")
    assert problems.same(whole, resumed)


def test_one_that_shuffles_cannot_be_resumed(tmp_path):
    with pytest.raises(ValueError, match=r"shuffle.*ArrayLoader"):
        run(tmp_path, shuffle=True)
