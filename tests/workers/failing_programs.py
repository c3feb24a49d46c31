"""Runs over several workers that cannot be, or that one of them ends: see tests/cluster.py."""

import sys
import tempfile
import time
from unittest import mock

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg import stops, workers
from workers.loop_programs import (
    At,
    dense_net,
    errors_of,
    estimator_for,
    fitted,
    loader,
)


def _on_second(ours, other):
    return other if workers.current().rank == 1 else ours


def _batch_size():
    fitted(train=loader(batch_size=_on_second(8, 7)))


def _number_of_epochs():
    fitted(epochs=_on_second(3, 4))


def _units():
    fitted(made={"net": dense_net(_on_second(3, 4))})


def _dtype():
    fitted(made={"net": dense_net(dtype=_on_second("float64", "float32"))})


def _frozen():
    net = dense_net()
    net.bias.grad_req = _on_second("write", "null")
    fitted(made={"net": net})


def _deeper():
    net = mx.gluon.nn.HybridSequential()
    for _ in range(_on_second(1, 2)):
        net.add(mx.gluon.nn.Dense(3, in_units=3))
    net.initialize()
    fitted(made={"net": net})


def _optimizer():
    fitted(made={"optimizer": _on_second("sgd", "adam")})


def _rate():
    fitted(made={"rate": _on_second(0.2, 0.1)})


def _loss():
    softmax = mx.gluon.loss.SoftmaxCrossEntropyLoss
    fitted(made={"loss": softmax(sparse_label=_on_second(True, False))})


def _handlers():
    fitted(_on_second([], [gs.SVRGHandler()]))


def _setting():
    fitted([gs.SVRGHandler(update_freq=_on_second(1, 2))])


def _validation():
    fitted(val=_on_second(None, loader()))


def _version():
    with mock.patch.object(np, "__version__", _on_second(np.__version__, "0.9")):
        fitted()


def _kind():
    x, y = np.zeros((8, 6)), np.zeros(8)
    fitted(train=_on_second(loader(), [(mx.nd.array(x), mx.nd.array(y))] * 6))


def _stock_trainer():
    net = dense_net()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    gs.Estimator(net, loss, trainer=trainer).fit(loader(), epochs=1)


def _stock_handler():
    estimator = estimator_for(metrics="acc")

    class OwnMetrics(mx.gluon.contrib.estimator.MetricHandler):
        """One of MXNet's own is replaced."""

    own = OwnMetrics(estimator.train_metrics)
    estimator.fit(loader(), epochs=1, event_handlers=[own])


WRONG = {
    "batch_size of train_data": _batch_size,
    "number of epochs": _number_of_epochs,
    "shape of the parameter 'weight'": _units,
    "dtype of the parameter 'weight'": _dtype,
    "grad_req of the parameter 'bias'": _frozen,
    "list of the network's parameters": _deeper,
    "optimizer": _optimizer,
    "lr of the optimizer": _rate,
    "sparse_label of the loss": _loss,
    "list of handlers": _handlers,
    "update_freq of the SVRGHandler": _setting,
    "kind of val_data": _validation,
    "version of NumPy": _version,
    "kind of train_data": _kind,
    "SVRGTrainer": _stock_trainer,
    "gluon_svrg.MetricHandler": _stock_handler,
}


def wrong():
    """Return the error of each case, and the seconds of all."""
    begin = time.monotonic()
    errors = errors_of(*(lambda _, case=case: case() for case in WRONG.values()))
    return [dict(zip(WRONG, errors, strict=True)), time.monotonic() - begin]


def _raise(error):
    def raising(_):
        raise error

    return raising


def _unequal():
    batches = [(mx.nd.zeros((4, 6), dtype="float64"), mx.nd.zeros(4, dtype="float64"))] * 5

    class Data:
        def __iter__(self):
            return iter(batches[: _on_second(5, 4)])

    fitted(train=Data())


def _duration():
    fitted(epochs=_on_second(3, -1))


def _nan(action):
    from workers.loop_programs import Processor, make_nan

    fitted(
        [gs.NaNGuardHandler(action, every_n_batches=3)],
        made={"batch_processor": Processor("fit", 5, 1, make_nan)},
    )


