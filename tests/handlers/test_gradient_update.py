"""GradientUpdateHandler: accumulation and clipping, against NumPy, on every kind of kvstore."""

import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
from problems import ONE, TWO

LR, MOMENTUM, WD = 0.2, 0.9, 0.01


def fit(
    contexts,
    handler,
    on_kvstore=None,
    svrg=False,
    epochs=3,
    dtype="float64",
    grad_req="write",
    others=(),
    **problem,
):
    made = problems.make("mlp", contexts, dtype=dtype, **problem)
    made.net.collect_params().setattr("grad_req", grad_req)
    start = made.params
    trainer = gs.SVRGTrainer(
        made.net.collect_params(),
        "sgd",
        {"learning_rate": LR, "momentum": MOMENTUM, "wd": WD},
        # MXNet makes no kvstore of its own for one device.
        kvstore=mx.kv.create("local") if on_kvstore else "device",
        update_on_kvstore=on_kvstore,
    )
    estimator = gs.Estimator(made.net, made.loss, trainer=trainer, context=list(contexts))
    given = [handler, *others] + ([gs.SVRGHandler(update_freq=2)] if svrg else [])
    estimator.fit(made.ndarrays(dtype), epochs=epochs, event_handlers=given)
    return made, start


def clipped(gradient, norm, value):
    """Clip the gradient of the mean loss."""
    if norm is not None:
        total = np.sqrt(sum((g**2).sum() for g in gradient))
        return [g * min(1.0, norm / total) for g in gradient]
    return [np.clip(g, -value, value) for g in gradient] if value is not None else gradient


def expected(
    problem, weights, accumulate, norm=None, value=None, svrg=False, epochs=3, is_frozen=None
):
    """SGD with momentum in NumPy, over steps of several batches.

    `is_frozen(epoch, batch)` says, at a batch, whether the first layer has no gradient there.
    """
    weights = [w.copy() for w in weights]
    velocity = [np.zeros_like(w) for w in weights]
    optimizer = oracle.SGD(LR, MOMENTUM, WD)
    for epoch in range(epochs):
        if epoch % 2 == 0:
            snapshot = [w.copy() for w in weights]
            full = oracle.full_gradient(problem.gradient, snapshot, problem.batches)
        for first in range(0, len(problem.batches), accumulate):
            step = problem.batches[first : first + accumulate]
            x, y = (np.concatenate(part) for part in zip(*step, strict=True))
            gradient = problem.gradient(weights, x, y)
            frozen = [is_frozen(epoch, first + i) for i in range(len(step))] if is_frozen else []
            if any(frozen) and not frozen[-1]:  # the other batches' part
                rest = [pair for pair, left in zip(step, frozen, strict=True) if not left]
                rest = [np.concatenate(part) for part in zip(*rest, strict=True)]
                gradient[:2] = problem.gradient(weights, *rest)[:2]
            if svrg:
                old = problem.gradient(snapshot, x, y)
                gradient = [g - s + len(x) * f for g, s, f in zip(gradient, old, full, strict=True)]
            mean = clipped([g / len(x) for g in gradient], norm, value)
            moved = slice(2 if frozen and frozen[-1] else 0, None)
            optimizer.step(
                weights[moved], velocity[moved], [g * len(x) for g in mean][moved], len(x)
            )
    return weights


CLIPPING = [{}, {"clip_norm": 0.05}, {"clip_norm": 100.0}, {"clip_value": 0.02}]


@pytest.mark.parametrize("svrg", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3, 5])
@pytest.mark.parametrize("clipping", CLIPPING, ids=str)
@pytest.mark.parametrize(
    ("contexts", "on_kvstore"), [(ONE, None), (ONE, True), (TWO, False), (TWO, True)]
)
def test_against_numpy(contexts, on_kvstore, clipping, accumulate, svrg):
    handler = gs.GradientUpdateHandler(accumulate=accumulate, **clipping)
    problem, start = fit(contexts, handler, on_kvstore, svrg)
    norm, value = clipping.get("clip_norm"), clipping.get("clip_value")
    weights = expected(problem, start, accumulate, norm, value, svrg)
    assert problems.relative_difference(problem.params, weights) < 1e-12
    if norm == 0.05:
        unclipped = expected(problem, start, accumulate, svrg=svrg)
        assert problems.relative_difference(weights, unclipped) > 1e-2


