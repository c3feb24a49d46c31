import math
import random

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.data import ArrayLoader
from gluon_svrg.events import BatchEnd
from gluon_svrg.svrg import OptimalCoefficient
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib import estimator as mx_estimator

LR = 0.3


def estimator_of(problem, contexts=problems.ONE, lr=LR):
    return runs.estimator_of(problem, lr=lr, logger="test_variance", context=contexts)


def flat(gradients, samples):
    return np.concatenate([g.ravel() for g in gradients]) / samples


def variance(rows):
    return np.var(rows, axis=0, ddof=1).sum()


class BruteForce(BatchEnd):
    """Computes the ratio over all batches in NumPy, from the weights after each step."""

    priority = 600

    def __init__(self, problem):
        self.problem = problem
        self.start = problem.params
        self.ratios = []

    def batch_end(self, estimator, *args, **kwargs):
        here, there = (
            np.array([flat(self.problem.gradient(w, x, y), len(x)) for x, y in problem_batches])
            for w in (self.problem.params, self.start)
            for problem_batches in [self.problem.batches]
        )
        self.ratios.append([variance(here - a * there) / variance(here) for a in (1.0, 0.5)])
        if estimator.position.batch_in_epoch + 1 == len(self.problem.batches):
            self.start = self.problem.params


