"""MetricHandler: a metric is up to date whenever it is read."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.events import BatchBegin, BatchEnd, EpochEnd, GradientReady
from gluon_svrg.reporting.history import MEASURED
from mxnet.gluon.contrib import estimator as mx_estimator
from problems import ONE, TWO

METRICS = {
    "accuracy": mx.metric.Accuracy,
    "top 2": lambda: mx.metric.TopKAccuracy(top_k=2),
    "loss": mx.metric.Loss,
    # In MXNet's a mean of batches: here the sum and the number say what is meant.
    "mean absolute error": lambda: mx.metric.CustomMetric(
        lambda label, pred: (float(np.abs(pred.max(axis=1) - label).sum()), len(label))
    ),
}


class MXNetsHandler(mx_estimator.MetricHandler):
    """MXNet's own, which a run would replace if it were no subclass."""


class Reader(BatchBegin, GradientReady, BatchEnd, EpochEnd):
    """Reads the metric at each event."""

    priority = 0  # after the metric

    def __init__(self, read=lambda metric: metric.get_name_value(), every=1):
        self.values = []
        self._read, self._every, self._calls = read, every, 0

    def _see(self, estimator):
        self._calls += 1
        if self._calls % self._every == 0:
            self.values.append(self._read(estimator.train_metrics[0]))

    def batch_begin(self, estimator, *args, **kwargs):
        self._see(estimator)

    def gradient_ready(self, estimator, *args, **kwargs):
        self._see(estimator)

    def batch_end(self, estimator, *args, **kwargs):
        self._see(estimator)

    def epoch_end(self, estimator, *args, **kwargs):
        self._see(estimator)


def values_with(handler_class, metric, contexts=ONE, reader=None, val_data=False, **arguments):
    problem = problems.make("mlp", contexts)
    metric = METRICS[metric]()
    estimator = gs.Estimator(problem.net, problem.loss, metric, trainer=trainer_of(problem))
    reader = reader or Reader()
    handlers = [handler_class(estimator.train_metrics, **arguments), reader]
    val_batches = problem.ndarrays() if val_data else None
    history = estimator.fit(problem.ndarrays(), val_batches, 3, handlers).history
    for row in history:
        for name in MEASURED:
            del row[name]
    return reader.values, history


def trainer_of(problem):
    return mx.gluon.Trainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})


