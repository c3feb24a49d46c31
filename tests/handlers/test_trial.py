"""Before the first full pass it is measured whether it will pay: in whole runs."""

import logging

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
import runs
from gluon_svrg.data import ArrayLoader
from gluon_svrg.data.transforms import Compose, RandomFlipLeftRight, ToFloat
from gluon_svrg.events import BatchEnd, GradientReady
from mxnet import gluon
from mxnet.gluon import nn
from scripted import Corrections, Scripted

LR = 0.25


def estimator_of(problem, contexts=problems.ONE, lr=LR):
    return runs.estimator_of(problem, lr=lr, logger="test_trial", context=contexts)


def flat(gradients, samples):
    return np.concatenate([g.ravel() for g in gradients]) / samples


class Weights(BatchEnd):
    """Notes the weights after each step."""

    priority = 600

    def __init__(self):
        self.rows = []

    def batch_end(self, estimator, *args, **kwargs):
        self.rows.append(flat(problems.weights_of(estimator.net), 1))


def naive_run(problem, start, epochs, plain):
    """Yield the weights after each step of SVRG whose first epoch has `plain` plain batches."""
    w = [x.copy() for x in start]
    gradient = problem.gradient
    for epoch in range(epochs):
        for k, (x, y) in enumerate(problem.batches):
            if k == (0 if epoch else plain):
                at, n = [x.copy() for x in w], sum(len(b[0]) for b in problem.batches)
                sums = [gradient(at, *batch) for batch in problem.batches]
                mu = [sum(parts) / n for parts in zip(*sums, strict=True)]
            g = [part / len(x) for part in gradient(w, x, y)]
            if epoch or k >= plain:
                there = [part / len(x) for part in gradient(at, x, y)]
                g = [a - (c - m) for a, c, m in zip(g, there, mu, strict=True)]
            # MXNet's kernel takes the step's divisor as a float32, also for float64 arrays.
            step = LR * len(x) * float(np.float32(1 / len(x)))
            w = [a - step * b for a, b in zip(w, g, strict=True)]
            yield flat(w, 1)


