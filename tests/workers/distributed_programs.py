"""What the workers of test_distributed.py do: kvstore="dist_sync"."""

import subprocess
import sys

import gluon_svrg as gs
import mxnet as mx
from gluon_svrg import workers
from mxnet import autograd, gluon


class Line(gluon.Block):
    """y = w * x: the gradient of a sample's output is its x."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(1,), init=mx.init.Constant(10))

    def forward(self, x):
        return x * self.weight.data()


def steps():
    """Take steps of SVRG; each worker has its own samples."""
    net = Line()
    net.initialize()
    trainer = gs.SVRGTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore="dist_sync"
    )
    rank = trainer.workers.rank
    samples = mx.nd.array([1.0, 1.0] if rank == 0 else [4.0])

    def backward(batch):
        with autograd.record():
            loss = net(batch)
        loss.backward()
        return loss

    snapshot = gs.Snapshot(net)
    means, weights = [], []
    for _ in range(3):
        snapshot.take()
        trainer.set_control_variate(snapshot.full_gradient(backward, [samples]))
        backward(samples)
        trainer.correct(snapshot.gradient(backward, samples))
        trainer.step(len(samples))  # the sum is divided by the 3 samples of both workers
        means.append(float(trainer.full_gradient[net.weight.name][0].asscalar()))
        weights.append(float(net.weight.data().asscalar()))
    return {"rank": rank, "full_gradients": means, "weights": weights}


def refusals():
    net = Line()
    net.initialize()
    said = {}
    for name, arguments in (
        ("updates", {"kvstore": "dist_sync", "update_on_kvstore": True}),
        ("dist_async", {"kvstore": "dist_async"}),
        ("p3store_dist", {"kvstore": "p3store_dist"}),
    ):
        try:
            gs.SVRGTrainer(net.collect_params(), "sgd", **arguments)
        except ValueError as error:
            said[name] = str(error)
    return said


def everything():
    return steps() | refusals()


def child():
    """Return who a process that this one starts belongs to."""
    workers.current()
    code = (
        "import json; from gluon_svrg import workers; own = workers.current()\n"
        "print(json.dumps([type(own).__name__, own.size]))"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