def assert_equal(ours, theirs):
    flat = [np.array([v for _, v in values], dtype="float64") for values in ours]
    other = [np.array([v for _, v in values], dtype="float64") for values in theirs]
    # Losses are added up in float64 here, in that of the network there.
    np.testing.assert_allclose(np.array(flat), np.array(other), rtol=1e-12)


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("metric", METRICS)
def test_at_each_event_a_reader_gets_mxnets_value(metric, contexts, every):
    ours, our_history = values_with(gs.MetricHandler, metric, contexts, Reader(every=every))
    theirs, history = values_with(MXNetsHandler, metric, contexts, Reader(every=every))
    assert len(ours) == 3 * 16 // every
    assert_equal(ours, theirs)
    assert [list(row) for row in our_history] == [list(row) for row in history]
    for row, other in zip(our_history, history, strict=True):
        np.testing.assert_allclose(list(row.values()), list(other.values()), rtol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_the_history_is_that_with_mxnets_handler_if_no_handler_reads(metric):
    ours = values_with(gs.MetricHandler, metric, reader=Reader(every=10**9))[1]
    theirs = values_with(MXNetsHandler, metric, reader=Reader(every=10**9))[1]
    for row, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(list(row.values()), list(other.values()), rtol=1e-12)


@pytest.mark.parametrize("read", [
    lambda metric: [metric.get()],
    lambda metric: [metric.get_global()],
    lambda metric: metric.get_global_name_value(),
    lambda metric: [("text", float(str(metric).split(": ")[-1].strip("}")))],
])  # fmt: skip
def test_every_way_to_read_is_up_to_date(read):
    ours = values_with(gs.MetricHandler, "accuracy", reader=Reader(read))[0]
    theirs = values_with(MXNetsHandler, "accuracy", reader=Reader(read))[0]
    assert_equal(ours, theirs)


def test_a_part_of_a_composite_is_up_to_date():
    part = mx.metric.Accuracy()
    handler = gs.MetricHandler([mx.metric.CompositeEvalMetric([part])])
    handler.epoch_begin(None)
    pred, label = mx.nd.array([[0, 1], [1, 0]]), mx.nd.array([1, 1])
    handler.batch_end(None, pred=[pred], label=[label], loss=[label])
    assert part.get() == ("accuracy", 0.5)


class CountingAccuracy(mx.metric.Accuracy):
    """No metric that is known to count samples: it is updated batch by batch."""

    updates = 0

    def update(self, labels, preds):
        self.updates += 1
        super().update(labels, preds)


@pytest.mark.parametrize(("limits", "seen"), [
    ({}, [1, 1, 1, 1, 1]),  # the first is not kept: a metric that fails must fail there
    ({"max_batches": 2}, [1, 1, 3, 3, 5]),
    ({"max_bytes": 1}, [1, 2, 3, 4, 5]),
])  # fmt: skip
def test_no_batch_is_waited_for_but_at_the_limits(limits, seen):
    problem = problems.make("mlp")
    updates = []

    class Count(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            updates.append(estimator.train_metrics[0].updates)

    metric = CountingAccuracy()
    estimator = gs.Estimator(problem.net, problem.loss, metric, trainer=trainer_of(problem))
    handlers = [gs.MetricHandler(estimator.train_metrics, **limits), Count()]
    estimator.fit(problem.ndarrays(), epochs=1, event_handlers=handlers)
    assert updates == seen
    assert estimator.train_metrics[0].updates == 5


def test_labels_that_the_data_writes_anew_in_place():
    problem = problems.make("softmax", samples=32)
    batches = problem.ndarrays()

    class Reusing:
        def __iter__(self):
            data, label = (array.copy() for array in batches[0])
            for batch in batches:
                batch[0].copyto(data)
                batch[1].copyto(label)
                yield data, label

    def history(data):
        problem = problems.make("softmax", samples=32)
        accuracy = mx.metric.Accuracy()
        estimator = gs.Estimator(problem.net, problem.loss, accuracy, trainer=trainer_of(problem))
        return [row["training accuracy"] for row in estimator.fit(data, epochs=3).history]

    assert history(Reusing()) == history(batches)


def test_after_an_exception_and_after_the_run_the_metric_is_the_users_own():
    problem = problems.make("softmax")
    metric = mx.metric.Accuracy()
    estimator = gs.Estimator(problem.net, problem.loss, metric, trainer=trainer_of(problem))
    own = dict(vars(estimator.train_metrics[0]))

    class Fail(BatchEnd):
        batches = 0

        def batch_end(self, estimator, *args, **kwargs):
            self.batches += 1
            if self.batches == 3:
                raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[Fail()])
    assert estimator.train_metrics[0].get()[1] >= 0  # three batches, not NaN
    estimator.fit(problem.ndarrays(), epochs=1)
    assert set(vars(estimator.train_metrics[0])) == set(own)


def test_batches_of_several_shapes():
    net = mx.gluon.nn.Dense(2, flatten=False, in_units=3)
    net.initialize()
    batches = [
        (mx.nd.random.normal(shape=(2, time, 3)), mx.nd.zeros((2, time))) for time in (4, 5, 4)
    ]
    values = []
    for handler_class in (gs.MetricHandler, MXNetsHandler):
        estimator = gs.Estimator(
            net,
            mx.gluon.loss.SoftmaxCELoss(),
            mx.metric.Accuracy(axis=-1),
            trainer=mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0}),
        )
        handler = handler_class(estimator.train_metrics)
        values.append(estimator.fit(batches, epochs=1, event_handlers=[handler]).history[0])
    assert values[0]["training accuracy"] == values[1]["training accuracy"]


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        ([(5, 3), (5, 4), (5, 3), (5, 3), (5, 4)], "float32"),  # sequences of several lengths
        ([(5, 3)] * 9, "float64"),  # sums of so few float32 numbers are exact in float64
    ],
)
def test_a_loss_has_the_same_bits_whatever_waits_with_it(shapes, dtype):
    """As after a resume, which begins with nothing that waits."""
    rng = np.random.default_rng(0)
    batches = [
        [mx.nd.array(rng.normal(size=shape), dtype=dtype) for _ in range(3)] for shape in shapes
    ]
    values = []
    for limit in (1, 2, 3, 64):
        loss = mx.metric.Loss("loss")
        handler = gs.MetricHandler(loss, max_batches=limit)
        for label, pred, value in batches:
            handler.batch_end(None, label=[label], pred=[pred], loss=[value])
        handler.flush()
        values.append(loss.get()[1])
    assert len(set(values)) == 1


def test_the_losses_of_a_batch_are_added_up_in_float64():
    loss, ones = mx.metric.Loss("loss"), mx.nd.ones(4)
    handler = gs.MetricHandler(loss)
    values = mx.nd.array([2**24, 1, 1, 1])  # in float32 2**24 + 1 is 2**24
    for _ in range(2):
        handler.batch_end(None, label=[ones], pred=[ones], loss=[values])
    handler.flush()
    assert loss.get() == ("loss", (2**24 + 3) / 4)


