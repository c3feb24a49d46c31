"""What metrics may be given as, and the loss, which is always one."""

import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.events import EpochEnd
from gluon_svrg.metrics.handler import MetricHandler
from gluon_svrg.metrics.setup import copies_for, make_metrics
from mxnet import gluon
from mxnet.gluon.contrib import estimator as mx_estimator

LOSSES = {
    "softmax": gluon.loss.SoftmaxCrossEntropyLoss,
    "l2": gluon.loss.L2Loss,
}


def make(train_metrics=None, val_metrics=None, kind="softmax"):
    problem = problems.make(kind)
    estimator = runs.estimator_of(problem, train_metrics=train_metrics, val_metrics=val_metrics)
    return estimator, problem.ndarrays()


def names(metrics):
    return [metric.name for metric in metrics]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ["accuracy", "loss"]),
        ([], ["accuracy", "loss"]),
        (mx.metric.Accuracy(), ["accuracy", "loss"]),
        ([mx.metric.MSE(), mx.metric.Accuracy()], ["mse", "accuracy", "loss"]),
        ("mse", ["mse", "loss"]),
        (("mse", "acc"), ["mse", "accuracy", "loss"]),
        ("loss", ["loss"]),
        (mx.metric.Loss("mine"), ["mine"]),
        ([mx.metric.Loss("loss"), "acc"], ["loss", "accuracy"]),
        (mx.metric.CompositeEvalMetric(["acc", "mse"]), ["accuracy", "mse", "loss"]),
        ([mx.metric.CompositeEvalMetric([mx.metric.Loss("mine")])], ["composite"]),
        (mx.metric.CustomMetric(lambda *_: 0.0, "loss"), ["loss"]),
        (np.allclose, ["allclose", "loss"]),
        (lambda label, pred: 0.0, ["custom(<lambda>)", "loss"]),
    ],
)
def test_what_metrics_may_be_given_as(given, expected):
    train, val = make_metrics(LOSSES["softmax"](), given, given)
    assert names(train) == expected
    assert names(val) == (expected if given else [])


