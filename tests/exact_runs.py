"""Runs whose checkpoints are kept from version to version, in ``tests/data``.

Those in ``version_0_1`` were written by version 0.1.0 with this module, and those in
``version_0_7`` by version 0.7.0 (with two workers, which accumulate two batches, as well)::

    python tests/exact_runs.py tests/data/version_0_1

All numbers of the exact run are integers times powers of two with few bits, so its weights are the
same bits on every machine and with every order of addition.
"""

import json
import sys
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.data import ArrayLoader
from mxnet import gluon
from mxnet.gluon import nn

EPOCHS = 3


def exact_estimator(optimizer="sgd", contexts=1):
    """Return an Estimator and its data: 8 samples of integers, whose sums no order rounds."""
    rng = np.random.default_rng(1)
    x = rng.integers(-1, 2, (8, 3)).astype("float64")
    y = rng.integers(-2, 3, (8, 1)).astype("float64")
    net = nn.Dense(1, in_units=3, prefix="exact_")
    net.cast("float64")
    net.initialize(mx.init.Zero(), ctx=[mx.cpu(i) for i in range(contexts)])
    trainer = gs.SVRGTrainer(
        net.collect_params(), optimizer, {"learning_rate": 0.25, "momentum": 0.5}
    )
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    return estimator, ArrayLoader(x, y, batch_size=2, shuffle=True, seed=3)


def exact_handlers(folder):
    """Return the handlers of the exact run: SVRG over an interval of two epochs."""
    return [
        gs.SVRGHandler(update_freq=2),
        gs.CheckpointHandler(folder, every_n_batches=1, keep_last=None),
    ]


def full_estimator():
    """Return an Estimator and its data, with all that a checkpoint can hold."""
    gs.seed_everything(5)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(24, 4)).astype("float32")
    y = rng.integers(0, 3, 24).astype("float32")
    net = nn.HybridSequential(prefix="full_")
    with net.name_scope():
        net.add(nn.Dense(5, activation="relu"), nn.BatchNorm(), nn.Dropout(0.3), nn.Dense(3))
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = gs.SVRGTrainer(net.collect_params(), "lars", {"learning_rate": 0.1, "momentum": 0.9})
    metrics = [mx.metric.Accuracy(), mx.metric.CompositeEvalMetric([mx.metric.TopKAccuracy(2)])]
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), train_metrics=metrics, trainer=trainer
    )
    return estimator, ArrayLoader(x, y, batch_size=6, shuffle=True, seed=3)


def full_handlers(folder):
    """Return handlers of every kind that keeps a state."""
    return [
        gs.SVRGHandler(update_freq=2, coefficient="auto", max_variance_ratio=50.0),
        gs.VarianceHandler(at=(25, 100), batches=2),
        gs.GradientUpdateHandler(accumulate=2, clip_norm=5.0),
        gs.EMAHandler(),
        gs.NaNGuardHandler("roll_back"),
        gs.EarlyStoppingHandler("training accuracy", patience=9, restore_best=True),
        gs.PlateauHandler("training accuracy", hyperparameter="wd", patience=5),
        gs.CheckpointHandler(folder, every_n_batches=1, keep_last=None),
    ]


def bits_of(estimator):
    """Return the weights as hexadecimal numbers, which lose nothing."""
    return {
        param.name: [value.hex() for value in param.data(context).asnumpy().ravel().tolist()]
        for param in estimator.net.collect_params().values()
        for context in param.list_ctx()[:1]
    }


def main(folder):
    """Write the files of this version."""
    for name, make, handlers in (
        ("exact", exact_estimator, exact_handlers),
        ("full", full_estimator, full_handlers),
    ):
        estimator, data = make()
        estimator.fit(data, epochs=EPOCHS, event_handlers=handlers(folder / name))
        (folder / f"{name}.json").write_text(json.dumps(bits_of(estimator), indent=1) + "\n")
        estimator.trainer.save_states(folder / f"{name}.states")
    for path in sorted(folder.glob("*/*")):
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
