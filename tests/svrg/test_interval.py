"""The Interval by hand: the weights of SVRGHandler in an Estimator, bit for bit."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.data import ArrayLoader
from gluon_svrg.svrg import Interval
from mxnet import autograd, gluon
from mxnet.gluon import nn

EPOCHS = 3


def network():
    gs.seed_everything(3)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6, activation="tanh"), nn.Dropout(0.5))
        net.add(nn.Dense(3, in_units=8))
    net.cast("float64")
    net.initialize(mx.init.Normal(0.5))
    return net, gs.SVRGTrainer(net.collect_params(), "nag", {"learning_rate": 0.1, "momentum": 0.5})


def data_of(kind):
    batches = problems.make("softmax").ndarrays()
    if kind == "list":
        return batches
    arrays = [mx.nd.concat(*column, dim=0) for column in zip(*batches, strict=True)]
    return ArrayLoader(*arrays, batch_size=8, shuffle=kind == "shuffled", seed=4)


@pytest.mark.slow
@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("kind", ["list", "in order", "shuffled"])
def test_the_loop_by_hand_gives_the_weights_of_the_handler(kind, table):
    loss = gluon.loss.SoftmaxCELoss()
    net, trainer = network()
    data, handler = data_of(kind), gs.SVRGHandler(gradient_table=table)
    mx.random.seed(7)
    gs.Estimator(net, loss, trainer=trainer).fit(data, epochs=EPOCHS, event_handlers=handler)
    expected = problems.weights_of(net)

    net, trainer = network()
    backward = problems.backward_of(net, loss)
    interval = Interval(net, backward, gradient_table=table)
    data = data_of(kind)
    mx.random.seed(7)
    for _ in range(EPOCHS):
        trainer.set_control_variate(interval.begin(data))
        for index, batch in enumerate(data):
            interval.before(batch, index)
            losses = backward(batch)
            trainer.correct(interval.gradient(batch, index))
            trainer.step(len(losses))
        interval.check()
    assert problems.same(problems.weights_of(net), expected)
    assert (interval.table is not None) == table
    assert interval.gradient_evaluations == EPOCHS * 37 * (1 if table else 2)
    assert interval.masks.is_needed


def test_averaged_over_the_batches_the_corrected_gradient_is_the_full_gradient():
    """With other weights, dropout and the masks of the pass; without `before` it is not."""
    loss = gluon.loss.SoftmaxCELoss()
    batches = problems.make("softmax").ndarrays()

    def total(locks):
        net, _ = network()
        backward = problems.backward_of(net, loss)
        interval = Interval(net, backward)
        mean = interval.begin(batches)
        names = list(mean.means)
        params = net.collect_params()
        own, there = (dict.fromkeys(names, 0) for _ in range(2))
        for index, batch in enumerate(batches):
            if locks:
                interval.before(batch, index)
            backward(batch)
            for name, grads in interval.gradient_at(batch, index).sums.items():
                own[name] = own[name] + params[name].grad().asnumpy()
                there[name] = there[name] + grads[0].asnumpy()
        return own, there

    own, there = total(locks=True)  # at the snapshot's weights the two gradients are the same
    assert all(np.array_equal(own[name], there[name]) for name in own)
    own, there = total(locks=False)
    assert any(np.abs(own[name] - there[name]).max() > 1e-3 for name in own)


def test_the_network_comes_first():
    _, trainer = network()
    with pytest.raises(TypeError, match=r"needs a network, got SVRGTrainer: Interval\(net, backw"):
        Interval(trainer, lambda batch: None)


def test_a_batch_without_an_index_is_an_error():
    net, _ = network()
    interval = Interval(net, problems.backward_of(net, gluon.loss.SoftmaxCELoss()))
    batches = data_of("list")
    interval.begin(batches)
    with pytest.raises(ValueError, match=r"no index of its own: give its number .* enumerate"):
        interval.before(batches[0])


@pytest.mark.parametrize("kind", ["in order", "shuffled"])
def test_a_loaders_batch_has_its_own_index(kind):
    net, _ = network()
    backward = problems.backward_of(net, gluon.loss.SoftmaxCELoss())
    interval = Interval(net, backward, gradient_table=True)
    data = data_of(kind)
    interval.begin(data)
    for wrong, batch in enumerate(reversed(list(data))):
        of_table = interval.gradient_at(batch)
        assert interval.gradient_at(batch, wrong).sums is of_table.sums
        interval.masks.lock(batch.index)
        direct = interval.snapshot.gradient(backward, batch)
        for name, grads in direct.sums.items():
            assert np.array_equal(grads[0].asnumpy(), of_table.sums[name][0].asnumpy())


def test_batches_of_a_loader_in_a_list_are_counted_by_their_place():
    """They carry the index of the loader's partition, which is not that of the list."""
    net, _ = network()
    loader = data_of("shuffled")
    batches = gs.data.first_batches(loader, 3)
    assert [batch.index for batch in batches] != [0, 1, 2]
    interval = Interval(net, problems.backward_of(net, gluon.loss.SoftmaxCELoss()))
    interval.begin(batches)
    for index, batch in enumerate(batches):
        assert interval.table.gradient(index, tuple(batch)) is interval.gradient_at(batch, index)
    with pytest.raises(ValueError, match="no index of its own"):
        interval.before(batches[0])  # not by the loader's


