"""The hint that the training waits for its data."""

import gc
import time
import weakref
from types import SimpleNamespace

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg import stalls
from mxnet import gluon

X, Y = np.zeros((16, 4), "float32"), np.zeros(16, "float32")
HINT = "of the time is spent waiting for data"


def estimator_of(net):
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    return gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)


class Slow:
    """Batches that take their time."""

    def __init__(self, batches, seconds):
        self.batches, self.seconds = batches, seconds

    def __iter__(self):
        for _ in range(self.batches):
            time.sleep(self.seconds)
            yield mx.nd.array(X), mx.nd.array(Y)


def hints_of(caplog, data, epochs):
    estimator = estimator_of(gluon.nn.Dense(2, in_units=4))
    estimator.fit(data, epochs=epochs)
    return [r.getMessage() for r in caplog.records if HINT in r.getMessage()]


@pytest.mark.full
def test_a_run_with_a_slow_iterable_is_told(caplog, monkeypatch):
    monkeypatch.setattr(stalls, "_MIN_STALL_SECONDS", 0.1)
    (hint,) = hints_of(caplog, Slow(15, 0.04), epochs=2)
    assert "DataLoader with num_workers" in hint


@pytest.mark.slow
def test_a_run_with_a_fast_one_is_not(caplog, monkeypatch):
    monkeypatch.setattr(stalls, "_MIN_STALL_SECONDS", 0.001)
    data = [(mx.nd.array(X), mx.nd.array(Y))] * 50
    assert not hints_of(caplog, data, epochs=3)


@pytest.fixture
def told(monkeypatch):
    """Return a function that runs epochs by a clock of its own, and returns when it was told."""
    clock = {"now": 0.0}
    monkeypatch.setattr(stalls.time, "perf_counter", lambda: clock["now"])

    def run(wait, step, busy=0.0, epochs=1, batches=60):
        """Seconds a batch: `wait` of the data, `step` of Python, MXNet `busy` from then on."""
        said, batch = [], 0
        estimator = SimpleNamespace(
            train_data=None,
            logger=SimpleNamespace(info=lambda text, share, how: said.append((batch, share))),
        )

        def idle():
            clock["now"] += busy

        def data():
            for _ in range(batches):
                clock["now"] += wait
                yield None

        monkeypatch.setattr(stalls.mx.nd, "waitall", idle)
        watch = stalls.StallDetector()
        for _ in range(epochs):
            for _ in watch.watch(data(), estimator):
                batch += 1
                clock["now"] += step
        return said

    return run


def test_the_hint_comes_once_and_early_with_the_share(told):
    ((batch, share),) = told(wait=0.1, step=0.1, epochs=4)
    assert batch < 20
    assert share == pytest.approx(50)


def test_a_third_is_the_limit(told):
    assert told(wait=0.1, step=0.19)
    assert not told(wait=0.1, step=0.25)


def test_time_in_which_mxnet_is_busy_is_not_lost(told):
    assert not told(wait=0.3, step=0.1, busy=1.0)
    assert not told(wait=0.3, step=0.1, busy=0.27)
    assert told(wait=0.3, step=0.1, busy=0.05)


def test_short_runs_are_spared(told):
    assert not told(wait=0.001, step=0.001, batches=400)
    assert told(wait=0.001, step=0.001, batches=400, epochs=3)


def loader(dataset, **kwargs):
    return gluon.data.DataLoader(dataset, batch_size=4, **kwargs)


@pytest.mark.parametrize(
    ("data", "way_out"),
    [
        (loader(gluon.data.ArrayDataset(X, Y)), "22 microseconds a sample"),
        (loader(gluon.data.ArrayDataset(X, Y).transform_first(lambda x: x)), "num_workers"),
        (gs.data.ArrayLoader(X, Y, batch_size=4), "transform"),
        (mx.io.NDArrayIter(X, Y, batch_size=4), "PrefetchingIter"),
        ([(X, Y)], "ahead"),
    ],
)
def test_the_way_out_is_that_of_the_data(data, way_out):
    assert way_out in stalls.stall_hint(data)


@pytest.mark.slow
def test_nothing_of_the_data_is_held_after_the_run():
    class Data(list):
        pass

    data = Data([(mx.nd.array(X), mx.nd.array(Y))])
    estimator = estimator_of(gluon.nn.Dense(2, in_units=4))
    estimator.fit(data, epochs=1)
    seen = weakref.ref(data)
    del data
    gc.collect()
    assert seen() is None
