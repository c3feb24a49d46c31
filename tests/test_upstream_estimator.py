"""Each defect of MXNet's Estimator and its handlers, shown there and absent here."""

import logging
import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.checkpoint import storage
from gluon_svrg.events import EpochBegin
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib import estimator as mx_estimator

pytestmark = [pytest.mark.full, pytest.mark.long]

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 3)).astype("float32"), RNG.integers(0, 2, 12).astype("float32")
LOSSES = [3.0, 1.0, 2.0, 2.5]  # the second epoch is the best


class Turn(EpochBegin):
    """Tells the metric which epoch it is."""

    def __init__(self, first=0):
        self.epoch = first

    def epoch_begin(self, estimator, *args, **kwargs):
        for metric in estimator.train_metrics:
            metric.epoch = self.epoch
        self.epoch += 1


def loader(batch_size=4, **arguments):
    return gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), batch_size, **arguments)


def made(estimator_class, metric=None, dropout=0):
    """Return an Estimator of that class, MXNet's or ours, quiet, for a new network."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3), nn.Dropout(dropout), nn.Dense(2, in_units=4))
    net.initialize(mx.init.Normal(0.5))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    estimator = estimator_class(
        net,
        gluon.loss.SoftmaxCELoss(),
        [metric] if metric else [mx.metric.Accuracy()],
        trainer=trainer,
        context=[mx.cpu()],
    )
    estimator.logger = logging.getLogger("test_upstream")
    estimator.logger.setLevel(logging.INFO)
    return estimator


def theirs(metric=None, **arguments):
    return made(mx_estimator.Estimator, metric, **arguments)


def ours(metric=None, **arguments):
    return made(gs.Estimator, metric, **arguments)


def weights_in(path):
    return [array.asnumpy() for array in mx.nd.load(str(path)).values()]


GREATER = "`greater` operator will be used to determine if training loss has improved"


def test_e1_the_best_of_a_loss(tmp_path):
    """MXNet's mode='auto' takes the greatest loss for the best: the worst model is kept."""
    metric = problems.Scripted(LOSSES, "loss")
    estimator = theirs(metric)
    with pytest.warns(UserWarning, match=GREATER):
        handler = mx_estimator.CheckpointHandler(
            str(tmp_path / "theirs"), monitor=metric, save_best=True, max_checkpoints=10
        )
    estimator.fit(loader(), epochs=4, event_handlers=[handler, Turn()])
    best = weights_in(tmp_path / "theirs" / "model-best.params")
    assert handler.best == max(LOSSES)
    assert problems.same(best, weights_in(tmp_path / "theirs" / "model-epoch0batch3.params"))
    assert not problems.same(best, weights_in(tmp_path / "theirs" / "model-epoch1batch6.params"))

    metric = problems.Scripted(LOSSES, "loss")
    estimator = ours(metric)
    handler = gs.CheckpointHandler(tmp_path / "ours", monitor=metric)
    estimator.fit(loader(), epochs=4, event_handlers=[handler, Turn()])
    assert handler.best.name == "epoch-2-batch-6"


def test_e1_early_stopping_of_a_loss(tmp_path):
    """MXNet's stops as soon as the loss falls."""
    metric = problems.Scripted([3.0, 2.0, 1.0, 1.5], "loss")
    estimator = theirs(metric)
    with pytest.warns(UserWarning, match=GREATER):
        handler = mx_estimator.EarlyStoppingHandler(metric)
    turn = Turn()
    estimator.fit(loader(), epochs=4, event_handlers=[handler, turn])
    assert turn.epoch == 2
    assert handler.best == 3

    metric = problems.Scripted([3.0, 2.0, 1.0, 1.5, 0.0], "loss")
    estimator = ours(metric)
    handler = gs.EarlyStoppingHandler(metric)
    result = estimator.fit(loader(), epochs=5, event_handlers=[handler, Turn()])
    assert result.stop_reason is gs.StopReason.NO_IMPROVEMENT
    assert result.epochs_run == 4
    assert (handler.best, handler.best_epoch) == (1.0, 2)


def test_e2_what_is_pruned(tmp_path):
    """MXNet deletes by the beginning of the name: with batch1 go batch10 and batch11, just made."""
    handler = mx_estimator.CheckpointHandler(
        str(tmp_path / "theirs"), epoch_period=None, batch_period=1, max_checkpoints=10
    )
    theirs().fit(loader(1), batches=12, event_handlers=handler)
    kept = [f"model-epoch0batch{number}" for number in range(2, 12)]
    assert handler.saved_checkpoints == kept
    left = {path.stem for path in (tmp_path / "theirs").glob("*.params")}
    assert left == set(kept[:8])

    handler = gs.CheckpointHandler(
        tmp_path / "ours", every_n_epochs=None, every_n_batches=1, keep_last=10
    )
    ours().fit(loader(1), batches=12, event_handlers=handler)
    assert [key.batch for key in storage.list_checkpoints(tmp_path / "ours")] == list(range(3, 13))


