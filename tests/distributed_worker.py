"""One process of the cluster of test_distributed.py; its role is in DMLC_ROLE."""

import json
import logging
import sys

import gluon_svrg as gs  # in the scheduler and the server, the import of MXNet runs them
import mxnet as mx
from mxnet import autograd, gluon


class Line(gluon.Block):
    """y = w * x: the gradient of a sample's output is its x."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(1,), init=mx.init.Constant(10))

    def forward(self, x):
        return x * self.weight.data()


def svrg_trainer(update_on_kvstore=False):
    """Take one step of SVRG; each worker has its own samples."""
    net = Line()
    net.initialize()
    trainer = gs.SVRGTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.5},
        kvstore="dist_sync",
        update_on_kvstore=update_on_kvstore,
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
        trainer.step(3)  # gradients are summed over the workers, which have 3 samples together
        means.append(float(trainer.full_gradient[net.weight.name][0].asscalar()))
        weights.append(float(net.weight.data().asscalar()))
    return {"rank": rank, "full_gradients": means, "weights": weights}


def update_on_kvstore():
    """Let the server run the optimizer, which workers that equal one process cannot have."""
    try:
        return svrg_trainer(update_on_kvstore=True)
    except ValueError as error:
        return {"rank": 0, "error": str(error)}


def optimizer_on_the_server(name):
    """Take two steps of an optimizer of this package, which a server of MXNet runs."""
    params = [gluon.Parameter(n, shape=(2,)) for n in ("x_weight", "x_gamma")]
    params[1].lr_mult = 0.5
    for param in params:
        param.initialize(mx.init.One())
    trainer = gluon.Trainer(
        params,
        gs.optimizer.create(name, learning_rate=0.25, momentum=0.5),
        kvstore="dist_sync",
        update_on_kvstore=True,
    )
    for _ in range(2):
        with autograd.record():
            loss = sum((param.data() * mx.nd.array([3, 4])).sum() for param in params)
        loss.backward()
        trainer.step(2)  # two workers with one sample each
    return {
        "rank": trainer._kvstore.rank,
        "weights": [param.data().asnumpy().tolist() for param in params],
    }


def lars_on_the_server():
    return optimizer_on_the_server("lars")


def signum_on_the_server():
    return optimizer_on_the_server("signum")


def svrg_module():
    """Compute the full gradient by MXNet's SVRGModule, alone and with the other worker."""
    from mxnet.contrib.svrg_optimization.svrg_module import SVRGModule

    data, label = mx.sym.var("data"), mx.sym.var("label")
    weight = mx.sym.var("weight", shape=(1,))
    out = mx.sym.MakeLoss(mx.sym.broadcast_mul(data, weight) + 0 * label)
    values = {}
    for kvstore in ("local", "dist_sync"):
        module = SVRGModule(
            out, label_names=["label"], update_freq=1, logger=logging.getLogger("quiet")
        )
        iterator = mx.io.NDArrayIter(
            mx.nd.array([3.0, 3.0]), mx.nd.zeros((2,)), batch_size=1, label_name="label"
        )
        module.bind(iterator.provide_data, iterator.provide_label)
        module.init_params(mx.init.Constant(10))
        store = mx.kv.create(kvstore)
        module.init_optimizer(kvstore=store, optimizer_params={"learning_rate": 0.5})
        module.update_full_grads(iterator)
        values[kvstore] = float(module._param_dict[0]["weight"].asscalar())
    return {"rank": store.rank, "local": values["local"], "distributed": values["dist_sync"]}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
