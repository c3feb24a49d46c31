"""Runs in a process of its own, because `amp.init` changes MXNet for good; prints what it finds.

Losses are scaled by powers of two, so nothing may change by a bit, whatever the scale does.
"""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.events import BatchEnd
from mxnet.contrib import amp
from mxnet.gluon import nn

ONE, TWO = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]


class ChangeScale(BatchEnd):
    def batch_end(self, estimator, *args, **kwargs):
        scaler = estimator.trainer._amp_loss_scaler
        scaler._loss_scale = scaler._next_loss_scale = 2.0 ** (3 + estimator.position.batch % 7)


def fit(scaled, *handlers, start=None, contexts=ONE, table=False, size=1.0, svrg=True):
    """Return the weights of a small net after 3 epochs of SVRG, and its trainer."""
    gs.seed_everything(1)
    rng = np.random.default_rng(0)
    x = (size * rng.normal(size=(37, 6))).astype("float32")
    y = rng.integers(0, 3, 37).astype("float32")
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu", in_units=6), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    net.hybridize()
    trainer = gs.SVRGTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.1 / size**2, "momentum": 0.9},
        update_on_kvstore=False,
    )
    if scaled:
        amp.init_trainer(trainer)
    if start is not None:
        scaler = trainer._amp_loss_scaler
        scaler._loss_scale = scaler._next_loss_scale = start
    estimator = gs.Estimator(net, gluon_loss(), trainer=trainer, context=contexts)
    data = gs.data.ArrayLoader(x, y, batch_size=8, shuffle=True, seed=1)
    given = [gs.SVRGHandler(gradient_table=table)] if svrg else []
    estimator.fit(data, epochs=3, event_handlers=[*given, *handlers])
    return [p.data(contexts[0]).asnumpy() for p in net.collect_params().values()], trainer


def gluon_loss():
    return mx.gluon.loss.SoftmaxCELoss()


def same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def main():
    without, _ = fit(False)
    print("float32 differs:", not same(without, EXACT))
    difference = max(abs(a - b).max() for a, b in zip(without, EXACT, strict=True))
    print("close to float32:", difference < 0.1)
    print("scaled:", same(fit(True)[0], without))
    print("a scale that changes:", same(fit(True, ChangeScale())[0], without))
    print("with a table:", same(fit(True, ChangeScale(), table=True)[0], without))
    clipped, _ = fit(False, gs.GradientUpdateHandler(clip_norm=0.3))
    print(
        "clipped:",
        same(fit(True, ChangeScale(), gs.GradientUpdateHandler(clip_norm=0.3))[0], clipped),
    )
    print("clipping matters:", not same(clipped, without))
    weights, trainer = fit(True, start=2.0**125, size=16.0)
    # The full pass is done again with half the scale; AMP leaves out steps that overflow.
    is_finite = all(np.isfinite(weight).all() for weight in weights)
    print("an overflow:", is_finite and trainer.loss_scale < 2.0**125)
    print(
        "two devices:", same(fit(True, ChangeScale(), contexts=TWO)[0], fit(False, contexts=TWO)[0])
    )
    print("no SVRG:", same(fit(True, svrg=False)[0], fit(False, svrg=False)[0]))


if __name__ == "__main__":
    EXACT, _ = fit(False)
    amp.init("bfloat16")
    main()