@pytest.mark.parametrize("contexts", [problems.ONE, problems.TWO], ids=["one", "two"])
@pytest.mark.parametrize("table", [True, False], ids=["table", "recompute"])
@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_the_snapshot_is_taken_in_the_middle_of_the_epoch(kind, table, contexts):
    """Every step against NumPy; the last batch is smaller."""
    problem, weights = problems.make(kind, contexts, samples=77), Weights()
    start = problem.params
    svrg = gs.SVRGHandler(gradient_table=table, max_variance_ratio=1e6)
    meter = gs.VarianceHandler(at=(30, 100), batches=2)
    estimator_of(problem, contexts).fit(
        problem.ndarrays(), epochs=2, event_handlers=[svrg, meter, weights]
    )
    expected = list(naive_run(problem, start, 2, 3))
    assert len(weights.rows) == len(expected) == 20
    for ours, theirs in zip(weights.rows, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    # Two full passes, and, without a table, the 77 - 24 samples after the first one, the 77 of the
    # second epoch, and of two batches at each of the three points at which SVRG is on.
    corrected = 0 if table else 77 - 24 + 77
    assert svrg.gradient_evaluations - 2 * 77 - corrected == (0 if table else 3 * 16)
    assert meter.gradient_evaluations == 2 * 16 + 3 * 16


@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_the_ratio_and_its_average_are_those_of_numpy(kind, monkeypatch):
    """Over all batches, from the weights before the epoch, and after the pass from its own."""
    monkeypatch.setattr("gluon_svrg.svrg.payoff._MIN_BATCHES", 5)
    problem, weights = problems.make(kind, samples=40), Weights()
    start = flat(problem.params, 1)
    shapes = [p.shape for p in problem.params]
    svrg = gs.SVRGHandler(max_variance_ratio=1e6)
    meter = gs.VarianceHandler(at=(20, 40, 60, 100), batches=5)
    estimator_of(problem).fit(problem.ndarrays(), epochs=1, event_handlers=[svrg, meter, weights])

    def rows(at):
        parts = np.split(at, np.cumsum([np.prod(s) for s in shapes])[:-1])
        w = [p.reshape(s) for p, s in zip(parts, shapes, strict=True)]
        return np.array([flat(problem.gradient(w, x, y), len(x)) for x, y in problem.batches])

    def ratio(here, there):
        variances = [
            np.var(r, axis=0, ddof=1).sum() for r in (rows(here) - rows(there), rows(here))
        ]
        return variances[0] / variances[1]

    # Only 20 % is in the first third; then come 40, 60 and 100 % with the snapshot at 20 %.
    expected = [ratio(weights.rows[0], start)]
    expected += [ratio(weights.rows[k], weights.rows[0]) for k in (1, 2, 4)]
    assert [r.at for r in meter.records] == [0.2, 0.4, 0.6, 1.0]
    assert [r.ratio for r in meter.records] == pytest.approx(expected, rel=1e-9)
    r = expected
    averages = [0.9 * r[0]]
    averages += [(1 - 0.125) * r[1]]
    averages += [0.125 * r[1] + 0.25 * (r[1] + r[2]) / 2 + 0.5 * r[2]]
    averages += [0.125 * r[1] + 0.25 * (r[1] + r[2]) / 2 + 0.5 * (r[2] + r[3]) / 2]
    assert [x.average for x in meter.records] == pytest.approx(averages, rel=1e-9)


@pytest.mark.parametrize(
    ("ratio", "corrected", "measured"),
    [
        # Of 80 batches; the points are 8 (10 %) and 24 (30 %).
        (0.05, 72, [0.1, 0.3, 1.0]),  # 0.05 / 0.2 is not above 1/3: on at the first
        (0.18, 56, [0.1, 0.3, 1.0]),  # on at the second: 0.153 is not above 1/6
        (0.3, 0, [0.1, 0.3]),
        (0.5, 0, [0.1]),
    ],
)
def test_when_it_begins(ratio, corrected, measured):
    problem, corrections = problems.make("softmax", samples=640), Corrections()
    meter = Scripted([ratio], at=(2, 10, 30, 100))
    svrg = gs.SVRGHandler(max_variance_ratio=1 / 3)
    estimator_of(problem).fit(
        problem.ndarrays(), epochs=1, event_handlers=[svrg, meter, corrections]
    )
    assert corrections.counts == [corrected]
    assert [r.at for r in meter.records] == measured


def test_where_it_gives_up_nothing_but_the_measurements_is_computed():
    problem = problems.make("mlp", samples=80)
    plain = problems.make("mlp", samples=80)
    svrg, meter = gs.SVRGHandler(max_variance_ratio=1 / 3), Scripted([0.9] * 3, at=(10, 30, 100))
    estimator_of(problem).fit(problem.ndarrays(), epochs=3, event_handlers=[svrg, meter])
    assert svrg.gradient_evaluations == 0
    # 0.9 at 10 % is enough, in the first epoch and in the second: 2 batches of 8, at two weights.
    assert meter.gradient_evaluations == 2 * (2 * 2 * 8)
    assert (svrg.criterion.off_since, svrg.table) == (0, None)
    estimator_of(plain).fit(plain.ndarrays(), epochs=3)
    assert problems.same(problem.params, plain.params)


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "gives_up"), [(1e-3, False), (3.0, True)])
def test_a_measured_run(lr, gives_up):
    """Softmax regression: with short steps SVRG pays from the beginning, with long ones not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1600, 10))
    y = (x @ rng.normal(size=(10, 4))).argmax(axis=1).astype(float)
    net = nn.Dense(4, in_units=10)
    net.cast("float64")
    net.initialize(mx.init.Zero())
    problem = problems.Problem([], net, gluon.loss.SoftmaxCELoss(), oracle.softmax_gradient)
    data = ArrayLoader(x, y, batch_size=8, shuffle=True, seed=0)
    svrg, meter, corrections = (
        gs.SVRGHandler(max_variance_ratio=1 / 3),
        gs.VarianceHandler(),
        Corrections(),
    )
    estimator_of(problem, lr=lr).fit(data, epochs=2, event_handlers=[svrg, meter, corrections])
    if gives_up:
        assert svrg.gradient_evaluations == 0
        assert corrections.counts[0] == 0
        assert meter.gradient_evaluations <= 0.03 * 10 * 1600
    else:
        assert corrections.counts[0] >= 200 - 66
        assert corrections.counts[1] == 200


def images(transform=None):
    rng = np.random.default_rng(0)
    return ArrayLoader(
        rng.integers(0, 256, (80, 1, 3, 6)).astype("uint8"),
        rng.integers(0, 3, 80).astype("float32"),
        batch_size=8,
        shuffle=True,
        seed=3,
        transform=transform or Compose(RandomFlipLeftRight(), ToFloat()),
    )


class StopsInLoss(gluon.loss.SoftmaxCELoss):
    """Calls `stop` in its n-th call."""

    calls, at, stop = 0, None, None

    def hybrid_forward(self, F, pred, label, sample_weight=None):
        self.calls += 1
        if self.calls == self.at:
            self.stop()
        return super().hybrid_forward(F, pred, label, sample_weight)


def run_of_images(
    ratios, *handlers, resume=None, seed=0, stop_in=None, contexts=problems.ONE, **kw
):
    """Train a net with dropout on flipped images, SVRG's snapshot each second epoch."""
    gs.seed_everything(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=18), nn.Dropout(0.3), nn.Dense(3, in_units=5))
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    problem = problems.Problem([], net, StopsInLoss(), None)
    svrg = gs.SVRGHandler(update_freq=2, max_variance_ratio=1 / 3, recheck_every_n_epochs=2, **kw)
    scripted, corrections = Scripted(ratios, at=(20, 30, 100)), Corrections()
    estimator = estimator_of(problem, contexts)
    problem.loss.at, problem.loss.stop = stop_in, estimator.stop
    estimator.fit(
        images(),
        epochs=2,
        event_handlers=[svrg, scripted, corrections, *handlers],
        resume=resume,
    )
    outcome = problems.weights_of(net), scripted.records, svrg.gradient_evaluations
    return (*outcome, corrections.counts, estimator.position.batch)


