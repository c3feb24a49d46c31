"""A variance-reduced method of the user's own as a handler: what a checkpoint says of it."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.events import BatchBegin, GradientReady, Order, Stateful, TrainBegin, TrainEnd
from mxnet import gluon
from mxnet.gluon import nn

TOLD = "the control variate is not part of the checkpoints"
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(48, 6)).astype("float32"), RNG.integers(0, 3, 48).astype("float32")


class LooplessSVRG(TrainBegin, BatchBegin, GradientReady, TrainEnd):
    """Takes a snapshot ahead of a batch with some probability; draws by the batch's number."""

    priority = Order.SVRG

    def __init__(self, probability):
        self.probability = probability
        self._interval = None

    def train_begin(self, estimator, *args, **kwargs):
        def backward(batch):
            return estimator.batch_processor.fit_batch(estimator, batch, estimator.batch_axis)[3]

        self._interval = gs.svrg.Interval(estimator.net, backward, gradient_table=False)

    def batch_begin(self, estimator, *args, **kwargs):
        position, batch = estimator.position, kwargs["batch"]
        draw = np.random.default_rng([7, position.batch]).random()
        if estimator.trainer.full_gradient is None or draw < self.probability:
            full_gradient = self._interval.begin(estimator.train_data, position.epoch)
            estimator.trainer.set_control_variate(full_gradient)
        self._interval.before(batch, position.batch_in_epoch)

    def gradient_ready(self, estimator, *args, **kwargs):
        batch, index = kwargs["batch"], estimator.position.batch_in_epoch
        estimator.trainer.correct(self._interval.gradient(batch, index))

    def train_end(self, estimator, *args, **kwargs):
        estimator.trainer.clear_control_variate()
        self._interval.end()


class StatefulLooplessSVRG(LooplessSVRG, Stateful):
    """The same, which saves the snapshot and the full gradient."""

    saves_control_variate = True

    def state_dict(self, estimator):
        full_gradient = estimator.trainer.full_gradient
        return {
            "interval": self._interval.state_dict(),
            "full_gradient": None
            if full_gradient is None
            else {name: arrays[0] for name, arrays in full_gradient.items()},
        }

    def load_state_dict(self, estimator, state):
        full_gradient = None
        if state["full_gradient"] is not None:
            means = state["full_gradient"]
            full_gradient = gs.svrg.FullGradient(means, 1, is_of_all_workers=True)
            estimator.trainer.set_control_variate(full_gradient)
        self._interval.load_state_dict(state["interval"], estimator.data, full_gradient, True)


def fit(handlers, folder=None, epochs=4, resume=None):
    gs.seed_everything(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=6, activation="tanh"), nn.Dropout(0.1))
        net.add(nn.Dense(3, in_units=5))
    net.initialize(mx.init.Normal(0.5))
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.3})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    data = gs.data.ArrayLoader(X, Y, batch_size=8, shuffle=True, seed=0)
    if folder is not None:
        handlers = [*handlers, gs.CheckpointHandler(folder, every_n_batches=2)]
    estimator.fit(data, epochs=epochs, event_handlers=handlers, resume=resume)
    return problems.weights_of(net)


class CountingLooplessSVRG(StatefulLooplessSVRG):
    """Has a state without the control variate."""

    saves_control_variate = False


@pytest.mark.parametrize("kind", [LooplessSVRG, CountingLooplessSVRG])
def test_a_control_variate_that_is_not_saved_is_told_once(kind, tmp_path, caplog):
    fit([kind(0.1), gs.EMAHandler(0.9)], tmp_path)
    (record,) = [record for record in caplog.records if TOLD in record.getMessage()]
    assert record.levelname == "WARNING"
    assert "inherit from gluon_svrg.events.Stateful" in record.getMessage()
    assert "saves_control_variate = True" in record.getMessage()


def test_what_is_told_is_true(tmp_path):
    """A resume in the middle of an epoch has other weights; with a state it has the same."""
    for kind, is_exact in ((LooplessSVRG, False), (StatefulLooplessSVRG, True)):
        folder = tmp_path / kind.__name__
        whole = fit([kind(0.1)], folder / "whole")
        fit([kind(0.1)], folder, epochs=2)
        assert problems.same(fit([kind(0.1)], folder, resume="auto"), whole) == is_exact


@pytest.mark.parametrize(
    "handlers",
    [
        lambda: [],
        lambda: [gs.EMAHandler(0.9)],
        lambda: [gs.SVRGHandler()],
        lambda: [gs.SVRGHandler(update_freq=2), gs.VarianceHandler()],
        lambda: [StatefulLooplessSVRG(0.1)],
    ],
)
def test_nothing_is_told_of_one_that_is_saved(handlers, tmp_path, caplog):
    fit(handlers(), tmp_path)
    assert TOLD not in caplog.text


def test_a_later_run_is_told_again(tmp_path, caplog):
    fit([LooplessSVRG(0.1)], tmp_path / "first")
    fit([LooplessSVRG(0.1)], tmp_path / "second")
    assert caplog.text.count(TOLD) == 2
