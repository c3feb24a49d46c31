"""The figure of an epoch is that of all samples, however they are batched."""

import itertools

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.run import Run, RunState
from gluon_svrg.workers import SingleProcess
from mxnet import gluon
from thread_workers import on_threads

SAMPLES = 23
RNG = np.random.default_rng(0)
CLASSES = RNG.integers(0, 3, SAMPLES).astype("float64")
BINARY = RNG.integers(0, 2, SAMPLES).astype("float64")
NUMBERS = RNG.normal(size=(SAMPLES, 2))
SCORES = RNG.normal(size=(SAMPLES, 3))
LOGITS = RNG.normal(size=(SAMPLES, 1))
SOFT = RNG.dirichlet([0.3] * 3, SAMPLES)
PROBABILITIES = RNG.dirichlet([1, 1, 1], SAMPLES)
WEIGHTS = {
    "none": None,
    "some": RNG.uniform(0.5, 2, SAMPLES),
    "zeros": RNG.uniform(0.5, 2, SAMPLES) * (RNG.uniform(size=SAMPLES) > 0.4),
}


def mean(values, w):
    values = np.asarray(values, dtype="float64")
    w = np.broadcast_to(w.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    return (w * values).sum() / w.sum()


def f1(label, found, w):
    hits = (w * label * found).sum()
    return 2 * hits / ((w * label).sum() + (w * found).sum())


def mcc(label, found, w):
    return pearson(label, found, w)


def pearson(label, pred, w):
    w = np.broadcast_to(w.reshape(-1, *[1] * (np.ndim(label) - 1)), np.shape(label))
    both = np.array([np.ravel(label), np.ravel(pred)], dtype="float64")
    c = np.cov(both, aweights=np.ravel(w), ddof=0)
    return c[0, 1] / np.sqrt(c[0, 0] * c[1, 1])


def surprise(label, pred, eps=1e-12):
    return -np.log(pred[np.arange(len(label)), label.astype(int)] + eps)


def ranked(label, pred):
    return (pred > pred[np.arange(len(label)), label.astype(int), None]).sum(axis=1) < 2


def auc(label, pred, sample_weight=None):
    w = np.ones(len(label)) if sample_weight is None else sample_weight
    pred = pred.ravel()
    first, second = label == 1, label == 0
    pairs = w[first, None] * w[second]
    return (pairs * (pred[first, None] > pred[second])).sum() / pairs.sum()


def mean_error(label, pred):
    return np.abs(label - pred).mean()


M = mx.metric
# A metric, labels, outputs, what the oracle gives for labels, outputs and weights, and the loss.
CASES = {
    "accuracy": (M.Accuracy, CLASSES, SCORES, lambda y, p, w: mean(p.argmax(1) == y, w), None),
    "one logit": (
        M.Accuracy,
        BINARY,
        LOGITS,
        lambda y, p, w: mean((p[:, 0] > 0) == y, w),
        gluon.loss.LogisticLoss(label_format="binary"),
    ),
    "logits": (M.Accuracy, BINARY, LOGITS[:, 0], lambda y, p, w: mean((p > 0) == y, w), None),
    "signed": (
        M.Accuracy,
        2 * BINARY - 1,
        LOGITS,
        lambda y, p, w: mean((p[:, 0] > 0) == (y > 0), w),
        gluon.loss.HingeLoss(),
    ),
    "one probability": (
        M.Accuracy,
        BINARY[:, None],
        1 / (1 + np.exp(-LOGITS)),
        lambda y, p, w: mean((p > 0.5) == (y > 0.5), w),
        gluon.loss.SigmoidBCELoss(from_sigmoid=True),
    ),
    "soft labels": (
        M.Accuracy,
        SOFT,
        SCORES,
        lambda y, p, w: mean(p.argmax(1) == y.argmax(1), w),
        gluon.loss.SoftmaxCELoss(sparse_label=False),
    ),
    "soft labels of another loss": (
        M.Accuracy,
        SOFT,
        SCORES,
        lambda y, p, w: mean(p.argmax(1) == y.argmax(1), w),
        None,
    ),
    "several labels": (
        M.Accuracy,
        (SCORES[::-1] > 0.3).astype("float64"),
        SCORES,
        lambda y, p, w: mean((p > 0) == (y > 0.5), w),
        gluon.loss.SigmoidBCELoss(),
    ),
    "outputs that are classes": (
        M.Accuracy,
        CLASSES,
        CLASSES[::-1],
        lambda y, p, w: mean(y == p, w),
        None,
    ),
    "top 2": (
        lambda: M.TopKAccuracy(2),
        CLASSES,
        SCORES,
        lambda y, p, w: mean(ranked(y, p), w),
        None,
    ),
    "f1": (M.F1, BINARY, SCORES[:, :2], lambda y, p, w: f1(y, p.argmax(1), w), None),
    "micro f1": (
        lambda: M.F1(average="micro"),
        BINARY,
        SCORES[:, :2],
        lambda y, p, w: f1(y, p.argmax(1), w),
        None,
    ),
    "f1 of a logit": (M.F1, BINARY, LOGITS, lambda y, p, w: f1(y, p[:, 0] > 0, w), None),
    "mcc": (M.MCC, BINARY, SCORES[:, :2], lambda y, p, w: mcc(y, p.argmax(1), w), None),
    "mcc of a logit": (M.MCC, BINARY, LOGITS, lambda y, p, w: mcc(y, p[:, 0] > 0, w), None),
    "pcc": (M.PCC, BINARY, SCORES[:, :2], lambda y, p, w: mcc(y, p.argmax(1), w), None),
    "mae": (M.MAE, NUMBERS, NUMBERS[::-1], lambda y, p, w: mean(abs(y - p), w), None),
    "mse": (M.MSE, NUMBERS[:, 0], LOGITS, lambda y, p, w: mean((y - p[:, 0]) ** 2, w), None),
    "rmse": (
        M.RMSE,
        NUMBERS[:, 0],
        LOGITS,
        lambda y, p, w: mean((y - p[:, 0]) ** 2, w) ** 0.5,
        None,
    ),
    "cross entropy": (
        M.CrossEntropy,
        CLASSES,
        PROBABILITIES,
        lambda y, p, w: mean(surprise(y, p), w),
        None,
    ),
    "likelihood": (
        M.NegativeLogLikelihood,
        CLASSES,
        PROBABILITIES,
        lambda y, p, w: mean(surprise(y, p), w),
        None,
    ),
    "perplexity": (
        lambda: M.Perplexity(None),
        CLASSES,
        PROBABILITIES,
        lambda y, p, w: np.exp(mean(surprise(y, p, 0), w)),
        None,
    ),
    "perplexity without a class": (
        lambda: M.Perplexity(1),
        CLASSES,
        PROBABILITIES,
        lambda y, p, w: np.exp(mean(surprise(y, p, 0), w * (y != 1))),
        None,
    ),
    "correlation": (M.PearsonCorrelation, NUMBERS, 1e3 + NUMBERS**2, pearson, None),
    "micro correlation": (
        lambda: M.PearsonCorrelation(average="micro"),
        NUMBERS,
        NUMBERS**2,
        pearson,
        None,
    ),
    "loss": (M.Loss, CLASSES, SCORES, lambda y, p, w: mean((p**2).sum(1), w), None),
    "a function": (
        lambda: M.np(mean_error),
        NUMBERS,
        NUMBERS[::-1],
        lambda y, p, w: mean(abs(y - p), (w != 0).astype(float)),
        None,
    ),
    "auc": (lambda: gs.EpochMetric(auc), BINARY, LOGITS, lambda y, p, w: auc(y, p, w), None),
}


class Fake(Run):
    """What a MetricHandler asks of a run."""

    def __init__(self, metric, loss, workers=None):
        self.batch_processor, self._metrics = gs.BatchProcessor(), [metric]
        self.loss, self.workers, self.state = loss, workers or SingleProcess(), RunState()

    @property
    def train_metrics(self):
        return self._metrics


def figure_of(case, weights, size, contexts, workers=None):
    """Return the figure that a MetricHandler computes from batches of this size."""
    make, label, pred, _, loss = CASES[case]
    metric, weight = make(), WEIGHTS[weights]
    run = Fake(metric, loss, workers)
    handler = gs.MetricHandler(metric, max_batches=3)
    handler.epoch_begin(run)
    rank, number = (0, 1) if workers is None else (workers.rank, workers.size)
    for begin in range(0, SAMPLES, size):
        end = min(begin + size, SAMPLES)
        edges = begin + (end - begin) * np.arange(number + 1) // number
        rows = slice(edges[rank], edges[rank + 1])
        count = rows.stop - rows.start
        each = -(-count // contexts)
        shares = [
            slice(i, min(i + each, rows.stop)) for i in range(rows.start, rows.stop, each or 1)
        ]
        shares = [(share, mx.cpu(i)) for i, share in enumerate(shares)]
        parts = {
            name: [mx.nd.array(values[share], ctx, "float64") for share, ctx in shares]
            for name, values in (("label", label), ("pred", pred))
        }
        squares = [mx.nd.sum(p**2, axis=-1) if p.ndim > 1 else p**2 for p in parts["pred"]]
        w = [1.0] * len(shares) if weight is None else [
            mx.nd.array(weight[share], ctx, "float64") for share, ctx in shares
        ]  # fmt: skip
        parts["loss"] = [s * v for s, v in zip(squares, w, strict=True)]
        batch = [None, None, None if weight is None else weight[rows]]
        handler.batch_end(run, batch=batch, **parts)
    handler.epoch_end(run)
    return metric.get()[1]


def oracle(case, weights):
    _, label, pred, figure, _ = CASES[case]
    weight = WEIGHTS[weights]
    return figure(label, pred, np.ones(SAMPLES) if weight is None else weight)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("case", CASES)
def test_the_figure_is_that_of_all_samples(case, weights):
    expected = oracle(case, weights)
    for size in (5, 10, SAMPLES):
        for contexts in (1, 2, 3):
            found = figure_of(case, weights, size, contexts)
            assert found == pytest.approx(expected, rel=1e-12, abs=1e-13), (size, contexts)


@pytest.mark.slow
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("case", CASES)
def test_workers_have_the_same_figure(case, weights):
    expected = oracle(case, weights)
    for size, contexts in itertools.product((5, 10, SAMPLES), (1, 2, 3)):
        found = on_threads(
            2, lambda w, size=size, contexts=contexts: figure_of(case, weights, size, contexts, w)
        )
        exact = pytest.approx(expected, rel=1e-12, abs=1e-13)
        assert found[0] == found[1] == exact, (size, contexts)