class Stop(BatchEnd):
    def __init__(self, after):
        self.after = after

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.after:
            estimator.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratios", "stop", "contexts"),
    [
        ([0.15, 0.15], 2, problems.ONE),
        ([0.15, 0.15], 3, problems.TWO),
        ([0.15, 0.15], 4, problems.ONE),
        ([0.15, 0.15], 13, problems.ONE),
        ([0.6, 0.1], 2, problems.ONE),
        ([0.6, 0.1], 13, problems.ONE),
    ],
)
def test_resume(tmp_path, ratios, stop, contexts):
    """Before, at and after the decision at 3 of 10 batches, bit for bit."""
    whole = run_of_images(ratios, gs.CheckpointHandler(tmp_path / "whole"), contexts=contexts)
    handlers = [gs.CheckpointHandler(tmp_path / "stopped")]
    run_of_images(ratios, Stop(stop), *handlers, contexts=contexts)
    resumed = run_of_images(ratios, *handlers, resume="auto", seed=1, contexts=contexts)
    assert problems.same(whole[0], resumed[0])
    assert whole[1:3] == resumed[1:3]


@pytest.mark.slow
@pytest.mark.parametrize("table", [True, False], ids=["table", "recompute"])
def test_a_stop_breaks_the_pass_off_and_a_resume_makes_it(tmp_path, table):
    options = {"gradient_table": table}
    whole = run_of_images([0.15] * 2, gs.CheckpointHandler(tmp_path / "whole"), **options)
    assert whole[3] == [7, 10]
    # Three batches of training, two times two of the measurement, and then the pass.
    handlers = [gs.CheckpointHandler(tmp_path / "stopped")]
    stopped = run_of_images([0.15] * 2, *handlers, stop_in=3 + 4 + 4, **options)
    assert stopped[4] == 3
    assert stopped[2] == 0
    # Once more, in the pass that the resume makes; nothing was trained meanwhile.
    again = run_of_images([0.15] * 2, *handlers, resume="auto", seed=1, stop_in=4, **options)
    assert again[4] == 3
    assert problems.same(again[0], stopped[0])
    resumed = run_of_images([0.15] * 2, *handlers, resume="auto", seed=2, **options)
    assert problems.same(whole[0], resumed[0])
    assert whole[1:3] == resumed[1:3]
    assert resumed[4] == 20


