"""A loop by hand in which a call is left out: an error that names it, or the same weights."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.data import ArrayLoader
from gluon_svrg.svrg import GradientMoments, Interval, Snapshot, VarianceMeter
from mxnet import autograd, gluon
from mxnet.gluon import nn
from problems import ONE, TWO

LOSS = gluon.loss.SoftmaxCELoss()
SIZE, BATCHES = 8, 4
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(SIZE * BATCHES, 6)).astype("float32")
LABELS = RNG.integers(0, 3, SIZE * BATCHES).astype("float32")


class Reader(mx.io.DataIter):
    """An iterator of which nothing else is known; it may write into the same arrays again."""

    def __init__(self):
        super().__init__(SIZE)
        self._inner = mx.io.NDArrayIter(ROWS, LABELS, SIZE)

    def reset(self):
        self._inner.reset()

    def next(self):
        return self._inner.next()


def list_of_batches():
    return [
        (mx.nd.array(ROWS[i : i + SIZE]), mx.nd.array(LABELS[i : i + SIZE]))
        for i in range(0, len(ROWS), SIZE)
    ]


DATA = {
    "list": list_of_batches,
    "ArrayLoader": lambda: ArrayLoader(ROWS, LABELS, batch_size=SIZE),
    "shuffled ArrayLoader": lambda: ArrayLoader(
        ROWS, LABELS, batch_size=SIZE, shuffle=True, seed=4
    ),
    "DataLoader": lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(ROWS, LABELS), SIZE),
    "shuffled DataLoader": lambda: gluon.data.DataLoader(
        gluon.data.ArrayDataset(ROWS, LABELS), SIZE, shuffle=True
    ),
    "NDArrayIter": lambda: mx.io.NDArrayIter(ROWS, LABELS, SIZE),
    "another DataIter": Reader,
}
HAVE_TABLE = {"list", "ArrayLoader", "shuffled ArrayLoader", "NDArrayIter"}
CALLS = ("begin", "before", "gradient", "correct", "check")


def network(dropout, contexts):
    gs.seed_everything(3)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=6, activation="tanh"), nn.Dropout(dropout))
        net.add(nn.Dense(3, in_units=5))
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    return net, gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5})


def backward_of(net, contexts):
    def backward(batch):
        parts = [gluon.utils.split_and_load(array, contexts) for array in batch]
        with autograd.record():
            losses = [LOSS(net(x), y) for x, y in zip(*parts, strict=True)]
        autograd.backward(losses)
        return losses

    return backward


def train(kind, table, dropout, contexts, without="", every=1):
    """Train in the documented loop, without one of its calls; return the weights."""
    net, trainer = network(dropout, contexts)
    backward, data = backward_of(net, contexts), gs.data.shard(DATA[kind]())
    interval = Interval(net, backward, gradient_table=table)
    for epoch in range(3):
        if without != "begin" and epoch % every == 0:
            trainer.set_control_variate(interval.begin(data))
        for index, batch in enumerate(data):
            if without != "before":
                interval.before(batch, index)
            backward(batch)
            if without != "gradient":
                gradient = interval.gradient(batch, index)
                if without != "correct":
                    trainer.correct(gradient)
            trainer.step(SIZE)
        if without != "check":
            interval.check()
    return problems.weights_of(net)


def expected_error(kind, dropout, without):
    """Return the type and the words of the error; None if the call is not needed here."""
    if without == "begin":
        return RuntimeError, "no snapshot yet: call begin"
    if without == "before" and dropout:
        return RuntimeError, r"of batch \d .* needs before\(\) of the same batch: it was not called"
    if without in ("gradient", "correct"):
        return RuntimeError, r"was not corrected: call correct\(\)"
    return None


CASES = [
    (kind, table, dropout, contexts)
    for kind in DATA
    for table in ((True, False) if kind in HAVE_TABLE else (False,))
    for dropout in (0.0, 0.5)
    for contexts in (ONE, TWO)
]
each_case = pytest.mark.parametrize(("kind", "table", "dropout", "contexts"), CASES)


@each_case
def test_a_call_that_is_left_out(kind, table, dropout, contexts):
    whole = train(kind, table, dropout, contexts)
    for without in CALLS:
        error = expected_error(kind, dropout, without)
        if error is None:
            assert problems.same(train(kind, table, dropout, contexts, without), whole), without
            continue
        with pytest.raises(error[0], match=error[1]):
            train(kind, table, dropout, contexts, without)


def test_an_epoch_without_a_batch():
    net, _ = network(0.0, ONE)
    interval = Interval(net, backward_of(net, ONE))
    interval.begin(list_of_batches())
    with pytest.raises(ValueError, match=r"no batch came since begin\(\) or the last check\(\)"):
        interval.check()


@pytest.mark.parametrize("dropout", [0.5, 0.0])
@pytest.mark.parametrize("table", [True, False])
def test_before_of_another_batch(table, dropout):
    """Fails on 0.8: without a table the gradient of another batch was taken for that of this."""
    net, trainer = network(dropout, ONE)
    backward, batches = backward_of(net, ONE), list_of_batches()
    interval = Interval(net, backward, gradient_table=table)
    trainer.set_control_variate(interval.begin(batches))
    interval.before(batches[0], 0)
    backward(batches[0])
    trainer.correct(interval.gradient(batches[0], 0))
    trainer.step(SIZE)
    interval.before(batches[0], 0)
    backward(batches[1])
    why = "the network has drawn" if dropout else "this may not be the batch"
    with pytest.raises(RuntimeError, match=rf"of batch 1 .* needs before.*: that was 0, so {why}"):
        interval.gradient(batches[1], 1)


@pytest.mark.parametrize("dropout", [0.5, 0.0])
@pytest.mark.parametrize("table", [True, False])
def test_the_gradient_of_a_batch_may_be_asked_for_twice(table, dropout):
    net, _ = network(dropout, ONE)
    backward, batches = backward_of(net, ONE), list_of_batches()
    interval = Interval(net, backward, gradient_table=table)
    interval.begin(batches)
    interval.before(batches[0], 0)
    backward(batches[0])
    first, second = (
        [array.asnumpy() for arrays in found.sums.values() for array in arrays]
        for found in (interval.gradient(batches[0], 0), interval.gradient(batches[0], 0))
    )
    assert problems.same(first, second)
    interval.begin(batches)
    if dropout:  # what was called for the last snapshot does not count
        with pytest.raises(RuntimeError, match="it was not called"):
            interval.gradient(batches[0], 0)


def test_other_batches_are_told_without_a_check_too():
    """The next full pass looks at what was not compared yet."""
    net, trainer = network(0.0, ONE)
    backward = backward_of(net, ONE)
    rows = ROWS.copy()
    data = gs.data.shard(mx.io.NDArrayIter(mx.nd.array(rows), mx.nd.array(LABELS), SIZE))
    interval = Interval(net, backward, gradient_table=True)
    trainer.set_control_variate(interval.begin(data))
    for index, batch in enumerate(data):
        if index:
            batch[0][:] *= 2
        interval.before(batch, index)
        backward(batch)
        trainer.correct(interval.gradient(batch, index))
        trainer.step(SIZE)
    with pytest.raises(ValueError, match=r"batch 1 .* has other values than it had in the full"):
        interval.begin(data)


@pytest.mark.parametrize("lock", ["auto", "off"])
def test_the_ratio_at_the_snapshot_by_hand(lock):
    """It is 0, unless training itself draws other masks for the two gradients."""
    ratios = {
        (kind, table, dropout, len(contexts)): _ratio(kind, table, dropout, contexts, lock)
        for kind, table, dropout, contexts in CASES
        if "shuffled DataLoader" not in kind and not (table and lock == "off")
    }
    for case, ratio in ratios.items():
        is_locked = lock == "auto" or not case[2]
        assert (ratio < 1e-9) == is_locked, case


def _ratio(kind, table, dropout, contexts, lock):
    net, _ = network(dropout, contexts)
    backward, data = backward_of(net, contexts), gs.data.shard(DATA[kind]())
    interval = Interval(net, backward, gradient_table=table, lock=lock)
    interval.begin(data)
    meter = VarianceMeter(net)
    if "Array" in kind and "Iter" not in kind:
        return meter.measure(backward, data, interval.gradient_at).ratio()
    moments = meter.measure(
        lambda item: backward(item[1]),
        enumerate(data),
        lambda item: interval.gradient_at(item[1], item[0]),
    )
    return moments.ratio()


@pytest.mark.parametrize("contexts", [ONE, TWO])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_ratio_at_a_snapshot_without_an_interval(dropout, contexts):
    net, _ = network(dropout, contexts)
    backward, snapshot = backward_of(net, contexts), Snapshot(net)
    snapshot.take()
    moments = VarianceMeter(net).measure(
        backward, list_of_batches(), lambda batch: snapshot.gradient(backward, batch)
    )
    assert moments.ratio() < 1e-9
    assert moments.variance() > 1e-3


def test_a_measurement_between_two_batches_changes_no_weight():
    """Beside the ratio of the training's own gradients, whose masks are those of `before`."""

    def weights(measures):
        net, trainer = network(0.5, ONE)
        backward, batches = backward_of(net, ONE), list_of_batches()
        interval, meter = Interval(net, backward), VarianceMeter(net)
        for _ in range(2):
            trainer.set_control_variate(interval.begin(batches))
            for index, batch in enumerate(batches):
                interval.before(batch, index)
                backward(batch)
                trainer.correct(interval.gradient(batch, index))
                trainer.step(SIZE)
                if measures:
                    measured = meter.measure(
                        lambda item: backward(item[1]),
                        enumerate(batches),
                        lambda item: interval.gradient_at(item[1], item[0]),
                    )
            interval.check()
        if measures:
            by_batches = _moments_by_training(net, interval, backward, batches)
            assert measured.ratio() == pytest.approx(by_batches.ratio(), rel=1e-6)
            assert 1e-3 < measured.ratio() < 0.9
        return problems.weights_of(net)

    assert problems.same(weights(measures=True), weights(measures=False))


def _moments_by_training(net, interval, backward, batches):
    """Return the moments of the gradients that the training would get."""
    moments = GradientMoments()
    for index, batch in enumerate(batches):
        interval.before(batch, index)
        samples = [len(loss) for loss in backward(batch)]
        grads = {name: param.list_grad() for name, param in net.collect_params().items()}
        there = interval.gradient_at(batch, index)
        own = there._replace(
            sums={name: [grad.copy() for grad in grads[name]] for name in there.sums},
            samples=samples,
        )
        moments.add(own, there)
    return moments