def test_a_batch_of_a_loader_that_was_made_anew_is_an_error():
    net, _ = network()
    interval = Interval(net, problems.backward_of(net, gluon.loss.SoftmaxCELoss()))
    data = data_of("shuffled")
    interval.begin(data)
    with pytest.raises(ValueError, match="of an ArrayLoader the batch as it came"):
        interval.before(tuple(data[0]), 0)


def test_former_data_are_unlocked():
    net, _ = network()
    interval = Interval(net, problems.backward_of(net, gluon.loss.SoftmaxCELoss()))
    first, second = data_of("shuffled"), data_of("in order")
    interval.begin(first)
    interval.begin(second)
    assert (first.locked_draw, second.locked_draw) == (None, 2)
    interval.end()
    assert second.locked_draw is None


def test_gradients_carry_their_loss_scale():
    """That of the moment at which they were computed, in the table too."""

    class Scaler:
        loss_scale = 8.0

        def lower_loss_scale(self):
            return False

    net, _ = network()
    loss = gluon.loss.SoftmaxCELoss()

    def backward(batch):
        with autograd.record():
            losses = loss(net(batch[0]), batch[1])
            scaled = losses * scaler.loss_scale
        scaled.backward()
        return losses

    scaler, batches = Scaler(), data_of("list")
    kept = Interval(net, backward, loss_scaler=scaler)
    computed = Interval(net, backward, gradient_table=False, loss_scaler=scaler)
    scales = [interval.begin(batches).loss_scale for interval in (kept, computed)]
    scaler.loss_scale = 4.0
    scales += [interval.gradient_at(batches[0], 0).loss_scale for interval in (kept, computed)]
    assert scales == [8.0, 8.0, 8.0, 4.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"gradient_table": "yes"}, ValueError, "gradient_table must be 'auto' or a bool"),
        ({"table_memory": -1}, ValueError, "table_memory must be a number of bytes, got -1"),
        ({"table_memory": "1G"}, TypeError, "table_memory must be a number of bytes, got '1G'"),
        ({"lock": True}, ValueError, "lock must be 'auto', 'require' or 'off', got True"),
    ],
)
def test_bad_arguments_are_errors(arguments, error, message):
    net, _ = network()
    with pytest.raises(error, match=message):
        Interval(net, print, **arguments)


def weights_by_hand(net, trainer, backward, data, step, **arguments):
    """Train in the documented loop; `step` says how many samples a batch has."""
    interval = Interval(net, backward, **arguments)
    for _ in range(EPOCHS):
        trainer.set_control_variate(interval.begin(data))
        for index, batch in enumerate(data):
            interval.before(batch, index)
            backward(batch)
            trainer.correct(interval.gradient(batch, index))
            trainer.step(step(batch))
        interval.check()
    return problems.weights_of(net)


@pytest.mark.slow
@pytest.mark.parametrize("table", [True, False])
def test_an_iterator_of_mxnet_by_hand(table):
    """Its batches are pairs, without padding; they have the weights of a list of pairs."""
    problem, loss = problems.make("softmax", samples=30), gluon.loss.SoftmaxCELoss()
    x, y = (np.concatenate(column) for column in zip(*problem.batches, strict=True))
    iterator = mx.io.NDArrayIter(*(mx.nd.array(part, dtype="float64") for part in (x, y)), 8)
    pairs = [
        tuple(mx.nd.array(part[i : i + 8], dtype="float64") for part in (x, y))
        for i in range(0, len(x), 8)
    ]

    def train(data):
        net, trainer = network()
        backward = problems.backward_of(net, loss)
        return weights_by_hand(
            net, trainer, backward, data, lambda b: len(b[0]), gradient_table=table
        )

    assert problems.same(train(gs.data.shard(iterator)), train(pairs))


def test_an_iterator_that_is_given_as_it_is():
    net, _ = network()
    interval = Interval(net, problems.backward_of(net, gluon.loss.SoftmaxCELoss()))
    iterator = mx.io.NDArrayIter(mx.nd.ones((8, 6)), mx.nd.zeros((8,)), batch_size=4)
    with pytest.raises(ValueError, match=r"an? NDArrayIter yields .* gluon_svrg.data.shard\("):
        interval.begin(iterator)


@pytest.mark.parametrize("hybridize", [False, True])
def test_a_network_that_has_not_inferred_its_shapes(hybridize, mode):
    """The loop is that of a network that has run before: nothing is trained ahead."""
    loss = gluon.loss.SoftmaxCELoss()
    problem = problems.make("softmax", dtype="float32")

    def train(runs_before):
        gs.seed_everything(3)
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(nn.Dense(8, activation="tanh"), nn.BatchNorm(), nn.Dense(3))
        net.initialize(mx.init.Normal(0.5))
        if hybridize:
            net.hybridize()
        batches = problem.ndarrays("float32")
        if runs_before:
            net(batches[0][0])
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        backward = problems.backward_of(net, loss)
        return weights_by_hand(net, trainer, backward, batches, lambda b: len(b[0]))

    assert problems.same(train(False), train(True))


def test_a_shape_that_no_batch_tells_is_an_error():
    class Unused(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Dense(3), nn.Dense(2)

        def hybrid_forward(self, F, x):
            return self.used(x)

    net = Unused()
    net.initialize()
    backward = problems.backward_of(net, gluon.loss.SoftmaxCELoss())
    with pytest.raises(RuntimeError, match=r"'.*' has no shape yet, because no batch reaches its"):
        Interval(net, backward).begin(problems.make("softmax").ndarrays("float32"))