class Cut(BatchEnd):
    """Ends each epoch after a given number of batches."""

    def __init__(self, batches=2):
        self._batches = batches

    def batch_end(self, estimator, *args, **kwargs):
        return estimator.position.batch_in_epoch == self._batches - 1


def test_an_epoch_that_is_cut_short_leaves_it_to_the_next():
    problem, corrections = problems.make("softmax", samples=80), Corrections()
    handlers = [gs.SVRGHandler(update_freq=5, max_variance_ratio=1 / 3), Cut(), corrections]
    meter = gs.VarianceHandler(at=(30, 100), batches=2)
    estimator_of(problem).fit(problem.ndarrays(), epochs=3, event_handlers=[*handlers, meter])
    assert corrections.counts == [0, 2, 2]


def test_with_a_point_at_the_end_the_next_epoch_begins_with_the_snapshot():
    problem, corrections = problems.make("softmax", samples=80), Corrections()
    svrg = gs.SVRGHandler(update_freq=5, max_variance_ratio=1 / 3)
    handlers = [svrg, Scripted([0.1] * 3, at=(100,)), corrections]
    estimator_of(problem).fit(problem.ndarrays(), epochs=3, event_handlers=handlers)
    assert corrections.counts == [0, 10, 10]
    assert svrg.gradient_evaluations == 80  # one pass, with its table


def test_the_first_epoch_that_has_a_coefficient_is_the_one():
    problem, corrections = problems.make("softmax", samples=80), Corrections()
    schedule = lambda progress: 0.0 if progress < 0.5 else 1.0  # noqa: E731
    svrg = gs.SVRGHandler(coefficient=schedule, max_variance_ratio=1 / 3)
    handlers = [svrg, Scripted([0.1] * 4, at=(30, 100)), corrections]
    estimator_of(problem).fit(problem.ndarrays(), epochs=4, event_handlers=handlers)
    assert corrections.counts == [0, 0, 7, 10]


@pytest.mark.parametrize("ratio", [0.1, 0.6])
def test_the_meter_measures_in_it_whatever_its_period(ratio):
    problem, corrections = problems.make("softmax", samples=80), Corrections()
    meter = Scripted([ratio] * 4, at=(30, 100), every_n_epochs=3)
    svrg = gs.SVRGHandler(start_epoch=1, max_variance_ratio=1 / 3)
    estimator_of(problem).fit(
        problem.ndarrays(), epochs=2, event_handlers=[svrg, meter, corrections]
    )
    assert corrections.counts == [0, 7 if ratio < 0.5 else 0]
    assert (1, 0.3) in [(r.epoch, r.at) for r in meter.records]


@pytest.mark.slow
def test_the_epoch_has_the_augmentation_of_the_full_pass():
    """From its beginning: batches that had been drawn otherwise would not be in the table."""
    draws = []

    class Look(GradientReady):
        def gradient_ready(self, estimator, *args, **kwargs):
            draws.append(estimator.data.locked_draw)

    _, _, evaluations, counts, _ = run_of_images([0.15] * 2, Look(), gradient_table=True)
    assert counts == [7, 10]
    assert draws == [1] * 20
    assert evaluations == 80


