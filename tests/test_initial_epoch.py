"""Training on after `fit`, without checkpoints: ``fit(..., initial_epoch=...)``."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.data import transforms
from gluon_svrg.events import EpochEnd
from gluon_svrg.reporting.history import MEASURED
from mxnet.gluon import nn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3, 4, 4)).astype("float32")
Y = RNG.integers(0, 3, 20).astype("float32")


class EndAfter(EpochEnd):
    def __init__(self, epochs):
        self.epochs = epochs

    def epoch_end(self, estimator, *args, **kwargs):
        return estimator.position.epoch + 1 == self.epochs


def estimator_of():
    gs.seed_everything(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Flatten(), nn.Dense(3, in_units=48))
    net.initialize(mx.init.Normal(0.5))
    estimator = runs.estimator_of(net, train_metrics=mx.metric.Accuracy(), params={"momentum": 0.9})
    estimator.logger.handlers.clear()
    return estimator


def fit(estimator, *more, locked="auto", update_freq=1, **arguments):
    flip = transforms.RandomFlipLeftRight()
    data = gs.data.ArrayLoader(X, Y, batch_size=4, shuffle=True, seed=1, transform=flip)
    val = gs.data.ArrayLoader(X, Y, batch_size=10)
    handlers = [
        gs.SVRGHandler(update_freq, lambda t: 1 - t / 2, lock=locked),
        gs.ScheduleHandler("learning_rate", gs.schedules.cosine(0.1, 0.01)),
        gs.ValidationHandler(val, every_n_epochs=3),
    ]
    return estimator.fit(data, event_handlers=[*handlers, *more], **arguments)


def rows_of(result):
    return [{k: v for k, v in row.items() if k not in MEASURED} for row in result.history]


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("arguments", [{}, {"update_freq": 2}, {"locked": "off"}], ids=str)
def test_in_two_parts_is_as_in_one(at, arguments):
    if arguments.get("update_freq") == 2 and at == 1:
        at = 2  # an interval is not cut in two
    whole, parts = estimator_of(), estimator_of()
    expected = fit(whole, epochs=6, **arguments)
    first = fit(parts, EndAfter(at), epochs=6, **arguments)
    assert first.epochs_run == at
    result = fit(parts, epochs=6, initial_epoch=at, **arguments)
    assert problems.same(*(problems.weights_of(e.net) for e in (whole, parts)))
    assert rows_of(result) == rows_of(expected)
    assert result.epochs_run == 6
    assert result.stop_reason is gs.StopReason.EPOCHS_DONE
    assert parts.position == whole.position


def test_in_a_new_estimator_the_rows_are_numbered_right():
    result = fit(estimator_of(), epochs=5, initial_epoch=3)
    assert [row["epoch"] for row in result.history] == [3, 4]
    again = fit(estimator_of(), epochs=np.int64(5), initial_epoch=np.int64(3))
    assert rows_of(again) == rows_of(result)


def test_what_cannot_be():
    estimator = estimator_of()
    with pytest.raises(ValueError, match=r"initial_epoch=2 and resume='auto': a checkpoint knows"):
        fit(estimator, epochs=5, initial_epoch=2, resume="auto")
    for arguments in ({"epochs": 2}, {"batches": 9}):
        with pytest.raises(ValueError, match="initial_epoch=2 needs epochs above it, got epochs="):
            fit(estimator, initial_epoch=2, **arguments)
    with pytest.raises(ValueError, match="initial_epoch must be"):
        fit(estimator, epochs=5, initial_epoch=-1)
    with pytest.raises(TypeError, match="initial_epoch must be"):
        fit(estimator, epochs=5, initial_epoch=1.5)


def test_a_frozen_network_is_one_sentence():
    """Fails on 0.1 with MXNet's own error."""
    estimator = estimator_of()
    estimator.net.collect_params().setattr("grad_req", "null")
    with pytest.raises(ValueError, match=r"no parameter is trained: .* whose grad_req is not"):
        fit(estimator, epochs=1)
