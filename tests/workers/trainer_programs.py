"""What several workers have in common when a trainer is used by hand: see test_trainer.py."""

import logging

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import workers
from gluon_svrg.arrays.batch import Batch, is_empty
from gluon_svrg.svrg import BatchGradient, GradientMoments, Interval
from mxnet import autograd


def everything():
    """Run all of them in one cluster."""
    return {
        function.__name__: function()
        for function in (
            refusals,
            a_late_start,
            a_late_shape,
            shapes_that_one_worker_knows,
            parameters_that_are_not_trained,
            a_gradient_that_is_nan_on_one_worker,
            an_overflow_on_one_worker,
            a_cancelled_pass,
            masks_of_a_worker_without_a_row,
            moments,
            a_full_gradient_by_hand,
            handlers_that_decide,
        )
    }


def refusals():
    own = workers.current()
    dense = mx.gluon.Parameter("dense", shape=(2,))
    sparse = mx.gluon.Parameter("sparse", shape=(2, 2), grad_stype="row_sparse")
    for param in (dense, sparse):
        param.initialize()
    messages = []
    for params, arguments in (
        ([dense], {"update_on_kvstore": True}),
        ([dense], {"compression_params": {"type": "2bit"}}),
        ([sparse], {}),
    ):
        try:
            gs.SVRGTrainer(params, "sgd", **arguments)
        except ValueError as error:
            messages.append(str(error))
    with workers.single_process():
        gs.SVRGTrainer([sparse], "sgd")
        store = mx.kv.create("device")
        gs.SVRGTrainer([dense], "sgd", kvstore=store, update_on_kvstore=True)
    own.barrier("end")
    return messages


def a_late_start():
    """The first step finds other weights: they become the first worker's, and a warning is left."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("gluon_svrg").addHandler(handler)
    net = dense(2)
    own = workers.current()
    net.weight.set_data(mx.nd.full((1, 2), own.rank + 1.0))
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    for _ in range(2):
        with autograd.record():
            loss = net(mx.nd.ones((1, 2)) * (own.rank + 1)).sum()
        loss.backward()
        trainer.step(1)
    logging.getLogger("gluon_svrg").removeHandler(handler)
    return [net.weight.data().asnumpy().tolist(), said]


def a_late_shape():
    """All but the last worker have no row of the first batch: they step all the same."""
    own = workers.current()
    net = mx.gluon.nn.Dense(1, use_bias=False)
    net.initialize(mx.init.One())
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    has_row = own.rank == own.size - 1
    if has_row:
        with autograd.record():
            loss = net(mx.nd.ones((1, 2))).sum()
        loss.backward()
    trainer.step(int(has_row))
    return net.weight.data().asnumpy().tolist()


def shapes_that_one_worker_knows():
    """The last worker alone has seen a batch; the others get shapes, and all the first's values."""
    own = workers.current()
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(1))
    mx.random.seed(own.rank)
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    if own.rank == own.size - 1:
        net(mx.nd.ones((2, 4)))
    trainer.synchronize(net)
    return [
        [list(param.shape), [data.asnumpy().tolist() for data in param.list_data()]]
        for param in net.collect_params().values()
    ]


def parameters_that_are_not_trained():
    """Each is given once: what a worker has afterwards stays its own."""
    own = workers.current()
    net = mx.gluon.nn.BatchNorm(in_channels=2)
    net.initialize()
    net.running_mean.set_data(mx.nd.full(2, own.rank + 7.0))
    trainer = gs.SVRGTrainer([net.gamma], "sgd")
    trainer.synchronize(net)
    values = [net.running_mean.data().asnumpy().tolist()]
    net.running_mean.set_data(mx.nd.full(2, own.rank + 7.0))
    trainer.synchronize(net)
    return [*values, net.running_mean.data().asnumpy().tolist()]


def a_gradient_that_is_nan_on_one_worker():
    own = workers.current()
    net = dense(2)
    batches = [mx.nd.ones((2, 2)), mx.nd.full((2, 2), np.nan if own.rank == 1 else 1.0)]
    try:
        interval_of(net).begin(batches)
    except FloatingPointError as error:
        return str(error)


def an_overflow_on_one_worker():
    """All halve the loss scale, as often."""
    own = workers.current()
    net = dense(1)

    class Scaler:
        loss_scale = 8.0

        def lower_loss_scale(self):
            self.loss_scale /= 2
            return True

    scaler = Scaler()
    interval = interval_of(net, scaler)
    # One worker's gradients overflow above a scale of 2.
    largest = np.finfo(np.float32).max
    batch = mx.nd.array([[largest / 3]] if own.rank == 1 else [[0.0]])
    interval.begin([batch])
    return scaler.loss_scale