def _metric():
    def bad(label, pred):
        if not workers.current().is_first:
            raise RuntimeError("no")
        return 0.0

    fitted(made={"metrics": bad})


def _file(folder):
    fitted([gs.HistoryFileHandler(f"{folder}/log.csv")])


FAILING = {
    "in a step": lambda _: fitted([At("batch_begin", 5, 1, _raise(KeyError("gone")))]),
    "at an epoch's end": lambda _: fitted([At("epoch_end", 6, 0, _raise(OSError("disk full")))]),
    "before the start": lambda _: _duration(),
    "unequal numbers of batches": lambda _: _unequal(),
    "NaN": lambda _: _nan("raise"),
    "a metric": lambda _: _metric(),
    "other steps": lambda _: fitted(made={"optimizer": "sgld"}),  # it draws
    "a file of another run": _file,
}


def failing():
    folder = workers.current().broadcast_object(tempfile.mkdtemp(), "folder")
    with open(f"{folder}/log.csv", "w"):
        pass
    errors = errors_of(*(lambda _, case=case: case(folder) for case in FAILING.values()))
    return dict(zip(FAILING, errors, strict=True))


def progress_limit_calls():
    """Return the calls of the progress limit during a fit."""
    limit = mock.Mock()
    with mock.patch.object(stops, "progress_limit", return_value=limit):
        fitted([gs.SVRGHandler()], val=loader(20, 8), epochs=1)
    return [name for name, *_ in limit.method_calls]


def output(folder):
    """Fit with all that shows and writes; then fail on one worker."""
    handlers = [
        gs.HistoryFileHandler(f"{folder}/log.csv"),
        gs.ProfilerHandler(trace=f"{folder}/trace.json", trace_batches=(0, 2)),
        gs.ProgressHandler(),
    ]
    estimator = estimator_for(metrics="acc")
    estimator.describe()
    estimator.fit(loader(), loader(), epochs=2, event_handlers=handlers, verbose=1)
    estimator.evaluate(loader(), verbose=1)
    sys.stdout.flush()
    fitted([At("batch_begin", 5, 1, _raise(KeyError("gone")))])


def default_trainer():
    net = dense_net(dtype="float32")
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    estimator = gs.Estimator(net, loss)
    data = gs.data.ArrayLoader(np.ones((6, 6), "float32"), np.arange(6) % 3, batch_size=3)
    estimator.fit(data, epochs=1, verbose=0)
    return [type(estimator.trainer).__name__, net.weight.data().asnumpy().tolist()]


def _conv_net():
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(3, 3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dropout(0.3))
    net.add(mx.gluon.nn.Dense(2))
    net.initialize()
    return net


def start():
    """Start with other weights, shapes that are inferred, other generators: few rows, BatchNorm."""
    import random

    rank = workers.current().rank
    mx.random.seed(rank)
    np.random.seed(rank)
    random.seed(rank)
    x, y = np.random.RandomState(0).normal(size=(9, 1, 6, 6)).astype("float32"), np.arange(9) % 2
    net = _conv_net()
    average = gs.EMAHandler(decay=0.5, keep=True)
    estimator = estimator_for(net, metrics="acc", rate=0.01)
    batches = [(mx.nd.array(x[:1]), mx.nd.array(y[:1]))]
    batches += [(mx.nd.array(x[i : i + 4]), mx.nd.array(y[i : i + 4])) for i in (1, 5)]
    drawn = []

    def draw(_):
        drawn.extend([random.random(), float(np.random.rand())])
        drawn.append(float(mx.nd.random.uniform().asscalar()))

    at = At("batch_begin", 0, None, draw)
    result = estimator.fit(batches, batches, epochs=2, event_handlers=[at, average], verbose=0)
    params = {n: p.data().asnumpy().tolist() for n, p in enumerate(net.collect_params().values())}
    return [drawn, params, [row["validation loss"] for row in result.history]]


def starts():
    """Return what each of the programs above gives."""
    together = progress_limit_calls()
    with workers.single_process():
        alone = progress_limit_calls()
    return [[together, alone], default_trainer(), start()]
