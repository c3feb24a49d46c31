"""SVRGTrainer: a drop-in trainer, right with every optimizer, kvstore and kind of parameter."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.svrg import BatchGradient, FullGradient
from mxnet import autograd, gluon
from mxnet.gluon import nn
from problems import ONE, TWO

# 'test' is MXNet's own stub, 'ccsgd' a deprecated alias of 'sgd', GroupAdaGrad takes embeddings
# only, and the last two are helpers of SVRGModule.
OPTIMIZERS = sorted(
    set(mx.optimizer.Optimizer.opt_registry)
    - {"test", "ccsgd", "groupadagrad", "_svrgoptimizer", "_assignmentoptimizer"}
)


def make_net(contexts=ONE, dtype="float32", **layer):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="relu", in_units=6, **layer), nn.Dense(3, in_units=4, **layer))
    net.cast(dtype)
    mx.random.seed(3)
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    return net


def data_for(contexts, dtype="float32", samples=8, seed=1):
    """Return one batch, split over the contexts as the Estimator does."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(samples, 6)), rng.integers(0, 3, samples)
    batch = [mx.nd.array(part, dtype=dtype) for part in (x, y)]
    return [gluon.utils.split_and_load(part, contexts) for part in batch]


def backward_of(net, loss=None):
    """Return forward and backward of a batch that is split over contexts."""
    loss = loss or gluon.loss.SoftmaxCELoss()

    def backward(batch):
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(*batch, strict=True)]
        autograd.backward(losses)
        return losses

    return backward


def values(net):
    """Every copy of every parameter, to see that the devices stay in step, too."""
    return [data.asnumpy() for p in net.collect_params().values() for data in p.list_data()]


def train_by(make_trainer, contexts, correct, steps=3):
    """Train with a hand-made control variate; `correct(trainer, net, ...)` applies it."""
    net = make_net(contexts)
    backward = backward_of(net)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    trainer = make_trainer(net.collect_params())
    batches = [data_for(contexts, seed=seed) for seed in range(steps)]
    full_gradient = snapshot.full_gradient(backward, batches)
    for batch in batches:
        backward(batch)
        correct(trainer, net, full_gradient, snapshot.gradient(backward, batch))
        mx.random.seed(5)  # SGLD draws noise
        trainer.step(8)
    return values(net)


def correct_by_trainer(trainer, net, full_gradient, snapshot_gradient):
    if trainer.full_gradient is None:
        trainer.set_control_variate(full_gradient, 0.5)
    trainer.correct(snapshot_gradient)


def correct_by_hand(trainer, net, full_gradient, snapshot_gradient):
    for name, param in net.collect_params().items():
        mean = full_gradient.means[name].astype(param.dtype).asnumpy()
        for grad, twin, samples in zip(
            param.list_grad(), snapshot_gradient.sums[name], snapshot_gradient.samples, strict=True
        ):
            grad[:] = grad.asnumpy() - (twin.asnumpy() - mean * samples) * mean.dtype.type(0.5)


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_gets_the_corrected_gradient(optimizer, contexts):
    ours = train_by(lambda p: gs.SVRGTrainer(p, optimizer), contexts, correct_by_trainer)
    theirs = train_by(
        lambda p: gluon.Trainer(p, gs.optimizer.create(optimizer)), contexts, correct_by_hand
    )
    assert problems.same(ours, theirs)


# Not there: update_on_kvstore=True by name on one device, and several devices without a kvstore;
# gluon.Trainer has neither.
KVSTORES = [
    (kvstore, update_on_kvstore, contexts)
    for kvstore in (None, "local", "device", "a KVStore")
    for update_on_kvstore in (None, False, True)
    for contexts in (ONE, TWO)
    if not (kvstore is None and (update_on_kvstore or contexts == TWO))
    and not (kvstore in ("local", "device") and update_on_kvstore and contexts == ONE)
]


