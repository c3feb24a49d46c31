"""Monitor: the direction of a figure, told or inferred, and its value at the right moment."""

import re

import gluon_svrg as gs
import mxnet as mx
import problems
import pytest
import runs

SMALLER = [
    "loss",
    "training softmaxcrossentropyloss",
    "validation mse",
    "RMSE",
    "mape",
    "validation error",
    "perplexity",
    "cross-entropy",
    "nll-loss",
]
GREATER = [
    "validation accuracy",
    "top_k_accuracy_5",
    "training f1",
    "mcc",
    "pearsonr",
    "auc",
    "precision",
    "recall",
    "r2",
    "map",
    "top1",
]


@pytest.mark.parametrize("name", SMALLER)
def test_small_is_good(name):
    assert gs.Monitor(name).mode == "min"
    assert gs.Monitor(name).is_better(1.0, 2.0)
    assert not gs.Monitor(name).is_better(2.0, 1.0)
    assert gs.Monitor(name, "max").is_better(2.0, 1.0)


@pytest.mark.parametrize("name", GREATER)
def test_great_is_good(name):
    assert gs.Monitor(name).mode == "max"
    assert gs.Monitor(name).is_better(2.0, 1.0)
    assert not gs.Monitor(name).is_better(1.0, 1.0)


@pytest.mark.parametrize("name", ["score", "training custom", "accuracy loss", "maps", "aucx"])
def test_what_the_name_does_not_tell_has_to_be_told(name):
    message = f"mode='auto' cannot tell from the name {name!r} whether a smaller or a greater value"
    metric = mx.metric.CustomMetric(lambda label, pred: 0.0, name)
    estimator = estimator_with(metric)
    monitor = gs.Monitor(metric)
    full = f"training {name.removeprefix('training ')}"
    with pytest.raises(ValueError, match=re.escape(message.replace(name, full))):
        monitor.check(estimator)
    assert gs.Monitor(name, "min").mode == "min"


def estimator_with(metric=None):
    problem = problems.make("softmax")
    return runs.estimator_of(problem, train_metrics=metric)


@pytest.mark.parametrize("name", ["training acuracy", "training los"])
def test_a_misspelt_name_is_told_before_the_mode(name):
    """With mode='auto' the name was asked for a mode first, and then refused."""
    near = {"training acuracy": "training accuracy", "training los": "training loss"}[name]
    message = (
        f"monitor={name!r} is no metric of this run, which has 'training accuracy', 'training "
        f"loss' (and no val_data): did you mean {near!r}?"
    )
    problem = problems.make("softmax")
    handler = gs.EarlyStoppingHandler(name)
    with pytest.raises(ValueError, match=re.escape(message)):
        estimator_with().fit(problem.ndarrays(), epochs=1, event_handlers=[handler])


def test_every_metric_of_mxnet_is_told_or_asks():
    for metric in (
        mx.metric.Accuracy(),
        mx.metric.TopKAccuracy(2),
        mx.metric.F1(),
        mx.metric.MCC(),
        mx.metric.PCC(),
        mx.metric.PearsonCorrelation(),
    ):
        assert gs.Monitor(metric).mode == "max"
    for metric in (
        mx.metric.Loss(),
        mx.metric.MAE(),
        mx.metric.MSE(),
        mx.metric.RMSE(),
        mx.metric.CrossEntropy(),
        mx.metric.Perplexity(None),
        mx.metric.NegativeLogLikelihood(),
    ):
        assert gs.Monitor(metric).mode == "min"


def test_min_delta_and_no_value_before():
    monitor = gs.Monitor("loss")
    assert monitor.is_better(5.0, None)
    assert not monitor.is_better(0.95, 1.0, min_delta=0.1)
    assert monitor.is_better(0.85, 1.0, min_delta=0.1)
    assert monitor.best_first({"a": 3.0, "b": 1.0, "c": 1.0}) == ["b", "c", "a"]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_nan_is_never_better_and_comes_last(mode):
    monitor, nan, inf = gs.Monitor("figure", mode), float("nan"), float("inf")
    worst = inf if mode == "min" else -inf
    for than in (None, 1.0, nan, worst):
        assert not monitor.is_better(nan, than)
        assert not monitor.is_better(worst, than)
    assert monitor.is_better(-worst, None)
    assert monitor.is_better(-worst, 1.0)
    assert not monitor.is_better(1.0, nan)
    values = {"a": nan, "b": 1.0, "c": nan, "d": worst, "e": -worst}
    assert monitor.best_first(values) == ["e", "b", "d", "a", "c"]


@pytest.mark.parametrize("is_made_before", [False, True])
def test_a_metric_itself(is_made_before, tmp_path):
    """Also one that the Estimator renames afterwards."""
    metric = mx.metric.Accuracy()
    monitor = gs.Monitor(metric) if is_made_before else None
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=metric)
    monitor = monitor or gs.Monitor(metric)
    assert monitor.name == "training accuracy"
    checkpoints = gs.CheckpointHandler(tmp_path, monitor=metric)
    result = estimator.fit(problem.ndarrays(), epochs=2, event_handlers=checkpoints)
    assert monitor.read(estimator) == result.history[-1]["training accuracy"]
    assert checkpoints.best is not None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3,), TypeError, "monitor must be the name of a metric or an EvalMetric, got 3: give"),
        (("loss", "least"), ValueError, "mode must be 'auto', 'min' or 'max', got 'least'"),
        (
            (mx.metric.CompositeEvalMetric(["acc", "mse"]),),
            ValueError,
            "give one of the metrics in it, or its name",
        ),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        gs.Monitor(*arguments)


def test_a_metric_that_the_estimator_has_not():
    message = (
        r"'training accuracy', 'training loss'.*: give one of them, or add the metric to the Est"
    )
    with pytest.raises(ValueError, match=message):
        gs.Monitor("perplexity").check(estimator_with(mx.metric.Accuracy()))