@pytest.mark.parametrize("svrg", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clipping", CLIPPING, ids=str)
@pytest.mark.parametrize(
    ("contexts", "on_kvstore"), [(ONE, None), (ONE, True), (TWO, False), (TWO, True)]
)
def test_gradients_that_add_up_are_those_of_one_step(
    contexts, on_kvstore, clipping, accumulate, svrg
):
    """As a loop by hand leaves them: grad_req='add', and a gradient that has been used."""

    class Leftover(gs.events.TrainBegin):
        priority = -9000

        def train_begin(self, estimator, *args, **kwargs):
            for param in estimator.net.collect_params().values():
                for grad in param.list_grad():
                    grad[:] = 7

    runs = [
        fit(
            contexts,
            gs.GradientUpdateHandler(accumulate=accumulate, **clipping),
            on_kvstore,
            svrg,
            grad_req=grad_req,
            others=[Leftover()],
        )[0]
        for grad_req in ("write", "add")
    ]
    assert problems.same(*(run.params for run in runs))
    params = runs[1].net.collect_params().values()
    assert {param.grad_req for param in params} == {"add"}


class Freeze(gs.events.EpochBegin, gs.events.BatchBegin):
    """The first layer has a gradient only where `is_frozen` does not say otherwise."""

    def __init__(self, is_frozen):
        self.is_frozen = is_frozen
        self.batches = 0

    def epoch_begin(self, estimator, *args, **kwargs):
        self.batches = 0

    def batch_begin(self, estimator, *args, **kwargs):
        layer = next(iter(estimator.net._children.values()))
        frozen = self.is_frozen(estimator.position.epoch, self.batches)
        for param in layer.collect_params().values():
            if (param.grad_req == "null") != frozen:
                param.grad_req = "null" if frozen else "write"
        self.batches += 1


FREEZING = {
    "unfrozen at an epoch": lambda epoch, batch: epoch < 1,
    "frozen at an epoch": lambda epoch, batch: epoch >= 1,
    "unfrozen in the middle of a step": lambda epoch, batch: (epoch, batch) < (1, 1),
    "frozen and unfrozen": lambda epoch, batch: epoch == 1,
}


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("contexts", [ONE, TWO])
@pytest.mark.parametrize("name", FREEZING)
def test_layers_that_are_frozen_or_unfrozen_during_the_run(name, contexts, accumulate):
    is_frozen = FREEZING[name]
    handler = gs.GradientUpdateHandler(accumulate=accumulate)
    problem, start = fit(contexts, handler, others=[Freeze(is_frozen)])
    weights = expected(problem, start, accumulate, is_frozen=is_frozen)
    assert problems.relative_difference(problem.params, weights) < 1e-12
    layer = next(iter(problem.net._children.values()))
    requests = {param.grad_req for param in layer.collect_params().values()}
    assert requests == {"null" if is_frozen(2, 0) else "write"}


def test_a_large_enough_norm_changes_no_bit():
    runs = [fit(ONE, gs.GradientUpdateHandler(clip_norm=norm))[0].params for norm in (None, 1e6)]
    assert problems.same(*runs)


def test_several_devices_clip_the_norm_of_the_sum():
    """MXNet's way, a norm a device, is another step (MXNet issue 12859)."""
    runs = [
        fit(contexts, gs.GradientUpdateHandler(clip_norm=0.05), dtype="float32")[0].params
        for contexts in (ONE, TWO)
    ]
    assert problems.relative_difference(*runs) < 1e-5  # float32, sums in another order

    class OneNormADevice(mx.gluon.contrib.estimator.GradientUpdateHandler):
        def batch_end(self, estimator, *args, **kwargs):
            samples = sum(loss.shape[0] for loss in kwargs["loss"])
            for grads in zip(*(p.list_grad() for p in estimator.trainer._params), strict=True):
                mx.gluon.utils.clip_global_norm(list(grads), 0.05 * samples)
            super().batch_end(estimator, *args, **kwargs)

    other = fit(TWO, OneNormADevice(), dtype="float32")[0].params
    assert problems.relative_difference(other, runs[0]) > 1e-3


def test_the_norm_before_clipping_is_known():
    handler = gs.GradientUpdateHandler(clip_norm=0.05)
    assert handler.gradient_norm is None
    problem, start = fit(ONE, handler, epochs=1, samples=8)
    gradient = [g / 8 for g in problem.gradient(start, *problem.batches[0])]
    assert handler.gradient_norm == pytest.approx(
        np.sqrt(sum((g**2).sum() for g in gradient)), rel=1e-12
    )


def test_float16_squares_do_not_overflow():
    big = gs.GradientUpdateHandler(clip_norm=1.0)
    grads = [mx.nd.full((3,), 1000, dtype="float16")]
    big._clip(grads, [grads], 1.0)
    assert big.gradient_norm == pytest.approx(1000 * np.sqrt(3), rel=1e-6)
    assert np.allclose(grads[0].asnumpy(), 1 / np.sqrt(3), rtol=1e-3)


def test_grad_req_is_as_it_was_afterwards():
    problem, _ = fit(ONE, gs.GradientUpdateHandler(accumulate=2))
    assert {param.grad_req for param in problem.net.collect_params().values()} == {"write"}
    broken = problems.make("mlp")
    trainer = gs.SVRGTrainer(broken.net.collect_params(), "sgd")
    estimator = gs.Estimator(broken.net, broken.loss, trainer=trainer)
    with pytest.raises(ValueError, match=r"the data of a batch must be arrays"):
        estimator.fit([(1, 2, 3)], epochs=1, event_handlers=gs.GradientUpdateHandler(accumulate=2))
    assert {param.grad_req for param in broken.net.collect_params().values()} == {"write"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"accumulate": 0}, "accumulate must be a positive integer, got 0: a step is taken every"),
        ({"accumulate": 1.5}, "accumulate must be a positive integer, got 1.5"),
        ({"clip_norm": 0}, "clip_norm must be a number above 0, got 0: the greatest norm"),
        ({"clip_norm": "1"}, "clip_norm must be a number above 0, got '1'"),
        ({"clip_value": float("nan")}, "clip_value must be a number above 0, got nan"),
        ({"clip_norm": 1, "clip_value": 2}, "give clip_norm or clip_value, got both (1 and 2)"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        gs.GradientUpdateHandler(**arguments)
