"""Loops by hand over several workers: the one of docs/api.md, one of Dive into Deep Learning."""

import logging

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import workers
from mxnet import autograd, gluon
from mxnet.gluon import nn

RNG = np.random.RandomState(0)
X = RNG.normal(size=(22, 6))
Y = RNG.randint(0, 3, 22).astype("float64")


def network():
    """Its weights differ from worker to worker until they are the first one's."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=6, activation="tanh"), nn.Dense(3, in_units=5))
    net.initialize()
    net.cast("float64")
    rank = workers.current().rank
    for number, param in enumerate(net.collect_params().values()):
        values = np.random.RandomState(10 * rank + number).normal(size=param.shape)
        param.set_data(mx.nd.array(values, dtype="float64"))
    return net


def weights_of(net):
    return [param.data().asnumpy().ravel().tolist() for param in net.collect_params().values()]


def data_of(kind, batch_size):
    if kind == "ArrayLoader":
        return gs.data.ArrayLoader(X, Y, batch_size=batch_size, shuffle=True, seed=3)
    if kind == "list":
        return [
            tuple(mx.nd.array(a[i : i + batch_size], dtype="float64") for a in (X, Y))
            for i in range(0, len(X), batch_size)
        ]
    dataset = gluon.data.ArrayDataset(X, Y)
    np.random.seed(5)
    if kind == "DataLoader":
        return gluon.data.DataLoader(dataset, batch_size=batch_size, shuffle=True)
    sampler = gs.data.WorkerBatchSampler(gluon.data.RandomSampler(len(X)), batch_size)
    return gluon.data.DataLoader(dataset, batch_sampler=sampler)


def readme(kind, batch_size):
    """Run the loop of docs/api.md, but for the line that makes the data."""
    net = network()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    train_data = gs.data.shard(data_of(kind, batch_size))
    loss_function = gluon.loss.SoftmaxCELoss()
    weights = []

    def backward(batch):
        with autograd.record():
            loss = loss_function(net(batch[0]), batch[1])
        loss.backward()
        return loss

    interval = gs.svrg.Interval(net, backward)
    trainer.synchronize(net)
    for _ in range(3):
        trainer.set_control_variate(interval.begin(train_data))
        for index, batch in enumerate(train_data):
            interval.before(batch, index)
            loss = backward(batch)
            trainer.correct(interval.gradient(batch, index))
            trainer.step(len(loss))
            weights.append(weights_of(net))
        interval.check()
    trainer.clear_control_variate()
    return weights


def train_epoch(net, train_iter, loss, trainer):
    """Train for one epoch, as in Dive into Deep Learning: the step has the size of the batch."""
    for X, y in train_iter:
        with autograd.record():
            losses = loss(net(X), y)
        losses.backward()
        trainer.step(X.shape[0])


def d2l(kind, batch_size, divide=gs.data.shard):
    """Train by `train_epoch`."""
    net = network()
    trainer = gs.SVRGTrainer(net.collect_params(), "adam", {"learning_rate": 0.05})
    trainer.synchronize(net)
    train_iter = divide(data_of(kind, batch_size))
    weights = []
    for _ in range(3):
        train_epoch(net, train_iter, gluon.loss.SoftmaxCELoss(), trainer)
        weights.append(weights_of(net))
    return weights


def clipped():
    """A loop that clips between the sum and the update."""
    net = network()
    params = net.collect_params()
    trainer = gs.SVRGTrainer(params, "sgd", {"learning_rate": 0.5}, update_on_kvstore=False)
    trainer.synchronize(net)
    for x, y in gs.data.shard(data_of("list", 8)):
        with autograd.record():
            losses = gluon.loss.SoftmaxCELoss()(net(x), y)
        losses.backward()
        trainer.allreduce_grads()
        for param in params.values():
            param.grad()[:] = param.grad().clip(-0.5, 0.5)
        trainer.update(len(losses))
    return [weights_of(net)]


def accumulated():
    """A loop that steps once for two batches."""
    net = network()
    params = net.collect_params()
    params.setattr("grad_req", "add")
    trainer = gs.SVRGTrainer(params, "sgd", {"learning_rate": 0.5})
    trainer.synchronize(net)
    samples = 0
    for index, (x, y) in enumerate(gs.data.shard(data_of("list", 6))):
        with autograd.record():
            losses = gluon.loss.SoftmaxCELoss()(net(x), y)
        losses.backward()
        samples += len(losses)
        if index % 2:
            trainer.step(samples)
            params.zero_grad()
            samples = 0
    return [weights_of(net)]


KINDS = ("ArrayLoader", "list", "DataLoader", "WorkerBatchSampler")
CASES = {
    **{f"api.md, {kind}": (readme, kind, 8) for kind in KINDS},
    **{f"D2L, {kind}": (d2l, kind, 8) for kind in KINDS},
    # Slower, but the same network: the mean over all samples is that of each worker's.
    "whole batches on each worker": (d2l, "list", 8, list),
    "clipped": (clipped,),
    "accumulated": (accumulated,),
}


def too_few_rows():
    """Return what a worker without a row is told; the others do not wait for it here."""
    try:
        return [len(x) for x, _ in gs.data.shard(data_of("list", 7))]
    except ValueError as error:
        return str(error)


def by_hand():
    """Return the weights of a loop that divides its batches without `shard`."""
    own = workers.current()
    net = network()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    trainer.synchronize(net)
    for x, y in data_of("list", 8):
        with autograd.record():
            losses = gluon.loss.SoftmaxCELoss()(
                net(x[own.rank :: own.size]), y[own.rank :: own.size]
            )
        losses.backward()
        trainer.step(len(losses))
    return weights_of(net)


def plain_trainers():
    """Return what is logged of trainers of MXNet's own, of which two are made."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("gluon_svrg")
    logger.addHandler(handler)
    for _ in range(2):
        gluon.Trainer(network().collect_params(), "sgd")
    gs.SVRGTrainer(network().collect_params(), "sgd")
    logger.removeHandler(handler)
    return lines


def everything():
    results = {name: [function(*given)] for name, (function, *given) in CASES.items()}
    results |= {"too few": too_few_rows(), "plain": plain_trainers(), "by hand": [by_hand()]}
    with workers.single_process():
        results["by hand"].append(by_hand())
        for name, (function, *given) in CASES.items():
            results[name].append(function(*given))
    return results
