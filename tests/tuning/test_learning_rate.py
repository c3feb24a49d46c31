"""find_learning_rate: what it measures, what it suggests, and that a run after it is the same."""

import logging
import math
from itertools import pairwise
from types import SimpleNamespace

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import runs
from gluon_svrg.data import ArrayLoader
from gluon_svrg.reporting.history import MEASURED
from gluon_svrg.tuning import learning_rate
from mxnet import gluon
from mxnet.gluon import nn
from problems import ONE, TWO, array, weights_of
from sklearn.datasets import load_digits


def digits_estimator(optimizer="sgd", contexts=ONE, **arguments):
    gs.seed_everything(0)
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu"), nn.Dropout(0.1), nn.Dense(10))
    net.initialize(mx.init.Xavier(), ctx=list(contexts))
    net.hybridize()
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, arguments)
    return gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)


def digits(rows=slice(0, 1400), **arguments):
    x, y = load_digits(return_X_y=True)
    x, y = (x[rows] / 16).astype("float32"), y[rows].astype("float32")
    return ArrayLoader(x, y, batch_size=64, shuffle=True, seed=0, **arguments)


class Linear:
    """A linear network on L2Loss with plain SGD, in NumPy."""

    def __init__(self):
        self.weight, self.bias = np.zeros((1, 3)), np.zeros(1)

    def loss(self, x, y):
        return np.mean((x @ self.weight.T + self.bias - y[:, None]) ** 2 / 2)

    def step(self, x, y, rate):
        rate = float(np.float32(rate))  # what MXNet's operators get
        error = (x @ self.weight.T + self.bias)[:, 0] - y
        self.weight = self.weight - rate * (error @ x)[None] / len(x)
        self.bias = self.bias - rate * error.mean()


def oracle(rates, batches, smoothing):
    """The range test by hand."""
    net = Linear()
    losses, smoothed, mean = [], [], 0.0
    for step, rate in enumerate(rates, 1):
        batch = batches[(step - 1) % len(batches)]
        losses.append(net.loss(*batch))
        mean = smoothing * mean + (1 - smoothing) * losses[-1]
        smoothed.append(mean / (1 - smoothing**step))
        if step > 10 and smoothed[-1] > 4 * min(smoothed):
            return losses, smoothed, True
        net.step(*batch, rate)
    return losses, smoothed, False


def trial_by_hand(rate, batches, number):
    net = Linear()
    losses = []
    for step in range(number):
        batch = batches[step % len(batches)]
        losses.append(net.loss(*batch))
        net.step(*batch, rate * (1 - step / number))
    return np.mean(losses[-(number // 5) :])


def linear_problem(contexts=ONE):
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(8, 3)), 0.1 * rng.normal(size=8) + 2) for _ in range(4)]
    net = nn.Dense(1, in_units=3)
    net.initialize(mx.init.Zero(), ctx=list(contexts))
    net.cast("float64")
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 7.0})
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    return estimator, batches, [(array(x, "float64"), array(y, "float64")) for x, y in batches]


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("max_lr", [0.5, 100.0], ids=["whole", "diverges"])
def test_rates_and_losses_are_those_of_the_oracle(contexts, max_lr, mode):
    estimator, batches, data = linear_problem(contexts)
    found = gs.find_learning_rate(estimator, data, 1e-4, max_lr, 40, trial_batches=0, smoothing=0.8)
    rates = 1e-4 * (max_lr / 1e-4) ** (np.arange(40) / 39)
    losses, smoothed, diverged = oracle(rates, batches, 0.8)
    np.testing.assert_allclose(found.learning_rates, rates[: len(losses)], rtol=1e-12)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-10)
    np.testing.assert_allclose(found.smoothed_losses, smoothed, rtol=1e-10)
    assert found.diverged == diverged == (max_lr > 1)
    assert (len(losses) < 40) == diverged
    half = (np.mean(losses[:10]) + min(smoothed)) / 2
    has_fallen = np.mean(losses[:10]) - min(smoothed) > np.std(losses[:10])
    first = next(k for k in range(10, 40) if smoothed[k] <= half)
    assert found.suggestion == (pytest.approx(rates[first]) if has_fallen else None)
    assert found.trials == {}
    assert estimator.trainer.learning_rate == 7.0
    assert all(not weights.any() for weights in weights_of(estimator.net))


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("max_lr", [1.0, 100.0], ids=["bounded", "inside"])
def test_trials_are_those_of_the_oracle(contexts, max_lr, mode):
    estimator, batches, data = linear_problem(contexts)
    first = gs.find_learning_rate(estimator, data, 1e-4, max_lr, 40, trial_batches=0).suggestion
    found = gs.find_learning_rate(estimator, data, 1e-4, max_lr, 40, trial_batches=20)
    rates = sorted(found.trials)
    assert 2.0 ** round(math.log2(first)) in rates
    assert all(low * 2 == high for low, high in pairwise(rates))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = [trial_by_hand(rate, batches, 20) for rate in rates]
    np.testing.assert_allclose([found.trials[rate] for rate in rates], expected, rtol=1e-6)
    best = int(np.argmin(expected))
    assert best > 0
    assert best < len(rates) - 1 or rates[best] * 2 > max_lr
    assert found.suggestion == learning_rate._suggestion_from_trials(found.trials)
    assert estimator.trainer.learning_rate == 7.0
    assert all(not weights.any() for weights in weights_of(estimator.net))


