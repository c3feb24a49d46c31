"""Layers that a handler freezes or unfreezes during a run: a resume is exact to the bit.

0.8 took the snapshot, and the layers that are trained, as they were when the resumed run began.
"""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.events import BatchBegin, EpochBegin
from mxnet import gluon
from mxnet.gluon import nn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4))
Y = X.sum(1, keepdims=True)
EPOCHS, BATCHES = 4, 4


class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.body = nn.Dense(4, in_units=4, activation="tanh")
            self.head = nn.Dense(1, in_units=4)

    def hybrid_forward(self, F, x):
        return self.head(self.body(x))


def set_trained(layer, is_trained):
    layer.collect_params().setattr("grad_req", "write" if is_trained else "null")


class AtEpoch(EpochBegin):
    """Trains layers as `plan` says from the epoch on; at no other epoch it does anything."""

    priority = -9000

    def __init__(self, plan):
        self.plan = plan

    def epoch_begin(self, estimator, *args, **kwargs):
        for layer, is_trained in self.plan.get(estimator.position.epoch, {}).items():
            set_trained(getattr(estimator.net, layer), is_trained)


class AtBatch(BatchBegin):
    priority = -9000

    def __init__(self, plan):
        self.plan = plan

    def batch_begin(self, estimator, *args, **kwargs):
        for layer, is_trained in self.plan.get(estimator.position.batch, {}).items():
            set_trained(getattr(estimator.net, layer), is_trained)


# The layer that is frozen at first, and when a handler changes what.
PLANS = {
    "trained later": ("body", lambda: AtEpoch({1: {"body": True}})),
    "trained at a snapshot": ("body", lambda: AtEpoch({2: {"body": True}})),
    "frozen later": (None, lambda: AtEpoch({1: {"body": False}})),
    "frozen, and trained again": (
        None,
        lambda: AtEpoch({1: {"body": False}, 3: {"body": True}}),
    ),
    "in turn": ("body", lambda: AtEpoch({1: {"body": True, "head": False}, 3: {"head": True}})),
    "in the middle of an epoch": ("body", lambda: AtBatch({6: {"body": True}})),
    "frozen in the middle": (None, lambda: AtBatch({6: {"body": False}, 13: {"body": True}})),
}
HANDLERS = {
    "plain": lambda: [],
    "SVRG": lambda: [gs.SVRGHandler(update_freq=2)],
    "SVRG without a table": lambda: [gs.SVRGHandler(update_freq=2, gradient_table=False)],
    "accumulated": lambda: [gs.GradientUpdateHandler(accumulate=2)],
    "SVRG, accumulated": lambda: [
        gs.SVRGHandler(update_freq=2),
        gs.GradientUpdateHandler(accumulate=2),
    ],
    "average": lambda: [gs.EMAHandler(keep=True)],
    "best": lambda: [gs.EarlyStoppingHandler("training loss", patience=None, restore_best=True)],
    "guard": lambda: [gs.NaNGuardHandler(every_n_batches=2)],
}


def run(folder, plan, handlers, resume=None, is_frozen=None, epochs=EPOCHS):
    mx.random.seed(0)
    net = Net()
    net.initialize(mx.init.Normal(0.5))
    net.cast("float64")
    frozen, make = PLANS[plan]
    frozen = frozen if is_frozen is None else is_frozen
    if frozen:
        set_trained(getattr(net, frozen), False)
    params = {"learning_rate": 0.1, "momentum": 0.5}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", params)
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    checkpoints = gs.CheckpointHandler(folder, every_n_batches=1, keep_last=None)
    loader = gs.data.ArrayLoader(X, Y, batch_size=4, shuffle=True, seed=0)
    all_handlers = [make(), checkpoints, *HANDLERS[handlers]()]
    estimator.fit(loader, epochs=epochs, event_handlers=all_handlers, resume=resume, verbose=0)
    return problems.weights_of(net), [p.grad_req for p in net.collect_params().values()]


@pytest.mark.slow
@pytest.mark.parametrize("handlers", HANDLERS)
@pytest.mark.parametrize("plan", PLANS)
def test_a_resume_goes_on_to_the_bit(plan, handlers, tmp_path):
    whole, grad_reqs = run(tmp_path / "whole", plan, handlers)
    checkpoints = sorted((tmp_path / "whole").glob("epoch-*"))
    assert len(checkpoints) > EPOCHS * BATCHES - 2
    for checkpoint in checkpoints:
        resumed, own = run(tmp_path / f"again-{checkpoint.name}", plan, handlers, checkpoint)
        assert problems.same(resumed, whole), checkpoint.name
        assert own == grad_reqs


@pytest.mark.slow
def test_a_layer_that_this_run_begins_with_otherwise(tmp_path, caplog):
    """Then the user has changed it, and it stays as it was given."""
    run(tmp_path, "frozen later", "plain", epochs=2)
    caplog.clear()
    _, grad_reqs = run(tmp_path, "trained later", "plain", "auto", is_frozen="head", epochs=2)
    assert grad_reqs == ["write", "write", "null", "null"]
    assert (
        "resume: parameter 'body.bias' is trained (grad_req) as this run was given it, and was "
        "frozen when the checkpoint was written"
    ) in caplog.text


@pytest.mark.slow
def test_accumulated_gradients_of_a_layer_that_is_trained_later():
    """Each step has the gradients of both batches, of all layers; 0.8 had the body's last one."""
    weights = []
    for batch_size, accumulate in ((8, 1), (4, 2)):
        mx.random.seed(0)
        net = Net()
        net.initialize(mx.init.Normal(0.5))
        net.cast("float64")
        set_trained(net.body, False)
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.125})
        estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
        handlers = [AtEpoch({1: {"body": True}}), gs.GradientUpdateHandler(accumulate)]
        loader = gs.data.ArrayLoader(X, Y, batch_size=batch_size)
        estimator.fit(loader, epochs=3, event_handlers=handlers, verbose=0)
        weights.append(problems.weights_of(net))
        assert {p.grad_req for p in net.collect_params().values()} == {"write"}
    assert problems.relative_difference(*weights) < 1e-12


@pytest.mark.slow
def test_a_layer_that_was_frozen_in_the_run_stays_frozen():
    net = Net()
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    handlers = [AtEpoch({1: {"body": False}}), gs.GradientUpdateHandler(accumulate=2)]
    loader = gs.data.ArrayLoader(X.astype("float32"), Y.astype("float32"), batch_size=4)
    estimator.fit(loader, epochs=2, event_handlers=handlers, verbose=0)
    grad_reqs = [p.grad_req for p in net.collect_params().values()]
    assert grad_reqs == ["null", "null", "write", "write"]


@pytest.mark.slow
def test_a_roll_back_freezes_again(tmp_path):
    seen = []

    class Fails(BatchBegin):
        def batch_begin(self, estimator, *args, **kwargs):
            seen.append([p.grad_req for p in estimator.net.collect_params().values()])
            if len(seen) == 7:
                estimator.roll_back("a test")

    net = Net()
    net.initialize()
    set_trained(net.body, False)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    handlers = [AtBatch({5: {"body": True}}), gs.CheckpointHandler(tmp_path), Fails()]
    loader = gs.data.ArrayLoader(X.astype("float32"), Y.astype("float32"), batch_size=4)
    estimator.fit(loader, epochs=2, event_handlers=handlers, verbose=0)
    frozen = [grad_reqs[0] == "null" for grad_reqs in seen]
    # Back to the end of the first epoch, after which one more batch has the body frozen.
    assert frozen == [True] * 5 + [False] * 2 + [True] + [False] * 3