def test_e3_how_many_are_kept_after_a_resume(tmp_path):
    """MXNet's forgets those that are there already, so they stay for ever."""
    for epochs in (2, 4):
        handler = mx_estimator.CheckpointHandler(
            str(tmp_path / "theirs"), max_checkpoints=2, resume_from_checkpoint=epochs == 4
        )
        theirs().fit(loader(), epochs=epochs, event_handlers=handler)
    assert len(list((tmp_path / "theirs").glob("model-epoch*.params"))) == 4

    for epochs in (2, 4):
        handler = gs.CheckpointHandler(tmp_path / "ours", keep_last=2)
        ours().fit(loader(), epochs=epochs, event_handlers=handler, resume="auto")
    assert [key.epoch for key in storage.list_checkpoints(tmp_path / "ours")] == [3, 4]


def trained(estimator_class, handler_of, parts, **resume):
    """Train in parts, each with a seed of its own, as new processes; return the weights."""
    for seed, epochs in parts:
        gs.seed_everything(seed)
        estimator = made(estimator_class, dropout=0.5)
        handler = handler_of(seed > 0)
        estimator.fit(loader(shuffle=True), epochs=epochs, event_handlers=handler, **resume)
    return problems.weights_of(estimator.net)


def test_e4_a_resumed_run(tmp_path):
    """MXNet's brings back no random numbers: dropout and the order of the data are others."""

    def their_handler(folder):
        return lambda is_second: mx_estimator.CheckpointHandler(
            str(tmp_path / folder), resume_from_checkpoint=is_second
        )

    whole = trained(mx_estimator.Estimator, their_handler("a"), [(0, 4)])
    parts = trained(mx_estimator.Estimator, their_handler("b"), [(0, 2), (1, 4)])
    assert problems.relative_difference(parts, whole) > 1e-2

    def our_handler(folder):
        return lambda _: gs.CheckpointHandler(tmp_path / folder)

    whole = trained(gs.Estimator, our_handler("c"), [(0, 4)])
    parts = trained(gs.Estimator, our_handler("d"), [(0, 2), (1, 4)], resume="auto")
    assert problems.same(parts, whole)


def test_e4_the_best_after_a_resume(tmp_path):
    """MXNet's forgets the best value, and overwrites the best model by a worse one."""
    values = [1.0, 2.0, 3.0, 4.0]
    for first, epochs in ((0, 2), (2, 4)):
        metric = problems.Scripted(values, "loss")
        estimator = theirs(metric)
        handler = mx_estimator.CheckpointHandler(
            str(tmp_path / "theirs"),
            monitor=metric,
            save_best=True,
            mode="min",
            resume_from_checkpoint=first > 0,
        )
        estimator.fit(loader(), epochs=epochs, event_handlers=[handler, Turn(first)])
        assert handler.best == values[first]

    for first, epochs in ((0, 2), (2, 4)):
        metric = problems.Scripted(values, "loss")
        estimator = ours(metric)
        handler = gs.CheckpointHandler(tmp_path / "ours", monitor=metric, keep_last=1)
        handlers = [handler, Turn(first)]
        estimator.fit(loader(), epochs=epochs, event_handlers=handlers, resume="auto")
        assert handler.best.name == "epoch-1-batch-3"


def test_e5_both_periods(tmp_path):
    """MXNet's refuses to resume where checkpoints follow both epochs and batches."""
    handler = mx_estimator.CheckpointHandler(
        str(tmp_path / "theirs"), batch_period=2, resume_from_checkpoint=True
    )
    with pytest.raises(AssertionError, match="you must only specify the same type of period"):
        theirs().fit(loader(), epochs=2, event_handlers=handler)

    for duration in ({"epochs": 1}, {"batches": 5}, {"epochs": 2}):
        handler = gs.CheckpointHandler(tmp_path / "ours", every_n_batches=2, keep_last=None)
        ours().fit(loader(), event_handlers=handler, resume="auto", **duration)
    found = [(key.epoch, key.batch) for key in storage.list_checkpoints(tmp_path / "ours")]
    assert found == [(0, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 6)]


