"""A kvstore that is none of MXNet's own, as Horovod's would be, and a training with it."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import workers
from mxnet.kvstore import KVStoreBase


class Ring(KVStoreBase):
    """Adds up by itself; it has what a `gluon.Trainer` asks of one, and no more."""

    type, rank, num_workers = "ring", 0, 1  # properties of the base class

    def __init__(self, workers=None):
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        self.rank, self.num_workers = self.world.rank, workers or self.world.size
        self.calls = 0

    @staticmethod
    def is_capable(capability):
        return False

    def broadcast(self, key, value, out, priority=0):
        raise NotImplementedError

    def pushpull(self, key, value, out=None, priority=0):
        self.calls += 1
        total = sum(self.world.allgather(value.asnumpy()))
        (value if out is None else out)[:] = mx.nd.array(total, dtype=total.dtype)


def train():
    """Return the weights over the ring, and those of one process."""
    found = []
    workers.current()
    store = Ring()
    for kvstore in (store, None):
        with_others = kvstore is not None
        data = np.random.RandomState(0).standard_normal((24, 5))
        label = data.sum(axis=1, keepdims=True)
        net = mx.gluon.nn.Dense(1, in_units=5, prefix="net_")
        net.initialize(mx.init.Constant(0.1 * (1 + store.rank * with_others)))
        net.cast("float64")
        if with_others:
            trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore)
            found += [type(trainer.workers).__name__, trainer.workers.rank]
            fit(net, trainer, data, label)
            found.append(store.calls)
        else:
            with workers.single_process():
                trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
                fit(net, trainer, data, label)
        found.append(net.weight.data().asnumpy().ravel().tolist())
    return found


def fit(net, trainer, data, label):
    loader = gs.data.ArrayLoader(data, label, batch_size=8, shuffle=True, seed=3)
    estimator = gs.Estimator(net, mx.gluon.loss.L2Loss(), trainer=trainer)
    estimator.fit(loader, epochs=3, event_handlers=[gs.SVRGHandler()], verbose=0)


class Lazy(Ring):
    """Leaves what it was given."""

    def pushpull(self, key, value, out=None, priority=0):
        pass


class Mean(Ring):
    """Leaves the mean, as kvstores elsewhere do."""

    def pushpull(self, key, value, out=None, priority=0):
        super().pushpull(key, value, out, priority)
        total = value if out is None else out
        total /= self.num_workers


def refused():
    """Return what is said of kvstores that do not add up, and of one of other processes."""
    net = mx.gluon.nn.Dense(1, in_units=2)
    net.initialize()
    said = []
    for kvstore in (Lazy(), Mean(), Ring(workers=7)):
        try:
            gs.SVRGTrainer(net.collect_params(), "sgd", kvstore=kvstore)
        except ValueError as error:
            said.append(str(error))
    return said


def everything():
    return {"train": train(), "refused": refused()}


class Alone(KVStoreBase):
    """Of one process, with two contexts."""

    type, rank, num_workers = "alone", 0, 1

    def __init__(self):
        self.calls = 0

    @staticmethod
    def is_capable(capability):
        return False

    def broadcast(self, key, value, out, priority=0):
        value = value.copy()
        for one in out:
            value.copyto(one)

    def pushpull(self, key, value, out=None, priority=0):
        self.calls += 1
        total = sum(one.as_in_context(mx.cpu(0)) for one in value)
        for one in value if out is None else out:
            total.copyto(one)


def alone():
    """Return how often it was called, and the weights."""
    net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
    contexts = [mx.cpu(0), mx.cpu(1)]
    net.initialize(mx.init.One(), ctx=contexts)
    store = Alone()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)
    for context in contexts:
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 2), ctx=context)).sum()
        loss.backward()
    trainer.step(4)
    return store.calls, [one.asnumpy().ravel().tolist() for one in net.weight.list_data()]
