"""Parameters that a batch does not use: an error, or left alone, against NumPy."""

import itertools

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from mxnet import autograd, gluon
from mxnet.contrib import amp
from mxnet.contrib.amp.loss_scaler import LossScaler
from problems import ONE, TWO

LR, MOMENTUM, WD = 0.125, 0.5, 0.0625  # of which MXNet's float32 has all digits
RNG = np.random.default_rng(0)
# The first column says which rows use the second layer. In the last batch one of two devices, or
# all but one of several workers, have no row.
USES = [(1, 1), (0, 0), (1, 0), (0, 0), (0, 1), (1, 1), (0, 0)]
X = [RNG.normal(size=(8, 4)) for _ in USES]
for x, uses in zip(X, USES, strict=True):
    x[:4, 0], x[4:, 0] = uses
X[-1] = X[-1][:1]
Y = [RNG.normal(size=(len(x), 1)) for x in X]
BATCHES = list(zip(X, Y, strict=True))
WEIGHTS = [RNG.normal(size=(1, 4)) for _ in range(3)]


class Net(gluon.Block):
    """Its layers: always used, used by some rows, never used."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.always, self.sometimes, self.never = (
                gluon.nn.Dense(1, in_units=4, use_bias=False) for _ in range(3)
            )

    def forward(self, x):
        out = self.always(x)
        return out + x[:, :1] * self.sometimes(x) if x[:, 0].sum().asscalar() else out


def make(contexts=ONE, kind=gs.SVRGTrainer, **arguments):
    net = Net()
    net.initialize(ctx=contexts)
    net.cast("float64")
    for layer, weight in zip((net.always, net.sometimes, net.never), WEIGHTS, strict=True):
        layer.weight.set_data(mx.nd.array(weight, dtype="float64"))
    settings = {"learning_rate": LR, "momentum": MOMENTUM, "wd": WD}
    return net, kind(net.collect_params(), "sgd", settings, **arguments)


def weights_of(net):
    layers = (net.always, net.sometimes, net.never)
    copies = [[data.asnumpy() for data in layer.weight.list_data()] for layer in layers]
    assert all(np.array_equal(c, each[0]) for each in copies for c in each)  # on all devices
    return [each[0] for each in copies]


def ndarrays():
    return [tuple(mx.nd.array(a, dtype="float64") for a in batch) for batch in BATCHES]


def fit(handler, contexts=ONE, handlers=(), epochs=2, **arguments):
    net, trainer = make(contexts, **arguments)
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer, context=contexts)
    handlers = [*handlers, *([handler] if handler else [])]
    estimator.fit(ndarrays(), epochs=epochs, event_handlers=handlers, verbose=0)
    return weights_of(net)


def gradients(weights, x, y):
    """Return the gradients of the sum of the losses; None of what no row uses."""
    used = x[:, :1]
    error = x @ weights[0].T + used * (x @ weights[1].T) - y
    return [error.T @ x, (used * error).T @ x if used.any() else None, None]


def expected(
    accumulate=1, clip_norm=None, clip_value=None, epochs=2, coefficient=0.0, data=BATCHES
):
    """Train in NumPy; a parameter without a gradient keeps its weight and its momentum."""
    weights, momenta = [w.copy() for w in WEIGHTS], [np.zeros_like(w) for w in WEIGHTS]
    for _ in range(epochs):
        snapshot = [w.copy() for w in weights]
        total = [0, 0, 0]
        for x, y in data:
            for i, grad in enumerate(gradients(snapshot, x, y)):
                total[i] = total[i] + (0 if grad is None else grad)
        mean = [value / sum(len(x) for x, _ in data) for value in total]
        for begin in range(0, len(data), accumulate):
            batches = data[begin : begin + accumulate]
            grads = [None, None, None]
            for x, y in batches:
                there = gradients(snapshot, x, y)
                for i, own in enumerate(gradients(weights, x, y)):
                    if coefficient and i < 2:  # the third one has no full gradient
                        own = 0 if own is None else own
                        old = 0 if there[i] is None else there[i]
                        own = own - coefficient * (old - len(x) * mean[i])
                    if own is not None:
                        grads[i] = own + (0 if grads[i] is None else grads[i])
            samples = sum(len(x) for x, _ in batches)
            grads = [None if g is None else g / samples for g in grads]
            norm = np.sqrt(sum((g**2).sum() for g in grads if g is not None))
            for i, grad in enumerate(grads):
                if grad is None:
                    continue
                if clip_norm is not None:
                    grad = grad * clip_norm / max(norm, clip_norm)
                if clip_value is not None:
                    grad = np.clip(grad, -clip_value, clip_value)
                momenta[i] = MOMENTUM * momenta[i] - LR * (grad + WD * weights[i])
                weights[i] = weights[i] + momenta[i]
    return weights


WAYS = [{}, {"clip_norm": 0.5}, {"clip_value": 0.1}, {"accumulate": 2}]
WAYS += [{"accumulate": 2, "clip_norm": 0.5}]
PLACES = {
    "one": (ONE, {}),
    "one, on a kvstore": (ONE, {"kvstore": "new", "update_on_kvstore": True}),
    "two": (TWO, {}),
    "two, not on the kvstore": (TWO, {"update_on_kvstore": False}),
    "one, MXNet's": (ONE, {"kind": gluon.Trainer}),
    "two, MXNet's, not on the kvstore": (TWO, {"kind": gluon.Trainer, "update_on_kvstore": False}),
}
each_place = pytest.mark.parametrize("place", PLACES)


def arguments_of(place):
    contexts, arguments = PLACES[place]
    if arguments.get("kvstore") == "new":
        arguments = arguments | {"kvstore": mx.kv.create("device")}
    return contexts, arguments


@pytest.mark.slow
@each_place
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_they_are_left_alone(way, place):
    contexts, arguments = arguments_of(place)
    found = fit(gs.GradientUpdateHandler(**way, ignore_stale_grad=True), contexts, **arguments)
    assert problems.relative_difference(found, expected(**way)) < 1e-12
    assert np.array_equal(found[2], WEIGHTS[2])


@pytest.mark.slow
@pytest.mark.parametrize("place", [place for place in PLACES if "MXNet" not in place])
@pytest.mark.parametrize("is_table", [True, False], ids=["table", "no table"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_under_svrg(way, is_table, place):
    """A gradient that some batches do not have is zero there, and corrected."""
    contexts, arguments = arguments_of(place)
    step = gs.GradientUpdateHandler(**way, ignore_stale_grad=True)
    svrg = gs.SVRGHandler(gradient_table=is_table)
    found = fit(step, contexts, [svrg], **arguments)
    assert problems.relative_difference(found, expected(**way, coefficient=1.0)) < 1e-12
    assert np.array_equal(found[2], WEIGHTS[2])


@pytest.mark.slow
@pytest.mark.parametrize("svrg", [False, True], ids=["plain", "SVRG"])
@pytest.mark.parametrize("place", [*PLACES, "two, MXNet's"])
@pytest.mark.parametrize("way", [None, *WAYS], ids=str)
def test_by_default_they_are_an_error(way, place, svrg):
    contexts, arguments = PLACES.get(place, (TWO, {"kind": gluon.Trainer}))
    if svrg and "MXNet" in place:
        pytest.skip("SVRG needs an SVRGTrainer")
    if arguments.get("kvstore") == "new":
        arguments = arguments | {"kvstore": mx.kv.create("device")}
    handler = None if way is None else gs.GradientUpdateHandler(**way)
    net, trainer = make(contexts, **arguments)
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer, context=contexts)
    handlers = [*([handler] if handler else []), *([gs.SVRGHandler()] if svrg else [])]
    message = (
        r"the samples of a step have not used parameter 'net\d+_dense2_weight', .*give Gradient"
        r"UpdateHandler\(ignore_stale_grad=True\), which leaves the others alone"
    )
    with pytest.raises(ValueError, match=message):
        estimator.fit(ndarrays(), epochs=1, event_handlers=handlers, verbose=0)
    assert problems.same(weights_of(net), WEIGHTS)


def test_mxnets_trainer_whose_kvstore_takes_the_step():
    with pytest.raises(ValueError, match=r"does not work with a gluon.Trainer whose kvstore takes"):
        fit(gs.GradientUpdateHandler(ignore_stale_grad=True), TWO, kind=gluon.Trainer)


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_it_is_a_bool(value):
    with pytest.raises(TypeError, match="ignore_stale_grad must be a bool, got"):
        gs.GradientUpdateHandler(ignore_stale_grad=value)


def loops(contexts, trainer, net, take):
    for _, (x, y) in itertools.product(range(2), ndarrays()[:-1]):  # which all have rows for both
        shares = [gluon.utils.split_and_load(a, contexts) for a in (x, y)]
        with autograd.record():
            losses = [gluon.loss.L2Loss()(net(a), b) for a, b in zip(*shares, strict=True)]
        autograd.backward(losses)
        take(trainer)


def lenient(trainer):
    trainer.step(8, ignore_stale_grad=True)


def by_parts(trainer):
    trainer.allreduce_grads()
    trainer.update(8, ignore_stale_grad=True)


@pytest.mark.parametrize("take", [lenient, by_parts])
@pytest.mark.parametrize("place", [place for place in PLACES if "MXNet" not in place])
def test_a_loop_by_hand(place, take):
    contexts, arguments = arguments_of(place)
    if take is by_parts:
        arguments = arguments | {"update_on_kvstore": False}
    net, trainer = make(contexts, **arguments)
    loops(contexts, trainer, net, take)
    assert problems.relative_difference(weights_of(net), expected(data=BATCHES[:-1])) < 1e-12
    net, trainer = make(contexts, **arguments_of(place)[1])
    with pytest.raises(UserWarning, match=r"dense2_weight.*call step with ignore_stale_grad=True"):
        loops(contexts, trainer, net, lambda trainer: trainer.step(8))
    assert problems.same(weights_of(net), WEIGHTS)


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=len)
@pytest.mark.parametrize("way", [{}, {"clip_norm": 0.5}], ids=str)
def test_with_a_loss_scale(contexts, way):
    """After an overflow an unused gradient must not overflow again, nor count as new."""
    net, trainer = make(contexts, update_on_kvstore=False)
    trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), trainer._scale
    trainer._amp_loss_scaler._loss_scale = trainer._amp_loss_scaler._next_loss_scale = 2.0**4
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer, context=contexts)
    step = gs.GradientUpdateHandler(**way, ignore_stale_grad=True)
    x, y = BATCHES[0]
    overflows = tuple(mx.nd.array(a, dtype="float64") for a in (x, np.full_like(y, np.inf)))
    data = [overflows, *ndarrays()]
    with amp.scale_loss([], trainer):
        pass
    estimator.fit(data, epochs=1, event_handlers=step, verbose=0, sanity_check=False)
    assert trainer.loss_scale == 2.0**3
    assert problems.relative_difference(weights_of(net), expected(**way, epochs=1)) < 1e-12
