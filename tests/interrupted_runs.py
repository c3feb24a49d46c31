"""Runs with the usual handlers whose checkpoints of version 0.8 are kept in ``tests/data``.

Version 0.8.0 wrote ``version_0_8`` with this module (imported, so that checkpoints name its loss as
the tests do)::

    cd tests; python -c "import interrupted_runs; interrupted_runs.write('data/version_0_8')"

Labels, weights and learning rates are integers times powers of two with few bits, so the weights
are the same bits on every machine and with every order of addition.
"""

import json
import shutil
import tempfile
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import deploy
from gluon_svrg.data import ArrayLoader
from gluon_svrg.events import BatchEnd, EpochEnd, EvaluationEnd
from mxnet import gluon
from mxnet.gluon import nn

EPOCHS = 4  # early stopping ends the run after the third
EVALUATE_EVERY = 5  # batches; an epoch has 4, so that no weights are evaluated twice
EVALUATE_AT_END = 4


class SquaredError(gluon.loss.L2Loss):
    """The squared error of one output per class, for labels that are classes."""

    def hybrid_forward(self, F, pred, label, sample_weight=None):
        """Compare with one-hot labels."""
        one_hot = F.one_hot(label, 2, dtype="float64")
        return super().hybrid_forward(F, pred, one_hot, sample_weight)


def mean_output(label, pred):
    """Return the mean of all outputs: a metric that is a function."""
    return float(pred.mean())


def estimator_and_data(contexts=1):
    """Return an Estimator, its training data and its validation data: integers."""
    rng = np.random.default_rng(1)
    x = rng.integers(-1, 2, (12, 3)).astype("float64")
    y = rng.integers(0, 2, 12).astype("float64")
    net = nn.Dense(2, in_units=3, prefix="exact_")
    net.cast("float64")
    net.initialize(mx.init.Zero(), ctx=[mx.cpu(i) for i in range(contexts)])
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.25, "momentum": 0.5})
    estimator = gs.Estimator(
        net,
        SquaredError(),
        train_metrics=[mx.metric.Accuracy(), mean_output],
        val_metrics=[mx.metric.Accuracy(), mean_output],
        trainer=trainer,
    )
    train_data = ArrayLoader(x[:8], y[:8], batch_size=2, shuffle=True, seed=3)
    return estimator, train_data, ArrayLoader(x[8:], y[8:], batch_size=2)


def handlers_of(folder, val_data, every_n_batches=EVALUATE_EVERY, of_evaluation=None):
    """Return the handlers: SVRG over an interval of two epochs, and the usual others.

    The EMAHandler comes first: its average is a part of what is compared.
    """
    return [
        gs.EMAHandler(decay=0.5, warm_up=False, evaluate=True, keep=False),
        gs.SVRGHandler(update_freq=2),
        gs.ScheduleHandler("learning_rate", gs.schedules.step(0.5, [0.5], 0.5)),
        gs.ValidationHandler(
            val_data, every_n_batches=every_n_batches, event_handlers=of_evaluation
        ),
        gs.EarlyStoppingHandler("validation loss", patience=1, restore_best=True),
        # Not after each batch: a stop before the epoch's end would find its checkpoint written.
        gs.CheckpointHandler(folder, every_n_batches=3, keep_last=None),
        Recorder(),
    ]


class Recorder(EpochEnd, EvaluationEnd):
    """Counts the ends of epochs, before they are evaluated, and records the evaluations' losses."""

    priority = -float("inf")

    def __init__(self):
        self.epoch_ends = 0
        self.losses = []

    def epoch_end(self, estimator, *args, **kwargs):
        """Count it."""
        self.epoch_ends += 1

    def evaluation_end(self, estimator):
        """Record the loss."""
        self.losses.append(estimator.last_evaluation["validation loss"])


class StopInEvaluation(BatchEnd):
    """Stops the run after the first batch of the n-th evaluation, as Ctrl-C does."""

    def __init__(self, n):
        self._batches = 2 * n - 1

    def batch_end(self, estimator, *args, **kwargs):
        """Count the batches, two per evaluation."""
        self._batches -= 1
        if self._batches == 0:
            estimator.stop(gs.StopReason.SIGNAL)