class Own(mx.metric.EvalMetric):
    """A metric of a user's own: the largest mean of a batch."""

    def __init__(self):
        super().__init__("own")

    def update(self, labels, preds):
        self.sum_metric = max(self.sum_metric, *(pred.asnumpy().mean() for pred in preds))
        self.num_inst = 1


def spread(label, pred):
    return pred.std() + label.mean()


def all_kinds():
    return [
        mx.metric.Accuracy(),
        mx.metric.F1(),
        mx.metric.PCC(),
        mx.metric.PearsonCorrelation(),
        mx.metric.np(spread, name="function"),
        gs.EpochMetric(spread),
        Own(),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("batches", [1, 3, 5, 8])
def test_a_resume_continues_the_figures(batches, tmp_path):
    """In the middle of an epoch and at its end: the same bits."""

    def fit(folder, **arguments):
        rng = np.random.default_rng(0)
        net = mx.gluon.nn.Dense(1, in_units=6)
        net.initialize(mx.init.Constant(0.1))
        x = mx.nd.array(rng.normal(size=(37, 6)))
        data = gs.data.ArrayLoader(x, (x[:, 0] > 0), rng.uniform(size=37), batch_size=8)
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        estimator = gs.Estimator(net, mx.gluon.loss.SigmoidBCELoss(), all_kinds(), trainer=trainer)
        handlers = [gs.CheckpointHandler(tmp_path / folder, every_n_batches=1)]
        history = estimator.fit(data, event_handlers=handlers, verbose=0, **arguments).history
        return [[row[n] for n in row if n.startswith("training")] for row in history]

    fit("cut", batches=batches)
    resumed = fit("cut", batches=10, resume="auto")
    assert fit("whole", batches=10) == resumed
    assert all(np.isfinite(resumed).ravel())


def test_the_totals_of_0_8_are_not_in_a_checkpoint(caplog):
    """Its metrics were: the epoch begins again, and a line says so."""
    problem = problems.make("softmax")
    metric = mx.metric.Accuracy()
    estimator = gs.Estimator(problem.net, problem.loss, metric, trainer=trainer_of(problem))
    estimator.position.begin_epoch()
    estimator.position.end_batch()
    handler = gs.MetricHandler(estimator.train_metrics)
    handler.load_state_dict(estimator, {})
    assert "version 0.8 or before wrote the checkpoint in the middle of epoch 0" in caplog.text
    handler.train_end(estimator)


def test_a_metric_in_use_is_refused():
    """Two runs at a time would mix what they add to it; one after the other they do not."""
    problem = problems.make("softmax")
    metric = Own()
    one, two = (
        gs.Estimator(problem.net, problem.loss, metric, trainer=trainer_of(problem))
        for _ in range(2)
    )

    class Fit(EpochEnd):
        priority = -2000

        def epoch_end(self, estimator, *args, **kwargs):
            two.fit(problem.ndarrays(), epochs=1, verbose=0)

    with pytest.raises(ValueError, match="'training own' is in use in a run that has not ended"):
        one.fit(problem.ndarrays(), epochs=1, event_handlers=[Fit()], verbose=0)
    for estimator in (two, one, two):
        estimator.fit(problem.ndarrays(), epochs=1, verbose=0)


def test_a_run_that_is_stopped_before_a_batch_leaves_its_metrics_free():
    problem = problems.make("softmax")
    metric = mx.metric.Accuracy()
    estimator = gs.Estimator(problem.net, problem.loss, metric, trainer=trainer_of(problem))

    class Stop(EpochEnd, gs.events.EpochBegin):
        def epoch_begin(self, estimator, *args, **kwargs):
            estimator.stop()

    estimator.fit(problem.ndarrays(), epochs=2, event_handlers=[Stop()], verbose=0)
    assert "get" not in vars(metric)
    estimator.fit(problem.ndarrays(), epochs=1, verbose=0)


def test_an_epoch_metric_has_its_figure_at_the_end():
    problem = problems.make("softmax")
    metric = gs.EpochMetric(lambda label, pred: float(len(label)), name="number")
    estimator = gs.Estimator(problem.net, problem.loss, metric, trainer=trainer_of(problem))
    reader = Reader(lambda metric: metric.get()[1])
    estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[reader], verbose=0)
    assert np.isnan(reader.values[:-1]).all()
    assert metric.get() == ("training number", 37)


def test_the_object_that_was_given_shows_the_figure():
    problem = problems.make("linear")
    metric = mx.metric.RMSE()
    estimator = gs.Estimator(problem.net, problem.loss, metric, trainer=trainer_of(problem))
    row = estimator.fit(problem.ndarrays(), epochs=1, verbose=0).history[-1]
    assert metric.get() == metric.get_global() == ("training rmse", row["training rmse"])