@pytest.mark.parametrize(
    ("trials", "suggestion"),
    [
        ({1.0: 3.0, 2.0: 2.0, 4.0: 3.0}, 2.0),
        # (log2(rate) - 1.25) squared
        ({1.0: 1.5625, 2.0: 0.0625, 4.0: 0.5625}, 2**1.25),
        ({1.0: 3.0, 2.0: 2.0, 4.0: math.inf}, 2**0.5),
        ({1.0: math.inf, 2.0: 2.0, 4.0: math.inf}, 2.0),
        ({1.0: 3.0, 2.0: 2.0}, 2.0),
        ({1.0: 2.0, 2.0: 2.0, 4.0: 2.0}, 1.0),
        ({1.0: math.inf}, None),
    ],
)
def test_the_suggestion_is_below_the_vertex_of_the_best_trials(trials, suggestion):
    expected = None if suggestion is None else pytest.approx(suggestion / math.sqrt(2))
    assert learning_rate._suggestion_from_trials(trials) == expected


@pytest.mark.parametrize(
    ("best", "tried"),
    [(0, [-1, 0, 1]), (2, [-1, 0, 1, 2, 3]), (-3, [-4, -3, -2, -1, 0]), (9, [-1, 0, 1, 2, 3])],
)
def test_rates_are_tried_until_both_sides_are_worse(best, tried):
    def loss_of(rate):
        return abs(math.log2(rate) - best)

    assert sorted(learning_rate._run_trials(1.0, 0.05, 8.0, loss_of)) == [2.0**k for k in tried]


def test_the_first_trial_stays_within_the_bounds():
    assert learning_rate._nearest_power_of_2(0.3, 1e-6, 1.0) == 0.25
    assert learning_rate._nearest_power_of_2(0.3, 0.28, 1.0) == 0.3


def test_no_rate_is_tried_above_one_that_fails():
    def loss_of(rate):
        return math.inf if rate > 0.2 else abs(math.log2(rate) + 3)

    assert list(learning_rate._run_trials(1.0, 1e-3, 8.0, loss_of)) == [
        1.0,
        0.5,
        0.25,
        0.125,
        0.0625,
    ]


GRID = {"sgd": [2.0**k for k in range(-6, 3)], "adam": [2.0**k for k in range(-11, -2)]}


