"""Gradients that are float16 between workers: see test_half.py."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import workers
from gluon_svrg.svrg import Interval
from mxnet import autograd, gluon
from mxnet.gluon import nn
from workers.loop_programs import connected_anew

FP16 = {"type": "fp16"}


def everything():
    """Run all of them in one cluster."""
    return {
        function.__name__: function()
        for function in (
            steps,
            edges,
            overflows,
            what_is_not_single,
            refusals,
            not_the_same,
        )
    }


def not_the_same():
    """Only one worker sends float16."""
    with connected_anew() as own:
        param = gluon.Parameter("weight", shape=(3,))
        param.initialize()
        trainer = gs.SVRGTrainer([param], "sgd", compression_params=None if own.is_first else FP16)
        try:
            trainer.allreduce_grads()
        except workers.WorkerError as error:
            return str(error)


def network():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    gs.seed_everything(0)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def sums_of_numpy(params):
    """Return the sums of the float16 gradients in the order of the ranks, and of what they are."""
    own = workers.current()
    sums, sizes = [], []
    for param in params:
        grad = param.grad().asnumpy()
        data = own.all_gather_bytes(grad.astype("float16").tobytes(), param.name)
        first, *others = (np.frombuffer(d, "float16").reshape(grad.shape) for d in data)
        total = first.copy()
        for other in others:
            total += other
        sums.append(total)
        data = own.all_gather_bytes(grad.tobytes(), param.name)
        sizes.append(sum(np.abs(np.frombuffer(d, "float32").reshape(grad.shape)) for d in data))
    return sums, sizes


def steps():
    """Return how far each step's gradients are from NumPy's, and whether all have the same."""
    own, net = workers.current(), network()
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    draws = np.random.RandomState(1)
    x = mx.nd.array(draws.standard_normal((12, 2, 8, 8))[own.rank :: own.size])
    y = mx.nd.array(draws.randint(0, 3, 12)[own.rank :: own.size])
    net(x)

    def backward(_):
        with autograd.record():
            losses = loss(net(x), y)
        losses.backward()
        return losses

    trainer = gs.SVRGTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, compression_params=FP16
    )
    trainer.synchronize(net)
    trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
    interval = Interval(net, backward)
    trainer.set_control_variate(interval.begin([x]))
    roundings, same_bits = [], []
    for _ in range(4):
        interval.before(x, 0)
        backward(x)
        trainer.correct(interval.gradient(x, 0))
        sums, sizes = sums_of_numpy(trained)
        trainer.allreduce_grads()
        for param, expected, size in zip(trained, sums, sizes, strict=True):
            grad = param.grad().asnumpy()
            rounding = size * 2.0**-11 + 2.0**-24
            roundings.append(float((abs(grad - expected.astype("float32")) / rounding).max()))
            same_bits.append(grad.tobytes() == expected.astype("float32").tobytes())
        trainer.update(len(x))
    data = b"".join(param.data().asnumpy().tobytes() for param in trained)
    return {
        "roundings": max(roundings),
        "as numpy": all(same_bits),
        "same weights": set(own.all_gather_bytes(data, "weights")) == {data},
        "moved": float(max(sums[0].max(), -sums[0].min())),
    }


def edges():
    """Return the sums of what float16 has little room for."""
    return added_up([2e-8, 4e-8, 16376.0, 1.0 + 2.0**-12], "float32")


def overflows():
    """Return what is said of sums beyond the range, and of what is not finite before."""
    own = workers.current()
    sign = -1.0 if own.is_first else 1.0
    last = own.rank == own.size - 1
    numbers = [1e5, 40000.0, sign * 1e5, float("nan" if last else "1"), float("inf")]
    return [added_up([0.0, number], "float32") for number in numbers]


def what_is_not_single():
    """Return the sums of float64, which stays what it is."""
    return added_up([1.0 + 2.0**-40, 1e300], "float64")


def added_up(grads, dtype):
    other = gluon.Parameter("other", shape=(2,))
    param = gluon.Parameter("weight", shape=(len(grads),), dtype=dtype)
    for one in (other, param):
        one.initialize(mx.init.Zero())
    trainer = gs.SVRGTrainer([other, param], "sgd", compression_params=FP16)
    param.grad()[:] = mx.nd.array(grads, dtype=dtype)
    other.grad()[:] = workers.current().rank
    for one in (param, other):
        one.list_data()[0]._fresh_grad = True
    try:
        trainer.allreduce_grads()
    except FloatingPointError as error:
        return str(error)
    return [param.grad().asnumpy().tolist(), other.grad().asnumpy().tolist()]


def refusals():
    """Return what is said of other values."""
    param = gluon.Parameter("weight", shape=(2,))
    param.initialize()
    said = []
    for wrong in (FP16 | {"threshold": 0.5}, {"type": "2bit"}, "fp16"):
        try:
            gs.SVRGTrainer([param], "sgd", compression_params=wrong)
        except ValueError as error:
            said.append(str(error))
    return said