def results_of(estimator, handlers):
    """Return what ends a run: weights and average as bits, and the losses of its evaluations."""
    weights = bits_of(estimator)
    with handlers[0].applied():
        return {
            "weights": weights,
            "average": bits_of(estimator),
            "losses": handlers[-1].losses,
            "epoch_ends": handlers[-1].epoch_ends,
        }


def bits_of(estimator):
    """Return the parameters as hexadecimal numbers, which lose nothing."""
    return {
        param.name: [value.hex() for value in param.list_data()[0].asnumpy().ravel().tolist()]
        for param in estimator.net.collect_params().values()
    }


def image_net():
    """Return a small network for images, with every number fixed by a seed."""
    mx.random.seed(4)
    net = nn.HybridSequential(prefix="image_")
    with net.name_scope():
        net.add(nn.Conv2D(2, 3, in_channels=3), nn.BatchNorm(in_channels=2), nn.Flatten())
        net.add(nn.Dense(3, in_units=32))
    net.initialize(mx.init.Xavier())
    return net


def binary_net():
    """Return a network with one output for two classes."""
    net = nn.HybridSequential(prefix="binary_")
    with net.name_scope():
        net.add(nn.Dense(1, in_units=3))
    net.initialize(mx.init.One())
    return net


def samples_of(model):
    """Return samples for a model, by the name of its directory."""
    if model == "binary":
        return np.array([[1, 2, -1], [-3, 1, 0.5]], "float32")
    return np.random.default_rng(5).uniform(0, 1, (3, 3, 6, 6)).astype("float32")


def write_checkpoints(folder):
    """Write checkpoints at a batch, at an epoch's end, and in evaluations that were stopped."""
    for name, contexts, every_n_batches, stop_in, kept in (
        ("unbroken", 1, EVALUATE_EVERY, None, ("epoch-1-batch-6", "epoch-2-batch-8")),
        ("two_contexts", 2, EVALUATE_EVERY, None, ("epoch-1-batch-6",)),
        ("stopped_at_epoch_end", 1, EVALUATE_EVERY, 3, ("epoch-1-batch-8",)),
        ("stopped_after_batch", 1, EVALUATE_EVERY, 2, ("epoch-1-batch-5",)),
        ("stopped_after_last_batch", 1, EVALUATE_AT_END, 3, ("epoch-1-batch-8",)),
    ):
        estimator, train_data, val_data = estimator_and_data(contexts)
        stop = None if stop_in is None else StopInEvaluation(stop_in)
        with tempfile.TemporaryDirectory() as written:
            handlers = handlers_of(written, val_data, every_n_batches, stop)
            result = estimator.fit(train_data, epochs=EPOCHS, event_handlers=handlers)
            print(name, result.stop_reason, estimator.position, handlers[3].is_due)
            for checkpoint in kept:
                shutil.copytree(Path(written) / checkpoint, folder / name / checkpoint)
        if stop is None:
            text = json.dumps(results_of(estimator, handlers), indent=1)
            (folder / f"{name}.json").write_text(text + "\n")


def write_models(folder):
    """Write model directories and the outputs of their networks."""
    deploy.export(
        image_net(),
        folder / "image",
        samples_of("image"),
        normalization=([0.5] * 3, [0.25] * 3),
        class_names=["cat", "dog", "owl"],
        metrics={"accuracy": 0.5},
    )
    deploy.export(binary_net(), folder / "binary", samples_of("binary"), class_names=["no", "yes"])
    deploy.quantize(
        folder / "image",
        folder / "int8",
        samples_of("int8"),
        exclude_layers=["sg_mkldnn_fully_connected_0"],  # without VNNI its products overflow
    )
    outputs = {
        name: deploy.Predictor(folder / name).predict(samples_of(name)).tolist()
        for name in ("image", "binary", "int8")
    }
    (folder / "outputs.json").write_text(json.dumps(outputs, indent=1) + "\n")


def write(folder):
    """Write the files of this version."""
    write_checkpoints(Path(folder))
    write_models(Path(folder) / "models")