@pytest.mark.long
@pytest.mark.full
@pytest.mark.parametrize(
    ("optimizer", "arguments"), [("sgd", {"momentum": 0.9}), ("adam", {})], ids=["sgd", "adam"]
)
def test_the_suggestion_is_near_the_best_rate_of_a_grid(optimizer, arguments):
    """By the validation loss after five epochs, in which the rate falls to 0; see the benchmark."""
    train, val = digits(), digits(slice(1400, None))
    estimator = digits_estimator(optimizer, **arguments)
    suggestion = gs.find_learning_rate(estimator, train).suggestion
    losses = {}
    for rate in GRID[optimizer]:
        schedule = gs.ScheduleHandler("learning_rate", gs.schedules.linear(rate, 0.0))
        fit = digits_estimator(optimizer, **arguments).fit(
            train, val, epochs=5, event_handlers=[schedule], verbose=0
        )
        losses[rate] = fit.history.last("validation loss")
    best = min(losses, key=losses.get)
    assert min(GRID[optimizer]) < best < max(GRID[optimizer])
    assert best / 3 <= suggestion <= 3 * best


def outcome(is_tested, rate=0.05):
    estimator, data = digits_estimator(momentum=0.9), digits()
    if is_tested:
        assert len(gs.find_learning_rate(estimator, data, trial_batches=20).trials) > 2
    estimator.trainer.set_learning_rate(rate)
    history = estimator.fit(data, epochs=2, verbose=0).history
    rows = [{k: v for k, v in row.items() if k not in MEASURED} for row in history]
    return [*weights_of(estimator.net), rows]


@pytest.mark.slow
def test_a_run_after_it_is_the_run_without_it_bit_for_bit():
    np.testing.assert_equal(outcome(True), outcome(False))


@pytest.mark.slow
def test_it_repeats():
    estimator, data = digits_estimator(), digits()
    first = gs.find_learning_rate(estimator, data, num_batches=20)
    mx.random.seed(99)
    assert gs.find_learning_rate(estimator, data, num_batches=20) == first


@pytest.mark.slow
def test_the_run_s_step_handler_takes_the_steps():
    """Clipped to almost nothing, no rate trains."""
    estimator, data = digits_estimator(), digits()
    handler = gs.GradientUpdateHandler(clip_norm=1e-9)
    still = gs.find_learning_rate(estimator, data, event_handlers=[gs.SVRGHandler(), handler])
    assert still.suggestion is None
    assert gs.find_learning_rate(estimator, data).suggestion is not None


def test_no_suggestion_is_told(caplog):
    estimator = digits_estimator()
    with caplog.at_level(logging.WARNING):
        found = gs.find_learning_rate(estimator, digits(), 1e-9, 1e-8, 20)
    assert found.suggestion is None
    assert "the loss did not fall at any rate from 1e-09 to 1e-08 in 20 batches" in caplog.text


def test_data_whose_position_cannot_be_restored_are_told(caplog, tmp_path):
    rng = np.random.default_rng(0)
    np.savetxt(tmp_path / "x.csv", rng.normal(size=(40, 3)), delimiter=",")
    np.savetxt(tmp_path / "y.csv", rng.integers(0, 2, 40), delimiter=",")
    data = mx.io.CSVIter(
        data_csv=str(tmp_path / "x.csv"),
        label_csv=str(tmp_path / "y.csv"),
        data_shape=(3,),
        batch_size=8,
    )
    net = nn.Dense(2, in_units=3)
    net.initialize()
    estimator = runs.estimator_of(net, lr=0.01)
    gs.find_learning_rate(estimator, data, num_batches=12)
    assert "reads from the data, a MXDataIter, whose position cannot be restored" in caplog.text


# Errors


def small():
    net = nn.Dense(3, in_units=4)
    net.initialize()
    return runs.estimator_of(net)


BATCH = (mx.nd.ones((4, 4)), mx.nd.array([0, 1, 2, 0]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "data is empty: give at least one batch"),
        (iter([BATCH]), "data must be iterable again each epoch"),
        (mx.nd.ones((4, 4)), "an array of shape|must be an iterable"),
    ],
)
def test_no_data(data, message):
    with pytest.raises(ValueError, match=message):
        gs.find_learning_rate(small(), data)


