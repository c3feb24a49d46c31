"""A stream without an end that can be iterated again: what reads it ends, or refuses it."""

import itertools

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from mxnet import gluon
from mxnet.gluon import nn

BATCHES = 12
REFUSED = (
    rf"not over after {BATCHES} batches, .* no length: .*first_batches\(train_data, {BATCHES}\)"
)


class Stream:
    """Batches without an end, or `number` of them; the length is not told."""

    def __init__(self, number=None):
        self.number = number
        self.read = 0

    def __iter__(self):
        rng = np.random.default_rng(0)
        for _ in itertools.count() if self.number is None else range(self.number):
            self.read += 1
            assert self.read < 2000, "it is read without an end"
            x = rng.normal(size=(4, 4)).astype("float32")
            yield mx.nd.array(x), mx.nd.array(x.sum(1, keepdims=True))


def estimator_of(optimizer="sgd", of=gs.Estimator):
    net = nn.Dense(1, in_units=4, prefix="dense_")
    mx.random.seed(0)
    net.initialize(mx.init.Normal(0.5))
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, {"learning_rate": 0.05})
    return of(net, gluon.loss.L2Loss(), trainer=trainer)


def fit(*handlers, data=None, optimizer="sgd"):
    estimator = estimator_of(optimizer)
    return estimator.fit(data or Stream(), batches=BATCHES, event_handlers=list(handlers))


@pytest.mark.parametrize(
    "handlers",
    [
        lambda path: [],
        lambda path: [gs.EMAHandler(0.9), gs.EarlyStoppingHandler("training loss", patience=1)],
        lambda path: [gs.CheckpointHandler(path, every_n_batches=5)],
        lambda path: [gs.SVRGHandler(coefficient=0)],
        lambda path: [gs.SVRGHandler(start_epoch=1)],
        lambda path: [gs.ScheduleHandler("learning_rate", gs.schedules.cosine(0.1))],
        lambda path: [gs.HistoryFileHandler(path / "history.csv"), gs.ProfilerHandler()],
    ],
)
def test_a_run_of_batches_ends(handlers, tmp_path):
    result = fit(*handlers(tmp_path))
    assert result.stop_reason is gs.StopReason.BATCHES_DONE
    assert result.history[-1]["batches"] == BATCHES


def test_an_optimizer_that_reduces_variance_needs_no_pass():
    assert fit(optimizer="mars").history[-1]["batches"] == BATCHES


@pytest.mark.parametrize(
    "svrg",
    [
        gs.SVRGHandler,
        lambda: gs.SVRGHandler(update_freq=2, coefficient="auto"),
        lambda: gs.SVRGHandler(gradient_table=False, lock="off"),
        lambda: gs.SVRGHandler(coefficient=gs.schedules.linear(1, 0)),
    ],
)
def test_a_full_pass_over_it_is_refused(svrg):
    stream = Stream()
    with pytest.raises(ValueError, match=REFUSED):
        fit(svrg(), data=stream)
    assert stream.read <= BATCHES + 2


def test_by_hand_with_a_limit():
    net = estimator_of().net
    backward = problems.backward_of(net, gluon.loss.L2Loss())
    interval = gs.svrg.Interval(net, backward, max_batches=BATCHES)
    with pytest.raises(ValueError, match=REFUSED):
        interval.begin(Stream())
    assert interval.begin(Stream(BATCHES)).samples == 4 * BATCHES


@pytest.mark.parametrize("number", [5, BATCHES])
def test_data_with_an_end_but_no_length_train_as_a_list_does(number):
    """At most as many batches as the run: the full pass is over all of them."""
    weights = []
    for data in (Stream(number), list(Stream(number))):
        estimator = estimator_of()
        estimator.fit(data, batches=BATCHES, event_handlers=[gs.SVRGHandler(gradient_table=False)])
        weights.append(problems.weights_of(estimator.net))
    assert problems.same(*weights)


def test_an_iterator_of_mxnet_may_have_more_batches_than_the_run(tmp_path):
    """Neither has a length, and both have an end: the full pass is over all of it."""
    rows = np.random.default_rng(0).normal(size=(4 * (BATCHES + 5), 4)).astype("float32")
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",")
    np.savetxt(tmp_path / "labels.csv", rows.sum(1), delimiter=",")
    in_memory = mx.io.NDArrayIter(rows, rows.sum(1), 4, last_batch_handle="roll_over")
    files = mx.io.CSVIter(
        data_csv=str(tmp_path / "rows.csv"),
        data_shape=(4,),
        label_csv=str(tmp_path / "labels.csv"),
        batch_size=4,
    )
    for iterator in (in_memory, files):
        svrg = gs.SVRGHandler()
        fit(svrg, data=iterator)
        assert svrg.gradient_evaluations == len(rows) + 4 * BATCHES


def test_the_way_out_of_the_message():
    result = fit(gs.SVRGHandler(), data=gs.data.first_batches(Stream(), BATCHES))
    assert result.history[-1]["batches"] == BATCHES


def test_a_variance_of_it_is_refused():
    with pytest.raises(ValueError, match="a Stream has no length: give train_data a __len__"):
        fit(gs.VarianceHandler())
    with pytest.raises(ValueError, match="a Stream has no length: give train_data a __len__"):
        fit(gs.SVRGHandler(max_variance_ratio=0.5))


def test_the_finders_read_as_much_as_they_need():
    arguments = {"min_lr": 1e-3, "num_batches": 40, "trial_batches": 10}
    test = gs.find_learning_rate(estimator_of(), Stream(), **arguments)
    assert (
        test.suggestion
        == gs.find_learning_rate(estimator_of(), list(Stream(50)), **arguments).suggestion
    )
    assert test.suggestion is not None
    assert gs.find_batch_size(estimator_of(), Stream(), max_batch_size=16).suggestion <= 16