def test_data_that_cannot_be_locked_are_told_before_the_epoch():
    data = ArrayLoader(
        np.zeros((16, 2), "float32"),
        np.zeros(16, "float32"),
        batch_size=4,
        transform=lambda x, y: (x + np.random.rand(), y),
    )
    problem = problems.make("softmax")
    svrg = gs.SVRGHandler(lock="require", max_variance_ratio=1 / 3)
    with pytest.raises(ValueError, match="lock='require', but train_data cannot be locked"):
        estimator_of(problem).fit(data, epochs=1, event_handlers=svrg)


@pytest.mark.slow
def test_a_data_loader_too():
    problem, corrections = problems.make("softmax", dtype="float32", samples=80), Corrections()
    x, y = (np.concatenate(part).astype("float32") for part in zip(*problem.batches, strict=True))
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), 8, shuffle=True)
    svrg = gs.SVRGHandler(max_variance_ratio=1 / 3)
    handlers = [svrg, Scripted([0.1] * 2, at=(30, 100)), corrections]
    estimator_of(problem).fit(data, epochs=2, event_handlers=handlers)
    assert corrections.counts == [7, 10]


def test_the_log_says_so(caplog):
    caplog.set_level(logging.INFO)
    for ratio in (0.1, 0.6):
        problem = problems.make("softmax", samples=80)
        handlers = [gs.SVRGHandler(max_variance_ratio=1 / 3), Scripted([ratio], at=(30, 100))]
        estimator_of(problem).fit(problem.ndarrays(), epochs=1, event_handlers=handlers)
    assert (
        "epoch 0, 30 %: SVRG is switched on: the variance ratio, averaged over the epoch, is "
        "0.085, under max_variance_ratio=0.333"
    ) in caplog.messages
    assert (
        "epoch 0, 30 %: SVRG is not switched on: the variance ratio, averaged over the epoch, is "
        "0.51, above max_variance_ratio=0.333; the plain optimizer continues; next measurement in "
        "epoch 1"
    ) in caplog.messages


@pytest.mark.parametrize("ends", ["batches", "handler", "epoch"])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_plain_gradients_wait_while_it_is_decided(ends, accumulate):
    """They are right as they are, and a pass that no batch would use is not made."""
    problem = problems.make("softmax", samples=80)  # 10 batches
    estimator = runs.estimator_of(problem, lr=0.25, context=problems.ONE)
    svrg, corrections = gs.SVRGHandler(max_variance_ratio=1 / 3), Corrections()
    handlers = [svrg, Scripted([0.1] * 2, at=(30, 100)), corrections]
    handlers.append(gs.GradientUpdateHandler(accumulate=accumulate))
    if ends == "handler":
        handlers.append(Cut(3))
    arguments = {"batches": 3} if ends == "batches" else {"epochs": 2}
    estimator.fit(problem.ndarrays(), event_handlers=handlers, **arguments)
    counts = {"batches": [0], "handler": [0, 3], "epoch": [7, 10]}[ends]
    assert corrections.counts == counts
    assert (svrg.gradient_evaluations == 0) == (ends == "batches")


class Rewinds:
    """Batches whose position is the object's: each pass moves that of the others."""

    def __init__(self, batches):
        self._batches, self._at = batches, 0

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        self._at = 0
        while self._at < len(self._batches):
            self._at += 1
            yield self._batches[self._at - 1]


def test_data_that_are_moved_by_another_pass_are_told():
    problem = problems.make("softmax", samples=80)
    estimator = runs.estimator_of(problem, lr=0.25, context=problems.ONE)
    handlers = [gs.SVRGHandler(max_variance_ratio=1 / 3), Scripted([0.1] * 2, at=(30, 100))]
    with pytest.raises(ValueError, match="gave 3 of its 10 batches, because another pass over it"):
        estimator.fit(Rewinds(problem.ndarrays()), epochs=2, event_handlers=handlers)