def test_e5_a_target_that_is_reached(tmp_path):
    """MXNet's raises, so a job that is started again after its end fails."""
    mx_handler = mx_estimator.CheckpointHandler(str(tmp_path / "theirs"))
    theirs().fit(loader(), epochs=2, event_handlers=mx_handler)
    mx_handler = mx_estimator.CheckpointHandler(
        str(tmp_path / "theirs"), resume_from_checkpoint=True
    )
    with pytest.raises(ValueError, match="Found checkpoint with maximum number of epoch 2 reached"):
        theirs().fit(loader(), epochs=2, event_handlers=mx_handler)

    histories = []
    for _ in range(2):
        handler = gs.CheckpointHandler(tmp_path / "ours")
        result = ours().fit(loader(), epochs=2, event_handlers=handler, resume="auto")
        assert result.stop_reason is gs.StopReason.EPOCHS_DONE
        histories.append(result.history)
    assert histories[0] == histories[1]


def test_e6_what_the_log_says_of_an_improvement(tmp_path, caplog):
    """MXNet's writes the new value in the place of the old: "from 1.00000 to 1.00000"."""
    metric = problems.Scripted(LOSSES, "loss")
    estimator = theirs(metric)
    handler = mx_estimator.CheckpointHandler(
        str(tmp_path / "theirs"), monitor=metric, save_best=True, mode="min", verbose=1
    )
    with caplog.at_level(logging.INFO, "test_upstream"):
        estimator.fit(loader(), epochs=4, event_handlers=[handler, Turn()])
    pattern = r"training loss improved from (\S+) to (\S+),"
    pairs = [m.groups() for text in caplog.messages if (m := re.search(pattern, text))]
    assert pairs == [("3.00000", "3.00000"), ("1.00000", "1.00000")]

    # Ours says at the end what was the best, and when; each checkpoint holds its own value.
    caplog.clear()
    metric = problems.Scripted(LOSSES, "loss")
    estimator = ours(metric)
    handlers = [
        gs.CheckpointHandler(tmp_path / "ours", monitor=metric, keep_last=None),
        gs.EarlyStoppingHandler(metric, patience=2),
        Turn(),
    ]
    with caplog.at_level(logging.INFO, "test_upstream"):
        estimator.fit(loader(), epochs=4, event_handlers=handlers)
    assert not any("improved from" in text for text in caplog.messages)
    assert (
        "the run ends after 2 epochs without improvement: the best training loss 1 was in epoch 1"
    ) in caplog.messages
    paths = storage.list_checkpoints(tmp_path / "ours").values()
    values = [storage.read_manifest(path)["monitor"]["value"] for path in paths]
    assert values == LOSSES


def test_e7_the_data_of_fit():
    """MXNet's takes a DataLoader only (MXNet issue 17124)."""

    class Stream:
        def __iter__(self):
            return iter(batches)

    batches = [(mx.nd.array(X[i : i + 4]), mx.nd.array(Y[i : i + 4])) for i in (0, 4, 8)]
    arrays = gs.data.ArrayLoader(X, Y, batch_size=4)
    for data in (batches, arrays, Stream()):
        with pytest.raises(ValueError, match="Estimator only support input as Gluon DataLoader"):
            theirs().fit(data, epochs=1)

    weights = []
    for data in (loader(), batches, arrays, Stream()):
        gs.seed_everything(0)
        estimator = ours()
        estimator.fit(data, epochs=2)
        weights.append(problems.weights_of(estimator.net))
    assert all(problems.same(other, weights[0]) for other in weights)


@pytest.mark.parametrize("made_by", [theirs, ours])
def test_one_device_takes_lengths_that_differ_along_another_axis(made_by):
    """A batch that is not shared out needs no equal lengths along axis 1; MXNet asks for none."""
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y[:, None]), batch_size=1)
    assert {(x.shape, y.shape) for x, y in data} == {((1, 3), (1, 1))}
    estimator = made_by()
    before = problems.weights_of(estimator.net)
    estimator.fit(data, val_data=data, epochs=1, batch_axis=1)
    after = problems.weights_of(estimator.net)
    assert not problems.same(before, after)
    assert all(np.isfinite(metric.get()[1]) for metric in estimator.val_metrics)


def test_along_the_first_axis_and_on_several_devices_lengths_have_to_agree():
    with pytest.raises(ValueError, match=r"the same length along axis 0, got shapes \(4, 3\) and"):
        ours().fit([(mx.nd.array(X[:4]), mx.nd.array(Y[:3]))], epochs=1)
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = nn.Dense(2, in_units=3)
    net.initialize(ctx=contexts)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    shared = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer, context=contexts)
    with pytest.raises(ValueError, match=r"the same length along axis 1, got shapes \(1, 3\) and"):
        shared.fit([(mx.nd.array(X[:1]), mx.nd.array([[Y[0]]]))], epochs=1, batch_axis=1)
