"""SVRG under MXNet's AMP, float16 on a GPU, bfloat16 on a CPU: ``amp_worker.py gpu``."""

import sys

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.contrib import amp
from mxnet.gluon import nn


def fit(context, is_scaled, coefficient=1.0, start=None, size=1.0):
    """Return the weights after three epochs, as one array, and the trainer."""
    rng = np.random.default_rng(0)
    x = (size * rng.normal(size=(37, 6))).astype("float32")
    y = rng.integers(0, 3, 37).astype("float32")
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu", in_units=6), nn.Dense(3, in_units=8))
    net.initialize(ctx=[context])
    for param in net.collect_params().values():
        param.set_data(mx.nd.array(rng.normal(0, 0.5, param.shape)))
    net.hybridize()
    trainer = gs.SVRGTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1 / size**2}, update_on_kvstore=False
    )
    if is_scaled:
        amp.init_trainer(trainer)
        if start is not None:
            scaler = trainer._amp_loss_scaler
            scaler._loss_scale = scaler._next_loss_scale = start
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer, context=[context])
    data = gs.data.ArrayLoader(x, y, batch_size=8)
    handler = gs.SVRGHandler(coefficient=coefficient)
    estimator.fit(data, epochs=3, event_handlers=[handler])
    weights = [param.data().asnumpy().ravel() for param in net.collect_params().values()]
    return np.concatenate(weights), trainer


def main(device):
    """Print what holds."""
    context = mx.gpu(0) if device == "gpu" else mx.cpu(0)
    exact, _ = fit(context, False)
    plain, _ = fit(context, False, coefficient=0.0)
    amp.init("float16" if device == "gpu" else "bfloat16")
    low, _ = fit(context, False)
    # float16 has 11 bits, bfloat16 8: after 15 steps a few units of the last place.
    bound = 5e-3 if device == "gpu" else 4e-2
    print("low precision is in use:", bool(np.abs(low - exact).max() > 1e-6))
    scaled, _ = fit(context, True, start=2.0**10)
    difference = np.abs(scaled - exact).max()
    is_close = difference < bound and np.abs(exact - plain).max() > 2 * difference
    print("svrg follows float32:", bool(is_close))
    # Gradients above the greatest number of float16, or of bfloat16: the full pass is done again.
    start = 2.0**24 if device == "gpu" else 2.0**125
    weights, trainer = fit(context, True, start=start, size=16.0)
    print("an overflow halves the scale:", trainer.loss_scale < start)
    print("and leaves finite weights:", bool(np.isfinite(weights).all()))


if __name__ == "__main__":
    main(sys.argv[1])