@pytest.mark.parametrize(("kvstore", "update_on_kvstore", "contexts"), KVSTORES)
def test_every_kvstore_gets_the_corrected_gradient(kvstore, update_on_kvstore, contexts):
    def make(trainer_class):
        store = mx.kv.create("local") if kvstore == "a KVStore" else kvstore
        return lambda params: trainer_class(
            params,
            "sgd",
            {"learning_rate": 0.1, "momentum": 0.9},
            kvstore=store,
            update_on_kvstore=update_on_kvstore,
        )

    ours = train_by(make(gs.SVRGTrainer), contexts, correct_by_trainer)
    assert problems.same(ours, train_by(make(gluon.Trainer), contexts, correct_by_hand))


class Scale(gluon.HybridBlock):
    """A layer that exists in float16 on a CPU, as Dense does not."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(1, 6))

    def hybrid_forward(self, F, x, weight):
        return F.broadcast_mul(x, weight).sum(axis=1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_dtype_gets_the_corrected_gradient(dtype):
    def train(trainer_class, correct):
        net = Scale()
        net.cast(dtype)
        mx.random.seed(3)
        net.initialize(mx.init.Normal(0.5), ctx=TWO)
        backward = backward_of(net, gluon.loss.L2Loss())
        optimizer = mx.optimizer.SGD(
            learning_rate=0.1, momentum=0.9, multi_precision=dtype == "float16"
        )
        trainer = trainer_class(net.collect_params(), optimizer)
        snapshot = gs.Snapshot(net)
        snapshot.take()
        batches = [data_for(TWO, dtype, seed=seed) for seed in range(3)]
        full_gradient = snapshot.full_gradient(backward, batches)
        for batch in batches:
            backward(batch)
            correct(trainer, net, full_gradient, snapshot.gradient(backward, batch))
            trainer.step(8)
        return values(net)

    ours = train(gs.SVRGTrainer, correct_by_trainer)
    assert ours[0].dtype == dtype
    assert problems.same(ours, train(gluon.Trainer, correct_by_hand))


@pytest.mark.parametrize("split", [False, True], ids=["step", "allreduce+update"])
def test_step_and_allreduce_with_update_are_the_same(split):
    net = make_net(TWO)
    backward = backward_of(net)
    trainer = gs.SVRGTrainer(net.collect_params(), "adam", update_on_kvstore=False)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    batches = [data_for(TWO, seed=seed) for seed in range(3)]
    trainer.set_control_variate(snapshot.full_gradient(backward, batches))
    for batch in batches:
        backward(batch)
        trainer.correct(snapshot.gradient(backward, batch))
        if split:
            trainer.allreduce_grads()
            trainer.update(8)
        else:
            trainer.step(8)
    theirs = train_by(
        lambda p: gs.SVRGTrainer(p, "adam", update_on_kvstore=False),
        TWO,
        lambda trainer, net, full, twin: (
            trainer.set_control_variate(full) if trainer.full_gradient is None else None,
            trainer.correct(twin),
        ),
    )
    assert problems.same(values(net), theirs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_without_a_control_variate_it_is_gluons_trainer(optimizer, contexts):
    """With weight decay, and an inference pass between epochs, on convolutions."""

    def train(make_trainer):
        net = nn.HybridSequential()
        net.add(nn.Conv2D(64, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=64))
        net.add(nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(3, in_units=64))
        mx.random.seed(3)
        net.initialize(mx.init.Xavier(), ctx=contexts)
        net.hybridize(static_alloc=True)
        trainer = make_trainer(net.collect_params())
        rng = np.random.default_rng(0)
        x, y = mx.nd.array(rng.normal(size=(8, 3, 8, 8))), mx.nd.array(np.arange(8) % 3)
        batch = [gluon.utils.split_and_load(part, contexts) for part in (x, y)]
        backward = backward_of(net)
        mx.random.seed(5)  # SGLD draws noise
        for _ in range(2):
            for _ in range(2):
                backward(batch)
                trainer.step(8)
            for part in batch[0]:
                net(part).wait_to_read()
        return values(net)

    params = {"learning_rate": 0.01, "wd": 1e-2}
    ours = train(lambda p: gs.SVRGTrainer(p, optimizer, params))
    theirs = train(lambda p: gluon.Trainer(p, gs.optimizer.create(optimizer, **params)))
    assert problems.same(ours, theirs)
    assert all(np.isfinite(array).all() for array in ours)


def test_after_clearing_it_is_gluons_trainer_again():
    net = make_net()
    backward = backward_of(net)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    snapshot = gs.Snapshot(net)
    snapshot.take()
    trainer.set_control_variate(snapshot.full_gradient(backward, [data_for(ONE)]))
    assert trainer.coefficient == 1.0
    trainer.clear_control_variate()
    assert trainer.coefficient == 0.0
    backward(data_for(ONE))
    before = net[0].weight.grad().asnumpy()
    trainer.step(8)
    assert np.array_equal(net[0].weight.grad().asnumpy(), before)


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_accumulated_gradients_are_corrected_batch_by_batch(contexts):
    """grad_req='add': two batches of 8 and one step equal one batch of 16."""

    def train(accumulate):
        net = make_net(contexts, "float64")
        backward = backward_of(net)
        parts = [data_for(contexts, "float64", seed=seed) for seed in range(2)]
        whole = [
            [mx.nd.concat(a, b, dim=0) for a, b in zip(*pair, strict=True)]
            for pair in zip(*parts, strict=True)
        ]
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        if accumulate:
            net.collect_params().setattr("grad_req", "add")
        snapshot = gs.Snapshot(net)
        for _ in range(2):
            snapshot.take()
            trainer.set_control_variate(snapshot.full_gradient(backward, [whole]), 0.7)
            for _ in range(2):
                for batch in parts if accumulate else [whole]:
                    backward(batch)
                    trainer.correct(snapshot.gradient(backward, batch))
                trainer.step(16)
                net.collect_params().zero_grad()
        return values(net)

    assert problems.relative_difference(train(True), train(False)) < 1e-14


def test_frozen_parameters_stay_and_the_rest_is_corrected():
    net = make_net()
    net[0].collect_params().setattr("grad_req", "null")
    before = values(net[0])
    backward = backward_of(net)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 0.1})
    snapshot = gs.Snapshot(net)
    snapshot.take()
    trainer.set_control_variate(snapshot.full_gradient(backward, [data_for(ONE)]))
    assert sorted(trainer.full_gradient) == sorted(net[1].collect_params())
    backward(data_for(ONE))
    trainer.correct(snapshot.gradient(backward, data_for(ONE)))
    trainer.step(8)
    assert problems.same(values(net[0]), before)


def test_a_parameter_frozen_after_the_snapshot_is_left_alone():
    net = make_net()
    backward = backward_of(net)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    snapshot = gs.Snapshot(net)
    snapshot.take()
    trainer.set_control_variate(snapshot.full_gradient(backward, [data_for(ONE)]))
    net[0].weight.grad_req = "null"
    before = net[0].weight.data().asnumpy()
    backward(data_for(ONE))
    trainer.correct(snapshot.gradient(backward, data_for(ONE)))
    trainer.step(8)
    assert np.array_equal(net[0].weight.data().asnumpy(), before)


def test_shared_parameters_are_corrected_once():
    def make_shared():
        net = nn.HybridSequential()
        first = nn.Dense(6, in_units=6, activation="tanh")
        net.add(first, nn.Dense(6, in_units=6, params=first.params), nn.Dense(3, in_units=6))
        mx.random.seed(3)
        net.initialize(mx.init.Normal(0.5))
        return net

    net = make_shared()
    assert len(net.collect_params().keys()) == 4
    backward = backward_of(net)
    batch, other = data_for(ONE, seed=1), data_for(ONE, seed=2)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    snapshot = gs.Snapshot(net)
    snapshot.take()
    full_gradient = snapshot.full_gradient(backward, [batch, other])
    trainer.set_control_variate(full_gradient)
    # At the snapshot's own weights the corrected gradient is the full gradient, whatever the batch.
    backward(batch)
    trainer.correct(snapshot.gradient(backward, batch))
    for name, mean in full_gradient.means.items():
        # float32, and a difference of gradients that nearly cancel.
        grad = net.collect_params()[name].grad().asnumpy()
        np.testing.assert_allclose(grad, 8 * mean.asnumpy(), rtol=1e-5, atol=1e-6)


def test_parameters_of_the_net_that_are_not_the_trainers_keep_their_gradients():
    net = make_net()
    backward = backward_of(net)
    trainer = gs.SVRGTrainer(net[1].collect_params(), "sgd", {"learning_rate": 0.1})
    snapshot = gs.Snapshot(net, net[1].collect_params())
    snapshot.take()
    trainer.set_control_variate(snapshot.full_gradient(backward, [data_for(ONE)]))
    assert sorted(trainer.full_gradient) == sorted(net[1].collect_params())
    backward(data_for(ONE, seed=9))
    others = net[0].weight.grad().asnumpy()
    trainer.correct(snapshot.gradient(backward, data_for(ONE, seed=9)))
    trainer.step(8)
    assert np.array_equal(net[0].weight.grad().asnumpy(), others)


def test_a_step_without_correction_is_an_error():
    net = make_net()
    backward = backward_of(net)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    snapshot = gs.Snapshot(net)
    snapshot.take()
    trainer.set_control_variate(snapshot.full_gradient(backward, [data_for(ONE)]))
    before = values(net)
    backward(data_for(ONE))
    with pytest.raises(RuntimeError, match=r"was not corrected: call correct\(\)"):
        trainer.step(8)
    assert problems.same(values(net), before)


def test_correcting_without_a_control_variate_is_an_error():
    net = make_net()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    with pytest.raises(RuntimeError, match=r"call set_control_variate\(\) first"):
        trainer.correct(BatchGradient({}, []))


def test_a_full_gradient_of_another_block_is_an_error():
    net = make_net()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    with pytest.raises(ValueError, match=r"lacks parameter .*dense.*, which this trainer trains"):
        trainer.set_control_variate(FullGradient({}, 1))
    assert trainer.full_gradient is None


@pytest.mark.parametrize(
    ("coefficient", "error"), [(1.5, ValueError), (-0.1, ValueError), ("1", TypeError)]
)
def test_a_bad_coefficient_is_an_error(coefficient, error):
    trainer = gs.SVRGTrainer(make_net().collect_params(), "sgd")
    with pytest.raises(error, match=r"coefficient must be .*\[0, 1\], got"):
        trainer.set_control_variate(FullGradient({}, 1), coefficient)


def test_correcting_twice_is_an_error():
    net = make_net()
    backward = backward_of(net)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    snapshot = gs.Snapshot(net)
    snapshot.take()
    trainer.set_control_variate(snapshot.full_gradient(backward, [data_for(ONE)]))
    backward(data_for(ONE))
    gradient = snapshot.gradient(backward, data_for(ONE))
    trainer.correct(gradient)
    with pytest.raises(
        RuntimeError, match=r"corrected already: call correct\(\) once per .* one SVRGHandler"
    ):
        trainer.correct(gradient)


def test_something_else_than_a_full_gradient_is_an_error():
    trainer = gs.SVRGTrainer(make_net().collect_params(), "sgd")
    with pytest.raises(TypeError, match=r"must be what Snapshot.full_gradient\(\) returns, got"):
        trainer.set_control_variate({})


class Branch(gluon.Block):
    """The first branch for batches of 4, the second for others."""

    def __init__(self):
        super().__init__()
        self.branches = [nn.Dense(3, in_units=6), nn.Dense(3, in_units=6)]
        for branch in self.branches:
            self.register_child(branch)

    def forward(self, x):
        return self.branches[0 if x.shape[0] == 4 else 1](x)


@pytest.mark.parametrize("kvstore", [None, "a KVStore that updates"])
def test_a_parameter_that_a_batch_does_not_use_is_corrected_as_well(kvstore):
    """The mean of the corrected gradients is the full gradient, whichever branch a batch takes."""
    net = Branch()
    net.initialize(mx.init.Normal(0.5))
    backward = backward_of(net)
    trainer = gs.SVRGTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.0},
        kvstore=kvstore and mx.kv.create("local"),
        update_on_kvstore=kvstore and True,
    )
    batches = [data_for(ONE, samples=n, seed=n) for n in (4, 8, 4, 6)]
    snapshot = gs.Snapshot(net)
    snapshot.take()
    full_gradient = snapshot.full_gradient(backward, batches)
    trainer.set_control_variate(full_gradient)
    total = dict.fromkeys(full_gradient.means, 0.0)
    for batch in batches:
        backward(batch)
        trainer.correct(snapshot.gradient(backward, batch))
        for name, param in net.collect_params().items():
            total[name] = total[name] + param.grad().asnumpy()
        trainer.step(len(batch[1][0]))
    for name, mean in full_gradient.means.items():
        # float32: each of the four terms is rounded.
        np.testing.assert_allclose(total[name] / 22, mean.asnumpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("optimizer", [gs.LARS, 3])
def test_an_optimizer_that_is_none_is_an_error(optimizer):
    with pytest.raises(ValueError, match="optimizer must be a name or an Optimizer, got"):
        gs.SVRGTrainer(make_net().collect_params(), optimizer)


def test_with_coefficient_zero_a_stale_gradient_is_gluons_warning_still():
    net = Branch()
    net.initialize(mx.init.Normal(0.5))
    backward = backward_of(net)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", kvstore=None)
    batches = [data_for(ONE, samples=n) for n in (4, 8)]
    snapshot = gs.Snapshot(net)
    snapshot.take()
    trainer.set_control_variate(snapshot.full_gradient(backward, batches), coefficient=0)
    backward(batches[0])
    trainer.correct(snapshot.gradient(backward, batches[0]))
    with pytest.raises(UserWarning, match="has not been updated by backward since last `step`"):
        trainer.step(4)


class Interrupted(gs.optimizer.Optimizer):
    """Raises in its first step, as Ctrl-C does there."""

    def create_state(self, index, weight):
        return None

    def step(self, indices, weights, grads, states):
        raise KeyboardInterrupt


@pytest.mark.parametrize("update_on_kvstore", [True, False])
def test_an_error_in_the_optimizer_is_raised(update_on_kvstore):
    """MXNet's kvstore calls the optimizer from C++, which loses errors: it raised nothing."""
    net = make_net(TWO)
    trainer = gs.SVRGTrainer(
        net.collect_params(), Interrupted(), kvstore="device", update_on_kvstore=update_on_kvstore
    )
    backward_of(net)(data_for(TWO))
    with pytest.raises(KeyboardInterrupt):
        trainer.step(8)


