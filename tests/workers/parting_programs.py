"""What workers of tests/workers/test_partings.py run: ways in which they could part."""

import time

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.workers import current, single_process
from mxnet import gluon
from mxnet.contrib import amp
from problems import has_bfloat16
from workers.loop_programs import errors_of


def new_net(seed=None):
    if seed is not None:
        mx.random.seed(seed)
    net = gluon.nn.Dense(1, in_units=3)
    net.initialize(mx.init.Xavier())
    return net


def new_trainer(*nets):
    params = [param for net in nets for param in net.collect_params().values()]
    return gs.SVRGTrainer(params, "sgd", {"learning_rate": 0.05})


def weights(*nets):
    return [p.data().asnumpy().tolist() for net in nets for p in net.collect_params().values()]


def batches(*sizes):
    rng = np.random.default_rng(0)
    return [
        tuple(mx.nd.array(rng.normal(size=(size, n)), dtype="float32") for n in (3, 1))
        for size in sizes
    ]


def fit(net, trainer, data, *handlers, **arguments):
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer, **arguments)
    return estimator.fit(data, epochs=1, verbose=0, event_handlers=list(handlers))


def weights_drawn_between_two_fits():
    net = new_net()
    trainer = new_trainer(net)
    fit(net, trainer, batches(4, 4))
    net.initialize(mx.init.Xavier(), force_reinit=True)
    fit(net, trainer, batches(4, 4))
    found = weights(net)
    net.initialize(mx.init.Xavier(), force_reinit=True)
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    return [found, estimator.evaluate(batches(4), verbose=0), weights(net)]


def time_that_is_left():
    net = new_net()
    handler = gs.TimeLimitHandler(100 - 0.1 * current().rank)
    return fit(net, new_trainer(net), batches(4), handler).stop_reason.name


def step(trainer, samples):
    trainer.step(samples)


def lenient_step(trainer, samples):
    trainer.step(samples, ignore_stale_grad=True)


def step_by_parts(trainer, samples):
    trainer.allreduce_grads()
    trainer.update(samples, ignore_stale_grad=True)


def step_that_ignores(rank, size, ways):
    """Take steps in which all samples reach a parameter, then those of the first worker, none."""
    ours, theirs = new_net(seed=1), new_net(seed=2)
    trainer = new_trainer(ours, theirs)
    for (data, _), reaching, take in zip(batches(4, 4, 4), (4, 2, 0), ways, strict=True):
        begin, end = 4 * rank // size, 4 * (rank + 1) // size
        with mx.autograd.record():
            loss = ours(data[begin:end]).sum()
            if begin < reaching:
                loss = loss + theirs(data[begin : min(end, reaching)]).sum()
        loss.backward()
        take(trainer, end - begin)
    return weights(ours, theirs)


WAYS = {
    "stale": [lenient_step] * 3,
    "stale, by parts": [step_by_parts] * 3,
    "fresh on one worker": [step, step, lenient_step],
}


def scaled_loss():
    net = new_net(seed=1)
    trainer = new_trainer(net)
    amp.init_trainer(trainer)
    fit(net, trainer, batches(1, 4, 1))
    return weights(net)


def main():
    results = {
        "drawn": weights_drawn_between_two_fits(),
        "limit": time_that_is_left(),
    }
    for name, ways in WAYS.items():
        results[name] = [step_that_ignores(current().rank, 2, ways)]
        with single_process():
            results[name].append(step_that_ignores(0, 1, ways))
    if has_bfloat16():
        amp.init("bfloat16")
        results["scaled"] = [scaled_loss()]
        with single_process():
            results["scaled"].append(scaled_loss())
    (results["left out"],) = errors_of(lambda _: two_trainers())
    return results


class WithAnother(gs.BatchProcessor):
    """Takes a step of another trainer, which a worker without a row of the batch does not."""

    def __init__(self, net, trainer):
        self._net, self._trainer = net, trainer

    def fit_batch(self, estimator, batch, batch_axis=0):
        with mx.autograd.record():
            loss = self._net(batch[0]).sum()
        loss.backward()
        self._trainer.step(len(batch[0]))
        return super().fit_batch(estimator, batch, batch_axis)


def two_trainers():
    net, other = new_net(), new_net()
    processor = WithAnother(other, new_trainer(other))
    time.sleep(0.1 * current().rank)
    fit(net, new_trainer(net), batches(4, 1, 4), batch_processor=processor)
    return weights(net, other)