def a_cancelled_pass():
    """All break it off before the same batch."""
    own = workers.current()
    asked = []

    def is_cancelled():
        asked.append(1)
        return own.all_any(own.rank == 1 and len(asked) == 2, "batch")

    net = dense(2)
    interval = Interval(
        net, backward_of(net), is_cancelled=is_cancelled, progress_bar=False, gradient_table=False
    )
    try:
        interval.begin([mx.nd.ones((2, 2)) for _ in range(4)])
    except gs.events.Interrupted:
        return len(asked)


def masks_of_a_worker_without_a_row():
    """The network draws, though this worker cannot see it: all lock their masks."""
    own = workers.current()
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3, in_units=2), mx.gluon.nn.Dropout(0.5))
    net.initialize()
    interval = Interval(net, backward_of(net), progress_bar=False, gradient_table=True)
    empty = Batch((), 0)
    first = Batch((mx.nd.ones((1, 2)),), 0) if own.rank == own.size - 1 else empty
    batches = [first, Batch((mx.nd.ones((1, 2)),), 1)]
    full_gradient = interval.begin(batches)
    return [interval.masks.is_needed, full_gradient.samples, interval.gradient_evaluations]


def moments():
    """They are those of one process that has all rows."""
    own = workers.current()
    rows = np.random.default_rng(0).standard_normal((4, 5, 2, 3))

    def add(moments, rank, size):
        for here, there in rows.transpose(0, 2, 1, 3):
            share = slice(rank * 5 // size, (rank + 1) * 5 // size)
            sums = [{"w": [mx.nd.array(a[share].sum(0), dtype="float64")]} for a in (here, there)]
            samples = [len(here[share])]
            moments.add(BatchGradient(sums[0], samples), BatchGradient(sums[1], samples), 2.0, 3.0)
        return [moments.samples, moments.variance(), moments.ratio(0.5), moments.ratio()]

    together = add(GradientMoments(own), own.rank, own.size)
    return [together, add(GradientMoments(), 0, 1)]


def a_full_gradient_by_hand():
    """One of the own samples is averaged by the trainer; one that is averaged stays as it is."""
    own = workers.current()
    net = dense(2)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    trainer.synchronize()
    batch = mx.nd.full((own.rank + 1, 2), own.rank + 1.0)
    snapshot = gs.Snapshot(net)
    snapshot.take()
    full_gradient = snapshot.full_gradient(backward_of(net), [batch])
    values = []
    trainer.set_control_variate(full_gradient)
    values.append(trainer.full_gradient[net.weight.name][0].asnumpy().tolist())
    full_gradient = interval_of(net).begin([batch])
    assert full_gradient.is_of_all_workers
    trainer.set_control_variate(full_gradient)
    values.append(trainer.full_gradient[net.weight.name][0].asnumpy().tolist())
    return values


def handlers_that_decide():
    """The learning rate, the variance ratio, and when SVRG is switched off: as in one process."""

    def train():
        net = mx.gluon.nn.Dense(3, in_units=4)
        net.initialize(mx.init.Zero())
        net.cast("float64")
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        estimator = gs.Estimator(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), trainer=trainer)
        generator = np.random.default_rng(0)
        data = generator.standard_normal((70, 4))
        label = (data[:, 0] > 0) + 1.0 * (data[:, 1] > 0)
        loader = gs.data.ArrayLoader(data, label, batch_size=8, shuffle=True, seed=1)
        meter = gs.VarianceHandler(at=(50, 100), batches=4)
        svrg = gs.SVRGHandler(max_variance_ratio=0.02, recheck_every_n_epochs=2)
        result = estimator.fit(loader, epochs=6, event_handlers=[meter, svrg], verbose=0)
        return {
            "ratios": [record.average for record in meter.records],
            "counts": [meter.gradient_evaluations, svrg.gradient_evaluations],
            "given up": [svrg.criterion.off_since, svrg.criterion.times_off],
            "coefficients": [row.get("coefficient", -1) for row in result.history],
        }

    together = train()
    with workers.single_process():
        return [together, train()]


def dense(inputs):
    net = mx.gluon.nn.Dense(1, in_units=inputs, use_bias=False)
    net.initialize(mx.init.One())
    return net


def backward_of(net, scaler=None):
    def backward(batch):
        if is_empty(batch):
            return []
        data = batch[0] if isinstance(batch, Batch) else batch
        with autograd.record():
            loss = net(data).sum(axis=1)
            if scaler is not None:
                loss = loss * scaler.loss_scale
        loss.backward()
        return loss

    return backward


def interval_of(net, scaler=None):
    return Interval(net, backward_of(net, scaler), loss_scaler=scaler, progress_bar=False)