@pytest.mark.parametrize("reduces", [False, True])
def test_update_makes_the_checks_of_step(reduces):
    problem = problems.make("mlp")
    backward = problems.backward_of(problem.net, problem.loss)
    batches = problem.ndarrays()

    def trained(step):
        problem = problems.make("mlp")
        backward = problems.backward_of(problem.net, problem.loss)
        trainer = gs.SVRGTrainer(
            problem.net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=False
        )
        interval = gs.svrg.Interval(problem.net, backward)
        trainer.set_control_variate(interval.begin(batches))
        for index, batch in enumerate(batches):
            backward(batch)
            trainer.correct(interval.gradient(batch, index))
            step(trainer, len(batch[0]))
        return problem.params

    def update(trainer, samples):
        if reduces:
            trainer.allreduce_grads()
        trainer.update(samples)

    assert problems.same(trained(update), trained(lambda trainer, n: trainer.step(n)))

    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", update_on_kvstore=False)
    interval = gs.svrg.Interval(problem.net, backward)
    trainer.set_control_variate(interval.begin(batches))
    before = problem.params
    backward(batches[0])
    with pytest.raises(RuntimeError, match="the gradient of this step was not corrected: call"):
        trainer.update(8)
    assert problems.same(problem.params, before)
    trainer.correct(interval.gradient(batches[0], 0))
    trainer.update(8)
    backward(batches[1])
    with pytest.raises(RuntimeError, match="the gradient of this step was not corrected: call"):
        trainer.update(8)