def test_data_that_give_nothing():
    class Nothing:
        def __iter__(self):
            return iter([])

    with pytest.raises(ValueError, match="data gave no batch: it is empty"):
        gs.find_learning_rate(small(), Nothing())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_lr": 0}, "min_lr must be a number above 0, got 0"),
        ({"min_lr": 1.0, "max_lr": 0.1}, "min_lr must be less than max_lr, got 1.0 and 0.1"),
        ({"max_lr": math.inf}, "max_lr must be a finite number"),
        ({"num_batches": 9}, "num_batches must be at least 10, got 9"),
        ({"trial_batches": -1}, "trial_batches must be a non-negative integer, got -1"),
        ({"smoothing": 1.0}, "smoothing must be less than 1, got 1.0"),
        ({"divergence": 1.0}, "divergence must be a number above 1, got 1.0"),
    ],
)
def test_arguments_out_of_their_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        gs.find_learning_rate(small(), [BATCH], **arguments)


def test_a_schedule_of_the_optimizers_own():
    net = nn.Dense(3, in_units=4)
    net.initialize()
    arguments = {"lr_scheduler": mx.lr_scheduler.FactorScheduler(10)}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", arguments)
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    with pytest.raises(ValueError, match="the optimizer has an lr_scheduler, which would overrule"):
        gs.find_learning_rate(estimator, [BATCH])


def test_mxnets_own_estimator():
    net = nn.Dense(3, in_units=4)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    loss = gluon.loss.SoftmaxCELoss()
    theirs = gluon.contrib.estimator.Estimator(net, loss, trainer=trainer, context=mx.cpu())
    with pytest.raises(ValueError, match=r"needs a gluon_svrg.Estimator, got Estimator"):
        gs.find_learning_rate(theirs, [BATCH])


def test_several_workers():
    estimator = small()
    estimator.workers = SimpleNamespace(is_distributed=True, size=4)
    with pytest.raises(ValueError, match="works in one process, but there are 4 workers"):
        gs.find_learning_rate(estimator, [BATCH])


def test_nan_at_the_first_batch():
    estimator = small()
    data = [(mx.nd.array([[np.nan] * 4]), mx.nd.array([0]))]
    with pytest.raises(FloatingPointError, match="the loss of the first batch is nan, before any"):
        gs.find_learning_rate(estimator, data)
    assert estimator.trainer.learning_rate == 0.1


def test_nan_after_the_first_steps():
    estimator = small()
    with pytest.raises(FloatingPointError, match=r"after \d steps with .* give a smaller min_lr"):
        gs.find_learning_rate(estimator, [BATCH], 1e38, 1e39)
    assert np.isfinite(estimator.net.weight.data().asnumpy()).all()


def test_nothing_is_trained():
    estimator = small()
    estimator.net.collect_params().setattr("grad_req", "null")
    with pytest.raises(ValueError, match="no parameter is trained"):
        gs.find_learning_rate(estimator, [BATCH])


@pytest.mark.slow
def test_the_plot(tmp_path):
    found = gs.find_learning_rate(digits_estimator(), digits())
    figure = found.plot(tmp_path / "new" / "test.png")
    (axes,) = figure.axes
    assert (tmp_path / "new" / "test.png").stat().st_size > 1000
    assert axes.get_xscale() == "log"
    smoothed = axes.lines[1]
    np.testing.assert_array_equal(smoothed.get_xdata(), found.learning_rates)
    np.testing.assert_array_equal(smoothed.get_ydata(), found.smoothed_losses)
    np.testing.assert_array_equal(axes.lines[2].get_xdata(), sorted(found.trials))
    assert axes.lines[3].get_xdata()[0] == found.suggestion


@pytest.mark.parametrize("step", [{}, {"accumulate": 2}, {"clip_norm": 1.0}], ids=str)
def test_gradients_that_add_up_are_those_of_one_step(step):
    """As a loop by hand leaves the network, with grad_req='add'."""
    found = []
    for grad_req in ("write", "add"):
        net = nn.Dense(1, in_units=3)
        net.initialize(mx.init.Zero())
        net.collect_params().setattr("grad_req", grad_req)
        x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
        estimator = runs.estimator_of(net, gluon.loss.L2Loss(), lr=0.1)
        data = ArrayLoader(x, x.sum(axis=1, keepdims=True), batch_size=8)
        handlers = [gs.GradientUpdateHandler(**step)]
        test = gs.find_learning_rate(estimator, data, num_batches=12, event_handlers=handlers)
        found.append(test.losses)
    np.testing.assert_array_equal(*found)