def test_a_list_that_is_given_stays_as_it_is():
    given = [mx.metric.Accuracy()]
    make(given)
    assert len(given) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("acuracy", "val_metrics: MXNet has no metric 'acuracy': did you mean accuracy or "),
        ("zzzz", "val_metrics: MXNet has no metric 'zzzz': it has acc, accuracy, "),
        (["acc", 3], "val_metrics must be a metric or a list of metrics, got 3: give objects of"),
        (3, "got 3: give objects of mx.metric, names such as 'acc', or functions of label and"),
        (mx.metric.Accuracy, "got the class Accuracy: make one, Accuracy()"),
        ("custommetric", "the metric 'custommetric' cannot be made from its name alone ("),
    ],
)
def test_what_is_no_metric(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make("acc", given)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, "softmax"),
        (None, "linear"),
        ("acc", "softmax"),
        (mx.metric.MSE, "linear"),
    ],
)
def test_the_loss_is_in_the_row_and_in_the_line(given, kind, root_logger, capsys):
    """It had the name of its class, and none with a metric of one's own."""
    estimator, data = make(given() if given is mx.metric.MSE else given, kind=kind)
    trained = []

    class Losses(mx_estimator.BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            trained.append(kwargs["loss"][0].asnumpy())

    (row,) = estimator.fit(data, data, 1, [Losses()]).history
    assert row["training loss"] == pytest.approx(np.concatenate(trained).mean(), rel=1e-12)
    expected = [estimator.loss(estimator.net(x), y).asnumpy() for x, y in data]
    assert row["validation loss"] == pytest.approx(np.concatenate(expected).mean(), rel=1e-12)
    line = capsys.readouterr().out
    assert re.search(r"training loss [\d.]+.*, validation loss [\d.]+, learning rate", line)
    assert "softmaxcrossentropy" not in line


@pytest.mark.parametrize("handler_class", [MetricHandler, mx_estimator.MetricHandler])
def test_a_metric_handler_that_is_given_may_leave_the_loss_out(handler_class):
    """MXNet's tests give one with the metric that they have made."""
    own = mx.metric.Accuracy()
    estimator, data = make(own)
    (row,) = estimator.fit(data, epochs=1, event_handlers=[handler_class(own)]).history
    other, data = make(mx.metric.Accuracy())
    (expected,) = other.fit(data, epochs=1).history
    for name in ("training accuracy", "training loss"):
        assert row[name] == expected[name]
    handlers = [handler_class(estimator.val_metrics[:1])]
    found = estimator.evaluate(data, event_handlers=handlers)
    assert found == other.evaluate(data)


def test_mxnets_metric_handler_is_replaced_and_a_subclass_is_not():
    """So its figures are those of all samples, whatever the batches."""

    class Own(mx_estimator.MetricHandler):
        pass

    found = {}
    for handler_class in (MetricHandler, mx_estimator.MetricHandler, Own):
        estimator, data = make(mx.metric.RMSE(), kind="linear")
        handler = handler_class(estimator.train_metrics, priority=-990)
        (row,) = estimator.fit(data, epochs=1, event_handlers=[handler]).history
        in_run = [h for h in estimator.handlers if isinstance(h, mx_estimator.MetricHandler)]
        found[handler_class] = row["training rmse"], *((type(h), h.priority) for h in in_run)
    assert found[mx_estimator.MetricHandler] == found[MetricHandler]
    assert found[MetricHandler][1:] == ((MetricHandler, -990),)
    assert found[Own][1:] == ((Own, -990),)
    assert found[Own][0] != pytest.approx(found[MetricHandler][0], rel=1e-6)  # a mean over batches


def test_a_checkpoint_without_the_loss(tmp_path, root_logger, capsys):
    """Of a run with a metric of its own, which had no loss: that epoch's is of what follows."""
    first, data = make("acc")
    for metrics in (first._train_metrics, first._val_metrics):
        metrics.pop()
    first.fit(data, batches=7, event_handlers=[gs.CheckpointHandler(tmp_path)])
    again, data = make("acc")
    seen = []

    class See(EpochEnd):
        priority = -2000

        def epoch_end(self, estimator, *args, **kwargs):
            estimator.train_metrics[1].get()
            seen.append(estimator.train_metrics[1].num_inst)

    capsys.readouterr()
    handlers = [gs.CheckpointHandler(tmp_path), See()]
    history = again.fit(data, None, 3, handlers, resume="auto").history
    assert "training loss" not in history[0]
    assert seen == [21, 37]  # three of five batches, the last with 5 samples
    shown = capsys.readouterr().out
    assert "no value of the metric 'training loss': in epoch 1 it covers only the batches" in shown


def wide(classes_last=True):
    """A network whose output is N x T x C, the classes last, with labels N x T."""
    net = gluon.nn.Dense(4, flatten=False, in_units=3)
    net.initialize()
    return net, [(mx.nd.ones((8, 5, 3)), mx.nd.zeros((8, 5)))] * 3


class Count(mx_estimator.BatchEnd):
    priority = 2000
    batches = 0

    def batch_end(self, estimator, *args, **kwargs):
        self.batches += 1


@pytest.mark.parametrize("metric", [None, "acc", "f1"])
def test_a_metric_that_cannot_take_the_outputs_is_told_at_the_first_batch(metric):
    """After the epoch, or after 64 batches: without a name, with the shapes of all together."""
    net, data = wide()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    estimator = gs.Estimator(net, loss, metric, trainer=trainer)
    count = Count()
    name = "f1" if metric == "f1" else "accuracy"
    hint = "Estimator a metric that suits" if metric == "f1" else r"mx\.metric\.Accuracy\(axis=-1\)"
    message = (
        rf"the metric 'training {name}' fails on batches with labels of shape \(8, 5\) and outputs "
        rf"of shape \(8, 5, 4\) \(.+\): .*{hint}"
    )
    with pytest.raises(ValueError, match=message):
        estimator.fit(data, epochs=1, event_handlers=[count])
    assert count.batches == 0
    metric = mx.metric.Accuracy(axis=-1)
    again = gs.Estimator(net, loss, metric, trainer=trainer)
    assert again.fit(data, epochs=1).history[0]["training accuracy"] >= 0


def test_a_function_that_fails_is_told_by_its_name():
    def mean_error(label, pred):
        return np.abs(label - pred).mean()

    estimator, data = make(mean_error)
    message = r"the metric 'training mean_error' fails on batches .*\(8, 3\) \(.*broadcast"
    with pytest.raises(ValueError, match=message):
        estimator.fit(data, epochs=1)


def test_a_function_is_taken():
    def mean_error(label, pred):
        return np.abs(label - pred.ravel()).mean()

    estimator, data = make(mean_error, kind="linear")
    trainer = gluon.Trainer(estimator.net.collect_params(), "sgd", {"learning_rate": 0.0})
    estimator = gs.Estimator(estimator.net, estimator.loss, mean_error, trainer=trainer)
    (row,) = estimator.fit(data, epochs=1).history
    assert list(row)[-2:] == ["training mean_error", "training loss"]
    errors = [np.abs((y - estimator.net(x)[:, 0]).asnumpy()) for x, y in data]
    expected = np.concatenate(errors).mean()  # the last batch is smaller
    assert row["training mean_error"] == pytest.approx(expected, rel=1e-12)


def rows_of(*runs_given):
    """Train an Estimator with the metrics of each run, after all were made; return their rows."""
    estimators = []
    for train, val in runs_given:
        problem = problems.make("linear", dtype="float32")
        trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
        arguments = {"trainer": trainer, "train_metrics": train, "val_metrics": val}
        estimators.append((gs.Estimator(problem.net, problem.loss, **arguments), problem))
    return [
        [
            dict(row) | {"time": None, "samples_per_second": None}
            for row in estimator.fit(
                problem.ndarrays("float32"), problem.ndarrays("float32"), epochs=2, verbose=0
            ).history
        ]
        for estimator, problem in estimators
    ]


def figures(rows):
    return [{name: row[name] for name in row if " " in name} for row in rows]


@pytest.mark.parametrize("val", [False, True])
def test_a_metric_of_two_estimators_has_its_name(val):
    """Fails on 0.8: the second row had a 'training training mse', which no monitor finds."""
    one = mx.metric.MSE()
    alone = figures(rows_of((mx.metric.MSE(), mx.metric.MSE() if val else None))[0])
    assert "training mse" in alone[0]
    for rows in rows_of((one, one if val else None), (one, one if val else None)):
        assert figures(rows) == alone


def test_a_metric_for_training_and_validation_has_two_figures():
    """Fails on 0.8: the figure of the training was gone."""
    one = mx.metric.MSE()
    expected = figures(rows_of((mx.metric.MSE(), mx.metric.MSE()))[0])
    assert figures(rows_of((one, [one, one]))[0]) == expected
    assert figures(rows_of(([one, one], one))[0]) == expected


def test_a_metric_that_cannot_be_copied():
    class Locked(mx.metric.MSE):
        def __deepcopy__(self, memo):
            raise TypeError("it holds a lock")

    one = Locked()
    with pytest.raises(ValueError, match=r"cannot be copied \(it holds a lock\): make one for"):
        rows_of((one, one))
    rows_of((one, Locked()))


ACCURACY = mx.metric.Accuracy


@pytest.mark.parametrize(
    ("train", "val", "argument"),
    [
        ([ACCURACY(), ACCURACY(axis=0)], None, "train_metrics"),
        (["acc"], ["acc", mx.metric.CompositeEvalMetric([ACCURACY(axis=0)])], "val_metrics"),
        ([mx.metric.Loss("loss"), mx.metric.CustomMetric(np.allclose, "loss")], None, "train_met"),
    ],
)
def test_two_metrics_of_one_name_are_refused(train, val, argument):
    with pytest.raises(ValueError, match=rf"{argument}.*: two metrics have the name .*\(name="):
        make(train, val)
    make([ACCURACY(), ACCURACY(name="other")])


def test_a_metric_that_another_estimator_has_for_something_else():
    """Its figures would have the other's name."""
    metric = mx.metric.Accuracy()
    first, data = make(metric)
    make("acc", metric)
    with pytest.raises(ValueError, match="'validation accuracy' is among the metrics of the train"):
        first.fit(data, epochs=1)


def test_copies_for_another_data_set():
    estimator, data = make("mse", np.allclose, kind="linear")
    before = estimator.evaluate(data)
    copied = copies_for(estimator.val_metrics, "test")
    assert names(copied) == ["test allclose", "test loss"]
    handler = MetricHandler(copied)
    handler.epoch_begin(estimator)
    handler.batch_end(
        estimator, batch=data[0], label=[data[0][1]], pred=[data[0][1]], loss=[data[0][1]]
    )
    handler.epoch_end(estimator)
    assert copied[0].get()[1] == 1.0
    assert {m.name: m.get()[1] for m in estimator.val_metrics} == before


def test_two_metrics_that_are_made_alike_have_one_figure():
    """MXNet's own tests give two."""
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    metrics = [mx.metric.Accuracy(), mx.metric.Accuracy()]
    estimator = gs.Estimator(net, mx.gluon.loss.SoftmaxCELoss(), metrics, trainer=trainer)
    data = [(mx.nd.ones((6, 4)), mx.nd.array([0, 1, 2, 0, 1, 2]))]
    row = estimator.fit(data, epochs=1).history[-1]
    assert [metric.get() for metric in metrics] == [
        ("training accuracy", row["training accuracy"])
    ] * 2


class PerClass(mx.metric.EvalMetric):
    """The share of the samples that have each class, under names of its own."""

    def __init__(self):
        super().__init__("shares")

    def reset(self):
        """Begin again."""
        self.counts = np.zeros(3)

    def update(self, labels, preds):
        """Count."""
        for label in labels:
            self.counts += np.bincount(label.asnumpy().astype(int), minlength=3)

    def get(self):
        """Return a figure for each class."""
        return ["first", "second", "third"], list(self.counts / max(1, self.counts.sum()))


@pytest.mark.parametrize(
    ("metric", "figures"),
    [
        (PerClass, ["first", "second", "third"]),
        (lambda: mx.metric.CompositeEvalMetric(["acc", "mcc"]), ["accuracy", "mcc"]),
    ],
)
def test_figures_that_a_metric_names_itself_are_those_of_each_data_set(metric, figures):
    """One of several figures, and one that is made of others, in a list."""
    problem = problems.make("linear", samples=16)
    x, _ = problem.ndarrays()[0]
    sets = {
        name: [(x, mx.nd.full(8, number))]
        for number, name in enumerate(("training", "validation", "test"))
        if metric is PerClass or number < 2
    }
    net = gluon.nn.Dense(3, in_units=6)
    net.initialize()
    net.cast("float64")
    estimator = runs.estimator_of(net, train_metrics=[metric()], lr=1e-30)
    names = list(sets)
    handlers = [gs.ValidationHandler(sets[name], name=name) for name in names[1:]]
    result = estimator.fit(sets["training"], epochs=1, event_handlers=handlers, verbose=0)
    row = result.history[-1]
    expected = [f"{name} {figure}" for name in names for figure in figures]
    assert set(expected) <= set(row)
    assert set(figures).isdisjoint(row)
    assert set(expected) <= set(estimator.metric_names())
    for number, name in enumerate(names):
        if metric is PerClass:
            assert [row[f"{name} {figure}"] for figure in figures] == list(np.eye(3)[number])
    gs.EarlyStoppingHandler(f"validation {figures[0]}", "max").monitor.check(estimator)