@pytest.mark.parametrize("contexts", [problems.ONE, problems.TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", ["softmax", "mlp"])
@pytest.mark.parametrize("svrg", ["table", "recompute", "off"])
def test_it_agrees_with_brute_force_over_all_samples(svrg, kind, contexts):
    """The weights before an epoch stand in for a snapshot where SVRG is off."""
    problem = problems.make(kind, contexts, samples=40)
    estimator = estimator_of(problem, contexts)
    meter = gs.VarianceHandler(at=(20, 60, 100), batches=5)
    brute = BruteForce(problem)
    handlers = [meter, brute]
    if svrg != "off":
        handlers.append(gs.SVRGHandler(gradient_table=svrg == "table"))
    estimator.fit(problem.ndarrays(), epochs=2, event_handlers=handlers)
    expected = [brute.ratios[i][0] for i in (0, 2, 4, 5, 7, 9)]
    assert [record.ratio for record in meter.records] == pytest.approx(expected, rel=1e-9)
    assert [(r.epoch, r.at) for r in meter.records] == [
        (epoch, at) for epoch in (0, 1) for at in (0.2, 0.6, 1.0)
    ]
    assert all(record.ratio == record.svrg_ratio for record in meter.records)
    # 6 measurements over 40 samples: at the weights, and at the snapshot where SVRG does not count.
    assert meter.gradient_evaluations == 240 * (2 if svrg == "off" else 1)


def test_the_coefficient_is_the_one_in_force():
    problem = problems.make("mlp", samples=40)
    meter, brute = gs.VarianceHandler(at=(20, 100), batches=5), BruteForce(problem)
    handlers = [meter, brute, gs.SVRGHandler(coefficient=0.5)]
    estimator_of(problem).fit(problem.ndarrays(), epochs=1, event_handlers=handlers)
    for record, index in zip(meter.records, (0, 4), strict=True):
        assert record.ratio == pytest.approx(brute.ratios[index][1], rel=1e-9)
        assert record.svrg_ratio == pytest.approx(brute.ratios[index][0], rel=1e-9)


@pytest.mark.parametrize(
    ("coefficient", "expected"), [(0.5, 0.5), (gs.linear_decay(0.8), 0.4), ("auto", "auto")]
)
def test_a_second_look_is_for_the_coefficient_of_svrg(coefficient, expected, monkeypatch):
    monkeypatch.setattr("gluon_svrg.svrg.payoff._MIN_BATCHES", 5)  # as brute force: all
    problem = problems.make("mlp", samples=40)
    meter = gs.VarianceHandler(at=(60, 100), batches=5)
    svrg = gs.SVRGHandler(coefficient=coefficient, max_variance_ratio=1e-6)
    handlers, brute = [meter, svrg], BruteForce(problem)
    estimator_of(problem).fit(problem.ndarrays(), epochs=2, event_handlers=[*handlers, brute])
    record = meter.records[1]
    assert (record.epoch, record.at) == (1, 0.6)
    if expected == "auto":
        assert record.ratio == record.optimal_ratio < record.svrg_ratio
    else:
        r, half = brute.ratios[7]  # at 1 and at 0.5: a parabola in the coefficient, 1 at 0
        curvature = 2 * (r - 1) - 4 * (half - 1)
        slope = r - 1 - curvature
        expected_ratio = 1 + slope * expected + curvature * expected**2
        assert record.ratio == pytest.approx(expected_ratio, rel=1e-8)


def test_an_old_snapshot_does_not_start_at_zero():
    problem = problems.make("mlp", samples=40)
    meter = gs.VarianceHandler(at=(100,), batches=5)
    handlers = [meter, gs.SVRGHandler(update_freq=3)]
    estimator_of(problem).fit(problem.ndarrays(), epochs=4, event_handlers=handlers)
    ratios = [record.ratio for record in meter.records]
    averages = [record.average for record in meter.records]
    assert averages == pytest.approx(
        [ratios[0] / 2, (ratios[0] + ratios[1]) / 2, (ratios[1] + ratios[2]) / 2, ratios[3] / 2]
    )


@pytest.mark.slow
def test_a_parameter_that_is_frozen_and_unfrozen_on_the_way():
    class Changes(BatchEnd):
        priority = 400

        def batch_end(self, estimator, *args, **kwargs):
            done = estimator.position.batch
            weight = estimator.net.collect_params()[name]
            weight.grad_req = "null" if done in (1, 2, 8, 9) else "write"

    for coefficient in (1.0, "auto"):
        problem = problems.make("mlp", samples=40)
        name = list(problem.net.collect_params())[0]  # noqa: RUF015
        meter = gs.VarianceHandler(at=(20, 40, 60, 80, 100), batches=3)
        svrg = gs.SVRGHandler(coefficient=coefficient, gradient_table=False)
        estimator_of(problem).fit(
            problem.ndarrays(), epochs=3, event_handlers=[Changes(), meter, svrg]
        )
        assert len(meter.records) == 15
        assert all(math.isfinite(record.ratio) for record in meter.records)


def test_a_smaller_last_batch_is_not_measured():
    """It varies more: three batches of which the last has one sample."""
    problem = problems.make("softmax", samples=17)
    meters = []
    for batches in (2, 3):
        meters.append(gs.VarianceHandler(at=(100,), batches=batches))
        same = problems.make("softmax", samples=17)
        estimator_of(same).fit(problem.ndarrays(), epochs=1, event_handlers=[meters[-1]])
    assert meters[0].records[0].variance == meters[1].records[0].variance


def test_points_on_one_batch_are_all_in_the_row():
    problem = problems.make("softmax", samples=40)
    result = estimator_of(problem).fit(
        problem.ndarrays(), epochs=1, event_handlers=[gs.VarianceHandler(batches=3)]
    )
    row = result.history[0]
    assert row["variance_ratio_at_2"] == row["variance_ratio_at_11"]
    assert row["variance_ratio_at_33"] != row["variance_ratio_at_100"]


def test_the_row_of_the_history():
    problem = problems.make("mlp", samples=40)
    meter = gs.VarianceHandler(at=(20, 60), batches=5)
    result = estimator_of(problem).fit(
        problem.ndarrays(), epochs=2, event_handlers=[meter, gs.SVRGHandler()]
    )
    for epoch, row in enumerate(result.history):
        names = [name for name in row if name.startswith("variance_ratio")]
        assert names == ["variance_ratio", "variance_ratio_at_20", "variance_ratio_at_60"]
        first, second = (r.ratio for r in meter.records if r.epoch == epoch)
        assert row["variance_ratio_at_20"] == first
        assert row["variance_ratio_at_60"] == second
        expected = 0.2 * first / 2 + 0.4 * (first + second) / 2 + 0.4 * second
        assert row["variance_ratio"] == pytest.approx(expected)


@pytest.mark.slow
def test_the_plot_has_one_panel_for_the_ratio(tmp_path):
    problem = problems.make("mlp", samples=400)
    result = estimator_of(problem).fit(
        problem.ndarrays(),
        epochs=2,
        event_handlers=[gs.VarianceHandler(batches=3), gs.SVRGHandler()],
    )
    figure = result.history.plot(tmp_path / "curves.png")
    panel = [axes for axes in figure.axes if axes.get_ylabel() == "variance ratio"]
    assert len(panel) == 1
    labels = [text.get_text() for text in panel[0].get_legend().get_texts()]
    assert labels == ["average", "at 2 %", "at 11 %", "at 33 %", "at 100 %"]
    assert not any("variance_ratio" in axes.get_ylabel() for axes in figure.axes)


@pytest.mark.parametrize(
    ("length", "at", "expected"),
    [
        (5, (2, 11, 33, 100), [1, 2, 5]),
        (100, (2, 11, 33, 100), [2, 11, 33, 100]),
        (7, (100,), [7]),
        (3, (0.1, 50), [1, 2]),
    ],
)
def test_the_points(length, at, expected):
    problem = problems.make("softmax", samples=length, batch_size=1)
    meter = gs.VarianceHandler(at=at, batches=2)
    estimator_of(problem).fit(problem.ndarrays(), epochs=1, event_handlers=[meter])
    assert [round(record.at * length) for record in meter.records] == expected


def test_every_n_epochs():
    problem = problems.make("softmax", samples=40)
    meter = gs.VarianceHandler(at=(50,), batches=2, every_n_epochs=2)
    result = estimator_of(problem).fit(problem.ndarrays(), epochs=5, event_handlers=[meter])
    assert [record.epoch for record in meter.records] == [0, 2, 4]
    assert ["variance_ratio" in row for row in result.history] == [True, False] * 2 + [True]


@pytest.mark.long
@pytest.mark.full
@pytest.mark.parametrize("coefficient", ["auto", OptimalCoefficient("network"), 0.4])
def test_auto_is_never_worse_than_nothing_or_svrg(coefficient):
    """0.4 is for the contrast: at the beginning of an interval it is worse than 1."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 6))
    y = (x @ rng.normal(size=(6, 3)) + rng.normal(size=(800, 3))).argmax(1).astype(float)
    problem = problems.make("mlp")
    batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 800, 8)]
    problem = problem._replace(batches=batches)
    meter = gs.VarianceHandler(at=(5, 11, 33, 100), batches=100)
    handlers = [meter, gs.SVRGHandler(coefficient=coefficient)]
    estimator_of(problem, lr=2.0).fit(problem.ndarrays(), epochs=2, event_handlers=handlers)
    # Estimated from 16 batches, or fewer at the beginning, a coefficient is off by about 0.1: 0.01
    # of the variance at the snapshot, which may be larger than the one here.
    worse = [r for r in meter.records if r.ratio > 1.05 * min(1, r.svrg_ratio) + 0.02]
    assert bool(worse) == (coefficient == 0.4)
    assert any(r.svrg_ratio > 1 for r in meter.records)  # there is something to be gained


def test_without_a_table_the_gradients_are_counted_once():
    problem = problems.make("softmax", samples=40)
    meter = gs.VarianceHandler(at=(100,), batches=5)
    svrg = gs.SVRGHandler(gradient_table=False)
    estimator_of(problem).fit(problem.ndarrays(), epochs=1, event_handlers=[meter, svrg])
    assert meter.gradient_evaluations == 40
    assert svrg.gradient_evaluations == 40 + 40 + 40  # full pass, training, measurement


def net_of(kind, seed=0):
    gs.seed_everything(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6, activation="relu"))
        if kind == "batchnorm":
            net.add(nn.BatchNorm(in_channels=8))
        if kind == "dropout":
            net.add(nn.Dropout(0.5))
        net.add(nn.Dense(3, in_units=8))
    net.initialize(mx.init.Normal(0.5))
    return problems.Problem([], net, gluon.loss.SoftmaxCELoss(), None)


def loader_of(**arguments):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 6)).astype("float32")
    y = rng.integers(0, 3, 80).astype("float32")
    return ArrayLoader(x, y, batch_size=8, shuffle=True, seed=1, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("svrg", [True, False])
@pytest.mark.parametrize("kind", ["plain", "batchnorm"])
def test_it_changes_nothing(kind, svrg):
    weights = []
    for measures in (False, True):
        problem = net_of(kind)
        handlers = [gs.SVRGHandler()] if svrg else []
        if measures:
            handlers.append(gs.VarianceHandler(batches=3))
        estimator_of(problem).fit(loader_of(), epochs=2, event_handlers=handlers)
        weights.append(problems.weights_of(problem.net))
    assert problems.same(*weights)


@pytest.mark.slow
def test_with_svrg_it_sees_the_masks_of_training():
    """At the snapshot the gradients are the same, dropout or not: at a step of 0 the ratio is 0."""
    problem = net_of("dropout")
    meter = gs.VarianceHandler(batches=5)
    svrg = gs.SVRGHandler(gradient_table=False)
    estimator_of(problem, lr=0).fit(loader_of(), epochs=1, event_handlers=[meter, svrg])
    assert all(record.ratio < 1e-12 for record in meter.records)
    problem = net_of("dropout")
    estimator_of(problem, lr=0).fit(loader_of(), epochs=1, event_handlers=[meter])
    assert len(meter.records) == 3  # 2 and 11 % are both the first batch
    assert all(record.ratio < 1e-12 for record in meter.records)  # without SVRG as well
    problem = net_of("dropout")
    svrg = gs.SVRGHandler(lock="off")
    estimator_of(problem, lr=0).fit(loader_of(), epochs=1, event_handlers=[meter, svrg])
    assert all(record.ratio > 0.3 for record in meter.records)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 10, 14])
@pytest.mark.parametrize("coefficient", [None, 1.0, "auto"])
def test_resume(tmp_path, stop, coefficient):
    """The records, the reference weights and the estimate are those of an undisturbed run."""

    def run(*handlers, resume=None, seed=0):
        problem = net_of("plain", seed)
        estimator = estimator_of(problem)
        meter = gs.VarianceHandler(at=(20, 50, 100), batches=4)
        svrg = [] if coefficient is None else [gs.SVRGHandler(coefficient=coefficient)]
        result = estimator.fit(
            loader_of(), epochs=2, event_handlers=[meter, *svrg, *handlers], resume=resume
        )
        return problems.weights_of(problem.net), meter, result

    class Stop(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch + 1 == stop:
                estimator.stop()

    weights, meter, result = run()
    run(Stop(), gs.CheckpointHandler(tmp_path))
    weights2, meter2, result2 = run(gs.CheckpointHandler(tmp_path), resume="auto", seed=1)
    assert problems.same(weights, weights2)
    assert meter.records == meter2.records
    assert meter.gradient_evaluations == meter2.gradient_evaluations
    ratios = [[row["variance_ratio"] for row in r.history] for r in (result, result2)]
    assert ratios[0] == ratios[1]


@pytest.mark.full
def test_a_data_loader_keeps_its_order():
    """Measuring iterates it once more; the epochs' orders, drawn from NumPy, stay as they are."""
    orders = []
    for measures in (False, True):
        problem = net_of("plain")
        x = np.arange(240, dtype="float32").reshape(40, 6) / 240
        data = gluon.data.DataLoader(
            gluon.data.ArrayDataset(x, np.arange(40, dtype="float32") % 3), 8, shuffle=True
        )

        class Order(BatchEnd):
            seen = []  # noqa: RUF012  # one a class, and a class a run

            def batch_end(self, estimator, *args, **kwargs):
                self.seen.append(kwargs["batch"][0].asnumpy()[0, 0])

        handlers = [Order(), gs.VarianceHandler(batches=3)][: 2 if measures else 1]
        np.random.seed(0)
        random.seed(0)
        estimator_of(problem).fit(data, epochs=3, event_handlers=handlers)
        orders.append(Order.seen)
    assert orders[0] == orders[1]
    assert len(set(orders[0])) > 5


def test_layers_without_a_shape_yet():
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    net.initialize()
    problem = problems.make("softmax")._replace(net=net, loss=gluon.loss.SoftmaxCELoss())
    meter = gs.VarianceHandler(at=(50, 100), batches=3)
    estimator_of(problem).fit(problem.ndarrays("float32"), epochs=1, event_handlers=[meter])
    assert len(meter.records) == 2
    assert all(0 < record.ratio < math.inf for record in meter.records)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"at": (0,)}, ValueError, r"at must hold percentages of an epoch, above 0 .*, got 0"),
        ({"at": (50, 101)}, ValueError, r"at most 100, got 101"),
        ({"at": -2}, ValueError, r"got -2"),
        ({"at": ("2",)}, TypeError, r"got '2'"),
        ({"at": (True,)}, TypeError, r"got True"),
        ({"at": ()}, ValueError, r"at must hold at least one percentage, got none"),
        ({"batches": 1}, ValueError, r"batches must be .*, got 1"),
        ({"every_n_epochs": 0}, ValueError, r"every_n_epochs must be a positive integer, got 0"),
        ({"coefficient": 2}, ValueError, r"coefficient must be in \[0, 1\], got 2"),
        ({"seed": -1}, ValueError, r"seed must be .*, got -1"),
        ({"coefficient": "Auto"}, TypeError, r"or 'auto', got 'Auto'"),
        ({"priority": -4000}, ValueError, r"priority must be a number above -2000, got -4000"),
    ],
)
def test_bad_arguments_are_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        gs.VarianceHandler(**arguments)


def test_data_without_a_length_is_an_error():
    class Endless:
        def __iter__(self):
            return iter(problems.make("softmax").ndarrays())

    problem = problems.make("softmax")
    with pytest.raises(ValueError, match="Endless has no length"):
        estimator_of(problem).fit(Endless(), epochs=1, event_handlers=[gs.VarianceHandler()])


def test_one_batch_is_an_error():
    problem = problems.make("softmax", samples=8)
    with pytest.raises(ValueError, match="at least two batches per epoch, got 1: use a smaller"):
        estimator_of(problem).fit(
            problem.ndarrays(), epochs=1, event_handlers=[gs.VarianceHandler()]
        )


@pytest.mark.slow
def test_mxnets_estimator_is_an_error():
    problem = problems.make("softmax")
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(*problem.batches[0]), 4)
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd")
    estimator = mx_estimator.Estimator(problem.net, problem.loss, trainer=trainer)
    with pytest.raises(ValueError, match=r"VarianceHandler does not work with mxnet.*: use gluon_"):
        estimator.fit(data, epochs=1, event_handlers=[gs.VarianceHandler()])
